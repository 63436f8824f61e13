"""Captures the inputs and outputs of an encoder while a task calls it."""

import contextlib
import contextvars
import types
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from kbert.core.types import Tensor
from kbert.layers.gather import gather_positions
from kbert.models.encoder import Encoder


class Captured:
    """Captured inputs and outputs of an encoder; a plain object, which Keras does not track.

    Attributes:
        returned: arguments of the encoder that request more outputs, name -> bool.
        features: inputs of the encoder's last call by name, mostly (batch, tokens).
        outputs: outputs of the encoder's last call by name.
    """

    def __init__(self, returned: Mapping[str, bool]) -> None:
        self.returned = dict(returned)
        self.features: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}


# id() of an encoder -> its captured inputs and outputs in this context.
_ACTIVE: contextvars.ContextVar[Mapping[int, Captured]] = contextvars.ContextVar(
    "capturing", default=types.MappingProxyType({})
)


@contextlib.contextmanager
def capturing(encoder: keras.Model, **returned: bool) -> Iterator[Captured]:
    """Captures an encoder's inputs and outputs while tasks on it are called in this context.

    Args:
        encoder: the encoder of a task.
        **returned: arguments of the encoder that request more outputs, such as
            `return_hidden_states=True`.

    Yields:
        A `Captured` with inputs and outputs of the encoder's last call; empty before the first.

    Example:
        >>> import kbert, numpy as np
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "yes"])
        >>> config = kbert.EncoderConfig(vocabulary_size=6, hidden_size=8, num_layers=2,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> batch = {name: np.ones((1, 3), "int32") for name in ("token_ids", "padding_mask")}
        >>> with capturing(task.encoder, return_hidden_states=True) as captured:
        ...     logits = task(batch)
        >>> len(captured.outputs["hidden_states"])
        3
    """
    captured = Captured(returned)
    token = _ACTIVE.set({**_ACTIVE.get(), id(encoder): captured})
    try:
        yield captured
    finally:
        _ACTIVE.reset(token)


def captured_of(encoder: keras.Model) -> Captured | None:
    """Returns the `Captured` of an encoder; None outside of `capturing(encoder)`."""
    return _ACTIVE.get().get(id(encoder))


def call_encoder(
    encoder: keras.Model,
    inputs: Mapping[str, Any],
    training: bool = False,
    positions: Tensor | None = None,
    **requested: bool,
) -> dict[str, Any]:
    """Calls an encoder and returns its outputs; captures them and the inputs inside `capturing`.

    The captured "sequence" has all tokens, also if `positions` are given.

    Args:
        encoder: a `kbert.Encoder`, or another model with the same inputs and outputs.
        inputs: inputs of the encoder by name.
        training: whether dropout is active.
        positions: (B, P), positions of the tokens that the returned "sequence" (B, P, H) has;
            None = all.
        **requested: arguments of the encoder that request more outputs.
    """
    captured = captured_of(encoder)
    if captured is not None:
        outputs = encoder(inputs, training=training, **{**requested, **captured.returned})
        captured.features, captured.outputs = dict(inputs), outputs
    elif positions is not None and isinstance(encoder, Encoder):
        return encoder(inputs, training=training, output_positions=positions, **requested)
    else:
        outputs = encoder(inputs, training=training, **requested)
    if positions is None:
        return outputs
    return {**outputs, "sequence": gather_positions(outputs["sequence"], positions)}
