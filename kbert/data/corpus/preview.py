"""Previews `prepare_corpus` on the first documents, before hours of work."""

import itertools
import time
from typing import Any, NamedTuple

import numpy as np

from kbert.core.late import tf
from kbert.data.corpus import records
from kbert.data.corpus.chunks import as_in_text
from kbert.text import open_sources, split_sentences
from kbert.text.source import Source
from kbert.tokenizers.base import Tokenizer

# Text that is tokenised to measure speed and tokens per byte, spread over the sources.
_SAMPLE_BYTES = 4 << 20
_SAMPLED_SOURCES = 8
# Peak memory of a process: half a gigabyte for TensorFlow, the other half for a chunk or a shard.
_PROCESS_BYTES = 1_100_000_000
_LENGTHS_SHARE = 0.04  # the length of a sentence of about 100 bytes is stored in 4 bytes
_OTHER_WORK = 1.3  # reading, hashing and writing, relative to splitting and tokenizing
_SHOWN_SENTENCES = 6


class Estimate(NamedTuple):
    """Resources that a corpus needs; all but `disk_bytes` are estimates from a sample.

    Attributes:
        disk_bytes: size of the sources on disk.
        text_bytes: size of the unpacked text.
        tokens: number of ids that will be stored.
        output_bytes: size of the shards; the same again is needed during the work.
        seconds: run time with all worker processes.
        memory_bytes: peak memory of all processes together.
    """

    disk_bytes: int
    text_bytes: int
    tokens: int
    output_bytes: int
    seconds: float
    memory_bytes: int


def preview_corpus(
    sources: Any,
    tokenizer: Tokenizer,
    *,
    num_documents: int = 3,
    num_workers: int = 1,
    field: str = "text",
    on_bad_utf8: str = "fail",
) -> tuple[str, Estimate]:
    """Reads the beginning of the sources and shows what preparing them would do.

    Args:
        sources: files, patterns, `tfds:…`, `docs:` or tables; see `kbert.text.open_sources`.
        tokenizer: tokenizer that makes the ids.
        num_documents: number of documents to show as sentences and tokens.
        num_workers: number of processes for which time and memory are estimated.
        field: name of the column or field with the text, see `kbert.text.open_sources`.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.

    Returns:
        A text to print (the documents, then the estimate), and the estimate.

    Example:
        >>> import os, tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> path = os.path.join(tempfile.mkdtemp(), "one.txt")
        >>> with open(path, "w") as file:
        ...     _ = file.write("It rained. We stayed in.\\n")
        >>> words = "it rained we stayed in .".split()
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *words])
        >>> print(preview_corpus(path, tokenizer)[0].split("\\n\\n")[0])
        document 1: 2 sentences, 7 tokens
          It rained.
            it rained .
          We stayed in.
            we stayed in .
    """
    opened = open_sources(sources, field=field, on_bad_utf8=on_bad_utf8)
    step = -(-len(opened) // _SAMPLED_SOURCES)
    sampled = opened[::step]
    samples = [_beginning(source, _SAMPLE_BYTES // len(sampled)) for source in sampled]
    # One document of each source in turn.
    documents = [text for turn in itertools.zip_longest(*samples) for text in turn if text]
    parts = [_show(n, text, tokenizer) for n, text in enumerate(documents[:num_documents], start=1)]
    estimate = _estimate(opened, documents, tokenizer, max(num_workers, 1))
    return "\n\n".join([*parts, _table(estimate, len(opened), num_workers)]), estimate


def _beginning(source: Source, size: int) -> list[bytes]:
    """Returns the first documents of a source, until they have `size` bytes or more."""
    documents: list[bytes] = []
    for text in source.documents():
        documents.append(text)
        size -= len(text)
        if size <= 0:
            break
    return documents


def _show(number: int, text: bytes, tokenizer: Tokenizer) -> str:
    """Returns lines that show a document (UTF-8): its size, its first sentences and their tokens.

    `number` counts the documents from 1.
    """
    sentences = split_sentences(text.decode())
    ids = tokenizer.encode(as_in_text(sentences, tokenizer))
    tokens = int(tf.size(ids.flat_values))
    lines = [f"document {number}: {len(sentences):,} sentences, {tokens:,} tokens"]
    for sentence, row in zip(sentences[:_SHOWN_SENTENCES], ids.to_list(), strict=False):
        lines.append(f"  {sentence}")
        lines.append(f"    {' '.join(tokenizer.id_to_token(token) for token in row)}")
    if len(sentences) > _SHOWN_SENTENCES:
        lines.append(f"  … {len(sentences) - _SHOWN_SENTENCES:,} more")
    return "\n".join(lines)


def _estimate(
    sources: list[Source], sample: list[bytes], tokenizer: Tokenizer, num_workers: int
) -> Estimate:
    """Estimates the size of the corpus and its preparation, from tokenizing a sample.

    Args:
        sources: all sources of the corpus.
        sample: documents (UTF-8) to tokenize.
        tokenizer: tokenizer of the corpus.
        num_workers: number of processes that will prepare it.
    """
    tokenizer.encode(["the first call traces the graph"])
    start = time.perf_counter()
    tokens = 0
    for text in sample:
        sentences = as_in_text(split_sentences(text.decode()), tokenizer)
        tokens += int(tf.size(tokenizer.encode(sentences).flat_values))
    seconds = time.perf_counter() - start
    text_bytes = sum(int(source.size * source.expansion()) for source in sources)
    scale = text_bytes / max(sum(map(len, sample)), 1)
    id_bytes = np.dtype(records.token_dtype(tokenizer.vocabulary_size)).itemsize
    return Estimate(
        disk_bytes=sum(source.size for source in sources),
        text_bytes=text_bytes,
        tokens=int(tokens * scale),
        output_bytes=int(tokens * scale * id_bytes + _LENGTHS_SHARE * text_bytes),
        seconds=seconds * scale * _OTHER_WORK / num_workers,
        memory_bytes=num_workers * _PROCESS_BYTES,
    )


def _table(estimate: Estimate, num_sources: int, num_workers: int) -> str:
    """Returns an estimate as lines of text, one per quantity."""
    rows = {
        "sources": f"{num_sources:,}, {_size(estimate.disk_bytes)} on disk, about "
        f"{_size(estimate.text_bytes)} of text",
        "tokens": f"about {estimate.tokens / 1e6:,.1f} million",
        "shards": f"about {_size(estimate.output_bytes)}; as much again while preparing",
        "time": f"about {_duration(estimate.seconds)}",
        "memory": f"about {_size(estimate.memory_bytes)}",
    }
    lines = [f"{name:8} {text}" for name, text in rows.items()]
    return "\n".join([f"estimate, num_workers={num_workers}:", *lines])


def _size(count: float) -> str:
    units = ["bytes", "kB", "MB", "GB", "TB"]
    while count >= 1000 and len(units) > 1:
        count /= 1000
        units.pop(0)
    return f"{count:,.0f} bytes" if units[0] == "bytes" else f"{count:,.1f} {units[0]}"


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
