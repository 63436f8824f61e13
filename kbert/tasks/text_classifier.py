"""Classes of texts and of pairs of texts.

Shapes: B rows, T tokens, H hidden width, C classes.
"""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kbert.data.rows import Rows
from kbert.heads import SentenceHead
from kbert.layers import Dropout
from kbert.serving import Signature
from kbert.tasks.fine_tuning import FineTuned
from kbert.tasks.labels import Labels
from kbert.tasks.losses import accuracy, cross_entropy


class TextClassifier(FineTuned):
    """Tells which class a text, or a pair of texts, belongs to."""

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Any,
        labels: Sequence[str],
        *,
        max_length: int | None = None,
        dropout: float | None = None,
        name: str = "text_classifier",
    ):
        super().__init__(encoder, tokenizer, max_length=max_length, name=name)
        self.labels = Labels(labels)
        rate = encoder.config.dropout if dropout is None else dropout
        self.dropout = Dropout(rate, dtype=encoder.dtype_policy, name="dropout")
        self.classifier = SentenceHead(
            encoder.config, len(labels), name="classifier", dtype=encoder.dtype_policy
        )
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "classifier": self.classifier}

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "labels": self.labels.names,
            "max_length": self.max_length,
            "dropout": self.dropout.rate,
        }

    def rows(self, table, labelled):
        pair = "first" in table
        texts = [table["first"], table["second"]] if pair else [table["text"]]
        ragged = dict(zip(("first", "second"), map(self.tokenize, texts), strict=False))
        lengths = sum(x.row_lengths().numpy() for x in ragged.values()) + len(texts) + 1
        return Rows(
            ragged=ragged,
            dense={"labels": self.labels.ids(table)} if labelled else {},
            lengths=np.minimum(lengths, self.row_length),
            examples=np.arange(len(table)),
            cut=int((lengths > self.row_length).sum()),
        )

    def call(self, batch, training=False):
        pooled = self.encode(batch, training)["pooled"]
        return {"classifier": self.classifier(self.dropout(pooled, training=training))}

    def terms(self, logits, batch):
        answer = (logits["classifier"], batch["labels"], batch["label_weights"])
        return {"cross_entropy": cross_entropy(*answer)}, {"accuracy": accuracy(*answer)}

    def outputs(self, logits, batch):
        return {"probabilities": ops.softmax(logits["classifier"])}

    def answers(self, table, rows, outputs):
        return [self._answer(output["probabilities"]) for output in outputs]

    def _answer(self, probabilities):
        best = int(probabilities.argmax())
        return {
            "label": self.labels.names[best],
            "probability": float(probabilities[best]),
            "probabilities": dict(zip(self.labels.names, probabilities.tolist(), strict=True)),
        }

    def score(self, table, answers):
        ids = self.labels.ids(table)
        found = np.array([self.labels.names.index(answer["label"]) for answer in answers])
        return {"accuracy": float((found == ids).mean())}

    def signatures(self) -> dict[str, Signature]:
        def classify(text):
            features = self.pack(self.tokenizer.encode(text))
            scores = self.outputs(self(features), features)["probabilities"]
            names = tf.constant(self.labels.names)
            return {
                "label": tf.gather(names, tf.argmax(scores, 1)),
                "score": tf.reduce_max(scores, 1),
                "labels": tf.tile(names[None], [tf.shape(scores)[0], 1]),
                "scores": scores,
            }

        return {"classify": Signature(classify, [tf.TensorSpec([None], tf.string, "text")])}
