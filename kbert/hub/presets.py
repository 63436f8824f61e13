"""Resolves the name, archive or folder of a model to a folder."""

import os

from kbert.catalog import repositories
from kbert.core.types import PathLike
from kbert.hub import archive, snapshot
from kbert.io.paths import Path, exists, local_only

_URLS = ("http://", "https://")


def locate(name_or_path: PathLike, *, revision: str | None = None, weights: bool = True) -> Path:
    """Returns the folder of a model, unpacking or downloading it if necessary.

    The argument is resolved in this order:

    1. a folder, which may be in an object store (`gs://…`): the folder itself;
    2. a zip file, e.g. Google's `uncased_L-12_H-768_A-12.zip`: unpacked into kbert's cache;
    3. "hf:owner/name" or "hf:owner/name@revision", or the name of a model in `kbert.family`
       ("bert-base-uncased", "bert-base-uncased@<commit>"): a snapshot of the Hugging Face hub, in
       the cache of `huggingface_hub` and under its settings (HF_HOME, HF_ENDPOINT, HF_TOKEN,
       HF_HUB_OFFLINE). Only configs, tokenizer files and one format of weights are downloaded.
       Large files are compared with the hub's SHA-256. Cached files are not downloaded again.

    Args:
        name_or_path: folder, zip file or name of the model, see above.
        revision: branch, tag or commit of the hub's repository, instead of "@revision".
        weights: False = only the config and the tokenizer files are needed.

    Returns:
        The folder.

    Raises:
        FileNotFoundError: nothing has that name (the message lists close ones), or the hub has no
            such repository, revision or weights.
        PermissionError: the repository is gated.
        ValueError: the name is malformed, a local file is no zip, a local path comes with a
            revision, the name and `revision` have different ones, or a file is damaged.
        ConnectionError: the hub cannot be reached, and the cache does not contain the model; the
            message says which files to put where.
        OSError: a cache cannot be written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> locate(folder) == Path(folder)
        True
    """
    path = Path(name_or_path)
    given_name = os.fspath(name_or_path)
    if not given_name.startswith((*_URLS, "hf://")) and exists(given_name):
        if revision is not None:
            raise ValueError(
                "`revision` must be left out for a local path: only repositories of the hub have "
                f"revisions. Received: revision={revision!r} with {given_name!r}"
            )
        return path if path.is_dir() else _from_file(path)
    parsed = repositories.parse_name(given_name)
    if parsed is None:
        raise FileNotFoundError(_unknown(given_name))
    repository, named_revision = parsed
    if revision is not None:
        repositories.check_revision(revision, given_name)
        if named_revision not in (None, revision):
            raise ValueError(
                "Pass the revision in the name or as `revision`, not both. Received: "
                f"{given_name!r} with revision={revision!r}"
            )
    return snapshot.download(
        repository, revision or named_revision, weights=weights, asked=given_name
    )


def _from_file(path: Path) -> Path:
    """Returns the folder of an unpacked zip file; other files raise ValueError."""
    if path.suffix.lower() == ".zip":
        return archive.unpacked(Path(local_only(path, "A zip file of a model")))
    hint = " Unpack it first, and pass the folder." if ".tar" in path.name else ""
    raise ValueError(
        f"A model must be a folder, a zip file or a name of the hub, not another file.{hint} "
        f"Received: {path}"
    )


def _unknown(asked: str) -> str:
    """Returns the message for a name that is no folder, zip file or known model."""
    if asked.startswith(_URLS):
        return (
            "Models are not loaded from a URL: download the file (curl -L -C - -O URL resumes) and "
            "pass its path; a repository of the hub is written hf:owner/name. "
            f"Received: {asked!r}"
        )
    close_names = repositories.close_names(asked)
    hint = f" Close: {', '.join(close_names)}." if close_names else ""
    return (
        f"There is no such folder or zip file, nor a well-known model of this name.{hint} "
        f"A repository of the hub is written hf:owner/name. Received: {asked!r}"
    )
