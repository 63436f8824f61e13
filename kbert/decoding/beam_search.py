"""Beam search: extends several hypotheses per row and keeps the best finished ones.

Each step scores every continuation of a row's live beams. Continuations among the `width` best that
end in a stop token are finished. They move from the beam to a pool of the best scores; only a
better score replaces a text in the pool. The `width` best other continuations stay live, so the
beam keeps its width.

With `early_stopping="never"` a row is done when no live beam can beat the worst text of a full
pool, of `num_results` texts. The log-probability of a live beam, `L <= 0`, can only fall. The
length penalty that divides it can only grow, up to that of the longest text (a negative exponent:
only fall). So `L / penalty(max_new_tokens)` bounds every score the beam can still reach.

Stopping as soon as `width` texts have ended, `early_stopping=True`, is faster but may miss the best
text: when a model is sure of its text, the worst continuations end at once. `False` puts the length
of the live beam in the place of `max_new_tokens`, which is no bound. Both are the rules of
transformers (`_beam_search` in its generation/utils.py); their pool has `width` texts. A beam of
width 1 stops at the first end; it is greedy search.

At `max_new_tokens` the live beams count as finished texts too. Ties are broken by beam order, then
by token id; in the pool the earlier text wins.

Shapes: `B` rows, `K` beam width, `k` live beams (1 at the first step, then `K`), `V` vocabulary,
`C` continuations that are scored per beam, `N` results, `S` texts of the pool, `G` new tokens at
most.
"""

import dataclasses
from collections.abc import Callable
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from kbert.core.types import Tensor
from kbert.decoding.methods import Beam
from kbert.decoding.request import PAD_ID, Request


def decode_beam(
    step: Callable, logits: Tensor, cache: dict[str, Any], method: Beam, request: Request
) -> tuple[Any, Any, Any]:
    """Runs a beam search until every row is done or has `max_new_tokens` tokens.

    Args:
        step: step function of `decode`, called with `B * K` rows: the beams of a row are adjacent.
        logits: (B, V) logits of the first new token.
        cache: KV cache of `decode`, for `B` rows.
        method: settings of the beam search.
        request: limits of the decoding.

    Returns:
        Token ids (B, N, G), lengths (B, N) and scores (B, N), best first. If fewer than `N` texts
        exist, the remaining entries have length 0 and a score of minus infinity.
    """
    search = _Search(method, request)
    prompt, decoded = (
        keras.tree.map_structure(lambda x: ops.repeat(x, method.width, axis=0), cache[name])
        for name in ("prompt", "decoded")
    )
    _, live, pool, done = search.advance(logits, 0, *search.start(logits))
    last = request.max_new_tokens - 1

    def unfinished(t: Tensor, live: _Live, pool: _Pool, done: Tensor, *_: Any) -> Tensor:
        return (t < last) & ~ops.all(done)

    def advance(t: Tensor, live: _Live, pool: _Pool, done: Tensor, decoded: dict[str, Any]) -> Any:
        chosen = ops.reshape(live[0], (-1,))  # (B * K,)
        logits, after = step(chosen, {"prompt": prompt, "decoded": decoded}, t)
        t = t + 1
        parents, live, pool, done = search.advance(logits, t, live, pool, done)
        rows = ops.reshape(_flat(parents, method.width), (-1,))
        decoded = keras.tree.map_structure(lambda x: ops.take(x, rows, axis=0), after["decoded"])
        return t, live, pool, done, decoded

    state = (ops.zeros((), "int32"), live, pool, done, decoded)
    _, live, pool, done, _ = ops.while_loop(unfinished, advance, state)
    return search.results(live, pool, done)


