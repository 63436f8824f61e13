"""What every fine-tuned task shares: from a table of texts to a trained, measured model.

Shapes: N examples, R rows that they are tokenised to, B rows of a batch.
"""

import contextlib
import functools
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbert import inference
from kbert.data.tables.bucketing import BUCKET, bucketed_batches
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table, as_table
from kbert.options import takes
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.fine_tuning.answering import Asked
from kbert.tasks.fine_tuning.auxiliary_lm import auxiliary_weight, language_model_loss
from kbert.tasks.fine_tuning.settings import FitSettings
from kbert.tasks.losses import Pair, Prediction
from kbert.training.optimization import freezing
from kbert.training.optimization.layer_rates import layer_scales
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import fine_tuning_schedule
from kbert.training.run.fine_tuning import fine_tune
from kbert.training.run.fine_tuning_run import FineTuningHistory
from kbert.training.step.mixin import TrainStep


class FineTuned(Asked, EncoderTask):
    """A task that is trained on a table of labelled examples and asked about others.

    The base has `fit`, `predict`, `evaluate` and the batches. A subclass defines, besides `parts`,
    `settings` and `signatures` of `EncoderTask`:

    - `rows(table, labelled)` -> `Rows`: tokenises the table, whole or a part of it. With
      `labelled` it checks the labels and adds `labels` (R, …) to the dense columns, and
      `label_weights` where not every row counts 1. `Rows.lengths` are the tokens that a row has in
      a batch, `Rows.examples` tells rows of one example, `Rows.cut` counts examples that lost
      tokens. `self.tokenize(texts)` gives ragged ids of any number of texts.
    - `assemble(columns)` -> batch-first features, in a graph: by default the ragged columns `first`
      and `second` packed to `token_ids`, `segment_ids` and `padding_mask` (B, T), and the dense
      columns as they are. The base adds `label_weights` where there are none, and sets them to 0
      for copies that fill a batch up.
    - `call(batch, training=False)` -> dict of logits, by `self.encode(batch, training)`. Where the
      task takes decoders, `return_read=True` adds "read", which `language_model_loss` takes.
    - `terms(logits, batch)` -> losses and metrics of a labelled batch, as `loss_terms` returns
      them: two dicts of pairs (Σ weight · value, Σ weight), weighed by `batch["label_weights"]`.
    - `predictions(logits, batch)` -> name -> `Prediction`, what distillation compares, and
      `predicts_per`: whether it predicts one thing for a "row", for each "token", or a number for
      each "choice" of a row.
    - `outputs(logits, batch)` -> dict of batch-first float32 or int32 tensors, in `keras.ops`: what
      `answers` needs of a batch, which holds no labels.
    - `answers(table, rows, outputs)` -> a list or array of one prediction an example;
      `outputs[i]` are the outputs of row `i`, NumPy arrays without the batch's axis.
    - `check_labels(table)`: raises ValueError for a table without labels, or with one that the task
      cannot have.
    - `score(table, answers)` -> dict of the task's official metrics, floats, against the table's
      labels; `score_names(table)` -> their names, whatever the answers are.
    - `metric`: name of the one, or "loss", that tells which weights are best: those with the
      largest value, or with the smallest loss.

    Args:
        encoder: a `kbert.Encoder`, or what else the task takes.
        tokenizer: its tokenizer.
        max_length: tokens of a row, special tokens included; None = all that the encoder takes.
        auxiliary_lm_weight: see `loss_terms`; None = 0.5 on a decoder, 0 on other encoders.
        name: of the model.

    Raises:
        ValueError: if `max_length` is no number of tokens that the encoder takes, the encoder
            lacks the pooler that the task needs, or has no language model for the weight.
    """

    metric = "accuracy"
    predicts_per = "row"
    # TensorFlow's graph is for any width; elsewhere each new one is compiled.
    width_multiple = BUCKET if keras.backend.backend() == "tensorflow" else 8 * BUCKET

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Any,
        *,
        max_length: int | None = None,
        auxiliary_lm_weight: float | None = None,
        name: str,
    ) -> None:
        super().__init__(encoder, tokenizer, name=name)
        self.auxiliary_lm_weight = auxiliary_weight(encoder, auxiliary_lm_weight)
        if self.needs_pooler and encoder.pooler is None:
            raise ValueError(
                "The head reads the pooled vector, so the encoder must have a pooler: "
                f"{type(self).__name__}.from_preset(path, new_head=True, …) begins one anew. "
                "Received: a config with pooler_activation=None"
            )
        most = encoder.config.max_positions
        is_whole = isinstance(max_length, int | np.integer)
        if max_length is not None and not (is_whole and 4 <= max_length <= most):
            raise ValueError(
                f"As tokens of a row max_length must be from 4 to {most}, the encoder's "
                f"max_positions. Received: max_length={max_length!r}"
            )
        self.max_length = None if max_length is None else int(max_length)

    @property
    def settings(self) -> dict[str, Any]:
        if not self.reads_by_decoder:
            return {}
        # What `DecoderEncoder` is made again with: see `loading.has_input_tokens`.
        bare = {} if self.encoder.has_input_tokens else {"input_tokens": False}
        return {"auxiliary_lm_weight": self.auxiliary_lm_weight, **bare}

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

    def predictions(self, logits: Mapping, batch: Mapping) -> dict[str, Prediction]:
        """What is predicted, to compare tasks by; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `predictions`.")

    def outputs(self, logits: Mapping, batch: Mapping) -> dict[str, Any]:
        """What predictions are made from; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `outputs`.")

    def answers(self, table: Table, rows: Rows, outputs: Sequence[Mapping]) -> Sequence:
        """Predictions; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `answers`.")

    def check_labels(self, table: Table) -> None:
        """Looks at the labels; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `check_labels`.")

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        """Metrics; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `score`.")

    def score_names(self, table: Table) -> list[str]:
        """Names of metrics; see the class."""
        raise NotImplementedError(f"{type(self).__name__} must define `score_names`.")

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """The features of a batch; see the class."""
        columns = dict(columns)
        features = self.pack(columns.pop("first"), columns.pop("second", None))
        return {**features, **columns}

    def loss_terms(self, batch, training):
        """The task's terms, and where a decoder is fine-tuned, its own loss on the same texts.

        (Radford et al. 2018, equation 5.) "lm_loss" is the mean over the tokens of a batch and
        "auxiliary" that times `auxiliary_lm_weight`, which is added to the task's loss. It helps to
        learn the task; an evaluation is of the task's loss alone.
        """
        if not self.auxiliary_lm_weight:
            return self.terms(self(batch, training=training), batch)
        logits = dict(self(batch, training=training, return_read=True))
        read = logits.pop("read")
        total, count = language_model_loss(self.encoder, read, batch["label_weights"])
        losses, metrics = self.terms(logits, batch)
        losses = {**losses, "auxiliary": (self.auxiliary_lm_weight * total, count)}
        return losses, {**metrics, "lm_loss": (total, count)}

    def tokenize(self, texts: Sequence[str]) -> tf.RaggedTensor:
        """(N, ragged) int32 ids of texts, in chunks of bounded memory."""
        chunks = [chunk for _, chunk in inference.chunks(texts)] or [[]]
        return tf.concat([self.tokenizer.encode(tf.constant(c, tf.string)) for c in chunks], 0)

    def check_held_out(self, table: Table, held_out: Table) -> None:
        """Raises ValueError where held-out data cannot be told from what is trained on."""

    @takes(FitSettings)
    def fit(
        self,
        data: Any,
        labels: Any = None,
        *,
        validation_data: Any = None,
        validation_split: float = 0.0,
        model_dir: str | os.PathLike | None = None,
        verbose: str | int = "auto",
        callbacks: Sequence[keras.callbacks.Callback] = (),
        trained: TrainStep | None = None,
        **settings: Any,
    ) -> FineTuningHistory:
        """Trains on a table of labelled examples.

        AdamW with bias correction (Zhang et al. 2021, "Revisiting few-sample BERT fine-tuning",
        https://arxiv.org/abs/2006.05987), linear warm-up and linear decay. With the same seed, on
        weights that are the same, the numbers are the same; a run with a `model_dir` that was
        ended goes on to the same numbers when it is started again.

        Args:
            data: labelled examples, as `kbert.data.as_table` takes them: a list of texts or
                (first, second) tuples, columns, a frame, a `Table` from a file, ….
            labels: their labels, where `data` holds none.
            validation_data: likewise, or a tuple of data and labels: evaluated after each epoch.
            validation_split: share of `data`, its last rows, that is evaluated on instead, and not
                trained on. Rows that are sorted by label must be shuffled before.
            model_dir: where checkpoints and logs are written, to resume from.
            verbose: 1 for a progress bar, 2 for a line an epoch, 0 for silence; "auto" = 1 in a
                terminal or a notebook, else 2.
            callbacks: of Keras.
            trained: the model whose steps are taken, with the task in it, and which makes the
                batches by its `batches`: a `kbert.distillation.Distiller`. None = the task.
            **settings: the fields of `FitSettings`:

                {options}

        Returns:
            Losses and values of each epoch.

        Raises:
            ValueError: for data or settings that do not fit; bad data by file and line.
            NonFiniteLoss: if a loss is NaN or infinite.
        """
        options = FitSettings.from_arguments(settings, "fit")
        trained = self if trained is None else trained
        self._check_parts(options.batch_size, options.micro_batches)
        table = as_table(data, labels)
        if validation_split:
            table, validation_data = _split_end(table, validation_split, validation_data)
        if not len(table):
            raise ValueError("Training needs examples. Received: a table without rows")
        rows = self.rows(table, labelled=True)
        if not len(rows):
            raise ValueError(f"Training needs words. Received: {len(table)} examples without any")
        if options.class_weights is not None:
            rows = self.weigh_classes(rows, options.class_weights)
        self.report_cut(rows.cut, len(table))
        evaluate, metric = None, options.metric
        if validation_data is not None:
            held_out = as_table(validation_data)
            evaluate = self._evaluation(table, held_out, options.batch_size)
            metric = self._known_metric(metric or self.metric, held_out)
        steps = math.ceil(len(rows) / options.batch_size)
        schedule = fine_tuning_schedule(
            options.learning_rate, options.epochs * steps, options.warmup_share
        )
        self._seed_dropout(options.seed)

        def make_dataset(start):
            return trained.batches(
                rows,
                batch_size=options.batch_size,
                seed=options.seed,
                by_length=options.by_length,
                start=start,
            )

        with self._frozen(options.freeze), self._scope():
            decay = options.layer_decay
            optimizer = AdamW(
                schedule,
                weight_decay=options.weight_decay,
                bias_correction=True,
                rate_scales={} if decay is None else layer_scales(self.encoder, decay),
            )
            # XLA on TensorFlow would compile every width of a batch anew.
            jit_compile = False if keras.backend.backend() == "tensorflow" else "auto"
            trained.compile(optimizer, micro_batches=options.micro_batches, jit_compile=jit_compile)
            return fine_tune(
                trained,
                make_dataset,
                fit=functools.partial(TrainStep.fit, trained),
                epochs=options.epochs,
                steps_per_epoch=steps,
                evaluate=evaluate,
                metric=metric,
                mode="min" if metric is not None and metric.endswith("loss") else "max",
                patience=options.patience,
                keep_best=options.keep_best,
                evaluate_every=options.evaluate_every,
                model_dir=model_dir,
                checkpoint_every=options.checkpoint_every,
                settings={
                    "task": {**self.record, **trained.settings},
                    "examples": len(table),
                    "data_checksum": rows.checksum,
                    **options.identity(),
                },
                verbose=verbose,
                callbacks=callbacks,
            )

    def batches(self, rows: Rows, **options: Any) -> tf.data.Dataset:
        """What `fit` trains on: the rows in batches, see `bucketed_batches` for the options."""
        return bucketed_batches(rows, self.assemble, **options)

    def weigh_classes(self, rows: Rows, class_weights: str | Mapping[str, float]) -> Rows:
        """The rows with `label_weights` by their label; for tasks that have classes of rows."""
        raise ValueError(
            f"class_weights belong to tasks with classes. Received: class_weights={class_weights!r}"
            f" for a {type(self).__name__}"
        )

    def _evaluation(self, table, held_out, batch_size):
        """What `fit` calls between epochs; the data is checked and tokenised now."""
        if not len(held_out):
            raise ValueError("validation_data needs examples. Received: a table without rows")
        self.check_held_out(table, held_out)
        parts = list(self._parts(held_out, labelled=True))
        self.report_cut(sum(rows.cut for _, rows in parts), len(held_out), "held-out ")
        return lambda: self._measure(held_out, parts, batch_size, verbose=0)[0]

    def _known_metric(self, metric, held_out):
        known = ["loss", *self.score_names(held_out)]
        if metric not in known:
            raise ValueError(
                f"metric must be one of the values of an evaluation, {', '.join(known)}. "
                f"Received: metric={metric!r}"
            )
        return metric

    def _check_parts(self, batch_size, micro_batches) -> None:
        strategy = getattr(self, "distribute_strategy", None)
        replicas = strategy.num_replicas_in_sync if strategy else 1
        if batch_size % (replicas * micro_batches):
            raise ValueError(
                "A batch must divide into equal parts for every device and micro-batch. Received: "
                f"batch_size={batch_size}, {replicas} devices, micro_batches={micro_batches}"
            )

    def _seed_dropout(self, seed) -> None:
        """Dropout as the seed says, whatever the process drew before."""
        seeds = [v for v in self.non_trainable_variables if v.name == "seed_generator_state"]
        for number, state in enumerate(seeds):
            state.assign(np.random.SeedSequence([seed, number]).generate_state(2))

    def _scope(self):
        strategy = getattr(self, "distribute_strategy", None)  # TensorFlow's engine has one
        return strategy.scope() if strategy else contextlib.nullcontext()

    @contextlib.contextmanager
    def _frozen(self, patterns):
        names = freezing.freeze(self, patterns) if patterns else []
        try:
            yield
        finally:
            if names:
                freezing.thaw(self, names)


def _split_end(table: Table, share: float, validation_data: Any) -> tuple[Table, Table]:
    """The table, and the last rows of it that are held out, as Keras' `validation_split` does."""
    first = math.floor(len(table) * (1 - share)) if 0 < share < 1 else 0
    if validation_data is not None or not 0 < first < len(table):
        both = "" if validation_data is None else " and validation_data"
        raise ValueError(
            "validation_split is a share between 0 and 1, of which the data has a row on both "
            "sides, and stands in the place of validation_data. Received: "
            f"validation_split={share}{both}, {len(table)} rows"
        )
    return table[:first], table[first:]
