"""Multiple choice: which of several texts best follows or answers another.

Shapes: N examples, B rows, A alternatives (of the row with the most), T tokens, H hidden width.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert.core.in_memory import number_of
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensor, Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.heads import ChoiceHead
from kbert.metrics import accuracy as share_right
from kbert.signatures import Signature, text_tokens
from kbert.signatures.requests import WARM_UP_TEXTS, in_chunks
from kbert.signatures.row_export import EncoderRows
from kbert.tasks.columns import Columns
from kbert.tasks.encoder_task import GLOBAL_POSITIONS, input_names
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.options import MultipleChoiceOptions
from kbert.tasks.losses import Prediction, accuracy, cross_entropy

# The logit of a missing alternative: exp(-1e9) is 0 in float32.
ABSENT = -1e9


class MultipleChoice(FineTuningTask):
    """Chooses between texts: how a story continues (SWAG), what answers a question (RACE).

    Each alternative is read after the context, `[CLS] context [SEP] choice [SEP]`, and gets one
    logit from the pooled vector. The probabilities are the softmax over a row's alternatives
    (BERT, section 4.4, https://arxiv.org/abs/1810.04805). Rows may have different numbers of
    alternatives. If a pair is too long, the longer text is truncated first.

    Columns of the data: `context`, `choices` (a list of two or more texts) and, for training and
    evaluation, `label`, the index of the right choice. `predict` returns for each row
    `{"choice": 2, "text": "…", "probabilities": […]}`; the metric is accuracy.

    Args:
        encoder: a `kbert.Encoder` with a pooler, a `kbert.models.ElmoEncoder`, a
            `kbert.models.DecoderEncoder`, or a `kbert.models.Seq2SeqEncoder` with a pooler.
        tokenizer: the encoder's tokenizer.
        name: name of the model.
        **options: settings. A row of tokens is a pair of context and choice. The language-model
            loss of a decoder covers all choices, also the wrong ones:

            {options}

    Raises:
        ValueError: the encoder has no pooler, a setting does not fit it, or `max_length` exceeds
            its `max_positions`.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "jumps", "moon"])
        >>> config = kbert.EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = MultipleChoice(kbert.Encoder(config), tokenizer)
        >>> answer, = task.predict([{"context": "the fox", "choices": ["jumps", "moon", "the"]}])
        >>> sorted(answer), len(answer["probabilities"])
        (['choice', 'probabilities', 'text'], 3)
    """

    kind = "choose"
    columns: ClassVar = Columns(inputs=(("context", "choices"),), shown=("choices",))
    options: ClassVar = MultipleChoiceOptions
    metric = "accuracy"
    shown_metrics = ("accuracy",)
    needs_pooler = True
    row_export = EncoderRows  # a row is not a single sequence of ids
    takes_characters = True
    takes_decoders = True
    takes_seq2seq = True
    predicts_per = "choice"

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        self.head_dropout = self.make_dropout()
        self.choice = ChoiceHead(
            encoder.config, width=encoder.pooler.units, dtype=encoder.dtype_policy
        )
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "choice": self.choice}

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        counts = _count_choices(table)
        first = self.encode_texts(table["context"])  # (N, ragged)
        second = self.encode_texts([text for choices in table["choices"] for text in choices])
        lengths = np.repeat(np.asarray(first.row_lengths()), counts)
        lengths = lengths + np.asarray(second.row_lengths())
        starts = np.cumsum(counts) - counts
        longest = np.maximum.reduceat(lengths, starts) if len(counts) else counts
        longest = longest + self.form.specials(2)
        return Rows(
            ragged={
                "first": first,
                "second": tf.RaggedTensor.from_row_lengths(second, counts),  # (N, A, ragged)
            },
            dense={"labels": _labels(table)} if labelled else {},
            lengths=counts * np.minimum(longest, self.row_length),
            examples=np.arange(len(table)),
            cut=int((longest > self.row_length).sum()),
        )

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns features (B, A, T) from columns of B rows; missing alternatives are padding."""
        columns = dict(columns)
        first, second = columns.pop("first"), columns.pop("second")
        counts = tf.cast(second.row_lengths(), tf.int32)
        real = tf.sequence_mask(counts)  # (B, A)
        alternative = tf.range(tf.shape(real)[1])[None, :]
        # A missing alternative is a copy of the last one here, and becomes padding below.
        flat_index = tf.cumsum(counts, exclusive=True)[:, None]
        flat_index += tf.minimum(alternative, counts[:, None] - 1)
        row = tf.repeat(tf.range(tf.shape(real)[0]), tf.shape(real)[1])
        second = tf.gather(second.values, tf.reshape(flat_index, [-1]))
        features = self.build_inputs(tf.gather(first, row), second)  # (B * A, T)
        return {**self._by_row(features, real), **columns}

    def _by_row(self, features: Tensors, real: Any) -> Any:
        """Reshapes features (B * A, …) to (B, A, …), with padding where `real` (B, A) is False."""
        blank = {"token_ids": self.form.pad_id, "segment_ids": 0, "padding_mask": 0}
        if GLOBAL_POSITIONS in input_names(self.encoder):
            segments = features["segment_ids"]
            features = {**features, GLOBAL_POSITIONS: _places(segments, self.width_multiple)}
            blank[GLOBAL_POSITIONS] = -1
        shape = tf.shape(real)
        return {
            name: tf.where(
                real[(..., *[None] * (len(x.shape) - 1))],
                tf.reshape(x, tf.concat([shape, tf.shape(x)[1:]], 0)),
                blank[name],
            )
            for name, x in features.items()
        }

    def global_positions(self, features: Mapping[str, Any]) -> Tensor:
        """Returns the positions of the choice and the [SEP] after it, as in transformers.

        Here there is a column for each token, (rows, T). Batches of `assemble` only have the
        columns that the longest choice needs, rounded up to a multiple of `width_multiple`.
        """
        columns = ops.arange(ops.shape(features["token_ids"])[1], dtype="int32")
        return ops.where(features["segment_ids"] > 0, columns, -1)

    def call(self, batch: Tensors, training: bool = False, return_read: bool = False) -> Tensors:
        """Returns the logits `choice` (B, A), -1e9 for missing alternatives.

        With `return_read` also "read", the encoder's inputs and outputs for `language_model_loss`.
        """
        rows, alternatives, _ = ops.shape(batch["padding_mask"])
        names = ("token_ids", "segment_ids", "padding_mask", GLOBAL_POSITIONS)
        flat = {
            name: ops.reshape(batch[name], (-1, *ops.shape(batch[name])[2:]))
            for name in names
            if name in batch
        }
        read = {}
        if return_read:
            outputs = self.encode(flat, training)
            pooled, read = outputs["pooled"], {"read": {**flat, "sequence": outputs["sequence"]}}
        else:
            pooled = self.encode_pooled(flat, training)
        pooled = self.head_dropout(pooled, training=training)
        logits = self.choice(ops.reshape(pooled, (rows, alternatives, pooled.shape[-1])))
        return {"choice": ops.where(_real(batch), logits, ABSENT), **read}

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        answer = (logits["choice"], batch["labels"], batch["label_weights"])
        return {"cross_entropy": cross_entropy(*answer)}, {"accuracy": accuracy(*answer)}

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        return {"choice": Prediction("classes", logits["choice"], batch["label_weights"])}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        probabilities = ops.softmax(logits["choice"])
        return {"probabilities": ops.where(_real(batch), probabilities, 0.0)}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Sequence:
        return [
            _answer(choices, output["probabilities"][: len(choices)])
            for choices, output in zip(table["choices"], outputs, strict=True)
        ]

    @classmethod
    def adapt_table(
        cls, table: Table, columns: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> Table:
        """Merges several columns of choices into one of lists; converts indices to integers."""
        names = columns.get("choices")
        if isinstance(names, list | tuple):
            choices = [list(row) for row in zip(*(table[name] for name in names), strict=True)]
            table = table.with_column("choices", choices)
        if "label" not in table:
            return table
        labels = []
        for row, label in enumerate(map(number_of, table["label"])):
            if not str(label).isdecimal():
                raise ValueError(
                    f"{table.place(row)}: the label must be the index of the right choice, from 0. "
                    f"Received: {label!r:.80}"
                )
            labels.append(int(label))
        return table.with_column("label", labels)

    def describe_example(self, table: Table, row: int) -> str:
        return f"choice {table['label'][row]}"

    def check_labels(self, table: Table) -> None:
        _labels(table)

    def score(self, table: Table, answers: Sequence[Any]) -> dict[str, float]:
        choices = [answer["choice"] for answer in answers]
        return {"accuracy": share_right(_labels(table), choices)}

    def score_names(self, table: Table) -> list[str] | None:
        return ["accuracy"]

    def signatures(self) -> dict[str, Signature]:
        """Returns the entry point `choose`, also `serving_default`.

        Returns:
            `choose`: `context` (B,) and `choices` (B, A) strings, "" if a row has fewer than A
            -> `choice` (B,), the index of the most probable choice, `text` (B,), that choice, and
            `probabilities` (B, A), 0 for missing choices. A row without any choice gets -1, "" and
            zeros; a row with one choice gets that, with probability 1. A single context is used
            for all rows. Texts that are too long are truncated.
        """
        # Choices are computed one by one here, so that an ensemble's mean comes after the softmax.
        models = getattr(self, "members", [self])

        def choose(context: tf.Tensor, choices: tf.Tensor) -> dict[str, tf.Tensor]:
            shape = tf.shape(choices)
            contexts = tf.size(context)
            message = [
                "context must have one text for each row of choices, or one for all. Received: "
                "contexts and rows:",
                *(contexts, shape[0]),
            ]
            fits = (contexts == shape[0]) | (contexts == 1)
            with tf.control_dependencies([tf.debugging.Assert(fits, message)]):
                # Each alternative is a separate row: one question may have thousands of them.
                rows = tf.repeat(tf.range(shape[0]), shape[1])
            rows = tf.minimum(rows, contexts - 1)

            def logits(rows: tf.Tensor, choice: tf.Tensor) -> dict[str, tf.Tensor]:
                pairs = (tf.gather(context, rows), choice)
                features = self.build_inputs(*map(self.tokenizer.encode, pairs))
                features = self._by_row(features, tf.ones_like(rows, tf.bool)[:, None])
                return {
                    str(number): tf.cast(model(features)["choice"][:, 0], tf.float32)
                    for number, model in enumerate(models)
                }

            def tokens(rows: tf.Tensor, choice: tf.Tensor) -> tf.Tensor:
                context_bytes = tf.gather(tf.strings.length(context), rows)
                return tf.minimum(
                    text_tokens()(choice) + tf.cast(context_bytes, tf.int64), self.row_length
                )

            specs = [tf.TensorSpec([None], tf.int32), tf.TensorSpec([None], tf.string)]
            alternatives = (rows, tf.reshape(choices, [-1]))
            real = tf.not_equal(choices, "")  # (B, A)
            by_model = [
                tf.nn.softmax(tf.where(real, tf.reshape(x, shape), ABSENT))
                for x in in_chunks(Signature(logits, specs, tokens))(*alternatives).values()
            ]
            probabilities = tf.where(real, tf.add_n(by_model) / len(models), 0.0)
            # An extra column for rows without a choice: it wins if all others are 0.
            no_choice = tf.where(tf.reduce_any(real, 1), -1.0, 2.0)[:, None]
            best = tf.argmax(tf.concat([probabilities, no_choice], 1), 1, tf.int32)
            texts = tf.concat([choices, tf.fill([shape[0], 1], "")], 1)
            return {
                "choice": tf.where(best < shape[1], best, -1),
                "text": tf.gather(texts, best, batch_dims=1),
                "probabilities": probabilities,
            }

        context = tf.TensorSpec([None], tf.string, "context")
        choices = tf.TensorSpec([None, None], tf.string, "choices")
        entry = Signature(choose, [context, choices], too_long="cut", warm_up=WARM_UP_TEXTS)
        return {"choose": entry}


def _real(batch: Tensors) -> Tensor:
    """Returns whether each alternative exists, (B, A): its first token is not padding."""
    return batch["padding_mask"][:, :, 0] > 0


def _places(segment_ids: tf.Tensor, multiple: int) -> tf.Tensor:
    """Returns the positions of the tokens of segment 1, which are contiguous, then -1, (B, G).

    G is that of the longest segment 1, rounded up to a multiple of `multiple`.
    """
    counts = tf.reduce_sum(segment_ids, 1, keepdims=True)
    width = (tf.reduce_max(tf.concat([counts[:, 0], [1]], 0)) + multiple - 1) // multiple * multiple
    columns = tf.range(width)[None]
    first_column = tf.argmax(segment_ids, 1, tf.int32)[:, None]
    return tf.where(columns < counts, first_column + columns, -1)


def _answer(choices: list[str], probabilities: np.ndarray) -> dict[str, Any]:
    """Returns the answer for a row with the given choices and their probabilities, (A,)."""
    best = int(probabilities.argmax())
    return {
        "choice": best,
        "text": choices[best],
        "probabilities": probabilities.tolist(),
    }


def _count_choices(table: Table) -> np.ndarray:
    """Returns the number of choices of each row, (N,); raises ValueError for less than two."""
    for row, choices in enumerate(table["choices"]):
        if len(choices) < 2:
            raise ValueError(
                f"{table.place(row)}: a row must have at least two choices. "
                f"Received: {choices!r:.80}"
            )
    return np.array([len(choices) for choices in table["choices"]], np.int64)


def _labels(table: Table) -> np.ndarray:
    """Returns the index of each row's right choice, (N,) int32.

    Raises ValueError for a label that is not the index of one of the row's choices.
    """
    labels = list(map(number_of, table["label"]))
    for row, (label, choices) in enumerate(zip(labels, table["choices"], strict=True)):
        if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label < len(choices):
            raise ValueError(
                f"{table.place(row)}: the label must be the index of the right choice, from 0 to "
                f"{len(choices) - 1}. Received: {label!r:.80}"
            )
    return np.array(labels, np.int32)
