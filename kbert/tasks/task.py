"""The base of all tasks: a model, a tokenizer, training, presets and exports."""

from __future__ import annotations

import inspect
import os
import weakref
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
from absl import logging

from kbert import inference
from kbert.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from kbert.core import late, registry
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, PathLike
from kbert.hub import locate
from kbert.inference.texts import warn_of_cut
from kbert.io import atomic
from kbert.io.arrays import check_finite
from kbert.models.edits import restore_edits, variants_of
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasEdits
from kbert.models.weights import get_parts, set_arrays
from kbert.signatures import Signature
from kbert.signatures.row_export import RowExport
from kbert.tasks.columns import Columns
from kbert.tasks.dataset_objective import DatasetObjective
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.loading import (
    check_order,
    find_class,
    make_model,
    read_tokenizer,
    saved_settings,
)
from kbert.tokenizers.base import Tokenizer
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.optimization.settings import WARMUP_STEPS, default_warmup
from kbert.training.run.record import SAME, Resume
from kbert.training.step.keras_arguments import EXPORT, refuse_arguments, refusing_x
from kbert.training.step.mixin import TrainStep

if TYPE_CHECKING:
    from kbert.tasks.corpus_objective import CorpusObjective

HELD_BY_HUGGING_FACE = ("dropout",)  # or named in a warning when it is written
_SAVED_AS = (
    "A task must be saved with save_to_preset(folder) and loaded with from_preset(folder), "
    "which include its tokenizer; a .keras file cannot contain it. For checkpoints of the "
    "weights alone use save_weights()"
)
LEARNING_RATE = 1e-4  # BERT's (README of google-research/bert)


