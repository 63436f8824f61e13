"""Writes features of more texts than fit in memory; a killed run resumes.

Finished features are in `.part` files next to the output (`kbert.io.outputs`). A restart makes the
same chunks, so the bytes are the same too.

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
from kbert.models.edits import active_record
from kbert.text import open_sources
from kbert.tokenizers.base import Tokenizer

# A chunk ends after this many texts or characters: each token vector needs kilobytes.
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

    A run that is killed at any moment can be started again with the same arguments; it then resumes
    and writes the same bytes. `kbert.extraction.read_features` opens the file.

    Args:
        path: path of the file. `.npy`: one array (N, D) that `numpy.load(path, mmap_mode="r")`
            opens; without pooling the vectors of all tokens in sequence, with the ends of the texts
            in `<path>.ends.npy`. `.tfrecord`: one `tf.train.Example` per text, with its raw
            little-endian `vectors` and their `shape`.
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        texts: texts in any form that `kbert.features` accepts, or an iterable of them that yields
            the same texts each time.
        sources: files to read instead of `texts`, see `kbert.text.open_sources`: patterns of .txt,
            .jsonl (both also .gz), .parquet, .arrow, tfds:…, docs:….
        unit: what one text of a source is, a "line" or a "document"; empty lines are skipped.
        field: name of the column or field with the text, see `kbert.text.open_sources`.
        dtype: dtype of the numbers in the file, "float32" or "float16".
        verbose: progress bar: 1 = always, 0 = never, "auto" = if the work takes over 2 seconds.
        **settings: options of `kbert.features`: layers, pooling, words, merge, special_tokens,
            max_length, doc_stride and batch_size.

    Returns:
        Number of texts, N.

    Raises:
        FileExistsError: the file exists already.
        ValueError: a partial file has other settings, the suffix is unknown, or an argument is out
            of range.

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
            f"The file must end in {' or '.join(FORMATS)}, dtype must be {' or '.join(DTYPES)}, "
            f'and unit must be "line" or "document". Received: {path}, dtype={dtype!r}, '
            f"unit={unit!r}"
        )
    if (texts is None) == (sources is None):
        raise ValueError(
            "Pass either texts or sources. Received: " + ("both", "none")[texts is None]
        )
    note = f"{path}.progress.json"
    if os.path.exists(path):
        atomic.remove(note)  # left by a process that was killed after it had finished the file
        raise FileExistsError(f"{path} already exists; remove it to write it again")
    extractor = Extractor(encoder, tokenizer, **settings)
    opened = [] if sources is None else open_sources(sources, field=field)
    identity = {
        **{name: repr(value) for name, value in sorted(settings.items())},
        "dtype": dtype,
        "sources": [source.identity() for source in opened],
        "unit": unit,
        "tokenizer": tokenizer.checksum,
        "weights": _checksum(extractor.encoder),
        **active_record(extractor.encoder),
    }
    form = FORMATS[suffix](extractor.width, extractor.pooling is None, dtype)
    output = GrowingOutput(path, {"begun": identity}, form, note, _by_todays_names, hidden=True)
    items = _source_texts(opened, unit) if opened else rows_of(_several(texts))
    remaining = output.rest(items, repr)
    if output.records:
        logging.info("%s: resuming after %d texts", path, output.records)
    extractor.cut = 0
    most = _CHARACTERS_OF_TOKENS if extractor.pooling is None else _CHARACTERS
    with output.growing(), _progress(texts, opened, verbose) as bar:
        for chunk in chunks(remaining, _TEXTS, most, _characters):
            output.add(extractor(as_inputs(chunk, extractor.words, output.records)), chunk)
            read = sum(source.consumed for source in opened)
            bar.show(read if opened else output.records, output.records if opened else None)
        report_cut(extractor)
    return output.records


def _by_todays_names(note: dict[str, Any]) -> dict[str, Any]:
    """Returns a progress note of any version with today's names; 0.2.0 wrote `texts`."""
    texts = note.pop("texts", 0)
    return {"records": texts, "finished": False, **note, "begun": registry.current(note["begun"])}


def _characters(text: Any) -> int:
    """Returns the number of characters of a text, pair or list of words; 0 for anything else."""
    if isinstance(text, str | bytes):
        return len(text)
    if isinstance(text, Mapping):
        return _characters([*text.values()])
    return sum(map(_characters, text)) if isinstance(text, list | tuple) else 0


def _several(texts: Any) -> Any:
    """Returns the texts; a single text becomes a list."""
    return [texts] if isinstance(texts, str | bytes) else texts


def _source_texts(opened: list, unit: str) -> Iterator[str]:
    """Yields the documents of sources, or their lines; empty ones are skipped."""
    for source in opened:
        for document in source.documents():
            lines = [document] if unit == "document" else document.split(b"\n")
            yield from (line.decode() for line in lines if line.strip())


def _checksum(encoder: keras.Model) -> str:
    """Returns a checksum of the weights: all of a file's features must be of the same model."""
    named = ((weight.path, weight.numpy()) for weight in encoder.weights)
    return fingerprints.blake2b(itertools.chain.from_iterable(named))


def _progress(texts: Any, opened: list, verbose: str | int) -> Progress:
    """Returns a progress bar over the bytes of sources `opened`; if there are none, over texts."""
    total = sum(source.size for source in opened) if opened else None
    if not opened and hasattr(texts, "__len__") and not isinstance(texts, Mapping):
        total = len(texts)
    return Progress("features", total, "B" if opened else " texts", "texts", verbose)
