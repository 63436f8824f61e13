"""Features of more texts than memory holds, in a file that a killed run resumes.

What is finished is kept in parts next to the file (`kbert.io.outputs`). The chunks of a restart are
the same, so the bytes are too.

Shapes: `N` texts, `T` tokens of a text, `D` width of the features.
"""

import itertools
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
from absl import logging

from kbert.core import registry
from kbert.core.in_memory import rows_of
from kbert.core.types import PathLike
from kbert.extraction.extract import report_cut
from kbert.extraction.extractor import Extractor
from kbert.extraction.files import FORMATS
from kbert.extraction.inputs import as_inputs
from kbert.io import atomic, fingerprints
from kbert.io.chunks import chunks
from kbert.io.outputs import GrowingOutput
from kbert.io.paths import local_only
from kbert.io.progress import Progress
from kbert.text import open_sources
from kbert.tokenizers.base import Tokenizer

# A chunk ends after so many texts, or so many characters: vectors of tokens take kilobytes each.
_TEXTS = 1024
_CHARACTERS = 4 << 20
_CHARACTERS_OF_TOKENS = 1 << 18
DTYPES = ("float32", "float16")


def write_features(
    path: PathLike,
    encoder: keras.Model,
    tokenizer: Tokenizer,
    texts: Iterable | None = None,
    *,
    sources: str | os.PathLike | Iterable[str | os.PathLike] | None = None,
    unit: str = "line",
    field: str = "text",
    dtype: str = "float32",
    verbose: str | int = "auto",
    **settings: Any,
) -> int:
    """Writes the features of texts to a file, at constant memory.

    Killed at any moment and started again with the same arguments, it resumes and writes the same
    bytes. `kbert.extraction.read_features` reads what it writes.

    Args:
        path: `.npy`: one array (N, D) that `numpy.load(path, mmap_mode="r")` opens; without pooling
            the vectors of all tokens in sequence, and where each text ends in `<path>.ends.npy`.
            `.tfrecord`: a `tf.train.Example` a text, with its raw little-endian `vectors` and their
            `shape`.
        encoder: a `kbert.Encoder`.
        tokenizer: its tokenizer.
        texts: what `kbert.features` takes, or an iterable of it that gives the same texts each
            time.
        sources: instead of texts, files as in `kbert.text.open_sources`: patterns of .txt, .jsonl
            (both also .gz), tfds:…, docs:….
        unit: a text of a source is a "line" or a "document"; empty lines are skipped.
        field: where JSON lines and TensorFlow data sets keep the text.
        dtype: What the numbers in the file are stored as, "float32" or "float16".
        verbose: 1 = a progress bar, 0 = none, "auto" = one where it takes longer than a moment.
        **settings: layers, pooling, words, merge, special_tokens, max_length, doc_stride and
            batch_size, as in `kbert.features`.

    Returns:
        N.

    Raises:
        FileExistsError: the file is there already.
        ValueError: a half-finished file of other settings, an unknown suffix, or arguments that
            are out of range.

    Example:
        >>> import tempfile
        >>> import kbert
        >>> import numpy as np
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "rain"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=6))
        >>> path = os.path.join(tempfile.mkdtemp(), "rain.npy")
        >>> write_features(path, encoder, tokenizer, ["rain", "rain rain", "sun"], verbose=0)
        3
        >>> np.load(path, mmap_mode="r").shape
        (3, 128)
    """
    path = local_only(path, "A file of features")
    suffix = os.path.splitext(path)[1]
    if suffix not in FORMATS or dtype not in DTYPES or unit not in ("line", "document"):
        raise ValueError(
            f"A file ends in {' or '.join(FORMATS)}, its numbers are {' or '.join(DTYPES)}, and a "
            f'unit is "line" or "document". Received: {path}, dtype={dtype!r}, unit={unit!r}'
        )
    if (texts is None) == (sources is None):
        raise ValueError(
            "Give either texts or sources. Received: " + ("both", "none")[texts is None]
        )
    note = f"{path}.progress.json"
    if os.path.exists(path):
        atomic.remove(note)  # of a process that was killed when it had finished
        raise FileExistsError(f"{path} already exists; remove it to write it again")
    extractor = Extractor(encoder, tokenizer, **settings)
    opened = [] if sources is None else open_sources(sources, field=field)
    begun = {
        **{name: repr(value) for name, value in sorted(settings.items())},
        "dtype": dtype,
        "sources": [source.identity() for source in opened],
        "unit": unit,
        "tokenizer": tokenizer.checksum,
        "weights": _checksum(encoder),
    }
    form = FORMATS[suffix](extractor.width, extractor.pooling is None, dtype)
    output = GrowingOutput(path, {"begun": begun}, form, note, _by_todays_names, hidden=True)
    each = _source_texts(opened, unit) if opened else rows_of(_several(texts))
    rest = output.rest(each, repr)
    if output.records:
        logging.info("%s: resuming after %d texts", path, output.records)
    extractor.cut = 0
    most = _CHARACTERS_OF_TOKENS if extractor.pooling is None else _CHARACTERS
    with output.growing(), _progress(texts, opened, verbose) as bar:
        for chunk in chunks(rest, _TEXTS, most, _characters):
            output.add(extractor(as_inputs(chunk, extractor.words, output.records)), chunk)
            read = sum(source.consumed for source in opened)
            bar.show(read if opened else output.records, output.records if opened else None)
        report_cut(extractor)
    return output.records


def _by_todays_names(note: dict[str, Any]) -> dict[str, Any]:
    """A note of any version; that of 0.2.0 has `texts`, and no checksum of them."""
    texts = note.pop("texts", 0)
    return {"records": texts, "finished": False, **note, "begun": registry.current(note["begun"])}


def _characters(text: Any) -> int:
    """The length of a text, a pair or a list of words; 0 of what `as_inputs` will refuse."""
    if isinstance(text, str | bytes):
        return len(text)
    if isinstance(text, Mapping):
        return _characters([*text.values()])
    return sum(map(_characters, text)) if isinstance(text, list | tuple) else 0


def _several(texts: Any) -> Any:
    """One text as a list of it."""
    return [texts] if isinstance(texts, str | bytes) else texts


def _source_texts(opened: list, unit: str) -> Iterator[str]:
    for source in opened:
        for document in source.documents():
            lines = [document] if unit == "document" else document.split(b"\n")
            yield from (line.decode() for line in lines if line.strip())


def _checksum(encoder: keras.Model) -> str:
    """A checksum of the weights: a file must not be half of one model and half of another."""
    named = ((weight.path, weight.numpy()) for weight in encoder.weights)
    return fingerprints.blake2b(itertools.chain.from_iterable(named))


def _progress(texts: Any, opened: list, verbose: str | int) -> Progress:
    """A progress bar in bytes of sources, or in texts."""
    total = sum(source.size for source in opened) if opened else None
    if not opened and hasattr(texts, "__len__") and not isinstance(texts, Mapping):
        total = len(texts)
    return Progress("features", total, "B" if opened else " texts", "texts", verbose)
