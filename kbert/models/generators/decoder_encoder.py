"""A decoder with the interface of an encoder, for tasks that fine-tune it.

Shapes: `B` batch, `T` tokens, `H` hidden width, `V` vocabulary of the pretrained decoder.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Self

import keras
import numpy as np
from keras import ops

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.configs.decoder import DecoderConfig
from kbert.core import registry
from kbert.core.types import Arrays, DType, Tensor, Tensors
from kbert.layers.token_embeddings import TokenOutput
from kbert.models.edits import Variants, restore_edits
from kbert.models.generators.decoder import Decoder
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasModel
from kbert.models.weights import get_arrays, set_arrays

# Tokens of the last rows of the token table, in order.
INPUT_TOKENS = ("start", "delimiter", "extract")
_TABLE = "decoder/embeddings/token"
_BIAS = "decoder/head/bias"  # bias of the logits, if there is one


@keras.saving.register_keras_serializable(package="kbert")
class LastToken(keras.layers.Layer):
    """Returns the hidden state of each sequence's last token, which attends to all tokens.

    Args:
        hidden_size: width of the input and the output, H.

    Example:
        >>> sequence = ops.array([[[1.0], [3.0], [9.0]]])
        >>> ops.convert_to_numpy(LastToken(1)(sequence, ops.array([[1, 1, 0]]))).tolist()
        [[3.0]]
    """

    def __init__(self, hidden_size: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = hidden_size  # output width

    def call(self, sequence: Tensor, padding_mask: Tensor) -> dict[str, Any]:
        """Gathers the last token of each row: (B, T, H) -> (B, H), the first if all is padding.

        `padding_mask` (B, T) is 1 for a token; padding must follow the tokens.
        """
        last = ops.sum(ops.cast(padding_mask, "int32"), axis=1) - 1  # (B,)
        last = ops.maximum(last, 0)[:, None, None]
        return ops.take_along_axis(sequence, last, axis=1)[:, 0]


@keras.saving.register_keras_serializable(package="kbert")
class DecoderEncoder(KerasModel, keras.Model):
    """GPT as tasks fine-tune it: the last token's hidden state represents the whole sequence.

    (Radford et al. 2018, "Improving language understanding by generative pre-training", sections
    3.2 and 3.3, figure 1.) A sequence is `[start] text [extract]`, or `[start] text [delimiter]
    text [extract]`. The three tokens are the last rows of the decoder's token table, after those of
    the tokenizer's vocabulary. They are randomly initialised and trained with the task.

        encoder = kbert.models.DecoderEncoder.extend(kbert.Decoder.from_preset(folder))
        task = kbert.tasks.TextClassifier(encoder, kbert.load_tokenizer(folder), labels)
        task.fit(train, learning_rate=6.25e-5, warmup_share=0.002)

    `TextClassifier.from_preset(folder, labels=…, new_head=True)` does the same. Learning rate and
    warmup are those of the original fine-tuning; the other defaults of `fit` are the same there.

    With `input_tokens=False` a sequence is the text alone, or two texts one after the other, and
    the table has no such rows. This is the input of Hugging Face's `GPT2ForSequenceClassification`.

    Args:
        decoder: a `kbert.Decoder`, whose token table ends with the three rows, see `extend`.
        input_tokens: whether sequences have the three tokens.
        name: name of the model.

    Attributes:
        decoder: the `kbert.Decoder`.
        pooler: a `LastToken`.
        has_input_tokens: whether sequences have the three tokens.
        start_id, delimiter_id, extract_id: ids of the three tokens, or None.

    Example:
        >>> config = DecoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1, num_heads=2,
        ...                        intermediate_size=16, max_positions=12)
        >>> encoder = DecoderEncoder.extend(Decoder(config))
        >>> encoder.start_id, encoder.delimiter_id, encoder.extract_id
        (9, 10, 11)
        >>> ids, mask = np.array([[9, 4, 11, 11]]), np.array([[1, 1, 1, 0]])
        >>> out = encoder({"token_ids": ids, "padding_mask": mask})
        >>> bool(ops.all(out["pooled"][0] == out["sequence"][0, 2]))
        True
    """

    def __init__(
        self, decoder: Decoder, *, input_tokens: bool = True, name: str = "encoder", **kwargs: Any
    ) -> None:
        super().__init__(name=name, dtype=decoder.dtype_policy, autocast=False, **kwargs)
        size = decoder.config.vocabulary_size
        if input_tokens and size <= len(INPUT_TOKENS):
            raise ValueError(
                f"`vocabulary_size` must exceed {len(INPUT_TOKENS)}: the last rows of the token "
                f"table belong to the input tokens {', '.join(INPUT_TOKENS)}. Received: "
                f"vocabulary_size={size}"
            )
        self.config = decoder.config
        self.decoder = decoder
        self.pooler = LastToken(self.config.hidden_size, dtype=self.dtype_policy, name="last_token")
        self.has_input_tokens = input_tokens
        # Number of rows of the token table that belong to the tokenizer's vocabulary.
        self.text_rows = size - len(INPUT_TOKENS) if input_tokens else size
        no_ids = [None] * len(INPUT_TOKENS)
        ids: Sequence[Any] = range(self.text_rows, size) if input_tokens else no_ids
        self.start_id, self.delimiter_id, self.extract_id = ids
        self.built = True

    @classmethod
    def extend(cls, decoder: Decoder) -> Self:
        """Copies a decoder and adds the three rows to its token table.

        Args:
            decoder: a pretrained decoder.
        """
        arrays, edits = get_arrays(decoder, "decoder"), decoder.variants.record()
        arguments = (decoder.config, arrays, "the decoder", decoder.dtype_policy)
        return cls.from_arrays(*arguments, edits=edits)

    @classmethod
    def from_arrays(
        cls,
        config: DecoderConfig,
        arrays: Arrays,
        source: str,
        dtype: DType = None,
        strict: bool = True,
        edits: Mapping[str, Any] = MappingProxyType({}),
    ) -> Self:
        """Like `extend`, from the weights of a decoder instead of the decoder itself.

        Args:
            config: config of the decoder.
            arrays: weight name -> array.
            source: source of the arrays, for messages.
            dtype: a Keras dtype policy or its name.
            strict: whether names must match exactly, see `kbert.models.weights.set_arrays`.
            edits: Edits whose weights are among the arrays, see
                `kbert.models.edits.restore_edits`.
        """
        vocabulary_size = config.vocabulary_size + len(INPUT_TOKENS)
        with without_drawing():
            decoder = Decoder(config.replace(vocabulary_size=vocabulary_size), dtype=dtype)
            arrays = dict(arrays)
            if _TABLE in arrays:
                table = arrays[_TABLE]
                drawn = ops.convert_to_numpy(decoder.token_embedding.value)
                drawn = drawn[config.vocabulary_size :].astype(table.dtype)
                arrays[_TABLE] = np.concatenate([table, drawn])
            if _BIAS in arrays:
                arrays[_BIAS] = np.append(arrays[_BIAS], np.zeros(len(INPUT_TOKENS), "float32"))
            restore_edits(decoder, edits, source)
            set_arrays(decoder, "decoder", arrays, source, strict)
        return cls(decoder)

    def get_config(self) -> dict[str, Any]:
        return {
            "decoder": keras.saving.serialize_keras_object(self.decoder),
            "input_tokens": self.has_input_tokens,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> Self:
        decoder = keras.saving.deserialize_keras_object(config["decoder"])
        return cls(**{**config, "decoder": decoder})

    def parts(self) -> dict[str, keras.layers.Layer]:
        """Returns the layers with weights, by the first part of the weights' names in a preset."""
        return self.decoder.parts()

    @property
    def id_rows(self) -> dict[str, int]:
        return self.decoder.id_rows

    @property
    def exported_inputs(self) -> dict[str, tuple[int | None, ...]]:
        return self.decoder.exported_inputs

    @property
    def variants(self) -> Variants:  # type: ignore[override]
        """Named edits of the decoder."""
        return self.decoder.variants

    @property
    def embeddings(self) -> keras.layers.Layer:
        """Layer with the token table, under the name that it has in an encoder."""
        return self.decoder.embeddings

    @property
    def positions(self) -> keras.layers.Layer:
        """Layer with the positions; None if positions are in the attention."""
        return self.decoder.positions

    @property
    def blocks(self) -> list[keras.layers.Layer]:
        """The decoder's blocks, one for each layer."""
        return self.decoder.blocks

    @property
    def norm(self) -> keras.layers.Layer | None:
        """The norm after the last layer, or None."""
        return self.decoder.norm

    def logits(self, sequence: Tensor) -> Tensor:
        """Computes the logits of the next token: (…, H) -> (…, V + 3) float32."""
        return self.decoder.logits(sequence)

    def token_output(self, sequence: Tensor) -> TokenOutput:
        """Returns what `logits` multiplies."""
        return self.decoder.token_output(sequence)

    def call(
        self,
        inputs: Tensors,
        training: bool = False,
        return_hidden_states: bool = False,
        return_attention: bool = False,
    ) -> dict[str, Any]:
        """Encodes a batch; the arguments are those of `kbert.Decoder.call`.

        Returns:
            The decoder's outputs, and "pooled" (B, H), the hidden state of each sequence's last
            token.
        """
        flags = {
            "return_hidden_states": return_hidden_states,
            "return_attention": return_attention,
        }
        inputs = self.integers(self._named(inputs))
        outputs = self.decoder(inputs, training=training, **flags)
        mask = inputs.get("padding_mask")
        mask = ops.ones_like(inputs["token_ids"]) if mask is None else mask
        return {**outputs, "pooled": self.pooler(outputs["sequence"], mask)}


