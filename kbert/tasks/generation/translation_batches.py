"""Makes a translator's batches from the data that `fit` and `evaluate` accept."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from kbert.core.in_memory import each_text, has_columns, pair_rows
from kbert.core.late import tf
from kbert.core.types import Tensor
from kbert.data.translation.dataset import translation_dataset
from kbert.data.translation.pairs import EncodedPairs
from kbert.text import Pairs
from kbert.training.step.state import replicas_of


def holds_pairs(data: Any, targets: Sequence[str] | None) -> bool:
    """Returns whether `data` are sentence pairs, or sources for `targets`, and not batches.

    Batches are a `tf.data.Dataset`, or a dict of arrays with "encoder_token_ids".
    """
    is_rows = isinstance(data, list | tuple | EncodedPairs | Pairs)
    is_batch = isinstance(data, Mapping) and "encoder_token_ids" in data
    return targets is not None or is_rows or (has_columns(data) and not is_batch)


def pair_batches(
    task: Any,
    data: Any,
    targets: Sequence[str] | None,
    *,
    max_tokens: int,
    max_length: int | None = None,
    **options: Any,
) -> tf.data.Dataset:
    """Returns batches of sentence pairs; their rows divide by devices times micro-batches.

    Args:
        task: a `Translator`.
        data: pairs, also as columns `first` and `second`; or sources.
        targets: translations of the sources; None if `data` has pairs.
        max_tokens: most tokens per side of a batch, including padding.
        max_length: most tokens of a source or target, including the end token. None = as many as
            the task, the model's positions and `max_tokens` allow.
        **options: other arguments of `translation_dataset`.

    Raises:
        ValueError: the numbers of sources and targets differ, `max_length` exceeds the model's
            positions, or `translation_dataset` raises.
    """
    row_multiple = replicas_of(task) * (task.micro_batches if task.compiled else 1)
    if max_length is None:
        max_length = min(task.pair_length, max_tokens // row_multiple)
    if max_length > task.model.max_length:
        raise ValueError(
            f"max_length must be at most {task.model.max_length} (the model's maximum, including "
            f"the end token). Received: max_length={max_length}"
        )
    return translation_dataset(
        with_prefix(task.prefix, pairs_of(data, targets)),
        task.tokenizer,
        max_tokens=max_tokens,
        max_length=max_length,
        framing=task.framing,
        row_multiple=row_multiple,
        masked_share=task.masked_share,
        **options,
    )


def with_prefix(prefix: str, pairs: Any) -> Any:
    """Returns pairs with a prefix before every source; ValueError for pairs that are ids."""
    if not prefix:
        return pairs
    if isinstance(pairs, EncodedPairs):
        raise ValueError(
            "Encoded pairs cannot get the task's prefix: pass strings. Received: EncodedPairs, "
            f"prefix={prefix!r}"
        )
    return [(f"{prefix}{source}", target) for source, target in pairs]


def each_reference(pairs: Any) -> Any:
    """Returns a pair (source, target) for each reference of targets that are lists of references.

    Pairs that are ids, or read from files, are returned as they are, and so is what is no pair:
    who encodes them refuses it.
    """
    if isinstance(pairs, EncodedPairs | Pairs):
        return pairs

    def references(pair: Any) -> Any:
        is_pair = isinstance(pair, tuple | list) and len(pair) == 2
        if is_pair and isinstance(pair[1], tuple | list) and pair[1]:
            return ((pair[0], reference) for reference in pair[1])
        return (pair,)

    return itertools.chain.from_iterable(map(references, pairs))


def pairs_of(data: Any, targets: Sequence[str] | None = None) -> Any:
    """Returns (source, target) pairs of strings from pairs, columns, or sources and targets.

    Without `targets`, a tuple of length 2 is read as sources and targets. Columns are `first` and
    `second`. Raises ValueError unless sources and targets are equally many.
    """
    if targets is None and isinstance(data, tuple) and len(data) == 2:
        data, targets = data
    pairs = data if targets is None else _zipped(data, targets)
    return list(pair_rows(pairs)) if has_columns(pairs) else pairs


def held_out_batches(task: Any, data: Any, max_tokens: int) -> Any:
    """Returns a dataset to evaluate on: batches unchanged, or one pass over all pairs.

    Args:
        task: a `Translator`.
        data: batches, pairs, or a tuple of sources and targets.
        max_tokens: most tokens per side of a batch of pairs, including padding.
    """
    sources, targets = data if isinstance(data, tuple) and len(data) == 2 else (data, None)
    if not holds_pairs(sources, targets):
        return data
    return pair_batches(task, sources, targets, max_tokens=max_tokens, epochs=1, shuffle=False)


def _zipped(sources: Any, targets: Tensor) -> list[tuple[Any, Any]]:
    """Returns the pairs (source, target); raises ValueError if their numbers differ."""
    sources, targets = list(each_text(sources, "sources")), list(each_text(targets, "targets"))
    if len(sources) != len(targets):
        raise ValueError(
            "sources and targets must have the same length. "
            f"Received: {len(sources)} sources, {len(targets)} targets"
        )
    return list(zip(sources, targets, strict=True))
