"""`prepare_corpus` on Apache Beam: the same functions, distributed by Beam instead of `Workers`.

    sources ─ read, tokenise ─┬─ segments ─┬─ split by shard ─ group by shard ─ merge, write
                              └─ counts ───┘ (how many shards there are)

A shard is a range of hashes, sorted by hash. Its bytes therefore equal those of a local run,
however Beam divides the work. Each file is read by one worker. Workers write directly into the
output folder, each shard whole or not at all.
"""

import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from kbert.core.late import optional
from kbert.data.corpus import chunks, records, shards as shard_files, spill
from kbert.data.corpus.manifest import Shard
from kbert.io import atomic
from kbert.io.paths import Path, absolute
from kbert.text.source import Source
from kbert.tokenizers.base import Tokenizer

_COUNTS = "counts.json"
_COUNTED = (
    *("text_bytes", "documents_read", "empty_documents"),
    *("cut_documents", "replaced_characters"),
)
# Function that runs a preparation: (sources, tokenizer, folders, settings) -> (counts, shards).
Run = Callable[..., tuple[dict[str, int], list[tuple[str, Shard]]]]


def pipeline_runner(flags: Sequence[str]) -> Run:
    """Returns a function that prepares a corpus in a Beam pipeline.

    The `flags` are those of Apache Beam, such as "--runner=FlinkRunner".

    Raises:
        ImportError: Apache Beam is not installed.
        ValueError: unknown flag.
    """
    options = pipeline_options(flags, "Preparing a corpus")
    import apache_beam as beam

    def run(
        sources: list[Source],
        tokenizer: Tokenizer,
        folder: str,
        work: str,
        *,
        held_out_share: float,
        block_tokens: int,
        key: str,
    ) -> tuple[dict[str, int], list[tuple[str, Shard]]]:
        dtype = records.token_dtype(tokenizer.vocabulary_size)
        tokenizer_args = (type(tokenizer), json.dumps(tokenizer.get_config()), dtype)
        writing = (absolute(folder), absolute(work), dtype, block_tokens, key)
        with beam.Pipeline(options=options) as pipeline:
            tokenised = (
                pipeline
                | "sources" >> beam.Create(sources, reshuffle=True)
                | "tokenise" >> beam.FlatMap(_tokenised, *tokenizer_args)
            )
            counts = (
                tokenised
                | "counts" >> beam.Map(lambda result: result[1])
                | "sum" >> beam.CombineGlobally(_sum)
            )
            total = beam.pvalue.AsSingleton(counts)
            _ = counts | "note" >> beam.Map(_note, os.path.join(writing[1], _COUNTS))
            _ = (
                tokenised
                | "segments" >> beam.Map(lambda result: result[0])
                | "cut" >> beam.FlatMap(_cut, held_out_share, total)
                | "by shard" >> beam.GroupByKey()
                | "merge" >> beam.Map(_merge, held_out_share, total, writing)
            )
        counted = json.loads(Path(work, _COUNTS).read_bytes())
        shards = []
        for plan in shard_files.plan_shards(counted["text_bytes"], held_out_share):
            path = os.path.join(folder, plan.file)
            shard = shard_files.finished_shard(plan.note(work), key, path)
            if shard is not None:  # None if the shard's range is empty
                shards.append((plan.split, shard))
        return counted, shards

    return run


# Functions that workers run. Segments are sent as dicts of plain arrays.


@functools.cache
def _tokenizer(kind: type[Tokenizer], config: str) -> Tokenizer:
    """Builds a tokenizer of class `kind` from its config (JSON), once per process.

    Without the cache it would be built for every (small) file.
    """
    return kind.from_config(json.loads(config))