# Loop state of the live beams and of the finished texts; see `_Search`.
_Live: TypeAlias = tuple[Tensor, Tensor, Tensor]
_Pool: TypeAlias = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class _Search:
    """One step of the search. Its state is tuples that a loop can carry:

    live: token ids of the last step (B, k), log-probabilities (B, k), texts (B, k, G);
    pool: scores (B, S) in descending order, texts (B, S, G), lengths (B, S);
    done: (B,) booleans.
    """

    method: Beam
    request: Request

    def start(self, logits: Tensor) -> tuple[_Live, _Pool, Tensor]:
        """Returns the initial live, pool and done, for logits (B, V) of the first new token.

        There is one empty hypothesis per row, and the pool is empty.
        """
        slots, longest = self._slots, self.request.max_new_tokens
        rows = ops.zeros_like(logits[:, :1], dtype="int32")  # (B, 1); B may be unknown

        def filled(value: float, *shape: int, dtype: str = "int32") -> Tensor:
            fill = ops.full((1, *shape), value, dtype)
            return ops.cast(ops.reshape(rows, (-1, *(1 for _ in shape))), dtype) + fill

        live = (rows, ops.cast(rows, "float32"), filled(PAD_ID, 1, longest))
        pool = (
            filled(-np.inf, slots, dtype="float32"),
            filled(PAD_ID, slots, longest),
            filled(0, slots),
        )
        return live, pool, rows[:, 0] > 0

    @property
    def _slots(self) -> int:
        """Number of texts in the pool, S."""
        method = self.method
        return method.num_results if method.early_stopping == "never" else method.width

    def advance(self, logits: Tensor, t: Tensor, live: _Live, pool: _Pool, done: Tensor) -> Any:
        """Extends every live beam by new token number `t`, from its logits (B * k, V).

        Returns:
            The parent beam of each new beam (B, K), and the new live, pool and done.
        """
        width = self.method.width
        scores, token_ids = self._continuations(logits, t, live)  # (B, k * C) each, best C of each
        each = token_ids.shape[1] // live[0].shape[1]
        token_ids, scores = _widened(token_ids, width, 0), _widened(scores, width, -np.inf)
        stops = self.request.is_stop(token_ids)

        def extended(index: Tensor) -> Tensor:
            """Returns parent beams, last tokens and texts of the continuations `index` (B, K)."""
            parents = ops.minimum(index // each, live[0].shape[1] - 1)
            chosen = _pick(token_ids, index)
            is_current = np.arange(self.request.max_new_tokens) == t
            return (
                parents,
                chosen,
                ops.where(is_current, chosen[..., None], _pick(live[2], parents)),
            )

        best, index = ops.top_k(scores, k=width)
        ended = _pick(stops, index) & (best > -np.inf) & ~done[:, None]
        pool = self._merged(pool, ended, best, extended(index)[2], t + 1)

        log_probabilities, index = ops.top_k(ops.where(stops, -np.inf, scores), k=width)
        parents, chosen, texts = extended(index)
        live = (chosen, log_probabilities, texts)
        to_end = self.method.early_stopping == "never" and self.method.length_penalty > 0
        length = self.request.max_new_tokens if to_end else t + 1
        done = done | (log_probabilities[:, 0] / self._penalty(length) <= pool[0][:, -1])
        if self.method.early_stopping is True:
            # With the last token live beams end too, and all of them compete.
            is_last = ops.equal(t, self.request.max_new_tokens - 1)
            done = done | ((pool[0][:, -1] > -np.inf) & ~is_last)
        if width == 1:
            done = done | ended[:, 0]
        return parents, live, pool, done

    def _continuations(self, logits: Tensor, t: Tensor, live: _Live) -> tuple[Tensor, Tensor]:
        """Returns log-probabilities and last tokens of the C likeliest continuations of each beam.

        `live` are the live beams, `logits` (B * k, V) those of the token with index `t`. The
        results are (B, k * C) each; the log-probabilities are those of whole texts.
        """
        _, log_probabilities, texts = live
        beams = log_probabilities.shape[1]
        # Even if every stop token ranks among a beam's best, `width` other tokens remain.
        most = self.method.width + len(self.request.stop_ids)
        most = min(most, self.request.vocabulary_size)
        logits = ops.cast(logits, "float32")
        texts = ops.reshape(texts, (-1, self.request.max_new_tokens))
        total = ops.logsumexp(logits, axis=-1, keepdims=True)
        if not self.request.constraints.is_empty:  # they change log-probabilities, not logits
            logits, total = logits - total, 0.0
        allowed = self.request.allowed(logits, t, texts, copies=beams)
        best, token_ids = ops.top_k(allowed, k=most)  # (B * k, C)
        best = best - total
        best = ops.reshape(best, (-1, beams, most)) + log_probabilities[..., None]
        shape = (-1, beams * most)
        return ops.reshape(best, shape), ops.reshape(ops.cast(token_ids, "int32"), shape)

    def _merged(
        self, pool: _Pool, new: Tensor, log_probabilities: Tensor, texts: Tensor, lengths: Tensor
    ) -> _Pool:
        """Returns the pool with the best of its texts and of those texts (B, K, G) that are `new`.

        `new` (B, K) is bool. `log_probabilities` (B, K) are divided by the length penalty of
        `lengths`, one number for all texts.
        """
        scores = ops.where(new, log_probabilities / self._penalty(lengths), -np.inf)
        scores, index = ops.top_k(ops.concatenate([pool[0], scores], axis=1), k=self._slots)
        texts = ops.concatenate([pool[1], texts], axis=1)
        lengths = ops.where(new, lengths, 0)
        lengths = ops.concatenate([pool[2], lengths], axis=1)
        return scores, _pick(texts, index), _pick(lengths, index)

    def _penalty(self, lengths: Tensor) -> Tensor:
        """Returns the divisor of the log-probability of texts with these lengths in tokens."""
        lengths = ops.cast(lengths, "float32")
        if self.method.normalisation == "wu":
            lengths = (5.0 + lengths) / 6.0
        return lengths**self.method.length_penalty

    def results(self, live: _Live, pool: _Pool, done: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns token ids (B, N, G), lengths (B, N) and scores (B, N), best first.

        The live beams of rows that are not done count as finished texts.
        """
        longest = self.request.max_new_tokens
        scores, texts, lengths = self._merged(
            pool, ~done[:, None] & (live[1] > -np.inf), live[1], live[2], longest
        )
        texts = ops.where(scores[..., None] > -np.inf, texts, PAD_ID)
        return tuple(x[:, : self.method.num_results] for x in (texts, lengths, scores))


def _widened(x: Tensor, width: int, value: float) -> Tensor:
    """Pads x (B, M) with `value` to at least `width` columns; needed in small vocabularies only."""
    missing = width - x.shape[1]
    return x if missing <= 0 else ops.pad(x, ((0, 0), (0, missing)), constant_values=value)


def _flat(index: Tensor, size: int) -> Tensor:
    """Converts indices within each row, (B, M), to indices into all rows joined, (B, M).

    A row has `size` entries.
    """
    return index + ops.arange(ops.shape(index)[0])[:, None] * size


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Returns entries of each row of x (B, M, …), chosen by `index` (B, K): (B, K, …)."""
    size, *trailing = x.shape[1:]
    return ops.take(ops.reshape(x, (-1, *trailing)), _flat(index, size), axis=0)
