"""Grades of texts: an ordinal regression, which kbert has not. A task of one's own is such a file.

    kbert-finetune --task_module=ordinal.py --task=ordinal --train=reviews.csv …

Grades have an order and no distances (McCullagh 1980, "Regression models for ordinal data"): one
score of a text, and K - 1 cuts between the grades; logit k says whether the grade is above k.
Measured by Cohen's kappa with quadratic weights.
"""

from typing import ClassVar

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kbert.core import option
from kbert.metrics import classification_report
from kbert.tasks import Columns, FineTuningTask, HeadOptions, TextRows, losses


class OrdinalOptions(HeadOptions):
    """What an `Ordinal` is set to.

    Args:
        {options}
    """

    levels: int = option(5, help="Grades, which are 0 to levels - 1.", at_least=2)


class CumulativeHead(keras.layers.Layer):
    """(B, H) -> logits (B, K - 1), each below the one before."""

    def __init__(self, width, levels, **kwargs):
        super().__init__(**kwargs)
        self.kernel = self.add_weight(name="kernel", shape=(width,), initializer="normal")
        self.steps = self.add_weight(name="steps", shape=(levels - 1,), initializer="zeros")
        self.built = True

    def call(self, vectors):
        cuts = ops.cumsum(ops.softplus(self.steps)) - 0.5 * ops.sum(ops.softplus(self.steps))
        return ops.sum(vectors * self.kernel, axis=-1, keepdims=True) - cuts


class Ordinal(FineTuningTask):
    """Gives a text its grade: `{"grade": 3, "above": […]}`, with the chance of being above each."""

    kind = "ordinal"
    columns: ClassVar = Columns(label="grade")
    options: ClassVar = OrdinalOptions
    metric = "kappa"
    shown_metrics = ("exact",)
    prediction_settings = ("levels",)
    needs_pooler = True

    def __init__(self, encoder, tokenizer, *, name=None, **options):
        super().__init__(encoder, tokenizer, name=name, **options)
        self.texts = TextRows(self)
        self.head_dropout = self.make_dropout()
        self.head = CumulativeHead(encoder.pooler.units, self.levels, name="ordinal")
        self.build()

    @property
    def parts(self):
        return {**super().parts, "ordinal": self.head}

    def targets(self, table):
        for row, grade in enumerate(table["grade"]):
            if not str(grade).isdecimal() or int(grade) >= self.levels:
                raise ValueError(
                    f"{table.place(row)}: a grade is a whole number from 0 to {self.levels - 1}. "
                    f"Received: {grade!r:.80}"
                )
        return np.array(table["grade"], np.int32)

    def call(self, batch, training=False):
        pooled = self.encode(batch, training)["pooled"]
        return {"above": self.head(self.head_dropout(pooled, training=training))}

    def terms(self, logits, batch):
        above = ops.cast(batch["labels"][:, None] > ops.arange(self.levels - 1), "float32")
        weights = ops.cast(batch["label_weights"], "float32")
        loss = losses.binary_cross_entropy(logits["above"], above, weights[:, None])
        hits = ops.cast(_grades(logits["above"]) == batch["labels"], "float32")
        return {"cumulative": loss}, {"exact": (ops.sum(hits * weights), ops.sum(weights))}

    def decode(self, table, rows, outputs):
        above = [output["above"] for output in outputs]
        return [{"grade": int((x > 0).sum()), "above": ops.sigmoid(x).numpy()} for x in above]

    def score(self, table, answers):
        wanted, found = self.targets(table), np.array([answer["grade"] for answer in answers])
        apart = np.subtract.outer(np.arange(self.levels), np.arange(self.levels)) ** 2
        shares = [np.bincount(x, minlength=self.levels) / len(x) for x in (wanted, found)]
        by_chance = float((apart * np.outer(*shares)).sum())
        kappa = 1 - float(((wanted - found) ** 2).mean()) / by_chance if by_chance else 0.0
        return {"kappa": kappa, "exact": float((wanted == found).mean())}

    def score_names(self, table):
        return ["kappa", "exact"]

    def reports(self, table, answers):
        names = [str(grade) for grade in range(self.levels)]
        found = [answer["grade"] for answer in answers]
        return [classification_report(self.targets(table), found, names)]

    def signatures(self):
        def grade(features):
            logits = self(features)["above"]
            return {"grade": _grades(logits), "above": tf.sigmoid(logits)}

        return self.texts.signatures("grade", grade)


def _grades(logits):
    return ops.sum(ops.cast(logits > 0, "int32"), axis=-1)
