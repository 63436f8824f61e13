"""What every fine-tuned task shares: from a table of texts to a trained, measured model.

Shapes: N examples, R rows that they are tokenised to, B rows of a batch.
"""

import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from absl import logging

from kbert.data.bucketing import BUCKET, bucketed_batches
from kbert.data.packing import pack
from kbert.data.rows import Rows
from kbert.data.table import Table, as_table
from kbert.tasks import inference
from kbert.tasks.losses import Pair
from kbert.tasks.task import Task
from kbert.training.optimizers import AdamW
from kbert.training.schedules import WarmupDecay


class FineTuned(Task):
    """A task that is trained on a table of labelled examples and asked about others.

    The base has `fit`, `predict`, `evaluate` and the batches. A subclass defines, besides `parts`,
    `settings` and `signatures` of `Task`:

    - `rows(table, labelled)` -> `Rows`: tokenises the table, whole or a part of it. With
      `labelled` it checks the labels and adds `labels` (R, …) to the dense columns, and
      `label_weights` where not every row counts 1. `Rows.lengths` are the tokens that a row has in
      a batch, `Rows.examples` tells rows of one example, `Rows.cut` counts examples that lost
      tokens. `self.tokenize(texts)` gives ragged ids of any number of texts.
    - `assemble(columns)` -> batch-first features, in a graph: by default the ragged columns `first`
      and `second` packed to `token_ids`, `segment_ids` and `padding_mask` (B, T), and the dense
      columns as they are. The base adds `label_weights` where there are none, and sets them to 0
      for copies that fill a batch up.
    - `call(batch, training=False)` -> dict of logits, by `self.encode(batch, training)`.
    - `terms(logits, batch)` -> losses and metrics of a labelled batch, as `loss_terms` returns
      them: two dicts of pairs (Σ weight · value, Σ weight), weighed by `batch["label_weights"]`.
    - `outputs(logits, batch)` -> dict of batch-first float32 or int32 tensors, in `keras.ops`: what
      `answers` needs of a batch, which holds no labels.
    - `answers(table, rows, outputs)` -> a list or array of one prediction an example;
      `outputs[i]` are the outputs of row `i`, NumPy arrays without the batch's axis.
    - `score(table, answers)` -> dict of the task's official metrics, floats, against the table's
      labels.
    - `metric`: name of the one that tells which weights are best; the larger the better.

    Args:
        encoder: a `kbert.Encoder`.
        tokenizer: its tokenizer.
        max_length: tokens of a row, special tokens included; None = all that the encoder takes.
        name: of the model.

    Raises:
        ValueError: if `max_length` is more than the encoder takes.
    """

    metric = "accuracy"

    def __init__(
        self, encoder: keras.Model, tokenizer: Any, *, max_length: int | None = None, name: str
    ):
        super().__init__(encoder, tokenizer, name=name)
        most = encoder.config.max_positions
        if max_length is not None and not 4 <= max_length <= most:
            raise ValueError(
                f"max_length must be from 4 to {most}, the encoder's max_positions. "
                f"Received: max_length={max_length}"
            )
        self.max_length = max_length
        self._graphs: dict[Any, Callable] = {}

    @property
    def row_length(self) -> int:
        """The most tokens of a row: `max_length`, or what the encoder takes."""
        return self.max_length or self.encoder.config.max_positions

    def rows(self, table: Table, labelled: bool) -> Rows:
        """Tokenises; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `rows`.")

    def terms(self, logits: Mapping, batch: Mapping) -> tuple[dict[str, Pair], dict[str, Pair]]:
        """Losses and metrics; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `terms`.")

    def outputs(self, logits: Mapping, batch: Mapping) -> dict[str, Any]:
        """What predictions are made from; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `outputs`.")

    def answers(self, table: Table, rows: Rows, outputs: Sequence[Mapping]) -> Sequence:
        """Predictions; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `answers`.")

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        """Metrics; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `score`.")

    def pack(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Ragged ids as the encoder's input, at most `row_length` wide (`kbert.data.packing`)."""
        return pack(
            first,
            second,
            cls_id=self.tokenizer.cls_id,
            sep_id=self.tokenizer.sep_id,
            pad_id=self.tokenizer.pad_id,
            max_length=self.row_length,
            multiple=BUCKET,
            separators=self.tokenizer.pair_separators,
        )

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """The features of a batch; see the class."""
        columns = dict(columns)
        features = self.pack(columns.pop("first"), columns.pop("second", None))
        return {**features, **columns}

    def loss_terms(self, batch, training):
        return self.terms(self(batch, training=training), batch)

    def tokenize(self, texts: Sequence[str]) -> tf.RaggedTensor:
        """(N, ragged) int32 ids of texts, in chunks of bounded memory."""
        encoded = [
            self.tokenizer.encode(tf.constant(list(chunk), tf.string))
            for _, chunk in inference.chunks(texts)
        ]
        return tf.concat(encoded, 0) if encoded else tf.ragged.constant([], 1, tf.int32)

    def fit(
        self,
        data: Any,
        labels: Any = None,
        *,
        validation_data: Any = None,
        epochs: int = 3,
        batch_size: int = 32,
        learning_rate: float = 5e-5,
        warmup_share: float = 0.1,
        weight_decay: float = 0.01,
        micro_batches: int = 1,
        seed: int = 0,
        by_length: bool = True,
        verbose: str | int = "auto",
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> keras.callbacks.History:
        """Trains on a table of labelled examples."""
        table = as_table(data, labels)
        rows = self.rows(table, labelled=True)
        self._report_cut(rows.cut, len(table))
        steps = math.ceil(len(rows) / batch_size)
        total = epochs * steps
        schedule = WarmupDecay(learning_rate, total, round(warmup_share * total), join="after")
        strategy = getattr(self, "distribute_strategy", None)  # TensorFlow's engine has one
        with strategy.scope() if strategy else contextlib.nullcontext():
            optimizer = AdamW(schedule, weight_decay=weight_decay, bias_correction=True)
            self.compile(optimizer, micro_batches=micro_batches)
        dataset = bucketed_batches(
            rows, self.assemble, batch_size=batch_size, seed=seed, by_length=by_length
        )
        return super(Task, self).fit(
            dataset,
            epochs=epochs,
            steps_per_epoch=steps,
            verbose=verbose,
            callbacks=list(callbacks),
        )

    def predict(
        self,
        data: Any,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
    ) -> Sequence:
        """Answers for a table of examples."""
        inference.check_batch_size(batch_size)
        table = as_table([data] if isinstance(data, str) else data)
        return self._ask(table, batch_size, labelled=False)[0]

    def evaluate(
        self,
        data: Any,
        labels: Any = None,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
    ) -> dict[str, float]:
        """The task's metrics on a table of labelled examples, and the mean loss."""
        inference.check_batch_size(batch_size)
        table = as_table(data, labels)
        answers, loss = self._ask(table, batch_size, labelled=True)
        return {"loss": loss, **self.score(table, answers)}

    def _ask(self, table: Table, batch_size: int, labelled: bool) -> tuple[list, float]:
        """Answers for all examples; with labels the loss too."""
        answers, cut, sums = [], 0, np.zeros(2)
        for start, chunk in inference.chunks(range(len(table))):
            part = table.take(chunk) if len(chunk) < len(table) else table
            rows = self.rows(part, labelled)
            cut += rows.cut
            outputs = [None] * len(rows)
            for index in inference.by_length(rows.lengths, batch_size):
                found, pairs = self._run(rows, index, labelled)
                sums += pairs
                for place, row in enumerate(index):
                    outputs[row] = {name: x[place] for name, x in found.items()}
            answers.append(self.answers(part, rows, outputs))
        self._report_cut(cut, len(table))
        whole = np.concatenate(answers) if isinstance(answers[0], np.ndarray) else sum(answers, [])
        return whole, float(sums[0] / sums[1]) if labelled else 0.0

    def _run(self, rows, index, labelled):
        columns = rows.gather(index)
        features = self.assemble(columns)
        logits = self(features)
        found = {k: np.asarray(v) for k, v in self.outputs(logits, features).items()}
        if not labelled:
            return found, np.zeros(2)
        features.setdefault("label_weights", tf.ones([len(index)]))
        losses, _ = self.terms(logits, features)
        return found, np.array([[float(x) for x in pair] for pair in losses.values()]).sum(0)

    def _report_cut(self, cut: int, total: int) -> None:
        if cut:
            logging.warning(
                "%d of %d examples are longer than %d tokens and are cut there",
                *(cut, total, self.row_length),
            )
