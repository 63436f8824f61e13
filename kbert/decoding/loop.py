"""Decodes texts from a model's next-token logits in one call.

Shapes: `B` rows, `V` vocabulary, `R` rows of a step (`B`, or `B` times the beam width), `K`
results, `G` new tokens at most, `P` tokens of a prefix.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from kbert.core.types import Tensor
from kbert.decoding.beam_search import decode_beam
from kbert.decoding.choice import make_choice
from kbert.decoding.constraints import FREE, Constraints
from kbert.decoding.methods import Beam, Greedy, Method, Sampling
from kbert.decoding.request import Request
from kbert.decoding.single import decode_single


class Decoded(NamedTuple):
    """Decoded token ids, their lengths and their scores.

    Args:
        token_ids: (B, K, G) int32, padded with 0 after the end.
        lengths: (B, K) int32, including the stop token if there is one.
        scores: (B, K) float32: sums of the model's log-probabilities. For a `Beam` they are
            divided by the length penalty and sorted, best first.
    """

    token_ids: Any
    lengths: Any
    scores: Any


def decode(
    step: Callable[[Any, dict[str, Any], Any], tuple[Any, dict[str, Any]]],
    logits: Tensor,
    cache: dict[str, Any],
    *,
    method: Method,
    max_new_tokens: int,
    stop_ids: Sequence[int],
    seed: Tensor = None,
    banned_ids: Sequence[int] = (),
    row_numbers: Tensor = None,
    constraints: Constraints = FREE,
    prefix: Tensor = None,
) -> Decoded:
    """Decodes all rows in one loop that stops when every row has ended.

    Runs eagerly, in a `tf.function` or compiled by XLA, on TensorFlow and JAX. No shape depends on
    the decoded tokens.

    Args:
        step: function `(token_ids (R,) int32, cache, t) -> (logits (R, V), cache)`. It reads the
            new token with index `t`, a scalar, and returns the logits of the token after it. `t`
            stays below `max_new_tokens - 1`.
        logits: (B, V) logits of the first new token.
        cache: {"prompt": tree, "decoded": tree} of tensors whose first axis is rows. `step` may
            change the tensors under "decoded" but not their shapes.
        method: `Greedy`, `Sampling` or `Beam`.
        max_new_tokens: G, the most new tokens of a row.
        stop_ids: token ids that end a row; empty = rows end only by length.
        seed: seed for `Sampling`: an integer or a scalar integer tensor.
        banned_ids: token ids that are never chosen. Scores remain those of the full distribution.
        row_numbers: (B,) integers; `Sampling` draws depend on them and on the seed. None = 0, 1, ….
            With fixed row numbers, a text does not depend on the batch it is in.
        constraints: rules that the tokens of a text must obey.
        prefix: (B, P) integer ids of the tokens before the first new one, such as the start token
            of a decoder, for constraints that read them. A row with fewer than P has -1 before
            them. None = no tokens.

    Returns:
        `Decoded`, with K = `num_results` for a `Beam` and K = 1 otherwise.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> table = np.log([[0.1, 0.2, 0.7], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1]]).astype("float32")
        >>> def step(token_ids, cache, t):
        ...     return ops.take(table, token_ids, axis=0), cache
        >>> cache = {"prompt": (), "decoded": ()}
        >>> texts = decode(step, ops.convert_to_tensor(table[:1]), cache, method=Greedy(),
        ...                max_new_tokens=5, stop_ids=[0])
        >>> ops.convert_to_numpy(texts.token_ids).tolist(), int(texts.lengths[0, 0])
        ([[[2, 1, 0, 0, 0]]], 3)
    """
    request = Request.of(
        logits,
        cache,
        max_new_tokens=max_new_tokens,
        stop_ids=stop_ids,
        banned_ids=banned_ids,
        constraints=constraints,
        prefix=prefix,
    )
    if isinstance(method, Beam):
        return Decoded(*decode_beam(step, logits, cache, method, request))
    check_method(method)
    choose = make_choice(method, request, seed, row_numbers)
    texts = decode_single(step, logits, cache, choose, request)
    return Decoded(*(x[:, None] for x in texts))


def check_method(method: Any) -> None:
    """Raises ValueError unless `method` is a method of `kbert.decoding`."""
    if not isinstance(method, Greedy | Sampling | Beam):
        raise ValueError(
            f"`method` must be a Greedy, Sampling or Beam of kbert.decoding. Received: {method!r}"
        )
