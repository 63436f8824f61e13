"""ELMo with the interface of an encoder, for tasks that are trained on its layers.

Shapes: `B` batch, `T` words of a row, `C` characters of a word, `L` LSTM layers, `P` projection,
`H` = 2P.
"""

from typing import Any, ClassVar, Self

import keras
import numpy as np
from keras import ops

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.configs.elmo import ElmoConfig
from kbert.core.types import DType, Shape, Tensor, Tensors
from kbert.layers import ScalarMix
from kbert.models.elmo.elmo import Elmo
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasModel
from kbert.models.weights import set_arrays


class ElmoEncoderConfig(ElmoConfig):
    """ELMo's config, and what a task reads in an encoder's besides.

    Attributes:
        num_segments: 0, ELMo knows none.
        max_positions: words of a row, its ends included. An LSTM reads rows of any length; what
            they take of memory has this bound, and longer texts are cut or read in windows.
        initializer_range: of the heads.
    """

    num_segments: ClassVar[int] = 0
    max_positions: ClassVar[int] = 512
    initializer_range: ClassVar[float] = 0.02


@keras.saving.register_keras_serializable(package="kbert")
class MeanMaxPooling(keras.layers.Layer):
    """Mean and maximum over the words of each row, side by side: vectors of texts without weights.

    (The "concat pooling" of Howard & Ruder 2018, https://arxiv.org/abs/1801.06146, section 3.3,
    over all words.)

    Args:
        hidden_size: H.

    Example:
        >>> pooled = MeanMaxPooling(1)(ops.array([[[1.0], [3.0], [9.0]]]), ops.array([[1, 1, 0]]))
        >>> ops.convert_to_numpy(pooled).tolist()
        [[2.0, 3.0]]
    """

    def __init__(self, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden_size = hidden_size
        self.units = 2 * hidden_size  # width of what it gives

    def call(self, sequence: Tensor, padding_mask: Tensor) -> dict[str, Any]:
        """(B, T, H) and (B, T) -> (B, 2H); a row without a word gives zeros."""
        real = ops.cast(padding_mask, sequence.dtype)[:, :, None]  # (B, T, 1)
        total = ops.sum(real, axis=1)  # (B, 1)
        mean = ops.sum(sequence * real, axis=1) / ops.maximum(total, 1)
        largest = ops.max(ops.where(real > 0, sequence, -np.inf), axis=1)
        return ops.concatenate([mean, ops.where(total > 0, largest, 0)], axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "hidden_size": self.hidden_size}


@keras.saving.register_keras_serializable(package="kbert")
class ElmoEncoder(KerasModel, keras.Model):
    """ELMo as tasks use it: a biLM that stays as it is, and a mix of its layers that is trained.

    (Peters et al. 2018, https://arxiv.org/abs/1802.05365, section 3.3: "freeze the weights of the
    biLM".) A row is `<S>`, words and `</S>`, each of them C character ids.

        encoder = kbert.models.ElmoEncoder(kbert.Elmo.from_preset(folder))
        task = kbert.tasks.TokenClassifier(encoder, kbert.CharacterTokenizer(), labels, dropout=0.5)
        task.fit(sentences, labels, learning_rate=1e-3)

    The biLM is frozen: `trainable` of the Elmo passed becomes False, it has no dropout,
    gradients or slots of an optimizer. `encoder.elmo.trainable = True`, before `fit`, trains it
    too, with the dropout of its config. A head alone takes a larger rate than fine-tuning does.

    Args:
        elmo: a `kbert.Elmo` without a layer mix.
        name: first part of the mix's paths.

    Attributes:
        elmo: the biLM.
        mix: a `ScalarMix` of its L + 1 layers; at the start their mean.
        pooler: `MeanMaxPooling` of the mix.

    Raises:
        ValueError: the Elmo has a mix already.

    Example:
        >>> import kbert
        >>> config = kbert.ElmoConfig(character_size=4, filters=((1, 4), (2, 4)), num_highway=1,
        ...                           lstm_size=8, projection_size=4, num_layers=1)
        >>> encoder = ElmoEncoder(kbert.Elmo(config))
        >>> ids = kbert.CharacterTokenizer().pad_sentences([["The", "sun"], ["It"]])
        >>> out = encoder({"token_ids": ids["character_ids"], "padding_mask": ids["padding_mask"]})
        >>> tuple(out["sequence"].shape), tuple(out["pooled"].shape)
        ((2, 4, 8), (2, 16))
        >>> [weight.path for weight in encoder.trainable_weights]
        ['encoder/mix/weights', 'encoder/mix/gamma']
    """

    def __init__(self, elmo: Elmo, *, name: str = "encoder", **kwargs: Any) -> None:
        super().__init__(name=name, dtype=elmo.dtype_policy, autocast=False, **kwargs)
        if elmo.mix is not None:
            raise ValueError(
                "A task trains its own layer mix: pass an Elmo without one. "
                f"Received: an Elmo with mix={elmo.mix!r}"
            )
        self.config = ElmoEncoderConfig.from_dict(elmo.config.to_dict())
        self.elmo = elmo
        self.elmo.trainable = False
        self.mix = ScalarMix(dtype=self.dtype_policy, name="mix")
        self.pooler = MeanMaxPooling(
            self.config.hidden_size, dtype=self.dtype_policy, name="pooler"
        )
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        hidden = (None, None, self.config.hidden_size)
        self.mix.build([hidden] * (self.config.num_layers + 1))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, for Keras."""
        return {"elmo": keras.saving.serialize_keras_object(self.elmo), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """The reverse of `get_config`; the biLM is trained or frozen as it was."""
        elmo = keras.saving.deserialize_keras_object(config["elmo"])
        is_trained = elmo.trainable
        encoder = cls(**{**config, "elmo": elmo})
        encoder.elmo.trainable = is_trained
        return encoder

    def parts(self) -> dict[str, keras.layers.Layer]:
        """First part of the weights' names in a preset -> the layer that has them."""
        return {"elmo": self.elmo, "mix": self.mix}

    @property
    def id_rows(self) -> dict[str, int]:
        return {"token_ids": self.elmo.id_rows["character_ids"]}

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        shapes = self.elmo.exported_inputs
        return {"token_ids": shapes["character_ids"], "padding_mask": shapes["padding_mask"]}

    def call(
        self, inputs: Tensors, training: bool = False, return_hidden_states: bool = False
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
            inputs: "token_ids" (B, T, C), the characters of words, and "padding_mask" (B, T).
            training: whether dropout is active, in a biLM that is trained too.
            return_hidden_states: adds "hidden_states".

        Returns:
            A dict: "sequence" (B, T, H), the mix; "pooled" (B, 2H), its mean and maximum over the
            words; "hidden_states", L + 1 tensors (B, T, H), the token layer first.
        """
        inputs = self.integers(inputs)
        mask = inputs["padding_mask"]
        layers = self.elmo(
            {"character_ids": inputs["token_ids"], "padding_mask": mask},
            training=training and self.elmo.trainable,
        )["layers"]
        sequence = self.mix(layers)
        outputs = {"sequence": sequence, "pooled": self.pooler(sequence, mask)}
        if return_hidden_states:
            outputs["hidden_states"] = layers
        return outputs


def make_elmo_encoder(config: ElmoConfig, dtype: DType = None) -> ElmoEncoder:
    """What tasks on an ELMo are built on, its weights drawn."""
    return ElmoEncoder(Elmo(config, dtype=dtype))


def load_encoder(checkpoint: Checkpoint, dtype: DType, strict: bool) -> ElmoEncoder:
    """The encoder of a folder, without the softmax over words: large, and of no use to a task.

    Args:
        checkpoint: the folder's content.
        dtype: a Keras dtype policy or its name.
        strict: whether the weights must be the encoder's exactly.
    """
    with without_drawing():
        elmo = Elmo(checkpoint.config.replace(vocabulary_size=None), dtype=dtype)
        arrays = checkpoint.part("elmo/")
        arrays = {name: x for name, x in arrays.items() if not name.startswith("elmo/softmax/")}
        set_arrays(elmo, "elmo", arrays, checkpoint.source, strict)
    return ElmoEncoder(elmo)