def has_input_tokens(checkpoint: Checkpoint) -> bool:
    """Returns whether sequences of the task in a folder have the three input tokens.

    True if the folder does not say it; `checkpoint` is the content of the folder.
    """
    return (checkpoint.task or {}).get("input_tokens", True)


def load_encoder(
    checkpoint: Checkpoint, dtype: DType, strict: bool, pooler: bool
) -> DecoderEncoder:
    """Loads the decoder of a folder as an encoder, for a newly initialised head.

    The rows of the input tokens are loaded from a fine-tuned folder, and otherwise newly
    initialised.

    Args:
        checkpoint: content of the folder.
        dtype: a Keras dtype policy or its name.
        strict: whether the folder must have exactly the decoder's weights.
        pooler: whether the head reads "pooled", which this encoder has in any case.
    """
    arrays = checkpoint.part("decoder/")
    # Only folders of tasks on encoders have these rows; a decoder alone lacks them.
    kind = (checkpoint.task or {}).get("kind", "")
    tuned = getattr(registry.find("task", kind), "takes_decoders", False)
    if not tuned or not has_input_tokens(checkpoint):
        arguments = (checkpoint.config, arrays, checkpoint.source, dtype, strict)
        return DecoderEncoder.from_arrays(*arguments, checkpoint.edits)
    with without_drawing():
        decoder = Decoder(checkpoint.config, dtype=dtype)
        restore_edits(decoder, checkpoint.edits, checkpoint.source)
        set_arrays(decoder, "decoder", arrays, checkpoint.source, strict)
    return DecoderEncoder(decoder)
