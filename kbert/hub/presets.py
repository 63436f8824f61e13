"""From the name, archive or folder of a model to a local folder."""

import os

from kbert.catalog import repositories
from kbert.core.types import PathLike
from kbert.hub import archive, snapshot
from kbert.io.paths import Path, exists, local_only

_URLS = ("http://", "https://")


def locate(name_or_path: PathLike, *, revision: str | None = None, weights: bool = True) -> Path:
    """A model's folder, fetched first where it has none.

    In this order it is:

    1. a folder: itself, also in an object store (`gs://…`);
    2. a zip file, e.g. Google's `uncased_L-12_H-768_A-12.zip`: unpacked into kbert's cache;
    3. "hf:owner/name" or "hf:owner/name@revision", or the name of a model that `kbert.family`
       knows ("bert-base-uncased", "bert-base-uncased@<commit>"): a snapshot of the Hugging Face
       hub, in the cache of `huggingface_hub` and under its settings (HF_HOME, HF_ENDPOINT,
       HF_TOKEN, HF_HUB_OFFLINE). Only configs, the tokenizer's files and one format of weights
       are fetched, large files are compared with the hub's SHA-256, and what is there is not
       fetched again.

    Args:
        name_or_path: see above.
        revision: a branch, tag or commit of the hub's repository, instead of "@revision".
        weights: False = the config and the tokenizer's files are enough.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: nothing has that name; the message lists close ones.
        ValueError: a malformed name, a revision of something local, a damaged file.
        ConnectionError: the hub cannot be reached; the message says what to put where.
        OSError: a cache cannot be written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> locate(folder) == Path(folder)
        True
    """
    path = Path(name_or_path)
    asked = os.fspath(name_or_path)
    if not asked.startswith((*_URLS, "hf://")) and exists(asked):
        if revision is not None:
            raise ValueError(
                "`revision` names one of a hub repository's; a local path has none. "
                f"Received: revision={revision!r} with {asked!r}"
            )
        return path if path.is_dir() else _from_file(path)
    found = repositories.parse_name(asked)
    if found is None:
        raise FileNotFoundError(_unknown(asked))
    repository, named = found
    if revision is not None:
        repositories.check_revision(revision, asked)
        if named not in (None, revision):
            raise ValueError(
                "A revision is given in the name or as `revision`, not both. "
                f"Received: {asked!r} with revision={revision!r}"
            )
    return snapshot.download(repository, revision or named, weights=weights, asked=asked)


def _from_file(path: Path) -> Path:
    if path.suffix.lower() == ".zip":
        return archive.unpacked(Path(local_only(path, "A zip file of a model")))
    hint = " Unpack it first, and pass the folder." if ".tar" in path.name else ""
    raise ValueError(
        f"A model is a folder, a zip file or a name of the hub, not another file.{hint} "
        f"Received: {path}"
    )


def _unknown(asked: str) -> str:
    if asked.startswith(_URLS):
        return (
            "Models are not loaded from a URL: download the file (curl -L -C - -O URL resumes) and "
            "pass its path; a repository of the hub is written hf:owner/name. "
            f"Received: {asked!r}"
        )
    close = repositories.close_names(asked)
    hint = f" Close: {', '.join(close)}." if close else ""
    return (
        f"There is no such folder or zip file, nor a well-known model of this name.{hint} "
        f"A repository of the hub is written hf:owner/name. Received: {asked!r}"
    )
