"""Regression on texts and pairs of texts, such as the similarity of a pair.

Shapes: N examples, B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import metrics
from kbert.core.in_memory import number_of
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensor, Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.signatures import Signature
from kbert.tasks.columns import Columns
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.fine_tuning.options import TextOptions
from kbert.tasks.fine_tuning.text_rows import TextRows, sentence_head
from kbert.tasks.losses import Prediction, squared_error

# So that float32 can represent the square of twice this error, summed over thousands of rows.
LARGEST = 1e15


class TextRegressor(FineTuningTask):
    """Predicts a score for a text or a pair of texts, in the units of the data.

    Trained by mean squared error. `predict` returns an array (N,) float32; `evaluate` Pearson's and
    Spearman's correlation. (STS-B in BERT, appendix B.1, https://arxiv.org/abs/1810.04805.)

    Args:
        encoder: a `kbert.Encoder` with a pooler, a `kbert.models.ElmoEncoder`, a
            `kbert.models.DecoderEncoder`, or a `kbert.models.Seq2SeqEncoder` with a pooler.
        tokenizer: the encoder's tokenizer.
        name: name of the model.
        **options: settings:

            {options}

    Raises:
        ValueError: a setting is out of range or does not fit the encoder, or the encoder has no
            pooler.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "eats"])
        >>> config = kbert.EncoderConfig(vocabulary_size=8, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = TextRegressor(kbert.Encoder(config), tokenizer)
        >>> task.predict([("a man eats", "a man")]).shape
        (1,)
    """

    kind = "regress"
    columns: ClassVar = Columns(numeric=True)
    options: ClassVar = TextOptions
    # Not a correlation, which does not depend on the units of the scores.
    metric = "loss"
    prediction_settings = ("both_orders",)
    needs_pooler = True
    takes_characters = True
    augmentable = True
    takes_decoders = True
    takes_seq2seq = True
    both_orders: bool | None

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        if self.both_orders is None and self.reads_by_decoder:
            self.both_orders = True
        self.texts = TextRows(self)
        self.head_dropout = self.make_dropout()
        self.classifier = sentence_head(encoder, 1)
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "classifier": self.classifier}

    def call(self, batch: Tensors, training: bool = False, return_read: bool = False) -> Tensors:
        """Returns the scores `classifier` (B, 1).

        With `return_read` also "read", the encoder's inputs and outputs for `language_model_loss`.
        """
        scores, read = self.texts.logits(batch, self._head, training, return_read)
        return {"classifier": scores, **({"read": read} if return_read else {})}

    def _head(self, pooled: Tensor, training: bool) -> Tensor:
        return self.classifier(self.head_dropout(pooled, training=training))

    def targets(self, table: Table) -> np.ndarray:
        """Returns the labels, (N,) float32; raises ValueError unless all are numbers up to 1e15."""
        labels = [_number(label) for label in table["label"]]
        for row, label in enumerate(labels):
            if not isinstance(label, int | float) or label != label:
                raise ValueError(
                    f"{table.place(row)}: the label of a regression must be a number. "
                    f"Received: {label!r:.80}"
                )
            if not abs(label) <= LARGEST:
                raise ValueError(
                    f"{table.place(row)}: the label of a regression must be at most {LARGEST:.0e}, "
                    "since the square of a larger one overflows float32: divide the labels by a "
                    f"number, and multiply the predictions by it. Received: {label!r:.80}"
                )
        return np.array(labels, np.float32)

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        _, score, weights = self.predictions(logits, batch)["classifier"]
        return {"squared_error": squared_error(score, batch["labels"], weights)}, {}

    def predictions(self, logits: Tensors, batch: Tensors) -> dict[str, Prediction]:
        score = logits["classifier"][:, 0]
        return {"classifier": Prediction("number", score, batch["label_weights"])}

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        return {"score": ops.cast(logits["classifier"][:, 0], "float32")}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Any:
        return np.array([output["score"] for output in outputs], np.float32)

    def score(self, table: Table, answers: Sequence[Any]) -> dict[str, float]:
        labels = self.targets(table)
        return {
            "pearson": metrics.pearson(labels, answers),
            "spearman": metrics.spearman(labels, answers),
        }

    def score_names(self, table: Table) -> list[str] | None:
        return ["pearson", "spearman"]

    def signatures(self, pairs: bool = False) -> dict[str, Signature]:
        """Returns the entry points `score` for texts and `score_pairs` for pairs of texts.

        Args:
            pairs: whether `score_pairs` comes first, as `serving_default`.

        Returns:
            `score`: `text` (B,) strings -> `score` (B,). `score_pairs`: `first` and `second` (B,)
            strings -> the same. A text that is too long is read in windows if the task has a
            doc_stride, else truncated. Bytes that are not UTF-8 are dropped.
        """

        def answer(features: Tensors) -> dict[str, tf.Tensor]:
            return self.outputs(self(features), features)

        return self.texts.signatures("score", answer, pairs)


def _number(label: Any) -> Any:
    """Converts a class of `datasets` or a number in a string to a number; others stay unchanged."""
    label = number_of(label)
    try:
        return float(label) if isinstance(label, str) else label
    except ValueError:
        return label
