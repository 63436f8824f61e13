"""Activations by name, with the two forms of GELU told apart."""

from collections.abc import Callable

from keras import ops

_ACTIVATIONS = {
    "gelu": lambda x: ops.gelu(x, approximate=False),
    "gelu_tanh": lambda x: ops.gelu(x, approximate=True),
    "relu": ops.relu,
    "silu": ops.silu,
    "tanh": ops.tanh,
}


def get_activation(name: str) -> Callable:
    """The function called `name`.

    "gelu" is x * Phi(x) by the error function (RoBERTa, ELECTRA, Hugging Face's BERT files);
    "gelu_tanh" is the tanh approximation that BERT, ALBERT and GPT trained with. After four
    layers the two lie 1e-3 apart, so the name is never a matter of taste.

    Args:
        name: "gelu", "gelu_tanh", "relu", "silu" or "tanh".

    Returns:
        A function of one tensor.

    Raises:
        ValueError: no activation has that name.

    Example:
        >>> float(get_activation("relu")(-1.0))
        0.0
    """
    if name not in _ACTIVATIONS:
        raise ValueError(
            f"An activation must be one of {', '.join(_ACTIVATIONS)}. Received: {name!r}"
        )
    return _ACTIVATIONS[name]
