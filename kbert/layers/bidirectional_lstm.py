"""ELMo's stack of LSTMs: two independent directions, with projection, clipping and residuals.

Shapes: `D` = 2 directions (0 reads forward, 1 backward), `B` rows, `T` words, `P` width of the
projection, `U` units, `L` layers.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.dropout import Dropout
from kbert.layers.recurrence import projected_lstm

DIRECTIONS = ("forward", "backward")


@keras.saving.register_keras_serializable(package="kbert")
class BidirectionalLSTM(keras.layers.Layer):
    """L LSTM layers with projection in each direction; the state is passed in and returned.

    (Peters et al. 2018, https://arxiv.org/abs/1802.05365, section 3.4; `_build_lstms` in
    bilm/model.py and `LanguageModel._build` in bilm/training.py of allenai/bilm-tf.)
    `projected_lstm` describes the cell. The state is float32 under any dtype policy.

    Args:
        units: width of the cells, U.
        projection_size: width of input, hidden state and output, P.
        num_layers: number of layers, L.
        cell_clip: bound of the absolute entries of the cells; None = no bound.
        projection_clip: bound of the absolute entries of the hidden states; None = no bound.
        skip_connections: whether each layer but the first adds its input to its output. The hidden
            state does not include the input.
        dropout: dropout rate on the input of each layer, in training; with a new mask for every
            word. A skip connection adds the input after dropout.

    Raises:
        ValueError: a size below 1 or a bound that is not positive.

    Example:
        >>> layer = BidirectionalLSTM(units=8, projection_size=4, num_layers=2)
        >>> outputs, state = layer(ops.ones((2, 3, 5, 4)))
        >>> len(outputs), tuple(outputs[0].shape), tuple(state.shape)
        (2, (2, 3, 5, 4), (2, 2, 3, 12))
        >>> outputs, state = layer(ops.ones((2, 3, 5, 4)), state=state)  # the text continues
    """

    def __init__(
        self,
        units: int,
        projection_size: int,
        num_layers: int,
        *,
        cell_clip: float | None = 3.0,
        projection_clip: float | None = 3.0,
        skip_connections: bool = True,
        dropout: float = 0.0,
        **kwargs: Any,
    ) -> None:
        # No autocast: Keras would cast the state with the inputs. Both are cast where used.
        super().__init__(autocast=False, **kwargs)
        for name, size in (
            ("units", units),
            ("projection_size", projection_size),
            ("num_layers", num_layers),
        ):
            if size < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {size!r}")
        for name, bound in (("cell_clip", cell_clip), ("projection_clip", projection_clip)):
            if bound is not None and bound <= 0:
                raise ValueError(
                    f"`{name}` must be positive, or None for no bound. Received: {bound!r}"
                )
        self.units = units
        self.projection_size = projection_size
        self.num_layers = num_layers
        self.cell_clip = cell_clip
        self.projection_clip = projection_clip
        self.skip_connections = skip_connections
        self.dropout = Dropout(dropout, dtype=self.dtype_policy, name="dropout")
        self.cells = [  # flat: Keras does not save weights in a list of lists
            ProjectedCell(units, projection_size, dtype=self.dtype_policy, name=f"{way}_{i}")
            for i in range(num_layers)
            for way in DIRECTIONS
        ]

    def build(self, input_shape: Shape) -> None:
        _check_shape("x", input_shape, (len(DIRECTIONS), "rows", "words", self.projection_size))
        for cell in self.cells:
            cell.build((None, self.projection_size))

    def cell(self, layer: int, direction: int) -> "ProjectedCell":
        """Returns the weights of one layer in one direction: 0 forward, 1 backward."""
        return self.cells[layer * len(DIRECTIONS) + direction]

    def call(
        self, x: Tensor, padding_mask: Tensor = None, state: Tensor = None, training: bool = False
    ) -> Any:
        """Runs all layers over the words in both directions.

        Args:
            x: (D, B, T, P), each direction in the order in which it is read.
            padding_mask: (D, B, T), 1 for a word. Where it is 0 the state stays the same and the
                outputs are 0. None = all words.
            state: (L, D, B, U + P), cell and hidden state concatenated, as returned for the
                previous words. None = zeros.
            training: whether dropout is active.

        Returns:
            The outputs of the layers, a list of L tensors (D, B, T, P), and the state after the
            last word.
        """
        masks = [None] * len(DIRECTIONS)
        if padding_mask is not None:
            _check_shape("padding_mask", padding_mask.shape, (len(DIRECTIONS), "rows", "words"))
            is_word = ops.transpose(ops.cast(padding_mask, "bool"), (0, 2, 1))[..., None]
            masks = [is_word[d] for d in range(len(DIRECTIONS))]  # (T, B, 1)
        state_shape: list[Any] = [
            self.num_layers,
            len(DIRECTIONS),
            "rows",
            self.units + self.projection_size,
        ]
        if state is None:
            state_shape[2] = ops.shape(x)[1]
            state = ops.zeros(state_shape, "float32")
        else:
            _check_shape("state", state.shape, state_shape)
            state = ops.cast(state, "float32")
        x = ops.transpose(ops.cast(x, self.compute_dtype), (0, 2, 1, 3))  # (D, T, B, P)
        outputs, states = [], []
        for layer in range(self.num_layers):
            x = self.dropout(x, training=training)
            layer_outputs, last = zip(
                *(
                    self._read(self.cell(layer, d), x[d], masks[d], state[layer, d])
                    for d in range(len(DIRECTIONS))
                ),
                strict=True,
            )
            layer_outputs = ops.stack(layer_outputs)  # (D, T, B, P)
            x = layer_outputs + x if self.skip_connections and layer else layer_outputs
            outputs.append(ops.transpose(x, (0, 2, 1, 3)))  # (D, B, T, P)
            states.append(ops.stack(last))
        return outputs, ops.stack(states)

    def _read(self, weights: Any, x: Tensor, mask: Tensor, state: Any) -> Any:
        """Runs one layer in one direction over x (T, B, P).

        Returns the outputs (T, B, P) and the last state. At padding the outputs are 0, and the
        state stays the same.

        `weights` is a `ProjectedCell`, `mask` (T, B, 1) true for words or None, and `state`
        (B, U + P) the cell and hidden state before the first word.
        """
        hidden_states, cell, hidden = projected_lstm(
            x,
            ops.cast(weights.kernel, self.compute_dtype),
            ops.cast(weights.bias, self.compute_dtype),
            ops.cast(weights.projection, self.compute_dtype),
            state[:, : self.units],
            state[:, self.units :],
            mask=mask,
            cell_clip=self.cell_clip,
            projection_clip=self.projection_clip,
        )
        if mask is not None:
            hidden_states = ops.where(mask, hidden_states, 0.0)
        return (
            ops.cast(hidden_states, self.compute_dtype),
            ops.concatenate([cell, hidden], axis=-1),
        )

    def compute_output_spec(
        self,
        x: Tensor,
        padding_mask: Tensor | None = None,
        state: Any | None = None,
        training: bool = False,
    ) -> Any:
        # Otherwise Keras infers it by running 172 steps if the number of words is unknown.
        outputs = [keras.KerasTensor(x.shape, self.compute_dtype) for _ in range(self.num_layers)]
        width = self.units + self.projection_size
        shape = (self.num_layers, len(DIRECTIONS), x.shape[1], width)
        return outputs, keras.KerasTensor(shape, "float32")

    def get_config(self) -> dict[str, Any]:
        arguments = {
            "units": self.units,
            "projection_size": self.projection_size,
            "num_layers": self.num_layers,
            "cell_clip": self.cell_clip,
            "projection_clip": self.projection_clip,
            "skip_connections": self.skip_connections,
            "dropout": self.dropout.rate,
        }
        return {**super().get_config(), **arguments}


class ProjectedCell(keras.layers.Layer):
    """The weights of one LSTM: `kernel` (2P, 4U), `bias` (4U,), `projection` (U, P).

    They are initialised as in TensorFlow 1: Glorot and Bengio's uniform, zero biases.
    """

    def __init__(self, units: int, projection_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = units
        self.projection_size = projection_size

    def build(self, input_shape: Shape) -> None:
        rows = input_shape[-1] + self.projection_size
        self.kernel = self.add_weight(
            name="kernel", shape=(rows, 4 * self.units), initializer="glorot_uniform"
        )
        self.bias = self.add_weight(name="bias", shape=(4 * self.units,), initializer="zeros")
        self.projection = self.add_weight(
            name="projection",
            shape=(self.units, self.projection_size),
            initializer="glorot_uniform",
        )


def _check_shape(name: str, shape: Shape, rule: Sequence[int | str]) -> None:
    """Raises ValueError if the shape of the argument `name` does not fit `rule`.

    `rule` has an entry for each axis: a number must match, a word allows any size. An unknown size
    (None) fits every number.
    """
    fits = len(shape) == len(rule) and all(
        isinstance(expected, str) or size in (None, expected)
        for size, expected in zip(shape, rule, strict=True)
    )
    if not fits:
        raise ValueError(
            f"`{name}` must have the shape ({', '.join(map(str, rule))}). "
            f"Received: shape {tuple(shape)}"
        )
