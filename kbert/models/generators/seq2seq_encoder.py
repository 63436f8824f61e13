"""An encoder-decoder with the interface of an encoder, for tasks that fine-tune it.

Shapes: `B` batch, `T` tokens, `H` hidden width.
"""

from typing import Any, ClassVar, Self

import keras
from keras import ops

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.core.types import DType, Tensors
from kbert.layers import Dense
from kbert.models.generators.decoder_encoder import LastToken
from kbert.models.generators.seq2seq import Seq2Seq
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasModel
from kbert.models.weights import set_arrays


@keras.saving.register_keras_serializable(package="kbert")
class Seq2SeqEncoder(KerasModel, keras.Model):
    """BART as tasks fine-tune it: both sides read the same tokens.

    (Lewis et al. 2020, https://arxiv.org/abs/1910.13461, section 3.1, 3.2 and figure 3a.) The
    encoder reads a row of tokens. The decoder reads the same row shifted by one token to the right;
    in the first place is the row's last token, `</s>`, with which the targets of BART begin. The
    decoder's last hidden state at a token represents this token, and at the row's last token the
    whole row.

        seq2seq = kbert.Seq2Seq.from_preset(folder)
        encoder = kbert.models.Seq2SeqEncoder(seq2seq)
        task = kbert.tasks.TextClassifier(encoder, kbert.load_tokenizer(folder), labels)

    `TextClassifier.from_preset(folder, labels=…, new_head=True)` does the same.

    Args:
        seq2seq: a `kbert.Seq2Seq`, with one vocabulary for source and target.
        pooler: whether there is "pooled", which classifiers read: the row's last hidden state after
            a dense layer with tanh.
        name: name of the model.

    Attributes:
        seq2seq: the `kbert.Seq2Seq`.
        pooler: the dense layer, or None.

    Raises:
        ValueError: source and target have different vocabularies.

    Example:
        >>> import kbert, numpy as np
        >>> config = kbert.Seq2SeqConfig(vocabulary_size=10, hidden_size=8, num_layers=2,
        ...                              num_heads=2, intermediate_size=16)
        >>> encoder = Seq2SeqEncoder(Seq2Seq(config))
        >>> out = encoder({"token_ids": np.array([[0, 5, 6, 2]])})
        >>> tuple(out["sequence"].shape), tuple(out["pooled"].shape)
        ((1, 4, 8), (1, 8))
    """

    input_names: ClassVar[tuple[str, ...]] = ("token_ids", "padding_mask")

    def __init__(
        self, seq2seq: Seq2Seq, *, pooler: bool = True, name: str = "encoder", **kwargs: Any
    ) -> None:
        policy = {"dtype": seq2seq.dtype_policy}
        super().__init__(name=name, autocast=False, **policy, **kwargs)
        if seq2seq.config.target_vocabulary_size is not None:
            raise ValueError(
                "Both sides of an encoder-decoder must have the same vocabulary to read the same "
                f"tokens. Received: target_vocabulary_size={seq2seq.config.target_vocabulary_size}"
            )
        self.config = seq2seq.config
        self.seq2seq = seq2seq
        self.last_token = LastToken(self.config.hidden_size, name="last_token", **policy)
        self.pooler: Dense | None = None
        if pooler:
            self.pooler = Dense(
                self.config.hidden_size,
                activation="tanh",
                initializer_range=self.config.initializer_range,
                name="pooler",
                **policy,
            )
            self.pooler.build((None, self.config.hidden_size))
        self.built = True

    def get_config(self) -> dict[str, Any]:
        return {
            "seq2seq": keras.saving.serialize_keras_object(self.seq2seq),
            "pooler": self.pooler is not None,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        seq2seq = keras.saving.deserialize_keras_object(config["seq2seq"])
        return cls(**{**config, "seq2seq": seq2seq})

    def parts(self) -> dict[str, keras.layers.Layer]:
        """Returns the layers with weights, by the first part of the weights' names in a preset."""
        pooler = {} if self.pooler is None else {"pooler": self.pooler}
        return {**self.seq2seq.parts(), **pooler}

    @property
    def state_widths(self) -> list[int]:
        """Widths of "hidden_states", which are the decoder's."""
        return [self.config.hidden_size] * (self.config.decoder_layers + 1)

    @property
    def id_rows(self) -> dict[str, int]:
        return {"token_ids": self.config.vocabulary_size}

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        return dict.fromkeys(self.input_names, (None, None))

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes a batch.

        Args:
            inputs: "token_ids" (B, T), and optionally "padding_mask" (B, T), 1 for a token. Padding
                must follow the tokens.
            training: whether dropout is active.
            return_hidden_states: whether the hidden states of both sides are returned.
            return_attention: whether the attention of both sides is returned.

        Returns:
            The outputs of `kbert.Seq2Seq.call` without "encoder_sequence". "sequence" (B, T, H) are
            the decoder's last hidden states. With a pooler there is also "pooled" (B, H).
        """
        inputs = self.integers(self._named(inputs))
        ids, mask = inputs["token_ids"], inputs.get("padding_mask")
        mask = ops.ones_like(ids) if mask is None else mask
        first = self.last_token(ids[:, :, None], mask)  # (B, 1)
        # The decoder needs no mask: what follows a token is hidden from it anyway.
        outputs = self.seq2seq(
            {
                "encoder_token_ids": ids,
                "encoder_padding_mask": mask,
                "decoder_token_ids": ops.concatenate([first, ids[:, :-1]], axis=1),
            },
            training=training,
            return_hidden_states=return_hidden_states,
            return_attention=return_attention,
        )
        del outputs["encoder_sequence"]  # no output of an encoder
        if self.pooler is None:
            return outputs
        last = self.last_token(outputs["sequence"], mask)
        return {**outputs, "pooled": self.pooler(last, training=training)}


def load_encoder(
    checkpoint: Checkpoint, dtype: DType, strict: bool, pooler: bool
) -> Seq2SeqEncoder:
    """Loads the encoder-decoder of a folder as an encoder, for a newly initialised head.

    Args:
        checkpoint: content of the folder.
        dtype: a Keras dtype policy or its name.
        strict: whether the folder must have exactly the encoder-decoder's weights.
        pooler: whether the head reads "pooled". The pooler is newly initialised if the folder has
            none.
    """
    with without_drawing():
        seq2seq = Seq2Seq(checkpoint.config, dtype=dtype)
        encoder = Seq2SeqEncoder(seq2seq, pooler=pooler)
        for prefix, part in encoder.parts().items():
            arrays = checkpoint.part(f"{prefix}/")
            if arrays or part is not encoder.pooler:
                set_arrays(part, prefix, arrays, checkpoint.source, strict)
    return encoder
