"""Beam search: several beginnings of each row are followed, and the best that ended are kept.

A step scores every continuation of a row's live beams. Those among the `width` best that are a
stop token have ended: they leave the beam for a pool that keeps the `num_results` best scores and
that no later step changes but by a better one. The `width` best others live on, so the beam stays
as wide as it was. A row is done when no live beam can beat the worst of a full pool. A live beam's
log-probability, `L <= 0`, can only fall, and what divides it can only grow with the length, to that
of the longest text: so `L / penalty(max_new_tokens)` bounds every score that it may still lead to.
To stop when as many texts have ended as the beam is wide would be quicker and wrong: a model that
is sure of its text has the worst continuations end at once. A beam of one alone does so, and is
greedy search.

At `max_new_tokens` the live beams count as texts too. Equal scores keep the order of beams, then
of token ids, and what came into the pool first.

Shapes: `B` rows, `K` beam width, `k` 1 at the first step and `K` after it, `V` vocabulary, `C`
continuations of a beam that are scored, `N` results, `G` new tokens at most.
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
    """Searches until every row is done.

    Args:
        step: see `decode`; it is called with `B * K` rows, a row's beams side by side.
        logits: (B, V).
        cache: see `decode`, for `B` rows.
        method: settings.
        request: limits.

    Returns:
        Token ids (B, N, G), lengths (B, N) and scores (B, N), best first. Where fewer than `N`
        texts exist, the others have length 0 and a score of minus infinity.
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


# What a loop carries of live beams, and of texts that are ended; see `_Search`.
_Live: TypeAlias = tuple[Tensor, Tensor, Tensor]
_Pool: TypeAlias = tuple[Tensor, Tensor, Tensor]


@dataclasses.dataclass(frozen=True)
class _Search:
    """One step of the search, on tuples that a loop can carry:

    live: token ids of the last step (B, k), log-probabilities (B, k), texts (B, k, G);
    pool: scores (B, N) in falling order, texts (B, N, G), lengths (B, N);
    done: (B,) booleans.
    """

    method: Beam
    request: Request

    def start(self, logits: Tensor) -> tuple[_Live, _Pool, Tensor]:
        """One empty beginning a row, and an empty pool."""
        results, longest = self.method.num_results, self.request.max_new_tokens
        rows = ops.zeros_like(logits[:, :1], dtype="int32")  # (B, 1); B may be unknown

        def filled(value: float, *shape: int, dtype: str = "int32") -> Tensor:
            fill = ops.full((1, *shape), value, dtype)
            return ops.cast(ops.reshape(rows, (-1, *(1 for _ in shape))), dtype) + fill

        live = (rows, ops.cast(rows, "float32"), filled(PAD_ID, 1, longest))
        pool = (
            filled(-np.inf, results, dtype="float32"),
            filled(PAD_ID, results, longest),
            filled(0, results),
        )
        return live, pool, rows[:, 0] > 0

    def advance(self, logits: Tensor, t: Tensor, live: _Live, pool: _Pool, done: Tensor) -> Any:
        """Token `t` of every beam, from logits (B * k, V).

        Returns:
            The parent beams of the new ones (B, K), and live, pool and done as above.
        """
        width = self.method.width
        scores, token_ids = self._continuations(logits, live[1])  # (B, k * C) each, best C of each
        each = token_ids.shape[1] // live[0].shape[1]
        token_ids, scores = _widened(token_ids, width, 0), _widened(scores, width, -np.inf)
        stops = self.request.is_stop(token_ids)

        def extended(index: Tensor) -> Tensor:
            """Parent beams, last tokens and texts of continuations (B, K)."""
            parents = ops.minimum(index // each, live[0].shape[1] - 1)
            chosen = _pick(token_ids, index)
            here = np.arange(self.request.max_new_tokens) == t
            return parents, chosen, ops.where(here, chosen[..., None], _pick(live[2], parents))

        best, index = ops.top_k(scores, k=width)
        ended = _pick(stops, index) & (best > -np.inf) & ~done[:, None]
        pool = self._merged(pool, ended, best, extended(index)[2], t + 1)

        log_probabilities, index = ops.top_k(ops.where(stops, -np.inf, scores), k=width)
        parents, chosen, texts = extended(index)
        live = (chosen, log_probabilities, texts)
        bound = log_probabilities[:, 0] / self._penalty(self.request.max_new_tokens)
        done = done | (bound <= pool[0][:, -1])
        if width == 1:
            done = done | ended[:, 0]
        return parents, live, pool, done

    def _continuations(self, logits: Tensor, log_probabilities: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of each beam's likeliest continuations, and their token ids."""
        beams = log_probabilities.shape[1]
        # However many of a beam's best are stop tokens, `width` others are among these.
        most = self.method.width + len(self.request.stop_ids)
        most = min(most, self.request.vocabulary_size)
        logits = ops.cast(logits, "float32")
        best, token_ids = ops.top_k(self.request.allowed(logits), k=most)  # (B * k, C)
        best = best - ops.logsumexp(logits, axis=-1, keepdims=True)
        best = ops.reshape(best, (-1, beams, most)) + log_probabilities[..., None]
        shape = (-1, beams * most)
        return ops.reshape(best, shape), ops.reshape(ops.cast(token_ids, "int32"), shape)

    def _merged(
        self, pool: _Pool, new: Tensor, log_probabilities: Tensor, texts: Tensor, lengths: Tensor
    ) -> _Pool:
        """The pool with those of (B, K) texts that are `new`, scored by their length."""
        scores = ops.where(new, log_probabilities / self._penalty(lengths), -np.inf)
        scores, index = ops.top_k(
            ops.concatenate([pool[0], scores], axis=1), k=self.method.num_results
        )
        texts = ops.concatenate([pool[1], texts], axis=1)
        lengths = ops.where(new, lengths, 0)
        lengths = ops.concatenate([pool[2], lengths], axis=1)
        return scores, _pick(texts, index), _pick(lengths, index)

    def _penalty(self, lengths: Tensor) -> Tensor:
        """What divides the log-probability of a text."""
        return ((5.0 + ops.cast(lengths, "float32")) / 6.0) ** self.method.length_penalty

    def results(self, live: _Live, pool: _Pool, done: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The pool after the last step, live beams of rows that are not done counted."""
        longest = self.request.max_new_tokens
        scores, texts, lengths = self._merged(
            pool, ~done[:, None] & (live[1] > -np.inf), live[1], live[2], longest
        )
        return ops.where(scores[..., None] > -np.inf, texts, PAD_ID), lengths, scores


def _widened(x: Tensor, width: int, value: float) -> Tensor:
    """(B, M) -> (B, at least `width`); only a first step in a small vocabulary falls short."""
    missing = width - x.shape[1]
    return x if missing <= 0 else ops.pad(x, ((0, 0), (0, missing)), constant_values=value)


def _flat(index: Tensor, size: int) -> Tensor:
    """Indices (B, M) into `size` entries of each row -> indices into all rows' entries."""
    return index + ops.arange(ops.shape(index)[0])[:, None] * size


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """(B, M, …), (B, K) -> (B, K, …)."""
    size, *rest = x.shape[1:]
    return ops.take(ops.reshape(x, (-1, *rest)), _flat(index, size), axis=0)
