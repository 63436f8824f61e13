"""Text in place of a folder of shards: prepared once, into a cache, under a checksum."""

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
    """The folder of shards for `data`: `data` itself if it is a folder, else prepared text.

    The cache's name is a checksum of all that decides about the shards: the sources (name, size
    and time of a file), the tokenizer, the settings, the versions of kbert and of the format. So
    what has changed is prepared again, and equal things never twice. The settings are those that
    `prepare_corpus` has by default; for others (`field`, `on_bad_utf8`, …) call it yourself.

    Args:
        data: a folder, or sources of text as `prepare_corpus` takes them.
        tokenizer: makes the ids.
        cache_dir: parent of the folder; None is `corpora` in kbert's cache folder.

    Returns:
        A folder with a manifest, as far as this function made it.
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
