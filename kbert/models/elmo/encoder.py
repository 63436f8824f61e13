"""ELMo with the interface of an encoder, for tasks on its layers.

Shapes: `B` batch, `T` words of a row, `C` characters of a word, `L` LSTM layers, `P` projection,
`H` = 2P.
"""

from typing import Any, ClassVar, Self

import keras

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.configs.elmo import ElmoConfig
from kbert.core.types import DType, Shape, Tensors
from kbert.layers import MeanMaxPooling, ScalarMix
from kbert.models.elmo.elmo import Elmo
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasModel
from kbert.models.weights import set_arrays


class ElmoEncoderConfig(ElmoConfig):
    """ELMo's config with further attributes of an encoder's config that tasks read.

    Attributes:
        num_segments: 0, as ELMo has no segments.
        max_positions: most words in a sequence, including begin and end. An LSTM can read sequences
            of any length; this bounds the memory, and longer texts are truncated or read in
            windows.
        initializer_range: standard deviation of the heads' initial weights.
    """

    num_segments: ClassVar[int] = 0
    max_positions: ClassVar[int] = 512
    initializer_range: ClassVar[float] = 0.02


@keras.saving.register_keras_serializable(package="kbert")
class ElmoEncoder(KerasModel, keras.Model):
    """ELMo as tasks use it: a frozen biLM, and a trained mix of its layers.

    (Peters et al. 2018, https://arxiv.org/abs/1802.05365, section 3.3: "freeze the weights of the
    biLM".) A sequence is `<S>`, words and `</S>`, each of them as C character ids.

        encoder = kbert.models.ElmoEncoder(kbert.Elmo.from_preset(folder))
        task = kbert.tasks.TokenClassifier(encoder, kbert.CharacterTokenizer(), labels, dropout=0.5)
        task.fit(sentences, labels, learning_rate=1e-3)

    The biLM is frozen: the constructor sets `elmo.trainable` to False, so it has no dropout,
    gradients or optimizer slots. `encoder.elmo.trainable = True` before `fit` trains it too, with
    the dropout of its config. Training a head alone needs a larger learning rate than fine-tuning.

    Args:
        elmo: a `kbert.Elmo` without a layer mix.
        name: first part of the paths of the mix's weights.

    Attributes:
        elmo: the biLM.
        mix: a `ScalarMix` of the L + 1 layers; initially their mean.
        pooler: `MeanMaxPooling` of the mix.

    Raises:
        ValueError: the Elmo already has a mix.

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
        return {"elmo": keras.saving.serialize_keras_object(self.elmo), "name": self.name}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        """Builds an encoder from the dict of `get_config`; the biLM stays trainable or frozen."""
        elmo = keras.saving.deserialize_keras_object(config["elmo"])
        is_trained = elmo.trainable
        encoder = cls(**{**config, "elmo": elmo})
        encoder.elmo.trainable = is_trained
        return encoder

    def parts(self) -> dict[str, keras.layers.Layer]:
        """Returns the layers with weights, by the first part of the weights' names in a preset."""
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
            training: whether dropout is active; only if the biLM is trainable.
            return_hidden_states: whether "hidden_states" is returned.

        Returns:
            A dict: "sequence" (B, T, H), the mix; "pooled" (B, 2H), mean and maximum of the mix
            over the words; "hidden_states", L + 1 tensors (B, T, H), the token layer first.
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
    """Builds a randomly initialised encoder for tasks on ELMo."""
    return ElmoEncoder(Elmo(config, dtype=dtype))


def load_encoder(checkpoint: Checkpoint, dtype: DType, strict: bool, pooler: bool) -> ElmoEncoder:
    """Loads the encoder of a folder, without the large softmax over words, which tasks do not use.

    Args:
        checkpoint: content of the folder.
        dtype: a Keras dtype policy or its name.
        strict: whether the folder must have exactly the encoder's weights.
        pooler: whether the head reads "pooled", which this encoder has in any case.
    """
    with without_drawing():
        elmo = Elmo(checkpoint.config.replace(vocabulary_size=None), dtype=dtype)
        arrays = checkpoint.part("elmo/")
        arrays = {name: x for name, x in arrays.items() if not name.startswith("elmo/softmax/")}
        set_arrays(elmo, "elmo", arrays, checkpoint.source, strict)
    return ElmoEncoder(elmo)
