"""Features of tokens below a small head: a choice of hidden states, and a BiLSTM on them.

Shapes: `B` batch, `T` tokens, `H` hidden width, `D` width of the features.
"""

from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.layer_choice import MIX, ChosenLayers, LayerChoice, choose_states
from kbert.core.types import Shape, Tensor
from kbert.layers import MeanMaxPooling, ScalarMix
from kbert.layers.scalar_mix import combine_states

LSTM_LAYERS = 2  # BERT, section 5.3


class TokenFeatures(keras.layers.Layer):
    """Combines hidden states of an encoder, and reads them with a BiLSTM.

    (BERT, section 5.3 and table 7, https://arxiv.org/abs/1810.04805; for a mix with learned weights
    also ELMo, Peters et al. 2018, https://arxiv.org/abs/1802.05365, section 3.3.)

    Args:
        hidden_size: width of the hidden states, H.
        layers: hidden states to combine; None = the encoder's "sequence" alone.
        lstm_width: units in each direction of the two LSTM layers; None = no LSTM.

    Attributes:
        units: width of the features, D.
        pooling: `MeanMaxPooling` of the features, for heads on texts.

    Example:
        >>> states = [ops.ones((1, 3, 4)), ops.zeros((1, 3, 4))]
        >>> features = TokenFeatures(4, ChosenLayers((0, 1), "mix"), lstm_width=5)
        >>> tuple(features(states, ops.ones((1, 3))).shape), features.units
        ((1, 3, 10), 10)
        >>> features.weights[0].path
        'features/mix/weights'
    """

    def __init__(
        self,
        hidden_size: int,
        layers: ChosenLayers | None,
        lstm_width: int | None = None,
        *,
        name: str = "features",
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        policy = {"dtype": self.dtype_policy}
        self.hidden_size = hidden_size
        self.layers = layers
        self.mix: ScalarMix | None = None
        if layers is not None and layers.combination == MIX:
            self.mix = ScalarMix(name="mix", **policy)
        # Width of the combined states.
        self.width = hidden_size * (1 if layers is None else layers.num_joined)
        self.lstms: list[Any] = []
        if lstm_width is not None:
            # cuDNN's kernel would make a SavedModel that only a GPU can run.
            self.lstms = [
                keras.layers.Bidirectional(
                    keras.layers.LSTM(
                        lstm_width, return_sequences=True, use_cudnn=False, name="lstm", **policy
                    ),
                    name=f"lstm_{layer}",
                    **policy,
                )
                for layer in range(LSTM_LAYERS)
            ]
        self.units = self.width if lstm_width is None else 2 * lstm_width
        self.pooling = MeanMaxPooling(self.units, name="pooling", **policy)
        self.build()

    def build(self, *shapes: Shape) -> None:
        if self.mix is not None and self.layers is not None:
            self.mix.build([(None, None, self.hidden_size)] * len(self.layers.indices))
        width = self.width
        for lstm in self.lstms:
            lstm.build((None, None, width))
            width = self.units

    def call(
        self, states: Sequence[Any] | Tensor, padding_mask: Tensor, training: bool = False
    ) -> Tensor:
        """Returns the features (B, T, D); those of padding have no meaning, or are 0 after LSTMs.

        Args:
            states: hidden states of the encoder, L + 1 tensors (B, T, H); with `layers=None` its
                "sequence" (B, T, H).
            padding_mask: (B, T), 1 for a token.
            training: whether dropout is active.
        """
        x: Any = states
        if self.layers is not None:
            if self.mix is not None:
                x = self.mix([states[index] for index in self.layers.indices])
            else:
                x = combine_states(states, self.layers)
        x = ops.cast(x, self.compute_dtype)
        is_token = ops.cast(padding_mask, "bool")
        for lstm in self.lstms:
            # A new tensor: Keras attaches the mask to the LSTM's, and later layers would warn.
            x = ops.where(is_token[..., None], lstm(x, mask=is_token, training=training), 0.0)
        return x


def token_features(
    encoder: keras.Model, layers: LayerChoice | None, lstm_width: int | None
) -> TokenFeatures | None:
    """Makes the layer between an encoder and a head; None if the head reads the encoder's output.

    Args:
        encoder: encoder of the task.
        layers: hidden states to combine, see `choose_layers`. None = the encoder's "sequence",
            which is also the "mix" of an encoder with a mix of its own (ELMo).
        lstm_width: units in each direction of two LSTM layers; None = no LSTM.
    """
    if layers == MIX and getattr(encoder, "mix", None) is not None:
        layers = None
    if layers is None and lstm_width is None:
        return None
    chosen = None if layers is None else choose_states(layers, encoder)
    config: Any = encoder.config
    return TokenFeatures(config.hidden_size, chosen, lstm_width, dtype=encoder.dtype_policy)
