"""Limits of a decoding, checked once, and the two token tests that every method needs.

Shapes: `R` rows of a step, `V` vocabulary, `P` tokens of a prefix, `G` new tokens at most.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.configs.base import check_count
from kbert.core.types import Tensor
from kbert.decoding.constraining import constrain
from kbert.decoding.constraints import FREE, Constraints

PAD_ID = 0  # after the end of a row


@dataclasses.dataclass(frozen=True)
class Request:
    """Limits of a decoding; see `decode` for the arguments.

    Args:
        vocabulary_size: number of logits per row.
        max_new_tokens: most new tokens of a row.
        stop_ids: token ids that end a row.
        banned_ids: token ids that are never chosen.
        constraints: rules that the tokens of a row must obey.
        prefix: (B, P) int32 ids of the tokens before the first new one, or -1; None without them.
            B is the number of rows of the batch, before beams multiply it.
    """

    vocabulary_size: int
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    banned_ids: tuple[int, ...]
    constraints: Constraints = FREE
    prefix: Tensor = None

    @classmethod
    def of(
        cls,
        logits: Tensor,
        cache: Any,
        *,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        banned_ids: Sequence[int],
        constraints: Constraints = FREE,
        prefix: Tensor = None,
    ) -> "Request":
        """Checks arguments of `decode` and returns them as limits.

        The logits (R, V) give the size of the vocabulary; of `cache` only the keys are checked. Ids
        are sorted, without duplicates; those that `constraints` ban are among the `banned_ids`.

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
        if not isinstance(constraints, Constraints):
            raise ValueError(
                f"`constraints` must be a Constraints of kbert.decoding. Received: {constraints!r}"
            )
        for name in ("forced_first_id", "forced_last_id"):
            if getattr(constraints, name) is not None:
                _unique_ids(name, [getattr(constraints, name)], size)
        banned_ids = _unique_ids("banned_ids", [*banned_ids, *constraints.banned_ids], size)
        if len(banned_ids) == size:
            raise ValueError(
                "`banned_ids` must leave at least one token. "
                f"Received: all {size} of the vocabulary"
            )
        if constraints.min_new_tokens > max_new_tokens:
            raise ValueError(
                "`min_new_tokens` must not exceed `max_new_tokens`. Received: "
                f"min_new_tokens={constraints.min_new_tokens}, max_new_tokens={max_new_tokens}"
            )
        if prefix is not None:
            prefix = ops.convert_to_tensor(prefix)
            if len(prefix.shape) != 2 or "int" not in keras.backend.standardize_dtype(prefix.dtype):
                raise ValueError(
                    "`prefix` must be integers of the shape (rows, tokens). "
                    f"Received: {prefix.dtype} of the shape {tuple(prefix.shape)}"
                )
            prefix = ops.cast(prefix, "int32")
        return cls(size, max_new_tokens, stop_ids, banned_ids, constraints, prefix)

    def allowed(self, scores: Tensor, t: Tensor, texts: Tensor, copies: int = 1) -> Tensor:
        """Applies the banned tokens and the constraints to the scores of the next token.

        Args:
            scores: (R, V) logits or log-probabilities.
            t: index of the next token, a scalar.
            texts: (R, G) new tokens, `t` of which are known; not read unless a constraint reads
                tokens.
            copies: adjacent rows for each row of the prefix: the live beams.

        Returns:
            Scores (R, V), minus infinity for tokens that may not be next.
        """
        if self.banned_ids:
            banned = np.isin(np.arange(self.vocabulary_size), self.banned_ids)
            scores = ops.where(banned, -np.inf, scores)
        if self.constraints.is_empty:
            return scores
        tokens = None
        if self.constraints.reads_tokens:
            tokens = texts
            if self.prefix is not None:
                prefix = self.prefix if copies == 1 else ops.repeat(self.prefix, copies, axis=0)
                tokens = ops.concatenate([prefix, texts], axis=1)
        return constrain(
            self.constraints,
            scores,
            t,
            tokens,
            longest=self.max_new_tokens,
            stop_ids=self.stop_ids,
        )

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
