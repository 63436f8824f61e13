"""Downloads models of the Hugging Face hub through `huggingface_hub` and its cache."""

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NoReturn

_TOKENIZER_FILES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "*.model",
    "source.spm",
    "target.spm",
    "target_vocab.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)
_CONFIG_FILES = (
    "config.json",
    "kbert.json",
    # sentence-transformers: the modules that make a text's embedding, in folders like 1_Pooling.
    "modules.json",
    "sentence_*_config.json",
    "config_sentence_transformers.json",
    "[1-9]_*/config.json",
)
# Only the first format that a repository has is downloaded: the others are copies of the same
# weights and would double the download.
_WEIGHT_FILES = (
    ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json"),
    ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json"),
    ("tf_model.h5",),
    ("flax_model.msgpack",),
)
# The first format only, too.
_MODULE_WEIGHTS = (("[1-9]_*/model.safetensors",), ("[1-9]_*/pytorch_model.bin",))
_MAIN = "main"
_SHA256 = re.compile(r"[0-9a-f]{64}")


def download(repository: str, revision: str | None, *, weights: bool, asked: str) -> Path:
    """Returns the folder of a repository's snapshot in the hub's cache, downloaded if missing.

    At every call large files are compared with the hub's SHA-256, because a disk can also fail
    after the download.

    Args:
        repository: repository on the hub, "owner/name".
        revision: branch, tag or commit; None = the main branch.
        weights: False = only the config and the tokenizer files.
        asked: model name as the user wrote it, for error messages.

    Raises:
        FileNotFoundError: there is no such repository or revision, or it has no weights that kbert
            reads.
        PermissionError: the repository is gated.
        ConnectionError: the hub cannot be reached, and the cache does not contain the model.
        OSError: the hub's cache cannot be written.
        ValueError: a file does not have the checksum that the hub gives; the file is removed.
    """
    from huggingface_hub import constants, snapshot_download

    url = f"{constants.ENDPOINT}/{repository}/tree/{revision or _MAIN}"
    names = _ask(repository, revision, weights=weights, place=url, asked=asked)
    unreachable = names if isinstance(names, Exception) else None
    weight_patterns = _of_weights([] if isinstance(names, Exception) else names) if weights else []
    options: dict[str, Any] = {
        "repo_id": repository,
        "revision": revision or _MAIN,
        "allow_patterns": [*_CONFIG_FILES, *_TOKENIZER_FILES, *weight_patterns],
    }
    try:
        folder = Path(snapshot_download(local_files_only=unreachable is not None, **options))
    except _failures() as error:
        _refuse(error, unreachable or error, url, asked)
    if unreachable and weights and not _of_weights([path.name for path in folder.iterdir()]):
        # The cached snapshot was downloaded without the weights.
        _refuse(FileNotFoundError(), unreachable, url, asked)
    _verify(folder, asked)
    return folder


def _ask(
    repository: str, revision: str | None, *, weights: bool, place: str, asked: str
) -> list[str] | Exception:
    """Returns the names of the repository's files; if the hub cannot be reached, the error.

    Raises PermissionError if the repository is gated. Raises FileNotFoundError if it or the
    revision does not exist or, with `weights`, it has no weights that kbert reads. `place` (its
    URL) and `asked` (the name that the user wrote) are for the messages.
    """
    from huggingface_hub import HfApi, constants, errors

    try:
        info = HfApi().model_info(
            repository, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
    except errors.GatedRepoError as error:
        raise PermissionError(
            f"{place} is gated: accept the terms there, then run `hf auth login` or set HF_TOKEN. "
            f"Received: {asked!r}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"The repository has no such branch, tag or commit: {place}. Received: {asked!r}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"The hub has no repository {place}, or it is private: then run `hf auth login` or "
            f"set HF_TOKEN. Received: {asked!r}"
        ) from error
    except _failures() as error:
        return error
    names = [sibling.rfilename for sibling in info.siblings or ()]
    if weights and not _of_weights(names):
        formats = " or ".join(patterns[0] for patterns in _WEIGHT_FILES)
        raise FileNotFoundError(
            f"kbert supports {formats}, and {place} has no weights in these formats. Check there "
            "under Community for a pull request that adds safetensors, and pass it as revision "
            "(…@refs/pr/N); or convert the model once: "
            f'transformers.AutoModelForPreTraining.from_pretrained("{repository}")'
            ".save_pretrained(folder), the tokenizer likewise, and pass that folder. Received: "
            f"{asked!r}"
        )
    return names


def _of_weights(names: Iterable[str]) -> list[str]:
    """Returns the patterns of the weight files to download: the first format among `names`.

    Weights of sentence-transformers' modules are included. Returns [] if there are no weights.
    """

    def first(formats: Iterable[tuple[str, ...]]) -> list[str]:
        for patterns in formats:
            if any(fnmatch.fnmatchcase(name, p) for name in names for p in patterns):
                return list(patterns)
        return []

    names = list(names)
    weight_patterns = first(_WEIGHT_FILES)
    return weight_patterns + first(_MODULE_WEIGHTS) if weight_patterns else []


def _refuse(error: Exception, reason: Exception, place: str, asked: str) -> NoReturn:
    """Raises an error instead of `error`, which `huggingface_hub` raised for a download.

    This is OSError if its cache cannot be written, otherwise ConnectionError with instructions.
    `reason`: why the hub is unreachable; `place`: URL of the repository; `asked`: name that the
    user wrote.
    """
    from huggingface_hub import constants

    if (
        isinstance(error, OSError)
        and not isinstance(error, ConnectionError)
        and error.errno is not None
    ):
        raise OSError(
            error.errno, f"Cannot write the hub's cache, {constants.HF_HUB_CACHE}: {error.strerror}"
        ) from error
    offline = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else _brief(reason)
    raise ConnectionError(
        f"The model is not (or not completely) in the hub's cache, {constants.HF_HUB_CACHE}, and "
        f"cannot be downloaded: {offline}. The same call resumes the download once that is "
        f"possible. Or download config.json, {_WEIGHT_FILES[0][0]} and the tokenizer's files "
        f"(vocab.txt, …) from {place} elsewhere, put them into one folder, and pass that folder. "
        f"Received: {asked!r}"
    ) from error


def _brief(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0].rstrip('.')}" if lines else type(error).__name__


def _failures() -> tuple[type[Exception], ...]:
    """Returns the exceptions that `huggingface_hub` raises when a request or a file fails."""
    from huggingface_hub import errors

    # errors.HTTPError is the base of the HTTP client's errors; hf_xet raises RuntimeErrors. A
    # response that is not the hub's (a proxy's page) ends in a ValueError or a KeyError.
    return errors.HTTPError, OSError, RuntimeError, ValueError, KeyError


def _verify(folder: Path, asked: str) -> None:
    """Checks the SHA-256 of a snapshot's large files, each a link to a blob of that name.

    Raises ValueError for the first wrong file and removes it; `asked` is the model's name for the
    message.
    """
    for path in folder.rglob("*"):
        if not path.is_symlink():
            continue
        blob = Path(os.path.normpath(path.parent / os.readlink(path)))
        if not _SHA256.fullmatch(blob.name):  # blobs of small files are named by Git's checksum
            continue
        with open(blob, "rb") as file:
            checksum = hashlib.file_digest(file, "sha256").hexdigest()
        if checksum != blob.name:
            path.unlink(missing_ok=True)
            blob.unlink(missing_ok=True)
            raise ValueError(
                f"{path.name} of {asked!r} must have the checksum that the hub gives, "
                f"{blob.name}. The file was removed from the cache: try again. Received: {checksum}"
            )
