"""Accepts text instead of a folder of shards: prepares it once, in a cache keyed by a checksum."""

import os
from collections.abc import Sequence

from kbert.data.corpus import manifest
from kbert.io import fingerprints
from kbert.io.paths import cache_folder, exists, is_dir
from kbert.text.sources import open_sources
from kbert.tokenizers.base import Tokenizer


def prepared_folder(
    data: str | os.PathLike | Sequence[str | os.PathLike],
    tokenizer: Tokenizer,
    cache_dir: str | os.PathLike | None = None,
) -> str:
    """Returns the folder of shards for `data`: `data` itself if it is a folder, else a cache.

    The name of the cached folder is a checksum of everything that determines the shards: the
    sources (name, size and time of a file), the tokenizer, the settings, and the versions of kbert
    and of the format. So changed input is prepared again, and equal input only once. The settings
    are the defaults of `prepare_corpus`; for others (`field`, `on_bad_utf8`, …) call it yourself.

    Args:
        data: a folder, or sources of text for `prepare_corpus`.
        tokenizer: tokenizer that makes the ids.
        cache_dir: parent of the cached folder; None is `corpora` in kbert's cache folder.

    Returns:
        The folder. It has a manifest if this function prepared it; a given folder is not checked.
    """
    if isinstance(data, str | os.PathLike) and is_dir(data):
        return os.fspath(data)
    from kbert.data.corpus import prepare

    plan = prepare.make_plan(open_sources(data), tokenizer)
    checksum = fingerprints.sha256_of_json(plan)
    parent = cache_dir or os.path.join(cache_folder(), "corpora")
    folder = os.path.join(parent, checksum[:16])
    if not exists(os.path.join(folder, manifest.FILE_NAME)):
        prepare.prepare_corpus(data, folder, tokenizer)
    return folder
