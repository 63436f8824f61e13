"""Layers of the AWD-LSTM: its LSTM, its embeddings, and dropout with a mask for a whole sequence.

Shapes: `B` batch, `T` tokens, `I` width of an input, `U` units, `V` vocabulary, `H` width of an
embedding.
"""

from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers import Dropout
from kbert.layers.adaptive import AdaptiveEmbeddings
from kbert.layers.ids import take_rows, whole_numbers
from kbert.layers.recurrence import projected_lstm


class LockedDropout(Dropout):
    """Dropout with one mask for all tokens of a sequence ("variational" dropout).

    (Gal & Ghahramani 2016, https://arxiv.org/abs/1512.05287; Merity et al. 2017, section 4.2.)

    Args:
        rate: share of columns dropped, in [0, 1).

    Example:
        >>> x = LockedDropout(0.5)(ops.ones((2, 3, 8)), training=True)
        >>> bool(ops.all(x[:, 0] == x[:, 2]))
        True
    """

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        """Drops columns of `inputs` (B, T, U), others for each sequence."""
        if not training or not self.rate:
            return inputs
        return inputs * super().call(ops.ones_like(inputs[:, 0]), training=True)[:, None]


class WordDropoutEmbeddings(AdaptiveEmbeddings):
    """Token embeddings without a scale, of which whole words are dropped in training.

    (Merity et al. 2017, section 4.3.) A dropped word is zeros wherever it occurs in the batch. The
    softmax that is tied to the table (`kbert.layers.adaptive.AdaptiveSoftmax`) reads all of it.

    Args:
        vocabulary_size: rows of the table, V.
        hidden_size: width of an embedding, H.
        rate: share of words dropped, in [0, 1).

    Example:
        >>> embeddings = WordDropoutEmbeddings(9, 4, 0.1)
        >>> tuple(embeddings(ops.array([[1, 2, 3]])).shape)
        (1, 3, 4)
    """

    def __init__(self, vocabulary_size: int, hidden_size: int, rate: float, **kwargs: Any) -> None:
        super().__init__(vocabulary_size, hidden_size, hidden_size, **kwargs)
        self.words = Dropout(rate, name="words")

    def build(self, input_shape: Shape | None = None) -> None:
        table = self.add_weight(
            name="table_0",
            shape=(self.bounds[-1], self.hidden_size),
            initializer=keras.initializers.RandomUniform(-0.1, 0.1),
            autocast=False,
        )
        self.tables, self.projections = [table], []

    def call(
        self, token_ids: Tensor, segment_ids: Tensor | None = None, training: bool = False
    ) -> Tensor:
        ids = whole_numbers(token_ids, "token_ids")
        x = take_rows(self.tables[0], ids)
        if training and self.words.rate:
            x = x * take_rows(self.words(ops.ones((self.bounds[-1], 1)), training=True), ids)
        return ops.cast(x, self.compute_dtype)


class WeightDroppedLSTM(keras.layers.Layer):
    """An LSTM whose hidden-to-hidden weights are dropped in training (DropConnect).

    (Merity et al. 2017, equations 1 to 6 and section 2.) One mask is drawn for a batch and used for
    all its tokens. The gates are in the order input, candidate, forget, output. There is one bias
    for each gate, where PyTorch's LSTM adds two. `kernel` is (I, 4U), `recurrent_kernel` (U, 4U).

    Args:
        units: width of state and output, U.
        weight_dropout: share of the hidden-to-hidden weights dropped.

    Example:
        >>> layer = WeightDroppedLSTM(4, weight_dropout=0.5)
        >>> x, state = layer(ops.ones((2, 5, 3)), ops.zeros((2, 8)))
        >>> tuple(x.shape), tuple(state.shape)
        ((2, 5, 4), (2, 8))
    """

    def __init__(self, units: int, *, weight_dropout: float = 0.0, **kwargs: Any) -> None:
        # No autocast: Keras would cast the state with the inputs.
        super().__init__(autocast=False, **kwargs)
        self.units = units
        self.weight_dropout = Dropout(weight_dropout, name="weight_dropout")

    def build(self, x_shape: Shape, state_shape: Shape | None = None) -> None:
        bound = self.units**-0.5
        uniform = keras.initializers.RandomUniform(-bound, bound)
        for name, shape in (
            ("kernel", (x_shape[-1], 4 * self.units)),
            ("recurrent_kernel", (self.units, 4 * self.units)),
            ("bias", (4 * self.units,)),
        ):
            setattr(self, name, self.add_weight(name=name, shape=shape, initializer=uniform))

    def call(
        self, x: Tensor, state: Tensor, padding_mask: Tensor | None = None, training: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Reads a batch of sequences.

        Args:
            x: (B, T, I).
            state: (B, 2U), cell and hidden state before the first token.
            padding_mask: (B, T), 1 for a token. Where it is 0 the state stays the same and the
                output is 0. None = all tokens.
            training: whether weights are dropped.

        Returns:
            The outputs (B, T, U), and the state after the last token, float32.
        """
        mask = None
        if padding_mask is not None:
            mask = ops.transpose(ops.cast(padding_mask, "bool"))[:, :, None]  # (T, B, 1)
        recurrent = self.weight_dropout(self.recurrent_kernel, training=training)
        state = ops.cast(state, "float32")
        outputs, cell, hidden = projected_lstm(
            ops.transpose(ops.cast(x, self.compute_dtype), (1, 0, 2)),
            ops.cast(ops.concatenate([self.kernel, recurrent]), self.compute_dtype),
            ops.cast(self.bias, self.compute_dtype),
            None,
            state[:, : self.units],
            state[:, self.units :],
            mask=mask,
            forget_bias=0.0,
        )
        if mask is not None:
            outputs = ops.where(mask, outputs, 0.0)
        outputs = ops.cast(ops.transpose(outputs, (1, 0, 2)), self.compute_dtype)
        return outputs, ops.concatenate([cell, hidden], axis=-1)

    def compute_output_spec(
        self, x: Tensor, state: Any, padding_mask: Any = None, training: bool = False
    ) -> Any:
        # Otherwise Keras infers it by running many steps if the number of tokens is unknown.
        outputs = keras.KerasTensor((*x.shape[:-1], self.units), self.compute_dtype)
        return outputs, keras.KerasTensor((x.shape[0], 2 * self.units), "float32")
