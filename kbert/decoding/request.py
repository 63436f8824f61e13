"""Limits of a decoding, checked once, and the two token tests that every method needs.

Shapes: `R` rows of a decoding batch, `V` vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from kbert.configs.base import check_count
from kbert.core.types import Tensor

PAD_ID = 0  # after the end of a row


@dataclasses.dataclass(frozen=True)
class Request:
    """Limits of a decoding; see `decode` for the arguments.

    Args:
        vocabulary_size: number of logits per row.
        max_new_tokens: most new tokens of a row.
        stop_ids: token ids that end a row.
        banned_ids: token ids that are never chosen.
    """

    vocabulary_size: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    banned_ids: tuple[int, ...]

    @classmethod
    def of(
        cls,
        logits: Tensor,
        cache: Any,
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        banned_ids: Sequence[int],
    ) -> "Request":
        """Checks arguments of `decode` and returns them as limits.

        The logits (R, V) give the size of the vocabulary; of `cache` only the keys are checked. Ids
        are sorted, without duplicates.

        Raises:
            ValueError: an argument of `decode` is out of range or has the wrong shape or keys.
        """
        shape = tuple(logits.shape)
        if len(shape) != 2 or shape[1] is None:
            raise ValueError(
                "`logits` must have the shape (rows, vocabulary), with a known vocabulary. "
                f"Received: {shape}"
            )
        if not isinstance(cache, dict) or set(cache) != {"prompt", "decoded"}:
            raise ValueError(
                '`cache` must be a dict of "prompt" and "decoded". Received: '
                f"{sorted(cache) if isinstance(cache, dict) else cache!r}"
            )
        check_count("max_new_tokens", max_new_tokens, minimum=1)
        size = int(shape[1])
        stop_ids = _unique_ids("stop_ids", stop_ids, size)
        banned_ids = _unique_ids("banned_ids", banned_ids, size)
        if len(banned_ids) == size:
            raise ValueError(
                "`banned_ids` must leave at least one token. "
                f"Received: all {size} of the vocabulary"
            )
        return cls(size, max_new_tokens, stop_ids, banned_ids)

    def allowed(self, logits: Tensor) -> Tensor:
        """Returns the logits (…, V) with minus infinity for banned tokens."""
        if not self.banned_ids:
            return logits
        banned = np.isin(np.arange(self.vocabulary_size), self.banned_ids)
        return ops.where(banned, -np.inf, logits)

    def is_stop(self, ids: Tensor) -> Tensor:
        """Returns booleans, of the shape of `ids`: whether each id is a stop token."""
        if not self.stop_ids:
            return ops.zeros_like(ids, dtype="bool")
        return ops.any(ids[..., None] == np.array(self.stop_ids, "int32"), axis=-1)


def _unique_ids(name: str, ids: Sequence[int], vocabulary_size: int) -> tuple[int, ...]:
    """Returns token ids sorted, without duplicates; raises ValueError if one is out of range.

    `name` is the name of the argument, for the error message.
    """
    array = np.asarray(ids).reshape(-1) if len(ids) else np.zeros((0,), "int32")
    inside = np.issubdtype(array.dtype, np.integer) and np.all(
        (array >= 0) & (array < vocabulary_size)
    )
    if not inside:
        raise ValueError(
            f"`{name}` must be integers from 0 to {vocabulary_size - 1}, the vocabulary's ids. "
            f"Received: {list(ids)}"
        )
    return tuple(sorted({int(i) for i in array}))
