"""Combinations of hidden states: ELMo's mix, with learned weights, and those without weights.

Shapes: `S` hidden states, `B` batch, `T` tokens, `H` hidden width.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.layer_choice import ChosenLayers
from kbert.core.types import Shape, Tensor


@keras.saving.register_keras_serializable(package="kbert")
class ScalarMix(keras.layers.Layer):
    """gamma · Σ softmax(weights)ₛ · hidden stateₛ.

    (Peters et al. 2018, https://arxiv.org/abs/1802.05365, equation 1 and section 3.4;
    `weight_layers` in bilm/elmo.py of allenai/bilm-tf.) The initial mix is the mean. Apply the
    layer to an encoder's `hidden_states`, or to a frozen encoder's features of several layers.

    Args:
        layer_norm: whether to normalise each state to mean 0 and variance 1 over the entries of
            all real tokens of a batch, as ELMo does with `do_layer_norm`.
        epsilon: number added to that variance.

    Example:
        >>> states = [ops.zeros((1, 3, 4)), ops.ones((1, 3, 4))]
        >>> float(ScalarMix()(states)[0, 0, 0])
        0.5

        On features of a frozen encoder, computed once (layers 0..L, joined):

        >>> import numpy as np
        >>> num_states, width = 3, 4
        >>> features = np.random.default_rng(0).normal(size=(8, num_states * width))
        >>> inputs = keras.Input((num_states * width,))
        >>> mixed = ScalarMix(name="mix")(ops.split(inputs, num_states, axis=-1))
        >>> model = keras.Model(inputs, keras.layers.Dense(2)(mixed))
        >>> model.predict(features, verbose=0).shape
        (8, 2)
    """

    def __init__(self, *, layer_norm: bool = False, epsilon: float = 1e-12, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.layer_norm = layer_norm
        self.epsilon = epsilon

    def build(self, input_shape: Any) -> None:
        count = len(input_shape) if _is_nested(input_shape) else input_shape[0]
        if count is None or count < 1:
            raise ValueError(
                "A mix requires a list of hidden states, or a tensor with their known number as "
                f"its first axis. Received: shape {input_shape}"
            )
        self.scalars = self.add_weight(
            name="weights", shape=(count,), initializer="zeros", autocast=False
        )
        self.gamma = self.add_weight(name="gamma", shape=(), initializer="ones", autocast=False)

    def call(self, hidden_states: Tensor, padding_mask: Tensor = None) -> Tensor:
        """Returns the weighted sum of hidden states.

        Args:
            hidden_states: a list of S tensors (B, T, H) or (B, H), or one of shape (S, B, T, H).
            padding_mask: (B, T), 1 for the tokens that count in `layer_norm`. None = all.

        Returns:
            (B, T, H) or (B, H).
        """
        weights = ops.softmax(self.scalars)
        mixed = 0.0
        for index in range(self.scalars.shape[0]):
            state = ops.cast(hidden_states[index], self.variable_dtype)
            if self.layer_norm:
                state = self._normalise(state, padding_mask)
            mixed = mixed + weights[index] * state
        return ops.cast(self.gamma * mixed, self.compute_dtype)

    def _normalise(self, state: Tensor, padding_mask: Tensor) -> Tensor:
        """Returns a state (B, T, H) with mean 0 and variance 1 over the real tokens of the batch.

        A `padding_mask` (B, T) of None makes all tokens real.
        """
        real = ops.ones_like(state)
        if padding_mask is not None:
            real = real * ops.cast(padding_mask, state.dtype)[:, :, None]
        count = ops.maximum(ops.sum(real), 1.0)
        mean = ops.sum(state * real) / count
        variance = ops.sum(ops.square((state - mean) * real)) / count
        return (state - mean) * ops.rsqrt(variance + self.epsilon)

    def compute_output_shape(self, input_shape: Any) -> Shape:
        return input_shape[0] if _is_nested(input_shape) else tuple(input_shape[1:])

    def get_config(self) -> dict[str, Any]:
        arguments = {"layer_norm": self.layer_norm, "epsilon": self.epsilon}
        return {**super().get_config(), **arguments}


def _is_nested(shape: Any) -> bool:
    """Whether `shape` is a list of shapes and not one shape."""
    return len(shape) > 0 and isinstance(shape[0], list | tuple)


def combine_states(hidden_states: Sequence[Any], chosen: ChosenLayers) -> Tensor:
    """Sums or concatenates chosen hidden states (B, T, H) to features (B, T, D), in float32.

    Example:
        >>> states = [ops.ones((1, 2, 3)), 2 * ops.ones((1, 2, 3))]
        >>> float(combine_states(states, ChosenLayers((0, 1), "sum"))[0, 0, 0])
        3.0
        >>> tuple(combine_states(states, ChosenLayers((0, 1), "concat")).shape)
        (1, 2, 6)
    """
    states = [ops.cast(hidden_states[index], "float32") for index in chosen.indices]
    if chosen.combination == "concat":
        return ops.concatenate(states, axis=-1)
    return sum(states[1:], states[0])
