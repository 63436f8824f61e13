"""Chooses one token for every row: the likeliest, or a sampled one.

Shapes: `R` rows, `V` vocabulary, `C` candidates of a row.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from keras import ops

from kbert.core.types import Tensor
from kbert.decoding.constraining import log_probabilities
from kbert.decoding.methods import Greedy, Sampling
from kbert.decoding.noise import gumbel
from kbert.decoding.request import Request

_SEED_LIMIT = 2**32


def make_choice(
    method: Greedy | Sampling, request: Request, seed: Tensor, row_numbers: Tensor
) -> Callable[[Any, Any, Any], tuple[Any, Any]]:
    """Returns a function that chooses a token for each row.

    Its arguments are the logits (R, V), the index of the token and the new tokens so far, (R, G).
    It returns ids (R,) int32 and log-probabilities (R,), those of the full distribution at
    temperature 1 (`Constraints` names exceptions). `Sampling` draws depend on `seed`, a scalar
    integer, and on `row_numbers` (R,); None = 0, 1, …. `Greedy` uses neither.

    Raises:
        ValueError: the method is `Sampling` and `seed` is missing or is not a valid integer.
    """
    if isinstance(method, Sampling):
        _check_seed(seed)

    def choose(logits: Tensor, step: Tensor, texts: Tensor) -> Tensor:
        logits = ops.cast(logits, "float32")
        allowed = request.allowed(logits, step, texts)
        if isinstance(method, Greedy):
            token_ids = ops.argmax(allowed, axis=-1)
        else:
            rows = ops.arange(ops.shape(logits)[0]) if row_numbers is None else row_numbers
            scores, candidates = likeliest(allowed, method)
            drawn = ops.argmax(scores + gumbel(seed, rows, step, candidates), axis=-1)
            if method.top_k is None and method.top_p is None:
                token_ids = drawn
            else:
                token_ids = ops.take_along_axis(candidates, drawn[:, None], axis=-1)[:, 0]
        token_ids = ops.cast(token_ids, "int32")
        return token_ids, log_probabilities(
            request.constraints, logits, allowed, token_ids, step, request.max_new_tokens
        )

    return choose


def likeliest(logits: Tensor, method: Sampling) -> tuple[Any, Any]:
    """Returns the tokens that may be sampled, and their log-probabilities.

    Args:
        logits: (R, V) float32.
        method: settings of the sampling.

    Returns:
        Unnormalised log-probabilities (R, C), minus infinity for tokens that may not be sampled,
        and the matching token ids: (R, C), or (1, V) if neither `top_k` nor `top_p` is set.

    Example:
        >>> scores, ids = likeliest(ops.log(ops.convert_to_tensor([[0.1, 0.6, 0.3]])),
        ...                         Sampling(top_k=2, top_p=0.5))
        >>> ops.convert_to_numpy(ids).tolist(), ops.convert_to_numpy(scores > -9).tolist()
        ([[1, 2]], [[True, False]])
    """
    size = logits.shape[-1]
    scores = logits / method.temperature
    if method.top_k is None and method.top_p is None:
        return scores, ops.arange(size)[None]
    scores, token_ids = ops.top_k(scores, k=min(method.top_k or size, size))
    if method.top_p is not None:
        probabilities = ops.softmax(scores, axis=-1)
        sum_before = ops.cumsum(probabilities, axis=-1) - probabilities
        # The likeliest token always stays, even if rounding makes the sum before it nonzero.
        is_kept = (sum_before < method.top_p) | (np.arange(scores.shape[-1]) == 0)
        scores = ops.where(is_kept, scores, -np.inf)
    return scores, token_ids


def _check_seed(seed: Tensor) -> None:
    if seed is None:
        raise ValueError("Sampling requires a `seed`, an integer. Received: None")
    if hasattr(seed, "dtype"):  # a tensor, so that one compiled function serves many seeds
        if len(seed.shape) or "int" not in str(seed.dtype):
            raise ValueError(f"`seed` must be one integer. Received: {seed}")
    elif not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed < _SEED_LIMIT:
        raise ValueError(
            f"`seed` must be an integer from 0 to {_SEED_LIMIT - 1}. Received: {seed!r}"
        )