class Task(TrainStep, keras.Model):
    """A model with its tokenizer, trained by `fit` and applied to text by `predict`.

    A task defines `model`, `call` (batch -> outputs), `loss_terms` (see `TrainStep`), `parts`,
    `settings`, `predict` and `signatures`. `predict` takes texts, unlike Keras' `predict`, which
    takes arrays. A task with which a program predicts files declares `columns` and `file_answers`.

    Args:
        model: model that the task is built on, such as a `kbert.Encoder`.
        tokenizer: tokenizer whose ids index the model's token table.
        name: name of the task.
    """

    # Name of the task in presets, programs and a run's record; declaring it registers the class.
    kind: ClassVar[str | None] = None
    # How a corpus becomes batches; None = the task is not trained on a corpus.
    corpus_objective: ClassVar[type[CorpusObjective] | None] = None
    # Logged values that a progress line shows, in addition to the loss.
    shown_metrics: tuple[str, ...] = ()
    # Settings that follow from the heads and from the config of another library's folder.
    held_elsewhere: tuple[str, ...] = ()
    # Parts that no other library has a place for.
    unknown_elsewhere: tuple[str, ...] = ()
    # Whether the task has weights besides the model's.
    has_head: bool = True
    # The task as a model for runtimes other than TensorFlow.
    row_export: ClassVar[type[RowExport]] = RowExport
    # How a program predicts a file of records with the task.
    file_answers: ClassVar[type[FileAnswers]] = FileAnswers
    # The columns that are read from a record, and those written next to its answer.
    columns: ClassVar[Columns] = Columns(inputs=(("text",),))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        registry.register_own("task", cls)

    def __init__(self, model: keras.Model, tokenizer: TokenizerLike, *, name: str) -> None:
        super().__init__(name=name, dtype=model.dtype_policy)
        # A tokenizer of characters has no vocabulary; tasks that need one raise.
        self.tokenizer: Tokenizer | Any = tokenizer
        # What else trains it, and so has graphs with its settings: several tasks, a distiller.
        self.trainers: weakref.WeakSet[TrainStep] = weakref.WeakSet()

    def _settings_changed(self) -> None:
        """Drops what was computed with other settings; raises ValueError if they do not fit."""
        for model in (self, *self.trainers):
            model._trace_anew()

    @property
    def model(self) -> keras.Model:
        """The model that the task is built on; a preset stores its `config`."""
        raise NotImplementedError(f"{type(self).__name__} must define `model`.")

    @property
    def model_parts(self) -> dict[str, keras.layers.Layer]:
        """The model's layers by the prefix of their weights' names in a preset, without heads."""
        raise NotImplementedError(f"{type(self).__name__} must define `model_parts`.")

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        """The layers of model and heads by the prefix of their weights' names in a preset."""
        return self.model_parts

    @property
    def record(self) -> dict[str, Any]:
        """Kind and settings, as saved in presets and runs.

        If the class is defined outside kbert, also its module.
        """
        module = type(self).__module__
        outside = {} if module.startswith("kbert.") else {"module": module}
        return {"kind": self.kind, **outside, **self.settings}

    @property
    def settings(self) -> dict[str, Any]:
        """Constructor arguments that a preset stores: all but model, tokenizer and name.

        `labels`, the names of classes, are stored by presets of every format.
        """
        return {}

    def _record_elsewhere(self) -> dict[str, Any]:
        """Kind and settings, as the formats of other libraries write them."""
        return self.record

    def build(self, input_shape: Any | None = None) -> None:
        """Does nothing: the parts are built when they are created."""

    # Copied methods instead of a base class: few classes between a task and `keras.Model`.
    quantize = KerasEdits.quantize
    enable_lora = KerasEdits.enable_lora

    def get_config(self) -> dict[str, Any]:
        """Raises NotImplementedError: a `.keras` file has no place for the tokenizer."""
        raise NotImplementedError(_SAVED_AS)

    def make_objective(
        self, data: Any, labels: Any = None, *, model: TrainStep | None = None, **settings: Any
    ) -> Any:
        """Returns the objective that `fit` trains with.

        Args:
            data: training data, see `fit`.
            labels: labels of the data, see `fit`.
            model: model to train, which contains the task, such as a
                `kbert.distillation.Distiller`; None = the task.
            **settings: settings of `fit`.

        Returns:
            A `kbert.training.Objective` with a `fit`.
        """
        on_corpus = self.corpus_objective
        if on_corpus is not None and labels is None and on_corpus.takes(data):
            return on_corpus(self, data, model=model, **settings)
        return DatasetObjective(self, data, labels, model=model, **settings)

    @refusing_x
    def fit(  # type: ignore[override]  # its own arguments are by name
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
        """Trains on a corpus, or on batches.

        On a corpus it trains for a number of `steps`, like the program: in phases, with evaluation
        on held-out text, checkpoints and a progress line. A second call with the same `model_dir`
        resumes, with the same numbers as an uninterrupted run. If `compile` was not called, the
        settings define the optimizer.

        On batches it is Keras' `fit`. If `compile` was not called, it compiles with
        `usual_optimizer`; with a callback that sets the learning rate, such as Keras'
        `LearningRateScheduler`, the rate starts as a constant. With a `model_dir`, batches must
        have their `position`.

        Args:
            data: a folder of `kbert.data.prepare_corpus`, `{folder: share}` for several, or a text
                file, which is prepared first; or a `tf.data.Dataset` of dicts, as `loss_terms`
                reads them.
            labels: must be None: batches contain their labels.
            model_dir: folder for checkpoints and logs, from which training resumes.
            resume: "same" raises if `model_dir` was begun with other data or settings; "changed"
                resumes with the new ones; names of settings allow only these to change.
            verbose: 0 = silent; "auto" = a line with speed and time left on a corpus, Keras'
                progress bar on batches.
            callbacks: Keras callbacks: a list, one or None.
            **settings: on a corpus `steps` and the other fields of `corpus_objective.settings`,
                such as `batch_size`, `sequence_length`, `learning_rate`, `evaluate_every`. On
                batches `epochs`, `steps_per_epoch`, `validation_data` and other arguments of
                Keras' `fit`.

        Returns:
            The losses and metrics of each epoch, or phase.

        Raises:
            FileNotFoundError: there is no such corpus.
            TypeError: an argument is unknown.
            ValueError: data or settings do not fit, or the final weights give answers that are not
                finite.
            KeyboardInterrupt: after Ctrl-C; with a `model_dir`, once a checkpoint is written.
                (SystemExit after SIGTERM.)
        """
        return self.make_objective(data, labels, **settings).fit(
            model_dir=model_dir, resume=resume, verbose=verbose, callbacks=callbacks
        )

    def usual_optimizer(self, total_steps: int | None) -> keras.optimizers.Optimizer:
        """Returns the optimizer of `fit` if `compile` was not called.

        BERT's AdamW at 1e-4, linear warm-up and decay over the run. Warm-up is 10,000 steps, but at
        most a tenth of the run. If the length of the run is not known, the rate stays at its peak
        after the warm-up.

        Args:
            total_steps: number of steps of the run; None = not known.
        """
        return AdamW(usual_schedule(LEARNING_RATE, total_steps))

    @property
    def row_length(self) -> int:
        """Maximum number of tokens in a row."""
        raise NotImplementedError(f"{type(self).__name__} must define `row_length`.")

    @property
    def remedy(self) -> str:
        """End of the warning about truncated texts: what the user can do."""
        return ""

    def report_cut(self, cut: int, count: int, what: str = "") -> None:
        """Warns that `cut` of `count` examples lost tokens, if any did.

        `what` is text before "examples" in the message, such as "held-out ".
        """
        warn_of_cut(cut, count, self.row_length, what, self.remedy)

    def signatures(self) -> dict[str, Signature]:
        """Returns the entry points of the exported model; the first is `serving_default`."""
        raise NotImplementedError(f"{type(self).__name__} must define `signatures`.")

    def export(
        self,
        directory: PathLike,
        *,
        format: str = "savedmodel",
        precision: str = "float32",
        max_bytes: int | None = None,
        **options: Any,
    ) -> str:
        """Exports a model for a server, or for a program without TensorFlow.

        "savedmodel" takes text, and is written to `directory/<n+1>/` for TensorFlow Serving. The
        other runtimes are "onnx" for ONNX Runtime, "openvino", and "litert" (TensorFlow Lite),
        whose rows have a few fixed widths. They support tasks on encoders; "onnx" also supports
        `CausalLM` and `TextToText`, with the whole generation loop in the model. They take token
        ids, and the tokenizer's files are saved next to the model. "onnx" and "openvino" also
        contain the tokenizer as a model, if that is exact.
        `kbert.export.load_exported(directory).predict(texts)` runs them. Exports to another
        runtime are compared with TensorFlow before they are kept; see docs/serving.md for their
        content.

        Raises if weights or answers contain NaN or infinity; nothing is written then. On another
        backend, a process with TensorFlow exports a copy of the task.

        Args:
            directory: folder of the model. For a SavedModel its newest version is n; for the other
                formats it must be new or empty.
            format: "savedmodel"; "onnx", "openvino" or "litert", which need an extra of their name;
                or "safetensors", the folder of `save_to_preset(directory, "huggingface")`, for
                PyTorch.
            precision: "float32"; "int8", except for safetensors; "bfloat16" for safetensors,
                OpenVINO and SavedModels. A SavedModel in "int8" is a quarter as large, with the
                same speed: weights are stored in 8 bits and become float32 when it is loaded. In
                "bfloat16" it multiplies in that type, and its weights are stored in float32.
            max_bytes: maximum length of a text in a request to a SavedModel (default: 100,000). A
                longer text is truncated by tasks that truncate texts at their end, or a prompt at
                its beginning; others raise an error.
            **options: for safetensors, options of `save_to_preset`. For a SavedModel, arguments of
                the task's `signatures`, which describe inputs and outputs, also for texts that are
                too long. For the other formats, options of the task's `row_export`, such as
                `method` and `max_new_tokens`. For all formats except safetensors and a SavedModel
                in float32: `texts` to check the export on (default: ten built-in) and `tolerance`,
                the largest difference to TensorFlow in float32, relative to the largest number of
                TensorFlow's output (default: 1e-3; bfloat16 0.1, int8 0.3). For LiteRT also
                `widths` in tokens (default: 32, 128 and the task's maximum).

        Returns:
            The path written.

        Raises:
            ImportError: the extra of the format is not installed.
            ValueError: the format is unknown or does not support the precision, the task or
                `max_bytes`; the folder is not empty; `max_bytes` is below 1; or the difference
                exceeds the tolerance.
        """
        refuse_arguments(options, EXPORT, "export")
        check_finite(get_parts(self.parts), os.fspath(directory))
        self.check_answers(os.fspath(directory))
        settings = {"format": format, "precision": precision, "max_bytes": max_bytes, **options}
        return late.load("export", "task")(self, directory, **settings)

    def sample_outputs(self) -> dict[str, Any]:
        """Returns the outputs of model and heads for a short text; {} if a task defines none."""
        return {}

    def check_answers(self, what: str) -> None:
        """Raises ValueError if the outputs for a few tokens are not finite.

        Finite weights can still give such outputs.

        Args:
            what: name of what is checked, for the message.
        """
        inference.check_sample(self.sample_outputs, what)

    def save_to_preset(
        self,
        path: PathLike,
        format: str = "kbert",
        *,
        architecture: str | None = None,
        max_shard_size: int | None = None,
        weight_dtype: str = "float32",
    ) -> None:
        """Writes configuration, weights and tokenizer to a folder that `from_preset` reads.

        Args:
            path: the folder; created if missing.
            format: "kbert", "huggingface" for a folder that transformers loads, or "keras_hub" for
                one that KerasHub loads (heads are left out, with a warning). A warning also names
                settings that the other libraries have no place for, such as a stride.
            architecture: kind of the model in the other library; see `Encoder.save_to_preset`.
            max_shard_size: for "huggingface", bytes of weights per file; None = a single file.
            weight_dtype: for "huggingface", type of the weights in the files: "float32" or
                "bfloat16".

        Raises:
            ValueError: the format is unknown, the other library has no such model, or weights or
                answers are not finite; nothing is written.
        """
        parts, record = dict(self.parts), self.record
        if format != "kbert":
            record = self._record_elsewhere()
            for prefix in self.unknown_elsewhere:
                if parts.pop(prefix, None) is not None:
                    logging.warning("%s has no %s head: it is left out", format, prefix)
            if unsupported := _without_place(type(self), self.settings, format):
                listed = ", ".join(f"{name}={value!r}" for name, value in unsupported.items())
                logging.warning(
                    "%s does not support these settings of the task: %s", format, listed
                )
        labels, arrays = record.pop("labels", None), get_parts(parts)
        check_finite(arrays, os.fspath(path))
        self.check_answers(os.fspath(path))
        with atomic.together():
            write_checkpoint(
                path,
                self.model.config,
                arrays,
                format,
                task=record,
                tokenizer=self.tokenizer,
                labels=labels,
                edits=variants_of(self.model).record(getattr(self, "variant", None)),
                architecture=architecture,
                max_shard_size=max_shard_size,
                weight_dtype=weight_dtype,
            )
            if self.tokenizer is not None:  # ELMo's characters need none
                self.tokenizer.save(path)
                if format == "huggingface":
                    _huggingface().write_longest_row(path, record)

    @classmethod
    def from_preset(
        cls,
        path: PathLike,
        dtype: DType = None,
        *,
        strict: bool = True,
        new_head: bool = False,
        ignore: Collection[str] = (),
        **settings: Any,
    ) -> Self:
        """Loads a task with weights and tokenizer from a folder; `Task` itself loads any kind.

        Args:
            path: a folder of kbert, Hugging Face or Google, or whatever else `kbert.hub.locate`
                accepts. With `new_head` also the folder of an ELMo, whose biLM is frozen and whose
                mix is newly initialised.
            dtype: a Keras dtype policy or its name.
            strict: False loads the weights that match by name and logs the others. Weights and
                whole heads that the folder lacks stay newly initialised; further weights of the
                folder are not used.
            new_head: True loads only the encoder and the tokenizer; the task's heads are newly
                initialised. So is the pooler, if the task needs one and the folder has none.
                Settings of the folder's task are not used.
            ignore: keys in a Hugging Face `config.json` that kbert does not know and that do not
                matter for the model. Keys of another architecture still raise, and so do names
                that suggest norms, scales, windows and the like.
            **settings: constructor arguments that replace the folder's. `labels` renames the
                classes of the folder's head, in their order.

        Raises:
            FileNotFoundError: there is no such folder or model.
            ConnectionError: the hub cannot be reached; the message says which files to put where.
            ValueError: the folder has another task or none, its weights do not fit, or `labels` are
                the folder's in another order.

        Example:
            >>> import tempfile
            >>> from kbert import Encoder, EncoderConfig, WordPieceTokenizer, tasks
            >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a"])
            >>> config = EncoderConfig(vocabulary_size=6, hidden_size=8, num_layers=1, num_heads=2,
            ...                        intermediate_size=16)
            >>> folder = tempfile.mkdtemp()
            >>> tasks.Pretraining(Encoder(config), tokenizer).save_to_preset(folder)
            >>> type(Task.from_preset(folder)).__name__
            'Pretraining'
        """
        if new_head and cls is Task:
            raise ValueError(
                "new_head=True must be passed to the class of the new head, such as "
                "TextClassifier. Received: Task, the base class"
            )
        folder = locate(path)
        for file in late.TABLE["file of presets"]:
            if (folder / file).is_file():
                options = {"strict": strict, "new_head": new_head, "ignore": ignore, **settings}
                return late.load("file of presets", file)(cls, folder, dtype=dtype, **options)
        checkpoint = read_checkpoint(folder, ignore=ignore)
        if new_head:
            tokenizer = cls._read_tokenizer(checkpoint, folder)
            model = cls._without_heads(checkpoint, tokenizer, dtype, strict)
            return cls(model, tokenizer, **{**cls._settings_of_model(checkpoint), **settings})
        saved = saved_settings(checkpoint, strict, cls)
        kind, module = saved.pop("kind", cls.kind), saved.pop("module", None)
        cls = find_class(cls, kind, module, checkpoint.source)
        check_order(settings.get("labels"), saved.get("labels"), checkpoint.source)
        tokenizer = cls._read_tokenizer(checkpoint, folder)
        with without_drawing():
            model = cls._make_model(checkpoint, dtype)
            try:
                task = cls(model, tokenizer, **{**saved, **settings})
            except TypeError as error:
                if settings:  # perhaps the caller's
                    raise
                raise ValueError(
                    f"The settings of a saved task must be arguments of {cls.__name__}: {error} "
                    f"Received: {checkpoint.source}"
                ) from error
            for prefix, part in task.parts.items():
                arrays = checkpoint.take(f"{prefix}/")
                if strict or arrays or prefix in task.model_parts:
                    set_arrays(part, prefix, arrays, checkpoint.source, strict, consume=True)
                else:
                    logging.warning(
                        "%s has no %s: it is newly initialised", checkpoint.source, prefix
                    )
        return task

    @classmethod
    def _settings_of_model(cls, checkpoint: Checkpoint) -> dict[str, Any]:
        """Returns the settings that a task with a new head keeps from the folder's; here none."""
        return {}

    @classmethod
    def _read_tokenizer(cls, checkpoint: Checkpoint, folder: PathLike) -> Any:
        """Returns the tokenizer of `folder`; `checkpoint` is the folder's config and weights."""
        return read_tokenizer(checkpoint, folder)

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        """Returns the model that a folder's config describes, with its edits, such as adapters.

        Its weights are newly initialised: `from_preset` loads them later.
        """
        model = make_model(checkpoint.config, dtype)
        restore_edits(model, checkpoint.edits, checkpoint.source)
        model.weights_from = checkpoint.source  # `from_preset` sets them once the heads exist
        return model

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        """Loads the model of a folder alone, for `new_head` of `from_preset`.

        By default raises ValueError, for tasks that have no head on an encoder. `checkpoint` is the
        content of the folder; with `strict` its weights must be exactly the model's.
        """
        raise ValueError(
            "new_head=True requires a task that has a head on an encoder, such as "
            f"TextClassifier. Received: {cls.__name__}, which has none"
        )


def usual_schedule(
    rate: float, total_steps: int | None, warmup_steps: int = WARMUP_STEPS, **decay: Any
) -> WarmupDecay:
    """Returns a schedule of linear warm-up, then decay over the run.

    If the length of the run is not known, the rate stays at the peak after the warm-up.

    Args:
        rate: peak learning rate.
        total_steps: number of steps of the run; None = not known.
        warmup_steps: steps of the warm-up; at most a tenth of the run if its length is known.
        **decay: `decay` and `join` of `WarmupDecay`, used if the length of the run is known.
    """
    if total_steps is None:
        return WarmupDecay(rate, warmup_steps, warmup_steps, decay="constant")
    return WarmupDecay(rate, total_steps, default_warmup(total_steps, warmup_steps), **decay)


def _huggingface() -> Any:
    return late.load("checkpoint format", "huggingface")


def _without_place(kind: type[Any], settings: Mapping[str, Any], format: str) -> dict[str, Any]:
    """Returns the settings that differ from their default and that `format` cannot store.

    `kind` is the class of the task, `settings` are its settings, `format` is another library's.
    """
    parameters = inspect.signature(kind).parameters.items()
    defaults = {name: parameter.default for name, parameter in parameters}
    defaults = {name: [*x] if isinstance(x, tuple) else x for name, x in defaults.items()}
    stored = kind.held_elsewhere
    if format == "huggingface":
        on_rows = kind.kind in _huggingface().ON_ROWS
        stored += HELD_BY_HUGGING_FACE + (("max_length",) if on_rows else ())
    return {
        name: value
        for name, value in settings.items()
        if name not in stored and (name not in defaults or value != defaults[name])
    }
