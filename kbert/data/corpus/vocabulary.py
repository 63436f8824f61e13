"""Trains a tokenizer once, and reuses it only for the same sources and settings."""

import os
from typing import Any, cast

from absl import logging

from kbert import tokenizers
from kbert.core.types import PathLike
from kbert.data.corpus import manifest
from kbert.io import atomic, fingerprints
from kbert.io.outputs import changes, read_note, write_note
from kbert.io.paths import Path, remove_tree
from kbert.text.sources import open_sources
from kbert.version import __version__

RECORD = "tokenizer.origin.json"
_VERSION = "kbert_version"  # the version that trained the tokenizer; later versions reuse it
_OTHER_SOURCES = "other sources, or files in them that have changed since"
_STAGING = "tokenizer.partial"
# The files that identify the kind of a folder's tokenizer. A folder may have those of one kind.
_MODEL_FILES = {
    "wordpiece": ("vocab.txt",),
    "bpe": ("vocab.json", "merges.txt"),
    "unigram": ("*.model",),
    "words": ("words.txt",),
    "any": ("tokenizer.json",),
}


def train_or_reuse_tokenizer(
    folder: PathLike,
    sources: Any,
    vocabulary_size: int,
    *,
    kind: str = "wordpiece",
    lowercase: bool | None = None,
    num_sentinels: int = 0,
    field: str = "text",
    on_bad_utf8: str = "fail",
    used_by: str | os.PathLike | None = None,
    progress: bool = False,
) -> tokenizers.Tokenizer:
    """Trains a tokenizer on the sources, or loads the one that an equal call has trained.

    The file `tokenizer.origin.json` next to the tokenizer records the sources (name, size and time
    of a file), the settings, and a checksum of every file of the tokenizer. If any of them differs,
    the tokenizer is trained again. If shards or a run depend on the old one, it raises instead.

    Args:
        folder: folder of the tokenizer; created if needed.
        sources: files, patterns, `tfds:…`, `docs:` or tables (see `kbert.text.open_sources`), or an
            open source such as the pairs of `read_pairs`.
        vocabulary_size: maximum number of tokens; for "words", 0 is no limit.
        kind: "wordpiece", "bpe", "unigram" or "words".
        lowercase: whether text is lower-cased and accents are removed; None chooses the default of
            the kind, see `kbert.tokenizers.train_tokenizer`.
        num_sentinels: number of sentinels for T5's noise, see `train_tokenizer`.
        field: name of the column or field with the text, see `kbert.text.open_sources`.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.
        used_by: path that, if it exists, depends on the tokenizer; None is the manifest of shards
            in the same folder.
        progress: whether to show a progress bar.

    Returns:
        The tokenizer.

    Raises:
        FileNotFoundError: a source does not exist.
        ValueError: bad input; `used_by` exists, but its tokenizer cannot be reused; or the folder
            has files of another kind of tokenizer, which this function did not write.

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
        "num_sentinels": num_sentinels,
        "on_bad_utf8": on_bad_utf8,
        "sources": [source.identity() for source in opened],
    }
    record = _read_record(folder / RECORD)
    differing = _differences(record, origin, folder)
    if not differing:
        logging.info("Using the existing tokenizer in %s", folder)
        # The record shows that `train_tokenizer` made it, so it is a `Tokenizer`.
        return cast("tokenizers.Tokenizer", tokenizers.load_tokenizer(folder))
    if Path(used_by or folder / manifest.FILE_NAME).exists():
        subject = f"{used_by} was" if used_by else f"{folder} contains shards that were"
        difference = (
            "from other data" if differing == [_OTHER_SOURCES] else "with another vocabulary"
        )
        raise ValueError(
            f"{subject} made {difference}; choose another folder. Received: {'; '.join(differing)}"
        )
    if record:
        changed = "; ".join(differing)
        logging.info("Retraining the tokenizer in %s. Received: %s", folder, changed)
    for name in record.get("files", ()):
        atomic.remove(folder / name)
    check_kind(folder, kind)
    texts = (text for source in opened for text in source.documents())
    trained = tokenizers.train_tokenizer(
        *(texts, vocabulary_size),
        kind=kind,
        lowercase=lowercase,
        num_sentinels=num_sentinels,
        progress=progress,
    )
    names = save_tokenizer(trained, folder, os.fspath(folder / _STAGING))
    # The record is written last, so it never describes files that do not exist yet.
    checksums = {name: fingerprints.sha256((folder / name).read_bytes()) for name in names}
    write_note(folder / RECORD, {**origin, "files": checksums})
    return trained


def check_kind(folder: PathLike, kind: str) -> None:
    """Raises ValueError if a folder has files of another kind of tokenizer.

    Loading the folder could load that tokenizer instead.

    Args:
        folder: folder in which a tokenizer will be saved; need not exist.
        kind: kind of that tokenizer.
    """
    other_patterns = [
        pattern for name, files in _MODEL_FILES.items() if name != kind for pattern in files
    ]
    other_files = sorted(
        path.name for pattern in other_patterns for path in Path(folder).glob(pattern)
    )
    if other_files:
        raise ValueError(
            f"A folder can contain only one tokenizer. Received: {folder} for a tokenizer of kind "
            f"{kind}, with {', '.join(other_files)} in it; choose another folder or remove these "
            "files"
        )


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: PathLike, staging: str) -> list[str]:
    """Saves a tokenizer so that a killed process leaves no half-written file.

    Args:
        tokenizer: the tokenizer.
        folder: destination folder.
        staging: folder on the same file system to which it is saved first; removed afterwards.

    Returns:
        Names of the tokenizer's files.
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
    """Reads the record of a tokenizer; returns an empty dict if it is missing or damaged."""
    try:
        return read_note(path, "The record of a tokenizer") or {}
    except ValueError:
        logging.warning("%s is damaged: retraining the tokenizer", path)
        return {}


def _differences(record: dict, origin: dict, folder: Path) -> list[str]:
    """Lists the differences between a folder's tokenizer and the one that `origin` describes.

    `record` is the content of the folder's `tokenizer.origin.json`, or empty. Without differences,
    the tokenizer can be reused. One of another kbert version is no difference.
    """
    if not record:
        return [f"no {RECORD}"]
    settings = {name: x for name, x in origin.items() if name not in ("sources", _VERSION)}
    differences = changes({"num_sentinels": 0, **record}, settings)  # 1.0.0 has no sentinels
    if record.get("sources") != origin["sources"]:
        differences.append(_OTHER_SOURCES)
    for name, checksum in record["files"].items():
        path = folder / name
        if not path.is_file() or fingerprints.sha256(path.read_bytes()) != checksum:
            differences.append(f"{name} has changed since it was written")
    return differences
