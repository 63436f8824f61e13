"""The base of tasks on an encoder: from text to the encoder's input.

Shapes: B rows, T tokens, H hidden width.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from typing import Any, ClassVar

import keras
from keras import ops

from kbert.checkpoints import Checkpoint
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core import late, registry
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.ragged import Ragged
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

# Feature of a batch -> the dataset setting that adds it, what is special about such batches, and
# the task trained on them.
_OTHER_ROWS = {
    "order_ids": ('masking="permutation"', "have no masked tokens", "PermutationLM"),
    "causal_mask": ("causal_share=…", "have no masked tokens", "MaskedAndCausal"),
    "attention_order": ("attention_shares=…", "hide tokens from each other", "UniLM"),
}
GLOBAL_POSITIONS = "global_positions"  # an input of encoders with global tokens


class EncoderTask(Task):
    """An encoder with heads.

    A task defines `call` (batch -> outputs of its heads), `loss_terms` (see `TrainStep`),
    `parts`, `settings`, `predict` and `signatures`.

    Args:
        encoder: a `kbert.Encoder`. Tasks with `takes_characters` also accept a
            `kbert.models.ElmoEncoder`, tasks with `takes_decoders` a
            `kbert.models.DecoderEncoder`, tasks with `takes_seq2seq` a
            `kbert.models.Seq2SeqEncoder`.
        tokenizer: tokenizer whose ids index the encoder's token table.
        name: name of the task.

    Raises:
        TypeError: `encoder` is not an encoder.
        ValueError: encoder, tokenizer and task do not fit together.
    """

    # Rows are padded to a multiple of this many tokens, so that a compiled model sees few widths.
    width_multiple = 16
    # Whether the heads read the encoder's "pooled", so that an encoder without a pooler gets one.
    needs_pooler: bool = False
    # Whether the encoder may read words as characters, like ELMo.
    takes_characters: bool = False
    # Whether the encoder may be a decoder, whose tokens attend only to those on their left (GPT).
    takes_decoders: bool = False
    # Whether the encoder may be an encoder-decoder, both sides of which read the tokens (BART).
    takes_seq2seq: bool = False
    row_export: ClassVar[type[RowExport]] = EncoderRows
    # The form of the input rows; None = the encoder's.
    own_form: InputForm | None = None
    # The named edit of the encoder that the task uses (`kbert.edit.adapters`); None = the one that
    # is active.
    variant: str | None = None
    # Arguments of the encoder that request more outputs for the heads.
    _requested: Mapping[str, bool] = types.MappingProxyType({})

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, *, name: str) -> None:
        check_encoder(encoder, f"A {type(self).__name__}")
        super().__init__(encoder, tokenizer, name=name)
        self._check_tokens(encoder, tokenizer)
        self.form = self.own_form or input_form(encoder, tokenizer)
        self.encoder = encoder

    def _check_tokens(self, encoder: Any, tokenizer: Any) -> None:
        """Raises ValueError unless encoder and tokenizer both use ids, or both use characters.

        Raises also if the task does not accept such an encoder, or the token table is too small.
        """
        encoder_characters, tokenizer_characters = (
            getattr(x, "max_characters", None) for x in (encoder.config, tokenizer)
        )
        if encoder_characters != tokenizer_characters:
            raise ValueError(
                "ELMo requires a CharacterTokenizer with its config's max_characters, and every "
                "other encoder requires a tokenizer with a vocabulary. Received: a "
                f"{type(encoder).__name__} with max_characters={encoder_characters}, a "
                f"{type(tokenizer).__name__} with max_characters={tokenizer_characters}"
            )
        is_decoder = isinstance(encoder, DecoderEncoder)
        is_seq2seq = getattr(encoder.config, "kind", None) == Seq2SeqConfig.kind
        for is_one, takes, what in (
            (
                encoder_characters is not None,
                "takes_characters",
                "ELMo, whose tokens are whole words without ids, is",
            ),
            (is_decoder, "takes_decoders", "Decoders are"),
            (is_seq2seq, "takes_seq2seq", "Encoder-decoders are"),
        ):
            if is_one and not getattr(self, takes):
                raise ValueError(
                    f"{what} supported by the tasks {_tasks_that(takes)} only. "
                    f"Received: {type(self).__name__}"
                )
        table_rows = 0 if encoder_characters else encoder.config.vocabulary_size
        if is_decoder:
            table_rows = encoder.text_rows
        if encoder_characters is None and tokenizer.vocabulary_size > table_rows:
            raise ValueError(
                "The encoder's token table must have a row for each vocabulary entry"
                f"{', before those that DecoderEncoder.extend adds' if is_decoder else ''}. "
                f"Received: vocabulary_size={encoder.config.vocabulary_size} in the encoder's "
                f"config, {tokenizer.vocabulary_size} entries in the tokenizer"
            )

    def compile(self, *args: Any, **kwargs: Any) -> None:
        """Compiles like `TrainStep.compile`.

        If the task has a named edit, such as an adapter, the rest of the encoder is frozen.
        """
        variants_of(self.encoder).train([self.variant])
        super().compile(*args, **kwargs)

    @property
    def reads_by_decoder(self) -> bool:
        """Whether the encoder is a `DecoderEncoder`."""
        return isinstance(self.encoder, DecoderEncoder)

    @property
    def record(self) -> dict[str, Any]:
        """Like `Task.record`, with the `input_tokens` needed to restore a `DecoderEncoder`."""
        lacks_input_tokens = self.reads_by_decoder and not self.encoder.has_input_tokens
        return {**super().record, **({"input_tokens": False} if lacks_input_tokens else {})}

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
        """Runs the encoder on a batch.

        Args:
            features: the batch; features that are not inputs of the encoder are ignored.
            training: whether dropout is active.
            encoder: encoder to run; None = the task's.
            positions: (B, P), positions of the tokens that the heads read; "sequence" then is
                (B, P, H). If no other outputs are captured, a `kbert.Encoder` computes only these
                tokens in its last layer. None = all tokens.

        Returns:
            The encoder's outputs, by name.
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
        """Runs an encoder with the edit in use and returns its outputs; see `encode`."""
        names = set(input_names(encoder))
        if not encoder.config.num_segments:
            names.discard("segment_ids")
        inputs = {name: x for name, x in features.items() if name in names}
        if GLOBAL_POSITIONS in names and GLOBAL_POSITIONS not in inputs:
            global_positions = self.global_positions(features)
            inputs |= {} if global_positions is None else {GLOBAL_POSITIONS: global_positions}
        return call_encoder(encoder, inputs, training, positions, **self._requested)

    def predict_on_batch(self, x: Any) -> Any:
        """Like Keras' `predict_on_batch`, for features; ids outside a table raise ValueError."""
        can_check = isinstance(self.encoder, KerasModel)
        return super().predict_on_batch(self.encoder.checked_ids(x) if can_check else x)

    def global_positions(self, features: Mapping[str, Any]) -> Tensor | None:
        """Returns the positions of the global tokens, for encoders with global attention.

        By default [CLS] if the heads read the pooled vector, else none. See
        `kbert.models.longformer`.

        Args:
            features: the batch.

        Returns:
            (B, G) positions, -1 = none; None = no global tokens in any row.
        """
        return ops.zeros_like(features["token_ids"][:, :1]) if self.needs_pooler else None

    def encode_pooled(self, features: Mapping[str, Any], training: bool = False) -> Tensor:
        """Returns only "pooled" of `encode`: (B, H), or (B, K, H) for rows that pack K examples."""
        no_positions = ops.zeros_like(features["padding_mask"][:, :0], dtype="int32")
        return self.encode(features, training, positions=no_positions)["pooled"]

    # Settings that decide what the heads' predictions mean: a student must have its teacher's.
    prediction_settings: tuple[str, ...] = ()

    # Features of `_OTHER_ROWS` that the task supports.
    knows_rows: ClassVar[tuple[str, ...]] = ()

    def check_batch(self, batch: Mapping[str, Any]) -> None:
        """Raises ValueError if a batch does not fit the task's losses.

        Subclasses check that the features are there. This method rejects rows of another
        objective, such as rows without masks, in which the task would predict tokens that it sees.
        """
        for name, (setting, what, task) in _OTHER_ROWS.items():
            if name in batch and name not in self.knows_rows:
                raise ValueError(
                    f"Batches made with {setting} {what}: use kbert.tasks.{task}. "
                    f"Received: a {type(self).__name__} and a batch with {name}"
                )

    @property
    def row_length(self) -> int:
        """Maximum number of tokens in a row: the encoder's `max_positions`."""
        return self.encoder.config.max_positions

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs token ids of texts, or of pairs with `second`, into the encoder's inputs (B, T).

        T is at most `row_length`; longer texts are truncated. See `kbert.tokenizers.packing`.
        """
        return self.form.build_inputs(
            first, second, max_length=self.row_length, multiple=self.width_multiple
        )

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """Like `Task.save_to_preset`; a decoder with input tokens needs format="kbert"."""
        if format != "kbert" and self.reads_by_decoder and self.encoder.has_input_tokens:
            raise ValueError(
                'format must be "kbert" for a decoder that was fine-tuned with input tokens: other '
                "libraries do not support its additional token embeddings. Received: "
                f"{format!r}"
            )
        super().save_to_preset(path, format, **options)

    def sample_outputs(self) -> dict[str, Any]:
        """Returns the encoder's outputs for a text of one token; tasks add those of their heads.

        The text is given as ids, so that a run on shards never builds its tokenizer. Empty for an
        encoder of characters.
        """
        if getattr(self.tokenizer, "max_characters", None):
            return {}
        outputs = self.encode(self.build_inputs(Ragged.of([[0]])))
        return {name: outputs[name] for name in ("sequence", "pooled") if name in outputs}

    def signatures(self) -> dict[str, Signature]:
        """Returns the entry points of the exported model; the first is `serving_default`.

        Returns:
            By default only `encode`: `text` (B,) strings -> `sequence` (B, T, H), `pooled` (B, H)
            if the encoder has a pooler, and `padding_mask` (B, T), 1 for a token. Values of
            `sequence` at padding have no meaning.
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
        if isinstance(model, Decoder):
            return DecoderEncoder(model, input_tokens=has_input_tokens(checkpoint))
        kind = checkpoint.config.kind
        if kind in late.TABLE["view as an encoder"]:
            return late.load("view as an encoder", kind)(model, pooler=cls.needs_pooler)
        return model

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        return load_encoder(checkpoint, tokenizer, dtype, strict=strict, pooler=cls.needs_pooler)


def input_names(encoder: keras.Model) -> tuple[str, ...]:
    """Returns the names of an encoder's inputs; by default those of `Encoder`."""
    return getattr(encoder, "input_names", Encoder.INPUTS)


def _tasks_that(can: str) -> str:
    """Returns the names of the task classes whose attribute `can` is true, with commas."""
    classes = (registry.get("task", kind) for kind in registry.names("task"))
    return ", ".join(sorted(cls.__name__ for cls in classes if getattr(cls, can, False)))
