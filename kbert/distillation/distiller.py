"""A Keras model that trains a student on the outputs of a teacher.

Shapes: B rows of a batch, R sequences of the encoder (each window and choice is one), T tokens, H
hidden width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.contexts import auxiliary_losses
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Pair, PathLike, Tensor, Tensors
from kbert.data.tables.rows import Rows
from kbert.data.tables.shards import StoredRows
from kbert.distillation.cache import CacheSize, TeacherCache
from kbert.distillation.comparable import check_comparable
from kbert.distillation.reading import Reading, read, without_gradient
from kbert.distillation.terms import OwnLoss, Term, agreements
from kbert.distillation.transfer import rate_scales
from kbert.io import fingerprints
from kbert.layers import Dense
from kbert.models.edits import active_record
from kbert.models.keras_model import KerasEdits
from kbert.tasks import EncoderTask, Ensemble
from kbert.training.run.record import SAME, Resume
from kbert.training.step.mixin import TrainStep, check_compares_whole_batches


class Distiller(KerasEdits, TrainStep, keras.Model):
    """Trains a student on the outputs of a teacher, with any terms of `kbert.distillation.terms`.

    Each step runs one forward pass of each model. The teacher runs in inference mode, and its
    weights are not part of the distiller: they are neither trained nor saved with a checkpoint.
    Every term is a pair of sums over the real tokens (or rows) of the global batch, so the numbers
    are the same on one device and on several. If the widths differ, a trained projection maps the
    student's hidden states to the teacher's width. All layers and the embeddings share it
    (TinyBERT, section 3.1), and it is discarded with the distiller.

    Losses are named after the values of the terms. If a term's weight is not 1, the loss is the
    weighted value, `weighted_…`, and the unweighted value is a metric. If a term uses the heads,
    the student's own values are metrics too, and so is `agreement`: how often both models predict
    the same class.

    Args:
        student: a `kbert.tasks.Pretraining` or a fine-tuning task.
        teacher: a task with the same vocabulary; if heads are compared, of the same class and with
            the same labels. Several, or a `kbert.Ensemble`, teach by the mean of their predicted
            probabilities.
        terms: terms of the loss.
        cache_dir: folder that caches the teacher's outputs, for tasks on tables: they are computed
            once per text, before training, for all epochs, runs and students. For their size on
            disk see `kbert.distillation.cache.TeacherCache`. None = the teacher runs in every step.
        cache_dtype: type of cached hidden states and attention, "float16" or "float32".
        name: name of the model.

    Raises:
        TypeError: student or teacher is not a single task, but several or a model.
        ValueError: the two cannot be compared: vocabularies or labels differ, a head is missing, a
            layer map is out of range, or numbers of heads differ; their outputs cannot be
            cached; or several teachers do not form a `kbert.Ensemble`, or a term compares more
            than predictions.

    Example:
        >>> import kbert
        >>> from kbert.distillation import Distiller, SoftTargets
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=4,
        ...                              num_heads=2, intermediate_size=16)
        >>> teacher = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> student = kbert.student(teacher, num_layers=2)
        >>> distiller = Distiller(student, teacher, [SoftTargets(temperature=2.0)])
        >>> history = distiller.fit(["good", "bad"], ["yes", "no"], epochs=1, verbose=0)
        >>> sorted(history.history)[:2], len(distiller.student.predict(["good"]))
        (['accuracy', 'agreement'], 1)
    """

    def __init__(
        self,
        student: EncoderTask,
        teacher: EncoderTask | Sequence[EncoderTask],
        terms: Sequence[Term],
        *,
        cache_dir: PathLike | None = None,
        cache_dtype: str = "float16",
        name: str = "distiller",
    ) -> None:
        if isinstance(teacher, Sequence):
            teacher = teacher[0] if len(teacher) == 1 else Ensemble(teacher)
        check_comparable(student, teacher, terms := tuple(terms))
        super().__init__(name=name, dtype=student.dtype_policy)
        self.terms = terms
        self._reads_heads = any(term.reads_heads for term in self.terms)
        self._returned: dict[str, bool] = {}
        for term in self.terms:
            self._returned |= term.returned
        self.student = student
        student.trainers.add(self)
        # Hidden in a function, so that Keras neither counts, trains nor saves the teacher.
        self._teacher = lambda: teacher
        self._cache: Callable[[], Any] = lambda: None
        self._verbose: str | int = "auto"
        if cache_dir is not None:
            cache = TeacherCache(
                cache_dir,
                student,
                teacher,
                self.terms,
                reads_heads=self._reads_heads,
                dtype=cache_dtype,
            )
            self._cache = lambda: cache
        self.projection = None
        widths = [task.encoder.config.hidden_size for task in (student, teacher)]
        if any(term.projects for term in self.terms) and widths[0] != widths[1]:
            self.projection = Dense(
                widths[1],
                initializer_range=student.encoder.config.initializer_range,
                dtype=student.dtype_policy,
                name="projection",
            )
            self.projection.build((None, None, widths[0]))
        self.build()

    def build(self, input_shape: Any = None) -> None:
        """Does nothing: all layers are built in the constructor."""

    @property
    def teacher(self) -> EncoderTask:
        """The task whose outputs the student learns from."""
        return self._teacher()

    @property
    def tokenizer(self) -> TokenizerLike:
        """The tokenizer of student and teacher."""
        return self.student.tokenizer

    @property
    def encoder(self) -> keras.Model:
        """The student's encoder."""
        return self.student.encoder

    @property
    def shown_metrics(self) -> tuple[str, ...]:  # type: ignore[override]  # and of the terms
        """Metrics on a progress line: the student's, and those of the terms of the loss."""
        term_names = (name for term in self.terms for name in term.shown)
        return tuple(dict.fromkeys((*self.student.shown_metrics, *term_names)))

    @property
    def derived_metrics(self) -> Mapping[str, Any]:  # type: ignore[override]  # the student's
        """The student's derived metrics, if its heads are computed."""
        return self.student.derived_metrics if self._reads_heads else {}

    @property
    def settings(self) -> dict[str, Any]:
        """The student's settings, the loss' terms and the teacher, for the record of a run."""
        teacher_edits = active_record(self.teacher)
        return {
            **self.student.settings,
            "distilled_by": [term.record for term in self.terms],
            "teacher": self.teacher.model.config.to_dict(),
            "teacher_weights": fingerprints.crc32(
                keras.ops.convert_to_numpy(x) for x in self.teacher.weights
            ),
            **({"teacher_edits": teacher_edits} if teacher_edits else {}),
        }

    @property
    def row_length(self) -> int:
        """Maximum number of tokens in a row that both models support."""
        return min(task.row_length for task in (self.student, self.teacher))

    def compile(self, optimizer: Any = None, *positional: Any, **settings: Any) -> None:
        """Like `TrainStep.compile`; ValueError if layers learn in turn and `optimizer` lacks rates.

        Layers learn in turn with `steps_per_layer`. An optimizer gets their rates as `rate_scales`.
        """
        super().compile(optimizer, *positional, **settings)
        if any(isinstance(term, OwnLoss) for term in self.terms):
            check_compares_whole_batches(self.student, self.micro_batches)
        if self.rate_scales and not getattr(self.optimizer, "rate_scales", None):
            raise ValueError(
                "Training layers in turn requires learning rates per layer: compile with an "
                "optimizer such as kbert.training.AdamW(rate, rate_scales=distiller.rate_scales). "
                f"Received: {type(self.optimizer).__name__} without rate_scales"
            )

    @property
    def rate_scales(self) -> dict[str, Any]:
        """Path of a weight -> factor of its learning rate; {} unless layers learn in turn."""
        return rate_scales(self.terms, self.student)

    def loss_terms(self, batch: Tensors, training: bool) -> tuple[dict[str, Pair], dict[str, Pair]]:
        if self._reads_heads:
            self.student.check_batch(batch)
        student = self._read(self.student, batch, training)
        optimizer = getattr(self, "optimizer", None)
        if training and optimizer is not None:
            student = dataclasses.replace(student, step=optimizer.iterations)
        teacher = self._read_teacher(batch, student)
        real = _counted_tokens(batch, student.padding_mask)
        own_losses, metrics = {}, {}
        if self._reads_heads:
            own_losses, metrics = self.student.terms(student.logits, batch)
            metrics = {**own_losses, **metrics, **agreements(student, teacher)}
        losses = {}
        for term in self.terms:
            if isinstance(term, OwnLoss):
                pairs = term.chosen(own_losses)
            else:
                pairs = term.pairs(student, teacher, real, self._project)
            for name, (total, count) in pairs.items():
                if name in losses or f"weighted_{name}" in losses:
                    raise ValueError(
                        "Terms must have losses of different names. Received: two terms with "
                        f"{name!r}, the second {term}"
                    )
                if term.weight == 1:
                    losses[name] = (total, count)
                    metrics.pop(name, None)
                else:
                    losses[f"weighted_{name}"] = (term.weight * total, count)
                    metrics[name] = (total, count)
        return losses, metrics

    def make_objective(self, data: Any, labels: Any = None, **settings: Any) -> Any:
        """Returns the object that `fit` trains by: the student's objective, for the distiller.

        Args:
            data: training data, as in `fit`.
            labels: labels of a table if `data` contains none.
            **settings: settings of `fit`.
        """
        return self.student.make_objective(data, labels, model=self, **settings)

    def fit(  # type: ignore[override]  # a table and labels where Keras has x and y
        self,
        data: Any,
        labels: Any = None,
        *,
        model_dir: PathLike | None = None,
        resume: Resume = SAME,
        verbose: str | int = "auto",
        callbacks: Sequence[keras.callbacks.Callback] = (),
        **settings: Any,
    ) -> keras.callbacks.History:
        """Trains the student; the arguments are those of the student's own `fit`.

        Args:
            data: a table for a fine-tuning task; a corpus or batches for `Pretraining`.
            labels: labels of a table if `data` contains none.
            model_dir: folder for checkpoints and logs, from which training resumes.
            resume: "same" raises if `model_dir` was begun with other data or settings; "changed"
                resumes with the new ones; names of settings allow only these to change.
            verbose: progress output: 0 = silent; other values as for the student's `fit`.
            callbacks: Keras callbacks.
            **settings: settings of the student's `fit`, such as `epochs`, `learning_rate` and
                `validation_data`.

        Returns:
            Losses and metrics of each epoch.
        """
        self._verbose = verbose
        return self.make_objective(data, labels, **settings).fit(
            model_dir=model_dir, resume=resume, verbose=verbose, callbacks=callbacks
        )

    def batches(self, rows: Rows | StoredRows, **options: Any) -> tf.data.Dataset:
        """Returns the batches of `fit`, see `FineTuningTask.batches`.

        With a cache, the batches contain the teacher's outputs. Outputs that are missing in the
        cache are computed first.

        Args:
            rows: rows of a table; with a cache they must be in memory.
            **options: arguments of the student's `batches`, such as `batch_size` and `seed`.

        Raises:
            ValueError: the rows have several texts that are encoded apart, or do not fit a cache.
        """
        batches = self.student.batches(rows, **options)
        compared = [type(x).__name__ for x in self.terms if not isinstance(x, OwnLoss)]
        if compared and "second_token_ids" in batches.element_spec:
            raise ValueError(
                "Terms that compare models do not support pairs of texts that are encoded apart, "
                "of which they would compare one: compute the teacher's vectors once and train "
                f'with objective="teacher". Received: {", ".join(compared)} for pairs of a '
                f"{type(self.student).__name__}"
            )
        cache = self._cache()
        if cache is None:
            return batches
        if options.get("num_hosts", 1) > 1:
            raise ValueError(
                "cache_dir is supported on one host only: leave it out to run the teacher in every "
                f"step. Received: a cache_dir, {options['num_hosts']} hosts"
            )
        if not isinstance(rows, Rows):
            raise ValueError(
                "cache_dir is supported for tables in memory only: leave it out to run the teacher "
                f"in every step. Received: a cache_dir, and the rows in {rows.folder}"
            )
        return cache.fill(rows, options["batch_size"], self._verbose).attach(batches)

    def cache_size(self, data: Any, labels: Any = None) -> CacheSize:
        """Returns the size of a table in the cache; `print` lists the bytes of each output.

        Args:
            data: table, in any form that `fit` accepts.
            labels: labels of the table; the size does not depend on them.

        Raises:
            ValueError: the distiller has no cache.

        Example:
            >>> import kbert, tempfile
            >>> from kbert.distillation import LastHiddenCosine, SoftTargets
            >>> tokenizer = kbert.WordPieceTokenizer(
            ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
            >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=2,
            ...                              num_heads=2, intermediate_size=16)
            >>> teacher = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["0", "1"])
            >>> terms = [SoftTargets(), LastHiddenCosine()]
            >>> distiller = Distiller(kbert.student(teacher, 1), teacher, terms,
            ...                       cache_dir=tempfile.mkdtemp())
            >>> distiller.cache_size(["good", "bad good"]).by_output
            {'hidden_states/2': 112, 'predictions/classifier': 16}
        """
        cache = self._cache()
        if cache is None:
            raise ValueError("cache_size() requires a distiller with a cache_dir. Received: none")
        return cache.size(
            self.student.tokenize(self.student.as_table(data, labels), labelled=False)
        )

    def predict(self, *args: Any, **options: Any) -> Any:
        """Returns the student's predictions; the arguments are those of its `predict`."""
        return self.student.predict(*args, **options)

    def save_to_preset(self, path: PathLike, *args: Any, **options: Any) -> None:
        """Saves the student, without teacher and projection, see `Task.save_to_preset`."""
        self.student.save_to_preset(path, *args, **options)

    def export(self, directory: PathLike, **options: Any) -> str:
        """Exports the student, by default as a SavedModel, see `Task.export`."""
        return self.student.export(directory, **options)

    def get_config(self) -> dict[str, Any]:
        """Raises an error, because a `.keras` file cannot contain the tokenizer and the teacher."""
        raise NotImplementedError(
            "A distiller cannot be saved: save its student with save_to_preset(folder). "
            f"Received: a {type(self).__name__} of a {type(self.student).__name__}"
        )

    def _read(self, task: EncoderTask, batch: Tensors, training: bool) -> Reading:
        """Returns the outputs of student or teacher that the terms compare."""
        heads = self._reads_heads
        return read(task, batch, training=training, returned=self._returned, heads=heads)

    def _read_teacher(self, batch: Tensors, student: Reading) -> Reading:
        """Returns the teacher's outputs for a batch: from the cache, or by a forward pass."""
        cache = self._cache()
        if cache is not None:
            return cache.reading(batch, student)
        with auxiliary_losses():  # keeps the teacher's auxiliary losses out of the student's
            return without_gradient(self._read(self.teacher, batch, training=False))

    def _project(self, hidden_states: Tensor) -> Tensor:
        return hidden_states if self.projection is None else self.projection(hidden_states)


def _counted_tokens(batch: Tensors, padding_mask: Tensor) -> Tensor:
    """Returns the weight of each token, (R, T) float32: that of its example, 0 for padding.

    An example's weight is the largest of its `label_weights`, 1 if there are none; it is 0 for rows
    that only fill up a batch.

    Args:
        batch: features of the batch, with B examples.
        padding_mask: padding mask (R, T) of the encoder's sequences.
    """
    mask = ops.cast(padding_mask, "float32")
    if "label_weights" not in batch:
        return mask
    weights = ops.cast(batch["label_weights"], "float32")
    rows = ops.shape(weights)[0]
    example_weights = ops.max(ops.reshape(weights, (rows, -1)), axis=1)
    # Windows and choices of an example are adjacent sequences of the encoder.
    shape = ops.shape(mask)
    by_example = ops.reshape(mask, (rows, -1, shape[1])) * example_weights[:, None, None]
    return ops.reshape(by_example, shape)
