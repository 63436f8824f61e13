"""What every task shares: a model, a tokenizer, training, presets and exports."""

from __future__ import annotations

import inspect
import os
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

import keras
import numpy as np
from absl import logging

from kbert import inference
from kbert.checkpoints import Checkpoint, read_checkpoint, write_checkpoint
from kbert.core import late, registry
from kbert.core.protocols import TokenizerLike
from kbert.core.types import DType, PathLike
from kbert.hub import locate
from kbert.inference.texts import warn_of_cut
from kbert.io.arrays import check_finite
from kbert.models.edits import restore_edits, variants_of
from kbert.models.initial_values import without_drawing
from kbert.models.keras_model import KerasEdits
from kbert.models.weights import get_arrays, set_arrays
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
from kbert.training.step.keras_arguments import EXPORT, refuse_arguments
from kbert.training.step.mixin import TrainStep

if TYPE_CHECKING:
    from kbert.tasks.corpus_objective import CorpusObjective

HELD_BY_HUGGING_FACE = ("dropout",)  # or named in a warning when it is written
_SAVED_AS = (
    "A task is saved with save_to_preset(folder) and loaded with from_preset(folder): its "
    "tokenizer goes with it, which a .keras file cannot hold. For checkpoints of the "
    "weights alone use save_weights()"
)
LEARNING_RATE = 1e-4  # BERT's (README of google-research/bert)


