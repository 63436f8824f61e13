"""Greedy search and sampling: decodes one text for each row, in one loop.

Shapes: `R` rows, `V` vocabulary, `G` new tokens at most.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from kbert.core.types import Tensor
from kbert.decoding.request import PAD_ID, Request


def decode_single(
    step: Callable, logits: Tensor, cache: dict[str, Any], choose: Callable, request: Request
) -> tuple[Any, Any, Any]:
    """Chooses tokens until every row has ended or has `max_new_tokens` tokens.

    Args:
        step: step function of `decode`: (token ids, cache, t) -> (logits, cache).
        logits: (R, V) logits of the first new token.
        cache: KV cache of `decode`: a dict of "prompt" and "decoded".
        choose: function of `make_choice`.
        request: limits of the decoding.

    Returns:
        Token ids (R, G), 0 after the end; lengths (R,), including the stop token; and sums of
        log-probabilities (R,).
    """
    columns = np.arange(request.max_new_tokens)
    no_texts = ops.zeros_like(logits[:, :1], dtype="int32") + np.full_like(columns, PAD_ID, "int32")
    chosen, scores = choose(logits, 0, no_texts)
    token_ids = ops.where(columns == 0, chosen[:, None], PAD_ID)
    lengths = ops.ones_like(chosen)
    # No step follows the last token: its logits would not be used.
    last = request.max_new_tokens - 1

    def unfinished(t: Tensor, chosen: Tensor, ended: Tensor, *_: Any) -> Tensor:
        return (t < last) & ~ops.all(ended)

    def advance(
        t: Tensor,
        chosen: Tensor,
        ended: Tensor,
        token_ids: Tensor,
        lengths: Tensor,
        scores: Tensor,
        decoded: dict[str, Any],
    ) -> tuple:
        logits, after = step(chosen, {"prompt": cache["prompt"], "decoded": decoded}, t)
        t = t + 1
        chosen, log_probabilities = choose_unended(choose, logits, t, token_ids, ended)
        token_ids = ops.where(columns == t, chosen[:, None], token_ids)
        lengths = lengths + ops.cast(~ended, lengths.dtype)
        scores = scores + log_probabilities
        ended = ended | request.is_stop(chosen)
        return t, chosen, ended, token_ids, lengths, scores, after["decoded"]

    start = ops.zeros((), "int32")
    state = (start, chosen, request.is_stop(chosen), token_ids, lengths, scores, cache["decoded"])
    _, _, _, token_ids, lengths, scores, _ = ops.while_loop(unfinished, advance, state)
    return token_ids, lengths, scores


def choose_unended(
    choose: Callable, logits: Tensor, t: Tensor, texts: Tensor, ended: Tensor
) -> tuple[Any, Any]:
    """Returns ids (R,) and log-probabilities (R,) from `choose`; 0 for rows that have ended.

    `choose` is the function of `make_choice`, `t` the index of the token, `texts` (R, G) are the
    new tokens so far, `ended` (R,) is bool.
    """
    chosen, log_probabilities = choose(logits, t, texts)
    return ops.where(ended, PAD_ID, chosen), ops.where(ended, 0.0, log_probabilities)
