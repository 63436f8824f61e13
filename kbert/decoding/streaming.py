"""Streams tokens as they are decoded."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from kbert.core.types import Tensor
from kbert.decoding.choice import make_choice
from kbert.decoding.constraints import FREE, Constraints
from kbert.decoding.loop import check_method
from kbert.decoding.methods import Beam, Greedy, Sampling
from kbert.decoding.request import PAD_ID, Request
from kbert.decoding.single import choose_unended


def stream(
    step: Callable[[Any, dict[str, Any], Any], tuple[Any, dict[str, Any]]],
    logits: Tensor,
    cache: dict[str, Any],
    *,
    method: Greedy | Sampling,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    seed: Tensor = None,
    banned_ids: Sequence[int] = (),
    row_numbers: Tensor = None,
    constraints: Constraints = FREE,
    prefix: Tensor = None,
) -> Iterator[np.ndarray]:
    """Streams the tokens of `decode`, one step at a time, in a Python loop.

    `step` is not compiled here: pass a compiled function, and the same one for every text. Its `t`
    is a tensor, so it is compiled once.

    Args:
        step: function `(token_ids (B,) int32, cache, t) -> (logits (B, V), cache)`. It reads the
            new token with index `t` and returns the logits of the token after it.
        logits: (B, V) logits of the first new token.
        cache: {"prompt": tree, "decoded": tree} of tensors whose first axis is rows.
        method: `Greedy` or `Sampling`. The first token of a beam is known only at the end.
        max_new_tokens: most new tokens of a row.
        stop_ids: token ids that end a row; empty = rows end only by length.
        seed: seed for `Sampling`: an integer or a scalar integer tensor.
        banned_ids: token ids that are never chosen.
        row_numbers: (B,) integers; `Sampling` draws depend on them and on the seed. None = 0, 1, ….
        constraints: rules that the tokens of a text must obey.
        prefix: (B, P) ids of the tokens before the first new one, for constraints that read them;
            see `decode`.

    Returns:
        An iterator of (B,) int32 arrays: the next token of each row, including stop tokens, and 0
        for rows that have ended. It stops when all rows have ended.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> def step(token_ids, cache, t):
        ...     return ops.one_hot((token_ids + 1) % 5, 5), cache
        >>> first, cache = ops.one_hot([2, 1], 5), {"prompt": (), "decoded": ()}
        >>> for ids in stream(step, first, cache, method=Greedy(), max_new_tokens=9, stop_ids=[4]):
        ...     print(ids)
        [2 1]
        [3 2]
        [4 3]
        [0 4]
    """
    check_method(method)
    if isinstance(method, Beam):
        raise ValueError(
            "A Beam cannot be streamed, because its tokens are known only at the end: use "
            f"`decode`, or stream with Greedy or Sampling. Received: {method}"
        )
    request = Request.of(
        logits,
        cache,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        banned_ids=banned_ids,
        constraints=constraints,
        prefix=prefix,
    )
    choose = make_choice(method, request, seed, row_numbers)
    return _tokens(step, logits, cache, choose, request)  # arguments are checked at the call


def _tokens(
    step: Callable, logits: Tensor, cache: dict[str, Any], choose: Callable, request: Request
) -> Iterator[np.ndarray]:
    ended = ops.zeros_like(logits[:, 0], dtype="bool")
    texts = np.full((logits.shape[0], request.max_new_tokens), PAD_ID, "int32")
    for t in range(request.max_new_tokens):
        chosen, _ = choose_unended(choose, logits, t, texts, ended)
        texts[:, t] = ops.convert_to_numpy(chosen)
        yield texts[:, t].copy()
        ended = ended | request.is_stop(chosen)
        if t + 1 == request.max_new_tokens or bool(ops.all(ended)):
            return
        logits, cache = step(chosen, cache, ops.convert_to_tensor(t, "int32"))
