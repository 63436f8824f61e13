"""A tokenizer trained once: kept with what it was trained on, taken again for that alone."""

import os
from collections.abc import Iterable
from typing import cast

from absl import logging

from kbert import tokenizers
from kbert.core.types import PathLike
from kbert.data.corpus import manifest
from kbert.io import atomic, fingerprints
from kbert.io.outputs import changes, read_note, write_note
from kbert.io.paths import Path, remove_tree
from kbert.text.source import Source
from kbert.text.sources import open_sources
from kbert.version import __version__

RECORD = "tokenizer.origin.json"
_VERSION = "kbert_version"  # that trained it; a later one takes it as it is
_OTHER_SOURCES = "other sources or files of them that have changed since"
_STAGING = "tokenizer.partial"
# The files that tell a folder's kind of tokenizer. No other kind's may lie beside them.
_MODEL_FILES = {
    "wordpiece": ("vocab.txt",),
    "bpe": ("vocab.json", "merges.txt"),
    "unigram": ("*.model",),
    "words": ("words.txt",),
    "any": ("tokenizer.json",),
}


def train_or_reuse_tokenizer(
    folder: PathLike,
    sources: str | os.PathLike | Source | Iterable[str | os.PathLike],
    vocabulary_size: int,
    *,
    kind: str = "wordpiece",
    lowercase: bool | None = None,
    field: str = "text",
    on_bad_utf8: str = "fail",
    used_by: str | os.PathLike | None = None,
    progress: bool = False,
) -> tokenizers.Tokenizer:
    """Trains a tokenizer on the sources, or takes the one that an equal call has trained.

    Beside its files lies `tokenizer.origin.json`: the sources (name, size and time of a file), the
    settings and a checksum of every file. Where any of them differs the tokenizer is trained again,
    unless something that is there depends on the old one: shards, or a run.

    Args:
        folder: where the tokenizer is kept; made where it does not exist.
        sources: text, as `kbert.text.open_sources` takes it, or a source, as `read_pairs` opens it.
        vocabulary_size: how many pieces at most; for "words" 0 is all of them.
        kind: "wordpiece", "bpe", "unigram" or "words".
        lowercase: as in `kbert.tokenizers.train_tokenizer`.
        field: where JSON lines and TensorFlow data sets keep the text.
        on_bad_utf8: "fail" or "replace".
        used_by: what depends on the tokenizer once it exists; None: shards in the same folder.
        progress: show a progress bar.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: a source that is not there.
        ValueError: bad input, `used_by` that was made with another vocabulary, or a
            tokenizer of another kind that this function has not put there.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> with open(f"{folder}/text.txt", "w") as file:
        ...     _ = file.write("low lower lowest " * 9)
        >>> tokenizer = train_or_reuse_tokenizer(f"{folder}/out", f"{folder}/text.txt", 20)
        >>> tokenizer.vocabulary[5:9]
        ['e', 'l', 'o', 'r']
        >>> sorted(os.listdir(f"{folder}/out"))
        ['tokenizer.origin.json', 'tokenizer_config.json', 'vocab.txt']
    """
    folder = Path(folder)
    opened = open_sources(sources, field=field, on_bad_utf8=on_bad_utf8)
    origin = {
        _VERSION: __version__,
        "kind": kind,
        "vocabulary_size": vocabulary_size,
        "lowercase": lowercase,
        "on_bad_utf8": on_bad_utf8,
        "sources": [source.identity() for source in opened],
    }
    record = _read_record(folder / RECORD)
    differing = _differences(record, origin, folder)
    if not differing:
        logging.info("Using the tokenizer that is in %s", folder)
        # Of a kind that `train_tokenizer` makes, as the record says.
        return cast("tokenizers.Tokenizer", tokenizers.load_tokenizer(folder))
    if Path(used_by or folder / manifest.FILE_NAME).exists():
        made = f"{used_by} was" if used_by else f"{folder} holds shards that were"
        other = "of other data" if differing == [_OTHER_SOURCES] else "with another vocabulary"
        raise ValueError(
            f"{made} made {other}; choose another folder. Received: {'; '.join(differing)}"
        )
    if record:
        changed = "; ".join(differing)
        logging.info("Retraining the tokenizer in %s. Received: %s", folder, changed)
    for name in record.get("files", ()):
        atomic.remove(folder / name)
    check_kind(folder, kind)
    texts = (text for source in opened for text in source.documents())
    trained = tokenizers.train_tokenizer(
        texts, vocabulary_size, kind=kind, lowercase=lowercase, progress=progress
    )
    names = save_tokenizer(trained, folder, os.fspath(folder / _STAGING))
    # The record comes last: one that tells of other files is no record.
    checksums = {name: fingerprints.sha256((folder / name).read_bytes()) for name in names}
    write_note(folder / RECORD, {**origin, "files": checksums})
    return trained


def check_kind(folder: PathLike, kind: str) -> None:
    """Raises where files of another kind of tokenizer would be taken for that of the folder.

    Args:
        folder: where a tokenizer will be saved; need not exist.
        kind: of that tokenizer.
    """
    others = [pattern for name, files in _MODEL_FILES.items() if name != kind for pattern in files]
    found = sorted(path.name for pattern in others for path in Path(folder).glob(pattern))
    if found:
        raise ValueError(
            f"A folder holds one tokenizer. Received: {folder} for one of kind {kind}, with "
            f"{', '.join(found)} in it; choose another folder or remove them"
        )


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: PathLike, staging: str) -> list[str]:
    """Saves a tokenizer so that a kill leaves no file of it half written.

    Args:
        tokenizer: the tokenizer.
        folder: where to.
        staging: a folder of the same file system, where it is saved first; gone afterwards.

    Returns:
        Names of its files.
    """
    remove_tree(staging)
    with atomic.naming(os.fspath(folder)):
        tokenizer.save(staging)
    names = sorted(path.name for path in Path(staging).iterdir())
    for name in names:
        atomic.publish(os.path.join(staging, name), os.path.join(folder, name))
    remove_tree(staging)
    return names


def _read_record(path: Path) -> dict:
    """What the record tells; nothing where there is none or a damaged one."""
    try:
        return read_note(path, "The record of a tokenizer") or {}
    except ValueError:
        logging.warning("%s is damaged; the tokenizer is retrained", path)
        return {}


def _differences(record: dict, origin: dict, folder: Path) -> list[str]:
    """What keeps the tokenizer in the folder from being the one of `origin`."""
    if not record:
        return [f"no {RECORD}"]
    settings = {name: x for name, x in origin.items() if name not in ("sources", _VERSION)}
    found = changes(record, settings)
    if record.get("sources") != origin["sources"]:
        found.append(_OTHER_SOURCES)
    for name, checksum in record["files"].items():
        path = folder / name
        if not path.is_file() or fingerprints.sha256(path.read_bytes()) != checksum:
            found.append(f"{name} has changed since it was written")
    return found