def _tokenised(
    source: Source, kind: Any, config: str, dtype: str
) -> Iterator[tuple[dict[str, np.ndarray], dict[str, int]]]:
    """Yields (segment, counts) for each chunk of a source.

    The segment is field -> array of the chunk's tokenised documents, see `spill.Segment`. The
    counts have the names `_COUNTED`. `kind` and `config` (JSON) rebuild the tokenizer; `dtype` is
    the type of the ids.
    """
    tokenizer = _tokenizer(kind, config)
    previous_counts = dict.fromkeys(("cut_documents", "replaced_characters"), 0)
    empty = dict.fromkeys(_COUNTED, 0)
    for chunk in chunks.chunks([source]):
        segment, counts = chunks.tokenise(tokenizer, chunk, dtype)
        since = {name: getattr(source, name) - count for name, count in previous_counts.items()}
        previous_counts = {name: getattr(source, name) for name in previous_counts}
        yield _as_arrays(segment), {**empty, **counts, **since}


def _sum(found: Iterable[dict[str, int]]) -> dict[str, int]:
    total = dict.fromkeys(_COUNTED, 0)
    for counts in found:
        total = {name: total[name] + counts[name] for name in _COUNTED}
    return total


def _note(counts: dict[str, int], path: str) -> None:
    atomic.write(path, json.dumps(counts).encode())


def _cut(
    arrays: dict[str, np.ndarray], held_out_share: float, counts: dict[str, int]
) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields (number of a shard, part of a segment) for each shard with documents of the segment.

    The segment (`arrays`) and its parts are field -> array, see `spill.Segment`. The `counts` are
    those of the whole corpus; its `text_bytes` and the `held_out_share` determine the shards.
    """
    segment = spill.Segment(**arrays)
    for number, plan in enumerate(shard_files.plan_shards(counts["text_bytes"], held_out_share)):
        part = segment.between(plan.first, plan.last)
        if len(part.high):
            yield number, _as_arrays(part)


def _merge(
    found: tuple[int, Iterable[dict[str, np.ndarray]]],
    held_out_share: float,
    counts: dict[str, int],
    writing: tuple[str, str, str, int, str],
) -> None:
    """Writes one shard from the parts of all segments that belong to it.

    Args:
        found: number of the shard, and the parts as field -> array, see `spill.Segment`.
        held_out_share: share of the text in held-out shards.
        counts: counts of the whole corpus; `text_bytes` determines the shards.
        writing: output folder, work folder, type of the ids, tokens per block and key of the
            shuffle, see `shard_files.merge`.
    """
    number, parts = found
    folder, work, dtype, block_tokens, key = writing
    plan = shard_files.plan_shards(counts["text_bytes"], held_out_share)[number]
    shard_files.merge(
        lambda: [spill.Segment(**arrays) for arrays in parts],
        *(folder, work, plan, dtype, block_tokens, key),
    )


def _as_arrays(segment: spill.Segment) -> dict[str, np.ndarray]:
    return {field.name: getattr(segment, field.name) for field in dataclasses.fields(segment)}


def pipeline_options(flags: Sequence[str], what: str) -> Any:
    """Parses Beam's flags, so that a wrong one raises before any work.

    Args:
        flags: flags of Apache Beam, such as "--runner=FlinkRunner".
        what: name of the work in an error message.

    Returns:
        The `PipelineOptions`.

    Raises:
        ImportError: Apache Beam is not installed.
        ValueError: unknown flag.
    """
    beam = optional("apache_beam.options.pipeline_options", "beam", f"{what} on Apache Beam")
    options = beam.PipelineOptions(list(flags))
    known_options = options.get_all_options(retain_unknown_options=False)
    flag_names = [flag.removeprefix("--").split("=")[0].replace("-", "_") for flag in flags]
    unknown = [name for name, flag in zip(flag_names, flags, strict=True) if "--" in flag]
    if unknown := [
        x for x in unknown if x not in known_options and x.removeprefix("no_") not in known_options
    ]:
        raise ValueError(f"Beam has no such flag. Received: {', '.join(unknown)}")
    return options