class Task(TrainStep, keras.Model):
    """A model and its tokenizer, trained by `fit`, asked with text by `predict`.

    A task defines `model`, `call` (batch -> outputs), `loss_terms` (see `TrainStep`), `parts`,
    `settings`, `predict` and `signatures`. Keras' own `predict` on arrays gives way to one on
    texts; `fit` and `evaluate` are Keras'. One that a program answers files with declares
    `columns` and `file_answers`.

    Args:
        model: what the task is built on, such as a `kbert.Encoder`.
        tokenizer: the tokenizer whose ids the model's table is indexed by.
        name: of the task.
    """

    # What a preset, a program and a run's record call the task; declaring it registers the class.
    kind: ClassVar[str | None] = None
    # How a corpus becomes batches; None = the task is not trained on one.
    corpus_objective: ClassVar[type[CorpusObjective] | None] = None
    # What a progress line shows, of the values that are logged besides the loss.
    shown_metrics: tuple[str, ...] = ()
    # Settings that follow from the heads and from the config of another library's folder.
    held_elsewhere: tuple[str, ...] = ()
    # Parts that no other library has a place for.
    unknown_elsewhere: tuple[str, ...] = ()
    # Whether there are weights besides the model's.
    has_head: bool = True
    # The task as a model for runtimes other than TensorFlow.
    row_export: ClassVar[type[RowExport]] = RowExport
    # How a program answers a file of records with the task.
    file_answers: ClassVar[type[FileAnswers]] = FileAnswers
    # What is read of a record, and written beside its answer.
    columns: ClassVar[Columns] = Columns(inputs=(("text",),))

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        registry.register_own("task", cls)

    def __init__(self, model: keras.Model, tokenizer: TokenizerLike, *, name: str) -> None:
        super().__init__(name=name, dtype=model.dtype_policy)
        # One of characters has no vocabulary; tasks that need one refuse it.
        self.tokenizer: Tokenizer | Any = tokenizer

    @property
    def model(self) -> keras.Model:
        """What the task is built on; its `config` is what a preset is named by."""
        raise NotImplementedError(f"{type(self).__name__} must define `model`.")

    @property
    def model_parts(self) -> dict[str, keras.layers.Layer]:
        """First part of the weights' names in a preset -> the layer, for the model alone."""
        raise NotImplementedError(f"{type(self).__name__} must define `model_parts`.")

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        """First part of the weights' names in a preset -> the layer: the model and the heads."""
        return self.model_parts

    @property
    def record(self) -> dict[str, Any]:
        """Kind and settings, as presets and runs keep them; the module too of one not of kbert."""
        module = type(self).__module__
        outside = {} if module.startswith("kbert.") else {"module": module}
        return {"kind": self.kind, **outside, **self.settings}

    @property
    def settings(self) -> dict[str, Any]:
        """The constructor's arguments other than model, tokenizer and name, for a preset.

        `labels` among them are names of classes; every format has a place for those.
        """
        return {}

    def build(self, input_shape: Any | None = None) -> None:
        """The parts build themselves when they are made."""

    # No base of a task's: between it and `keras.Model` there are as few classes as can be.
    quantize = KerasEdits.quantize
    enable_lora = KerasEdits.enable_lora

    def get_config(self) -> dict[str, Any]:
        """Refuses: a `.keras` file has no place for the tokenizer."""
        raise NotImplementedError(_SAVED_AS)

    def make_objective(
        self, data: Any, labels: Any = None, *, model: TrainStep | None = None, **settings: Any
    ) -> Any:
        """What `fit` trains on, and how; its `fit` trains.

        Args:
            data: see `fit`, as for what follows.
            labels: of the data.
            model: what takes the steps, with the task in it, such as a
                `kbert.distillation.Distiller`; None = the task.
            **settings: what `fit` takes.

        Returns:
            A `kbert.training.Objective` with a `fit`.
        """
        on_corpus = self.corpus_objective
        if on_corpus is not None and labels is None and on_corpus.takes(data):
            return on_corpus(self, data, model=model, **settings)
        return DatasetObjective(self, data, labels, model=model, **settings)

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

        On a corpus for a number of `steps`, as a program does: in phases, with held-out text
        evaluated on, checkpoints and a line of progress. Started again with the same `model_dir` it
        resumes to the same numbers. Where `compile` was not called, the optimizer is that of the
        settings.

        On batches it is Keras' `fit`, which compiles with `usual_optimizer` where `compile` was not
        called; with a callback that sets the rate, such as Keras' `LearningRateScheduler`, it
        begins with a constant one. With a `model_dir` batches must hold their `position`.

        Args:
            data: a folder of `kbert.data.prepare_corpus`, `{folder: share}` for several, or a text
                file, which is prepared first; or a `tf.data.Dataset` of dicts, as `loss_terms`
                reads them.
            labels: None: batches have their own.
            model_dir: where checkpoints and logs are written, to resume from.
            resume: "same" refuses a `model_dir` that was begun with other data or settings,
                "changed" resumes with these, and names of settings let those alone change.
            verbose: 0 for silence; "auto" for a line with speed and time left, of batches for
                Keras' progress bar.
            callbacks: of Keras.
            **settings: on a corpus `steps`, and what else `corpus_objective.settings` has, such as
                `batch_size`, `sequence_length`, `learning_rate`, `evaluate_every`. On batches
                `epochs`, `steps_per_epoch`, `validation_data`, and what else Keras' `fit` takes.

        Returns:
            The losses and metrics of each epoch, or phase.

        Raises:
            FileNotFoundError: there is no such corpus.
            TypeError: for an unknown argument.
            ValueError: for data or settings that do not fit, or if the weights of the end give
                answers that are not finite.
            KeyboardInterrupt: after Ctrl-C, with a `model_dir` once a checkpoint is written (and
                SystemExit after SIGTERM).
        """
        return self.make_objective(data, labels, **settings).fit(
            model_dir=model_dir, resume=resume, verbose=verbose, callbacks=callbacks
        )

    def usual_optimizer(self, total_steps: int | None) -> keras.optimizers.Optimizer:
        """What `fit` trains with where `compile` was not called.

        BERT's AdamW at 1e-4, linear warm-up and decay over the run. Warm-up is 10,000 steps, but at
        most a tenth of the run. Where the length of the run is not known, the rate stays at its
        peak after the warm-up.

        Args:
            total_steps: of the run; None = not known.
        """
        return AdamW(usual_schedule(LEARNING_RATE, total_steps))

    @property
    def row_length(self) -> int:
        """The most tokens of a row."""
        raise NotImplementedError(f"{type(self).__name__} must define `row_length`.")

    @property
    def remedy(self) -> str:
        """What the message that counts texts that are cut ends with."""
        return ""

    def report_cut(self, cut: int, count: int, what: str = "") -> None:
        """Warns that `cut` of `count` examples lost tokens, if any did."""
        warn_of_cut(cut, count, self.row_length, what, self.remedy)

    def signatures(self) -> dict[str, Signature]:
        """The entry points of the exported model; the first is `serving_default`."""
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
        """Writes a model for a server, or for a program that has no TensorFlow.

        "savedmodel" takes text, and is written as `directory/<n+1>/` for TensorFlow Serving. The
        others are of tasks on encoders, and "onnx" of `CausalLM` and `Translator` too, the whole
        writing of a text in it: "onnx" for ONNX Runtime, "openvino", and "litert" (TensorFlow
        Lite), whose rows are of a few widths. They take token ids, and have the tokenizer's files
        beside; the first two also the tokenizer as a model, where that is exact.
        `kbert.export.load_exported(directory).predict(texts)` answers with them. Each is run
        beside TensorFlow before it is kept; see docs/serving.md for what it holds.

        Weights and answers that hold NaN or infinity are refused, and nothing is written. On
        another backend a copy of the task does it, in a process that runs TensorFlow.

        Args:
            directory: the model's folder; of a SavedModel its newest version is n, of the others it
                is new or empty.
            format: "savedmodel"; "onnx", "openvino" or "litert", which need an extra of their name;
                or "safetensors", the folder of `save_to_preset(directory, "huggingface")`, for
                PyTorch.
            precision: "float32"; "int8", but for safetensors; "bfloat16" for safetensors, OpenVINO
                and SavedModels. A SavedModel in "int8" is a quarter as large and as fast as before:
                weights are stored in 8 bits, and are float32 once it is loaded. In "bfloat16" its
                products are of that type, and its weights are stored in float32.
            max_bytes: of a SavedModel the longest text that a request may have (100,000). A task
                that cuts texts at their end, or a prompt at its beginning, reads no more of a
                longer one; others refuse it.
            **options: of safetensors those of `save_to_preset`. Of a SavedModel arguments of the
                task's `signatures`, which tell what each takes and returns, also for texts that are
                too long. Of the others those of its `row_export`, such as `method` and
                `max_new_tokens`. Of all that compute in another way than a SavedModel in float32
                `texts` that the export is checked on (default: ten of ours) and `tolerance`, the
                largest difference to TensorFlow in float32, in units of the largest number that it
                gives (1e-3, of bfloat16 0.1 and of int8 0.3); for LiteRT `widths` in tokens (32,
                128 and the task's longest).

        Returns:
            The path written.

        Raises:
            ImportError: the extra of the format is not installed.
            ValueError: an unknown format, a precision that it has not, a task that it cannot hold,
                a folder that is not empty, a `max_bytes` that it has not or below 1, or a
                difference above the tolerance.
        """
        refuse_arguments(options, EXPORT, "export")
        check_finite(_arrays(self.parts), os.fspath(directory))
        self.check_answers(os.fspath(directory))
        how = {"format": format, "precision": precision, "max_bytes": max_bytes, **options}
        return late.load("export", "task")(self, directory, **how)

    def sample_outputs(self) -> dict[str, Any]:
        """What the model and the heads give for a short text; of a task without an example: {}."""
        return {}

    def check_answers(self, what: str) -> None:
        """Raises ValueError where finite weights give answers that are not; computes a few tokens.

        Args:
            what: whose they are, for the message.
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
            path: the folder; made if missing.
            format: "kbert", "huggingface" for one that transformers loads, or "keras_hub" for one
                that KerasHub loads (heads are left out, and named in a warning). Settings that the
                others have no place for, such as a stride, are named in a warning too.
            architecture: the model's kind in the other library; see `Encoder.save_to_preset`.
            max_shard_size: for "huggingface", bytes of weights in one file; None = all in one.
            weight_dtype: for "huggingface", of the weights in the files: "float32" or "bfloat16".

        Raises:
            ValueError: an unknown format, a model that the other library cannot be, or one whose
                weights or answers are not finite: nothing is written.
        """
        parts, record = dict(self.parts), self.record
        if format != "kbert":
            for prefix in self.unknown_elsewhere:
                if parts.pop(prefix, None) is not None:
                    logging.warning("%s has no %s head: it is left out", format, prefix)
            if left := _without_place(type(self), self.settings, format):
                listed = ", ".join(f"{name}={value!r}" for name, value in left.items())
                logging.warning("%s has no place for settings of the task: %s", format, listed)
        labels, arrays = record.pop("labels", None), _arrays(parts)
        check_finite(arrays, os.fspath(path))
        self.check_answers(os.fspath(path))
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
        if self.tokenizer is not None:  # ELMo's letters need none
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
        """A task with the weights and the tokenizer of a folder; of `Task` itself, whichever it is.

        Args:
            path: a folder of kbert's, or of Hugging Face's or Google's, or whatever else
                `kbert.hub.locate` knows. With `new_head` also one of an ELMo, whose biLM is frozen
                and whose mix is newly initialised.
            dtype: a Keras dtype policy or its name.
            strict: False takes the weights that fit by name and logs what it leaves: weights and
                whole heads that the folder lacks stay as they were drawn, others of the folder are
                not used.
            new_head: True takes the encoder and the tokenizer alone, whatever heads there are; the
                task's own are newly initialised. So is the pooler, where the task needs one and
                there is none. Settings of the folder's task are not used.
            ignore: names of keys in a Hugging Face `config.json` that say nothing about the model,
                where kbert does not know them. One of another architecture, or whose name speaks of
                norms, scales, windows and the like, is refused all the same.
            **settings: constructor arguments, instead of the folder's. `labels` so gives the
                classes of the folder's head other names, by their place.

        Raises:
            FileNotFoundError: there is no such folder or model.
            ConnectionError: the hub cannot be reached; the message says what to put where.
            ValueError: it holds another task or none, its weights do not fit, or `labels` are those
                of the folder in another order.

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
                "new_head=True is asked of the kind of task with a newly initialised head, such as "
                "TextClassifier. Received: Task, which is of no kind"
            )
        folder = locate(path)
        checkpoint = read_checkpoint(folder, ignore=ignore)
        if new_head:
            tokenizer = cls._read_tokenizer(checkpoint, folder)
            return cls(
                cls._without_heads(checkpoint, tokenizer, dtype, strict), tokenizer, **settings
            )
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
                    f"A saved task's settings must be those of {cls.__name__}: {error} "
                    f"Received: {checkpoint.source}"
                ) from error
            for prefix, part in task.parts.items():
                arrays = checkpoint.part(f"{prefix}/")
                if strict or arrays or prefix in task.model_parts:
                    set_arrays(part, prefix, arrays, checkpoint.source, strict)
                else:
                    logging.warning(
                        "%s has no %s: it is newly initialised", checkpoint.source, prefix
                    )
        return task

    @classmethod
    def _read_tokenizer(cls, checkpoint: Checkpoint, folder: PathLike) -> Any:
        """The tokenizer of a folder."""
        return read_tokenizer(checkpoint, folder)

    @classmethod
    def _make_model(cls, checkpoint: Checkpoint, dtype: DType) -> keras.Model:
        """The model of a folder's config, its weights drawn."""
        model = make_model(checkpoint.config, dtype)
        restore_edits(model, checkpoint.edits, checkpoint.source)
        model.weights_from = checkpoint.source  # they are set when the heads are there
        return model

    @classmethod
    def _without_heads(
        cls, checkpoint: Checkpoint, tokenizer: TokenizerLike, dtype: DType, strict: bool
    ) -> keras.Model:
        """The model of a folder alone, for a newly initialised head."""
        raise ValueError(
            "new_head=True is asked of a task that has a head on an encoder, such as "
            f"TextClassifier. Received: {cls.__name__}, which has none"
        )


