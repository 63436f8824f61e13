"""The base of fine-tuned tasks: from a table of texts to a trained and evaluated model.

Shapes: N examples, R rows after tokenisation, B rows of a batch; in the language-model loss, R
sequences that the encoder reads for them, T tokens, H hidden width, K predicted tokens.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert.core import late
from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.protocols import TokenizerLike
from kbert.core.types import MaybeNone, Pair, PathLike, Tensor, Tensors, Terms
from kbert.data.tables.bucketing import BUCKET
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table, as_table
from kbert.layers import Dropout, gather_positions
from kbert.models import DecoderEncoder
from kbert.signatures.row_export import RowExport
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.fine_tuning.logit_rows import LogitRows
from kbert.tasks.fine_tuning.options import (
    DECODER_OPTIONS,
    FEATURE_OPTIONS,
    AnswerOptions,
    AuxiliaryOptions,
)
from kbert.tasks.fine_tuning.table_task import TableTask
from kbert.tasks.fine_tuning.task_options import options_of
from kbert.tasks.fine_tuning.text_rows import TextRows
from kbert.tasks.losses import Prediction
from kbert.tasks.token_losses import token_losses

USUAL_WEIGHT = 0.5  # lambda in section 4.1 of Radford et al. 2018
# Name of a column -> a column with one example.
_SAMPLES: dict[str, list[Any]] = {
    **{name: ["a"] for name in ("text", "first", "second", "question", "context")},
    **{"words": [["a"]], "choices": [["a", "a"]]},
}


class TableAnswers(FileAnswers):
    """Files with one answer per example."""

    program = "kbert-predict"
    options: ClassVar[type[Options]] = AnswerOptions

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        answers, cut = self.task.predictor.predict_and_count(
            table, batch_size=batch_size, verbose=0
        )
        return self.written(answers), cut


class FineTuningTask(TableTask, EncoderTask):
    """A task on a table of examples: one class in one file.

    `fit`, the `Predictor`, the experiments and the programs use only what is declared here. A
    subclass declares

    - `kind`: the name of the task in presets, programs and experiments;
    - `columns`: the columns that a table must have, see `Columns`;
    - `options`: the settings, an `Options` dataclass that extends `RowOptions`. They are
      constructor arguments, saved in presets, and flags of the programs. Each is an attribute of
      the task; `chosen` has all of them;
    - `metric`: name of the evaluation value that selects the best weights: those with the largest
      value, or for "loss" with the smallest; `shown_metrics`: the logged values that a progress
      line shows;
    - `predicts_per`: whether it makes one prediction per "row", one per "token", or a number for
      each "choice" of a row;
    - `averages`: what the mean of several models is taken of, see `kbert.Ensemble`;

    and defines, in addition to `parts` and a constructor that makes the head and calls `build`:

    - `targets(table)` -> (N, …), the `labels` of the loss, for a task on whole texts and pairs,
      which has a `TextRows` in `texts`. It raises ValueError for an invalid label.
    - or, for other tasks, `tokenize(table, labelled)` -> `Rows`: the rows of a table or of a part
      of it. With `labelled` it checks the labels and adds `labels` (R, …) to the columns, and
      `label_weights` if not every row has weight 1. `Rows.lengths` are the tokens of each row in a
      batch, `Rows.examples` the example of each row, `Rows.cut` the number of truncated examples.
    - `call(batch, training=False)` -> dict of logits, by `self.encode(batch, training)`. If the
      task supports decoders, `return_read=True` adds "read", for `language_model_loss`.
    - `terms(logits, batch)` -> losses and metrics of a labelled batch, as `loss_terms` returns
      them: two dicts of pairs (Σ weight · value, Σ weight), weighted by `batch["label_weights"]`.
      (Keras already uses the name `losses`.)
    - `decode(table, rows, outputs)` -> a list or array with one answer per example; `outputs[i]`
      are the `outputs` of row `i`, NumPy arrays without the batch axis.
    - `score(table, answers)` -> dict of the task's official metrics, floats, against the table's
      labels.
    - `signatures()`: the entry points of an export; see `Task`.

    The rest has defaults: `assemble`, `outputs`, `predictions`, `check_labels`, `check_held_out`,
    `settings_of_data`, `percentages`, `reports`, `adapt_table`, `describe_example`,
    `token_marks`, `tune`, `sample_outputs`.

    Args:
        encoder: a `kbert.Encoder`, or another encoder that the task supports.
        tokenizer: the encoder's tokenizer.
        name: name of the model; None = the class name in snake case.
        **options: the fields of the class's `options`.

    Raises:
        ValueError: a setting is out of range or does not fit the encoder, or the encoder lacks the
            pooler that the task needs.
    """

    file_answers: ClassVar[type[FileAnswers]] = TableAnswers
    row_export: ClassVar[type[RowExport]] = LogitRows
    predicts_per: ClassVar[str] = "row"
    # What an `Ensemble` takes the mean of: "probabilities" of the `predictions`, "logits", or None
    # if answers have no mean.
    averages: ClassVar[str | None] = "probabilities"
    # How whole texts become rows, for tasks on whole texts.
    texts: TextRows | MaybeNone = None
    auxiliary_lm_weight: float | None = None
    # A TensorFlow graph accepts any width; other backends compile for each new width.
    width_multiple = BUCKET if keras.backend.backend() == "tensorflow" else 8 * BUCKET

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: TokenizerLike,
        *,
        name: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(encoder, tokenizer, name=name or _snake_case(type(self).__name__))
        self.chosen = options_of(type(self), options)
        if self.needs_pooler and encoder.pooler is None:
            raise ValueError(
                "The head reads the pooled vector, so the encoder must have a pooler: "
                f"{type(self).__name__}.from_preset(path, new_head=True, …) initialises a new one. "
                f"Received: a {type(encoder).__name__} without one (pooler_activation=None)"
            )
        if isinstance(self.chosen, AuxiliaryOptions):
            weight = auxiliary_weight(encoder, self.auxiliary_lm_weight)
            if self.reads_by_decoder:
                self.auxiliary_lm_weight = weight  # presets store the current default
        layers = getattr(self.chosen, "feature_layers", None)
        lstm_width = getattr(self.chosen, "lstm_width", None)
        # The layer between encoder and head, `kbert.heads.TokenFeatures`.
        self._features: Any = None
        if layers is not None or lstm_width is not None:
            make = late.load("layer of settings", "features")
            self._features = make(encoder, layers, lstm_width)
        if self._features is not None and self._features.layers is not None:
            self._requested = {"return_hidden_states": True}

    @property
    def _token_width(self) -> int:
        """Width of "sequence" of `encode`."""
        return self.encoder.config.hidden_size if self._features is None else self._features.units

    @property
    def settings(self) -> dict[str, Any]:
        settings = self.chosen.to_dict()
        omitted = set() if self.reads_by_decoder else {*DECODER_OPTIONS}
        for name in settings.keys() & FEATURE_OPTIONS:
            if settings[name] == self.options.field_of(name).default:
                omitted.add(name)
        return {name: value for name, value in settings.items() if name not in omitted}

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        features = {} if self._features is None else {"features": self._features}
        return {**super().parts, **features}

    def save_to_preset(self, path: PathLike, format: str = "kbert", **options: Any) -> None:
        """Like `Task.save_to_preset`; `feature_layers` and a BiLSTM need format="kbert"."""
        if format != "kbert" and self._features is not None:
            given = {name: self.settings[name] for name in FEATURE_OPTIONS if name in self.settings}
            raise ValueError(
                'format must be "kbert" for a head on chosen layers or with a BiLSTM: other '
                "libraries have no such heads. Received: "
                f"{format!r} for {', '.join(f'{k}={x!r}' for k, x in given.items())}"
            )
        super().save_to_preset(path, format, **options)

    def encode(
        self,
        features: Mapping[str, Any],
        training: bool = False,
        encoder: keras.Model | None = None,
        positions: Tensor | None = None,
    ) -> dict[str, Any]:
        """Like `EncoderTask.encode`; with `feature_layers` or a BiLSTM, "sequence" are features.

        They are (B, T, D). "pooled" (B, 2D) then is their mean and maximum, and "encoded" (B, T, H)
        the encoder's own "sequence".
        """
        if self._features is None:
            return super().encode(features, training, encoder, positions)
        outputs = super().encode(features, training, encoder)
        states = outputs["hidden_states"] if self._requested else outputs["sequence"]
        mask = features.get("padding_mask")
        mask = ops.ones(ops.shape(outputs["sequence"])[:2]) if mask is None else mask
        sequence = self._features(states, mask, training=training)
        pooled = {"pooled": self._features.pooling(sequence, mask)} if self.needs_pooler else {}
        if positions is not None:
            sequence = gather_positions(sequence, positions)
        return {**outputs, **pooled, "encoded": outputs["sequence"], "sequence": sequence}

    def make_dropout(self) -> Dropout:
        """Returns the dropout before a head, at the rate of the option `dropout` or the encoder."""
        rate = self.encoder.config.dropout if self.dropout is None else self.dropout
        return Dropout(rate, dtype=self.encoder.dtype_policy, name="dropout")

    def _check_settings(self) -> None:
        super()._check_settings()
        max_positions = self.encoder.config.max_positions
        if self.max_length is not None and self.max_length > max_positions:
            raise ValueError(
                f"max_length must be between 4 and {max_positions} (the encoder's max_positions). "
                f"Received: max_length={self.max_length!r}"
            )

    @property
    def row_length(self) -> int:
        """Maximum number of tokens in a row: `max_length`, or the encoder's `max_positions`."""
        return self.max_length or self.encoder.config.max_positions

    @property
    def remedy(self) -> str:
        return "" if self.texts is None else self.texts.remedy

    def targets(self, table: Table) -> np.ndarray:
        """Returns the labels (N, …) of a table of texts; raises ValueError for an invalid one."""
        raise NotImplementedError(f"{type(self).__name__} must define `targets` or `tokenize`.")

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        rows = self.texts.rows(table)
        return (
            dataclasses.replace(rows, dense={"labels": self.targets(table)}) if labelled else rows
        )

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs token ids of texts, or of pairs with `second`, into the encoder's inputs (B, T).

        With windows they are (B, W, T); see `TextRows.build_inputs`.
        """
        build = super().build_inputs if self.texts is None else self.texts.build_inputs
        return build(first, second)

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns batch-first features from the columns of B `Rows`; runs in a graph.

        By default the ragged columns `first` and `second` are packed to `token_ids`, `segment_ids`
        and `padding_mask` (B, T), and the dense columns stay.
        """
        columns = dict(columns)
        features = self.build_inputs(columns.pop("first"), columns.pop("second", None))
        return {**features, **columns}

    def sample_outputs(self) -> dict[str, Any]:
        columns = next((x for x in self.columns.inputs if set(x) <= set(_SAMPLES)), None)
        is_own = not type(self).tokenize.__module__.startswith("kbert.")
        if columns is None or is_own:  # a user's task, whose texts are unknown
            return super().sample_outputs()
        rows = self.tokenize(as_table({name: _SAMPLES[name] for name in columns}), labelled=False)
        return self.predictor.first_outputs(rows, 1)

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        """Returns the predictions by name, to compare a student with its teacher.

        By default all logits are numbers, compared by their squared difference (Ba and Caruana
        2014, https://arxiv.org/abs/1312.6184).
        """
        return {
            name: Prediction("number", x, _as_wide(batch["label_weights"], x))
            for name, x in logits.items()
        }

    def check_labels(self, table: Table) -> None:
        if self.texts is None:
            self.tokenize(table, labelled=True)
        else:
            self.targets(table)

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        """Returns the task's terms, for a decoder with the language-model loss on the same texts.

        (Radford et al. 2018, equation 5.) "lm_loss" is the mean over the tokens of a batch.
        "auxiliary" is that times `auxiliary_lm_weight`, and is added to the task's loss. It helps
        to learn the task; an evaluation uses only the task's loss.
        """
        if not self.auxiliary_lm_weight:
            return self.terms(self(batch, training=training), batch)
        logits = dict(self(batch, training=training, return_read=True))
        read = logits.pop("read")
        total, count = language_model_loss(self.encoder, read, batch["label_weights"], training)
        losses, metrics = self.terms(logits, batch)
        losses = {**losses, "auxiliary": (self.auxiliary_lm_weight * total, count)}
        return losses, {**metrics, "lm_loss": (total, count)}


