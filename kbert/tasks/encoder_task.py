"""What the tasks on an encoder share: the way from text to the encoder's input.

Shapes: B rows, T tokens, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert.checkpoints import Checkpoint
from kbert.core import registry
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, PathLike, Tensor
from kbert.models import Decoder, DecoderEncoder, Encoder
from kbert.models.captured_outputs import call_encoder
from kbert.models.edits import variants_of
from kbert.models.generators.decoder_encoder import has_input_tokens
from kbert.models.keras_model import KerasModel
from kbert.signatures import Signature, text_tokens
from kbert.signatures.row_export import EncoderRows, RowExport
from kbert.tasks.input_form import InputForm, check_encoder, input_form
from kbert.tasks.loading import load_encoder
from kbert.tasks.task import Task

# Feature of a batch -> the setting of a dataset that has it, and the task that is trained on it.
_OTHER_ROWS = {
    "order_ids": ('masking="permutation"', "PermutationLM"),
    "causal_mask": ("causal_share=…", "MaskedAndCausal"),
}
GLOBAL_POSITIONS = "global_positions"  # an input of encoders with global tokens


class EncoderTask(Task):
    """An encoder with heads.

    A task defines `call` (batch -> outputs of its heads), `loss_terms` (see `TrainStep`),
    `parts`, `settings`, `predict` and `signatures`.

    Args:
        encoder: a `kbert.Encoder`; for tasks that take words as characters also a
            `kbert.models.ElmoEncoder`, for those that take decoders a
            `kbert.models.DecoderEncoder`.
        tokenizer: the tokenizer whose ids the encoder's table is indexed by.
        name: of the task.

    Raises:
        TypeError: what is given as the encoder is none.
        ValueError: encoder, tokenizer and task do not fit together.
    """

    # Rows are padded to a multiple of so many tokens: a compiled model sees few widths.
    width_multiple = 16
    # Whether the heads read the encoder's "pooled", so that an encoder without a pooler gets one.
    needs_pooler: bool = False
    # Whether an encoder may read words as their characters, as ELMo does.
    takes_characters: bool = False
    # Whether the heads read what a model knows that sees the tokens to the left alone, as GPT.
    takes_decoders: bool = False
    row_export: ClassVar[type[RowExport]] = EncoderRows
    # How rows are made, where that is not the encoder's way.
    own_form: InputForm | None = None
    # The named edit of the encoder that the task keeps to (`kbert.edit.adapters`); None = whichever
    # runs.
    variant: str | None = None

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, *, name: str) -> None:
        check_encoder(encoder, f"A {type(self).__name__}")
        super().__init__(encoder, tokenizer, name=name)
        self._check_tokens(encoder, tokenizer)
        self.form = self.own_form or input_form(encoder, tokenizer)
        self.encoder = encoder

    def _check_tokens(self, encoder: Any, tokenizer: Any) -> None:
        """Raises unless the encoder reads what the tokenizer gives: ids, or characters of words."""
        read, given = (getattr(x, "max_characters", None) for x in (encoder.config, tokenizer))
        if read != given:
            raise ValueError(
                "ELMo reads words with a CharacterTokenizer of its config's max_characters, and "
                "every other encoder ids of a tokenizer with a vocabulary. Received: a "
                f"{type(encoder).__name__} with max_characters={read}, a "
                f"{type(tokenizer).__name__} with max_characters={given}"
            )
        if read is not None and not self.takes_characters:
            raise ValueError(
                f"On ELMo's features there are the tasks {_tasks_that('takes_characters')}. "
                f"Received: {type(self).__name__}"
            )
        is_decoder = isinstance(encoder, DecoderEncoder)
        if is_decoder and not self.takes_decoders:
            raise ValueError(
                f"On a decoder there are the tasks {_tasks_that('takes_decoders')}. "
                f"Received: {type(self).__name__}"
            )
        rows = 0 if read else encoder.config.vocabulary_size
        if is_decoder:
            rows = encoder.text_rows
        if read is None and tokenizer.vocabulary_size > rows:
            raise ValueError(
                "The encoder's token table must have a row for each vocabulary entry"
                f"{', before those that DecoderEncoder.extend adds' if is_decoder else ''}. "
                f"Received: vocabulary_size={encoder.config.vocabulary_size} in the encoder's "
                f"config, {tokenizer.vocabulary_size} entries in the tokenizer"
            )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """As of `TrainStep`; of several named edits the task trains its own."""
        variants_of(self.encoder).train([self.variant])
        super().compile(*args, **kwargs)

    @property
    def reads_by_decoder(self) -> bool:
        """Whether the encoder is a decoder."""
        return isinstance(self.encoder, DecoderEncoder)

    @property
    def record(self) -> dict[str, Any]:
        """As of `Task`, and what a `DecoderEncoder` is made again with."""
        bare = self.reads_by_decoder and not self.encoder.has_input_tokens
        return {**super().record, **({"input_tokens": False} if bare else {})}

    @property
    def model(self) -> keras.Model:
        """The encoder."""
        return self.encoder

    @property
    def model_parts(self) -> dict[str, keras.layers.Layer]:
        return self.encoder.parts()

    def encode(
        self,
        features: Mapping[str, Any],
        training: bool = False,
        encoder: keras.Model | None = None,
        positions: Tensor | None = None,
    ) -> dict[str, Any]:
        """The outputs for a batch.

        Args:
            features: the batch; what it holds besides the encoder's inputs is ignored.
            training: whether dropout is active.
            encoder: the task's where None.
            positions: (B, P), the tokens that the heads read: "sequence" is (B, P, H), and where
                nothing else is asked of the encoder its last layer computes no others. None = all.

        Returns:
            What the encoder gives.
        """
        encoder = self.encoder if encoder is None else encoder
        if self.variant is not None and encoder is self.encoder:
            with variants_of(encoder).using(self.variant):
                return self._run_encoder(features, training, encoder, positions)
        return self._run_encoder(features, training, encoder, positions)

    def _run_encoder(
        self,
        features: Mapping[str, Any],
        training: bool,
        encoder: keras.Model,
        positions: Tensor | None,
    ) -> dict[str, Any]:
        names = set(input_names(encoder))
        if not encoder.config.num_segments:
            names.discard("segment_ids")
        inputs = {name: x for name, x in features.items() if name in names}
        if GLOBAL_POSITIONS in names and GLOBAL_POSITIONS not in inputs:
            found = self.global_positions(features)
            inputs |= {} if found is None else {GLOBAL_POSITIONS: found}
        return call_encoder(encoder, inputs, training, positions)

    def predict_on_batch(self, x: Any) -> Any:
        """Keras' `predict_on_batch`, of features; ids outside of their tables are refused."""
        checks = isinstance(self.encoder, KerasModel)
        return super().predict_on_batch(self.encoder.checked_ids(x) if checks else x)

    def global_positions(self, features: Mapping[str, Any]) -> Tensor | None:
        """The global tokens of an encoder that has such (`kbert.models.longformer`).

        Here [CLS], where the heads read the pooled vector, and else none.

        Args:
            features: the batch.

        Returns:
            (B, G) where they stand, -1 = none; None = none in any row.
        """
        return ops.zeros_like(features["token_ids"][:, :1]) if self.needs_pooler else None

    def encode_pooled(self, features: Mapping[str, Any], training: bool = False) -> Tensor:
        """Only "pooled" of `encode`, (B, H), or (B, K, H) of packed rows."""
        none = ops.zeros_like(features["padding_mask"][:, :0], dtype="int32")
        return self.encode(features, training, positions=none)["pooled"]

    # Settings that decide what the heads' predictions mean: a student has its teacher's.
    prediction_settings: tuple[str, ...] = ()

    # Features of rows in which tokens are kept from others and none is masked, that the task knows.
    knows_rows: ClassVar[tuple[str, ...]] = ()

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        """Raises ValueError where a batch lacks what the task's losses read.

        Or where it has rows of another objective, of which this one would predict what it sees.
        """
        for name, (setting, task) in _OTHER_ROWS.items():
            if name in batch and name not in self.knows_rows:
                raise ValueError(
                    f"Of rows of {setting} nothing is masked: kbert.tasks.{task} takes them. "
                    f"Received: a {type(self).__name__} and a batch with {name}"
                )

    @property
    def row_length(self) -> int:
        """The most tokens of a row: what the encoder takes."""
        return self.encoder.config.max_positions

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Ragged ids as the encoder's input, at most `row_length` wide (`data.tables.inputs`)."""
        return self.form.build_inputs(
            first, second, max_length=self.row_length, multiple=self.width_multiple
        )

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """As `Task.save_to_preset`; a decoder with input tokens in kbert's format alone."""
        if format != "kbert" and self.reads_by_decoder and self.encoder.has_input_tokens:
            raise ValueError(
                "A decoder that was fine-tuned with input tokens has rows of the token table that "
                'other libraries have no place for; it is saved with format="kbert". Received: '
                f"{format!r}"
            )
        super().save_to_preset(path, format, **options)

    def sample_outputs(self) -> dict[str, Any]:
        """What the encoder gives for a text of one letter; a task adds what its heads do."""
        if getattr(self.tokenizer, "max_characters", None):
            return {}
        features = self.build_inputs(self.tokenizer.encode(["a"]))
        outputs = self.encode({name: np.asarray(x) for name, x in features.items()})
        return {name: outputs[name] for name in ("sequence", "pooled") if name in outputs}

    def signatures(self) -> dict[str, Signature]:
        """The entry points of the exported model; the first is `serving_default`.

        Returns:
            Here `encode` alone: `text` (B,) strings -> `sequence` (B, T, H), `pooled` (B, H)
            where the encoder has a pooler, and `padding_mask` (B, T), 1 for a token. What stands
            behind a text's last token is of no meaning.
        """

        def encode(text: tf.Tensor) -> dict[str, tf.Tensor]:
            features = self.build_inputs(self.tokenizer.encode(text))
            outputs = {k: tf.cast(v, tf.float32) for k, v in self.encode(features).items()}
            return {**outputs, "padding_mask": features["padding_mask"]}

        spec = [tf.TensorSpec([None], tf.string, "text")]
        tokens = text_tokens(self.row_length)
        return {"encode": Signature(encode, spec, tokens, too_long="cut")}

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        model = super()._make_model(checkpoint, dtype)
        if not isinstance(model, Decoder):
            return model
        return DecoderEncoder(model, input_tokens=has_input_tokens(checkpoint))

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        return load_encoder(checkpoint, tokenizer, dtype, strict=strict, pooler=cls.needs_pooler)


def input_names(encoder: keras.Model) -> tuple[str, ...]:
    """Names of what an encoder reads; one of another kind is given what every `Encoder` takes."""
    return getattr(encoder, "input_names", Encoder.INPUTS)


def _tasks_that(can: str) -> str:
    """Names of the classes of tasks that can do something."""
    classes = (registry.get("task", kind) for kind in registry.names("task"))
    return ", ".join(sorted(cls.__name__ for cls in classes if getattr(cls, can, False)))