def usual_schedule(
    rate: float, total_steps: int | None, warmup_steps: int = WARMUP_STEPS, **decay: Any
) -> WarmupDecay:
    """Linear warm-up, then decay over the run; the peak where its length is not known.

    Args:
        rate: the peak.
        total_steps: of the run; None = not known.
        warmup_steps: of the warm-up, which is at most a tenth of the run.
        **decay: `decay` and `join` of `WarmupDecay`.
    """
    if total_steps is None:
        return WarmupDecay(rate, warmup_steps, warmup_steps, decay="constant")
    return WarmupDecay(rate, total_steps, default_warmup(total_steps, warmup_steps), **decay)


def _arrays(parts: Mapping[str, keras.layers.Layer]) -> dict[str, np.ndarray]:
    """The weights of parts by their names in a preset."""
    each = (get_arrays(part, prefix) for prefix, part in parts.items())
    return {name: array for arrays in each for name, array in arrays.items()}


def _huggingface() -> Any:
    return late.load("checkpoint format", "huggingface")


def _without_place(kind: type[Any], settings: Mapping[str, Any], format: str) -> dict[str, Any]:
    """Settings that no other library's folder holds, and that are not what they begin as."""
    parameters = inspect.signature(kind).parameters.items()
    usual = {name: parameter.default for name, parameter in parameters}
    usual = {name: [*x] if isinstance(x, tuple) else x for name, x in usual.items()}
    held = kind.held_elsewhere
    if format == "huggingface":
        on_rows = kind.kind in _huggingface().ON_ROWS
        held += HELD_BY_HUGGING_FACE + (("max_length",) if on_rows else ())
    return {
        name: value
        for name, value in settings.items()
        if name not in held and (name not in usual or value != usual[name])
    }