def auxiliary_weight(encoder: keras.Model, asked: float | None) -> float:
    """Returns the weight of the language-model loss for an encoder; 0 = it is not computed.

    Args:
        encoder: encoder of the task.
        asked: the requested weight; None = 0.5 for a decoder, else 0.

    Raises:
        ValueError: the weight is below 0, or above 0 for an encoder that is not a decoder.

    Example:
        >>> import kbert
        >>> config = kbert.DecoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=12)
        >>> auxiliary_weight(kbert.models.DecoderEncoder.extend(kbert.Decoder(config)), None)
        0.5
    """
    is_decoder = isinstance(encoder, DecoderEncoder)
    if asked is None:
        return USUAL_WEIGHT if is_decoder else 0.0
    if not isinstance(asked, int | float) or asked < 0 or (asked and not is_decoder):
        raise ValueError(
            "auxiliary_lm_weight must be 0 or more, and 0 on encoders other than decoders, which "
            f"are not language models. Received: auxiliary_lm_weight={asked!r} on a "
            f"{type(encoder).__name__}"
        )
    return float(asked)


def language_model_loss(
    encoder: DecoderEncoder, read: Mapping[str, Any], weights: Any, training: bool
) -> Pair:
    """Cross entropy of next-token prediction on the texts of a batch.

    The start token is not predicted. All later tokens are, including delimiter and extract token.
    (`lm_losses` in openai/finetune-transformer-lm, train.py, which first takes the mean of each
    row; here all tokens of a batch have the same weight.)

    Args:
        encoder: decoder that computed "sequence".
        read: "token_ids" and "padding_mask" (R, T), "sequence" (R, T, H). Each row of the batch has
            the same number of sequences, next to each other.
        weights: (B,) or (B, …), 0 for rows that do not count.
        training: whether the gradient is computed with the loss, see `token_losses`.

    Returns:
        Float32 scalars (sum of losses, number of tokens).
    """
    batch, length = ops.shape(weights)[0], ops.shape(read["token_ids"])[1]
    counts = ops.any(ops.reshape(weights, (batch, -1)) > 0, axis=1)  # (B,)
    real = ops.reshape(read["padding_mask"], (batch, -1, length)) > 0
    real = ops.logical_and(real, counts[:, None, None])
    real = ops.reshape(real, (-1, length))[:, 1:]  # (R, T - 1)
    sequence, targets = read["sequence"][:, :-1], read["token_ids"][:, 1:]
    if keras.backend.backend() == "tensorflow":  # other backends need static shapes
        # Logits at padding are expensive: only those of K tokens are computed.
        positions = tf.where(real)  # (K, 2)
        sequence, targets = tf.gather_nd(sequence, positions), tf.gather_nd(targets, positions)
        real = tf.ones_like(targets)
    return token_losses(encoder.token_output(sequence), targets, real, training=training).smoothed


def _snake_case(name: str) -> str:
    """Converts the name of a class to that of a model.

    >>> _snake_case("TextClassifier")
    'text_classifier'
    """
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _as_wide(weights: Any, values: Any) -> Tensor:
    """Broadcasts weights (B, …) to values (B, …) with more axes."""
    missing = len(values.shape) - len(weights.shape)
    weights = ops.reshape(weights, (*ops.shape(weights), *[1] * missing))
    return ops.broadcast_to(weights, ops.shape(values))
