"""Second half of `prepare_corpus`: gathers each shard, a range of hashes, from all spills."""

import dataclasses
import math
import os
import re
from collections.abc import Callable

from kbert.data.corpus import records, spill
from kbert.data.corpus.manifest import Shard
from kbert.io.outputs import read_note, write_note
from kbert.io.paths import Path, exists
from kbert.tokenizers.base import Tokenizer

# Bytes of text per shard; merging a shard needs less memory than that.
SHARD_TEXT_BYTES = 64 << 20
SHARD_NAME = re.compile(r"(train|held_out)-\d{5}-of-\d{5}\.(tfrecord|index\.npy)")
_HASHES = 2**64


@dataclasses.dataclass(frozen=True)
class ShardPlan:
    """Plan of a shard: documents with hashes first … last (both included) go to `file`.

    `first` and `last` are high halves of hashes; `split` is "train" or "held_out".
    """

    split: str
    file: str
    first: int
    last: int

    def note(self, folder: str) -> str:
        """Returns the path in the work folder of the file that marks the shard as finished."""
        return os.path.join(folder, self.file.replace(".tfrecord", ".done.json"))


def plan_shards(text_bytes: int, held_out_share: float) -> list[ShardPlan]:
    """Plans the shards of a text of `text_bytes` bytes, each an equal range of its split's hashes.

    The first `held_out_share` of all hashes is held out, the rest is for training. The number of
    shards depends only on the size of the text. So neither the order of the sources nor the number
    of workers can change a byte of the output.

    >>> [shard.file[:20] for shard in plan_shards(100 << 20, held_out_share=0.01)]
    ['held_out-00000-of-00', 'train-00000-of-00002', 'train-00001-of-00002']
    """
    boundary = int(held_out_share * _HASHES)
    ranges = {"held_out": (0, boundary), "train": (boundary, _HASHES)}
    plans = []
    for split, (begin, end) in ranges.items():
        if begin == end:
            continue
        share = (end - begin) / _HASHES
        count = max(1, math.ceil(share * text_bytes / SHARD_TEXT_BYTES))
        plans += [
            ShardPlan(
                split=split,
                file=f"{split}-{number:05d}-of-{count:05d}.tfrecord",
                first=begin + (end - begin) * number // count,
                last=begin + (end - begin) * (number + 1) // count - 1,
            )
            for number in range(count)
        ]
    return plans


def write_shard(
    tokenizer: Tokenizer,
    folder: str,
    work_folder: str,
    plan: ShardPlan,
    spills: list[str],
    block_tokens: int,
    key: str,
) -> Shard | None:
    """Writes the shard of a plan: its range of hashes from all spills, see `merge`.

    `folder` is that of the shards. The `spills` are names of files of tokenised documents in
    `work_folder`. `block_tokens` is the number of tokens at which a block of documents ends. `key`
    identifies the settings and the text. Runs in a worker process.
    """
    dtype = records.token_dtype(tokenizer.vocabulary_size)

    def segments() -> list[spill.Segment]:
        files = [spill.Spill(os.path.join(work_folder, name), dtype) for name in spills]
        return [file.segment.between(plan.first, plan.last) for file in files]

    return merge(segments, folder, work_folder, plan, dtype, block_tokens, key)


def merge(
    segments: Callable[[], list[spill.Segment]],
    folder: str,
    work_folder: str,
    plan: ShardPlan,
    dtype: str,
    block_tokens: int,
    key: str,
) -> Shard | None:
    """Writes the shard of a plan into `folder`, with all distinct documents of `segments`.

    A note in `work_folder` marks the shard as finished. A shard that an earlier run finished with
    the same `key`, which identifies the settings and the text, is not written again; `segments` is
    then not called. A range without documents gives no file, and returns None. `dtype` is the type
    of the ids, `block_tokens` the number of tokens at which a block of documents ends.
    """
    note = plan.note(work_folder)
    path = os.path.join(folder, plan.file)
    finished = finished_shard(note, key, path)
    if finished:
        return finished
    merged = spill.join(segments())
    order = spill.distinct_order(merged.high, merged.low)
    if len(order) == 0:
        return None
    token_starts, sentence_starts = merged.token_starts, merged.sentence_starts
    # Python integers slice faster than numpy's.
    begin, end = token_starts[order].tolist(), token_starts[order + 1].tolist()
    first, last = sentence_starts[order].tolist(), sentence_starts[order + 1].tolist()
    with records.BlockWriter(path, dtype, block_tokens) as writer:
        for a, b, c, d in zip(begin, end, first, last, strict=True):
            writer.add(merged.tokens[a:b], merged.sentences[c:d])
    shard = Shard(
        file=plan.file,
        index=os.path.basename(records.index_path(path)),
        bytes=writer.bytes,
        **writer.totals(),
    )
    write_note(note, {"key": key, "shard": dataclasses.asdict(shard)})
    return shard


def finished_shard(note: str, key: str, path: str) -> Shard | None:
    """Returns the shard at `path` if an earlier run finished it, else None.

    `note` is the path of the file that says so (`ShardPlan.note`). It must have the same `key`, and
    the shard its full size.
    """
    content = read_note(note, "The note of a shard")
    if content is None or content["key"] != key or not exists(path):
        return None
    shard = Shard(**content["shard"])
    return shard if Path(path).stat().st_size == shard.bytes else None
