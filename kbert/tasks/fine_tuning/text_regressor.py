"""Numbers of texts and of pairs of texts, such as how alike the two of a pair are.

Shapes: N examples, B rows.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert import metrics
from kbert.models import DecoderEncoder
from kbert.serving import Signature
from kbert.tasks.fine_tuning.text_task import TextTask
from kbert.tasks.losses import Prediction, squared_error

# The square of an error of twice as much fits float32, in a sum over a batch of thousands.
LARGEST = 1e15


class TextRegressor(TextTask):
    """Gives a text, or a pair of texts, a score in the units of the data.

    Trained by mean squared error. `predict` gives an array (N,) float32; `evaluate` Pearson's and
    Spearman's correlation. (STS-B in BERT, appendix B.1, https://arxiv.org/abs/1810.04805.)

    Args:
        encoder: a `kbert.Encoder` with a pooler, or another that `TextTask` takes.
        tokenizer: its tokenizer.
        max_length: tokens of a row, special tokens included; None = all that the encoder takes.
        stride: a longer text is read in windows that begin this many tokens apart, and its scores
            are pooled. None cuts it at its end.
        pooling: "mean" or "max" of the windows' scores.
        dropout: rate before the head; None = the encoder's.
        both_orders: whether a decoder reads pairs in both orders, for scores that do not depend on
            it; None = a decoder does.
        auxiliary_lm_weight: of a decoder's own loss on the texts, see `FineTuned.loss_terms`;
            None = 0.5 on a decoder, 0 on other encoders.
        name: of the model.

    Raises:
        ValueError: if a setting is out of range or does not go with the encoder, or the encoder has
            no pooler.

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
    # Not a correlation, which is blind to the units of the scores.
    metric = "loss"

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        stride: int | None = None,
        pooling: str = "mean",
        dropout: float | None = None,
        both_orders: bool | None = None,
        auxiliary_lm_weight: float | None = None,
        name: str = "text_regressor",
    ) -> None:
        options = {"max_length": max_length, "stride": stride, "pooling": pooling}
        options["both_orders"] = (
            isinstance(encoder, DecoderEncoder) if both_orders is None else both_orders
        )
        options["auxiliary_lm_weight"] = auxiliary_lm_weight
        super().__init__(encoder, tokenizer, 1, dropout=dropout, name=name, **options)

    def targets(self, table):
        """(N,) float32."""
        for row, label in enumerate(table["label"]):
            if not isinstance(label, int | float):
                raise ValueError(
                    f"{table.place(row)}: the label of a regression must be a number. "
                    f"Received: {label!r:.80}"
                )
            if not abs(label) <= LARGEST:
                raise ValueError(
                    f"{table.place(row)}: the label of a regression must be at most {LARGEST:.0e}, "
                    "for float32 holds no square of a larger one: divide the labels by a number, "
                    f"and multiply the predictions by it. Received: {label!r:.80}"
                )
        return np.array(table["label"], np.float32)

    def terms(self, logits, batch):
        _, score, weights = self.predictions(logits, batch)["classifier"]
        return {"squared_error": squared_error(score, batch["labels"], weights)}, {}

    def predictions(self, logits, batch):
        score = logits["classifier"][:, 0]
        return {"classifier": Prediction("number", score, batch["label_weights"])}

    def outputs(self, logits, batch):
        return {"score": ops.cast(logits["classifier"][:, 0], "float32")}

    def answers(self, table, rows, outputs):
        return np.array([output["score"] for output in outputs], np.float32)

    def score(self, table, answers):
        labels = self.targets(table)
        return {
            "pearson": metrics.pearson(labels, answers),
            "spearman": metrics.spearman(labels, answers),
        }

    def score_names(self, table):
        return ["pearson", "spearman"]

    def signatures(self, pairs: bool = False) -> dict[str, Signature]:
        """`score` for texts and `score_pairs` for pairs of texts.

        Args:
            pairs: which of them comes first, as `serving_default`.

        Returns:
            `score`: `text` (B,) strings -> `score` (B,). `score_pairs`: `first` and `second` (B,)
            strings -> the same. A text that is too long is read in windows where the task has a
            stride, else cut. Bytes that are not UTF-8 are dropped.
        """

        def answer(features):
            return self.outputs(self(features), features)

        return self._signatures("score", answer, pairs)
