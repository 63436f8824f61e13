"""Pretraining on a corpus: shards of tokens, from which every batch of a run is made again."""

import json
import os
import types
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, cast

import keras
import tensorflow as tf

from kbert.core.options import option
from kbert.core.types import PathLike
from kbert.data.corpus.manifest import Manifest
from kbert.data.corpus.mixture import Mixture
from kbert.data.pretraining.settings import Settings
from kbert.data.pretraining.stream import Corpus, open_corpus
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.tasks.dataset_objective import AFTER_FIT
from kbert.tokenizers.base import Tokenizer
from kbert.training.optimization.optimizers import make_optimizer
from kbert.training.optimization.schedules import WarmupDecay, default_warmup, settable
from kbert.training.optimization.settings import OptimizerSettings
from kbert.training.run.averaging import average_checkpoints, use_moving_average
from kbert.training.run.compiled import check_compiled, settings_in_use
from kbert.training.run.history import History
from kbert.training.run.monitor import LINE
from kbert.training.run.objective import Evaluate, Objective, batch_evaluation
from kbert.training.run.phases import Epochs, Phase, Start, parse_phases
from kbert.training.run.record import Resume
from kbert.training.run.run import Run
from kbert.training.run.settings import RunSettings
from kbert.training.run.signals import raise_stopped
from kbert.training.step.mixin import TrainStep
from kbert.training.strategies import Strategy, current_strategy


class CorpusSettings(OptimizerSettings, RunSettings):
    """What `fit` takes besides a corpus.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> CorpusSettings(steps=1000).sequence_length
        128
    """

    steps: int = option(help="Optimizer updates of the whole run.", at_least=1)
    batch_size: int = Settings.with_default("batch_size", 256)
    sequence_length: int = Settings.with_default("sequence_length", 128)
    phases: str | None = option(
        None,
        help="Sequence lengths in turn with their shares of the steps, as "
        "length:share[:batch_size[:masked_share]],… For example 128:0.9:256,512:0.1:64, or "
        "128:0.9:256:0.3,512:0.1::0.15. Replaces --sequence_length.",
    )
    seed: int = option(0, help="Seed of weights, dropout, order and masks.", at_least=0)
    recompute: bool = option(
        False,
        help="Compute each layer again in the backward pass, keeping only its input: less memory, "
        "a third more computation, the same numbers.",
        compiled=True,
        changes_numbers=False,
    )
    xla: bool | None = option(None, help="Compile with XLA. Default: on a GPU.", compiled=True)
    evaluation_steps: int | None = option(
        None, help="Batches per evaluation. Default: all.", at_least=1, changes_numbers=False
    )
    average_checkpoints: int = option(
        1,
        help="The final weights are the mean of this many last checkpoints; as many are kept, and "
        "--checkpoint_every is 1000 or less, so that they are from the last quarter.",
        at_least=1,
        changes_numbers=False,
    )

    def check(self) -> None:
        if self.average_checkpoints > 1 and self.ema is not None:
            raise ValueError(
                "The final weights are a mean of checkpoints or a moving average: leave out one. "
                f"Received: average_checkpoints={self.average_checkpoints}, ema={self.ema}"
            )
        made = -(-self.steps // (self.checkpoint_every or self.steps))
        if self.average_checkpoints > min(made, self.keep_checkpoints):
            raise ValueError(
                f"average_checkpoints={self.average_checkpoints} needs as many checkpoints: keep "
                "more of them, or save them more often. Received: keep_checkpoints="
                f"{self.keep_checkpoints}, and {made} of them are made: steps={self.steps}, "
                f"checkpoint_every={self.checkpoint_every}"
            )


_PATHS = (str, os.PathLike)


class CorpusObjective(Objective):
    """Text of a corpus in phases; a subclass says by `dataset` what a batch of it is.

    Args:
        task: a `Task`.
        data: a folder of `kbert.data.prepare_corpus`, several with their shares as `{folder:
            share}`, or text, which is prepared once; see `kbert.data.pretraining_dataset`.
        model: what takes the steps: the task, or a model with it in it; None = the task.
        cache_dir: where text is prepared to; None = the user's cache folder.
        notes: what run.json says besides, which no number depends on.
        **settings: the fields of `settings`.

    Attributes:
        settings: the class of them.
        options: all of them.
        plan: the phases.

    Raises:
        FileNotFoundError: there is no such corpus.
        TypeError: for an unknown argument, or without `steps`.
        ValueError: for settings that do not fit each other, the task or the corpus.
    """

    settings: ClassVar[type[CorpusSettings]] = CorpusSettings
    masks: ClassVar[bool] = False  # whether tokens are masked

    def __init__(
        self,
        task: Any,
        data: Any,
        *,
        model: Any = None,
        cache_dir: PathLike | None = None,
        notes: Mapping[str, Any] = types.MappingProxyType({}),
        **settings: Any,
    ) -> None:
        self.task, self.model = task, task if model is None else model
        self.notes = notes
        if "steps" not in settings:
            raise TypeError(
                "A run on a corpus has a length: fit(corpus, steps=…), its updates. Received: none"
            )
        self.options = self.settings.from_arguments({**self.usual(), **settings}, "fit")
        self.is_compiled = self.model.compiled_by_user
        if self.is_compiled:
            check_compiled(self.settings, settings)
        self.corpus, self.tokenizer = self.open(data, cache_dir)
        options = self.options
        text = options.phases or f"{options.sequence_length}:1"
        self.plan = parse_phases(text, options.steps, options.batch_size)
        if not self.masks and any(phase.masked_share is not None for phase in self.plan):
            raise ValueError(
                f"A {type(task).__name__} masks nothing: its phases are written length:share or "
                f"length:share:batch_size. Received: phases={options.phases}"
            )
        self.check()

    @staticmethod
    def takes(data: Any) -> bool:
        """Whether data is a folder or file, what was read of one, or folders with their shares."""
        if isinstance(data, Mapping):
            pairs = data.items()
            return all(isinstance(x, _PATHS) and isinstance(y, int | float) for x, y in pairs)
        return isinstance(data, (*_PATHS, Manifest, Mixture))

    def usual(self) -> dict[str, Any]:
        """Settings whose default depends on the task."""
        return {}

    def open(self, data: Any, cache_dir: PathLike | None) -> tuple[Corpus, Tokenizer]:
        """The corpus, and the tokenizer that its ids are of: the task's."""
        return open_corpus(data, self.task.tokenizer, cache_dir), self.task.tokenizer

    def check(self) -> None:
        """Raises ValueError for what would fail days later, when a phase begins."""
        longest = self.max_length
        for phase in self.plan:
            if longest is not None and phase.sequence_length > longest:
                raise ValueError(
                    "No phase may be longer than the model's max_positions; sequence_length or "
                    f"phases say how long. Received: sequence_length={phase.sequence_length}, "
                    f"max_positions={longest}"
                )
            self.dataset(phase, "train")  # raises for what it does not accept

    @property
    def max_length(self) -> int | None:
        """The most tokens of a row; None where there is no limit."""
        return self.task.model.config.max_positions

    def dataset(self, phase: Phase, split: str, **stream: Any) -> tf.data.Dataset:
        """The batches of a phase.

        Args:
            phase: which.
            split: "train", or "held_out".
            **stream: of the dataset: `start`, `epochs`, `num_hosts`, `host_index`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `dataset`.")

    @property
    def why_no_evaluation(self) -> str | None:
        """Why the held-out split cannot be evaluated on, or None."""
        return None if self.corpus.split("held_out").documents else "0 held-out documents"

    @property
    def evaluates(self) -> bool:  # type: ignore[override]  # by the data
        return self.why_no_evaluation is None

    def batches(
        self, stage: Phase | Epochs, start: Start, *, num_hosts: int = 1, host_index: int = 0
    ) -> tf.data.Dataset:
        hosts = {"num_hosts": num_hosts, "host_index": host_index}
        return self.dataset(cast(Phase, stage), "train", start=start, **hosts)

    def evaluation(
        self, task: TrainStep, stage: Phase | Epochs, strategy: Strategy
    ) -> Evaluate | None:
        if not self.evaluates:
            return None
        hosts = {"num_hosts": strategy.num_hosts, "host_index": strategy.host_index}
        batches = self.dataset(cast(Phase, stage), "held_out", epochs=1, **hosts)
        batches = batches.take(self.options.evaluation_steps or -1)
        return batch_evaluation(task, batches, strategy)

    @property
    def unchecked(self) -> list[str]:  # type: ignore[override]  # by the settings
        return ["backend", *self.options.unchecked(), *self.notes]

    def identity(self) -> Mapping[str, Any]:
        (name, *_) = self.task.model_parts
        return {
            "backend": keras.backend.backend(),
            name: self.task.model.config.to_dict(),
            "task": {**self.task.record, **self.model.settings},
            "precision": self.model.dtype_policy.name,
            "data": self.corpus.checksum,
            "tokenizer": self.tokenizer.checksum,
            "settings": settings_in_use(self.options, self.model, self.options.to_dict()),
            **self.notes,
        }

    def compile(self, callbacks: Sequence[keras.callbacks.Callback] = ()) -> None:
        """Prepares the model for the run, where the user has not."""
        if self.is_compiled:
            return
        options = self.options
        warmup = options.warmup_steps
        if warmup is None:
            warmup = max(default_warmup(options.steps), int(options.decay == "inverse_sqrt"))
        schedule = WarmupDecay(
            options.learning_rate,
            options.steps,
            warmup,
            options.decay,
            options.decay_power,
            options.decay_join,
            options.decay_share,
        )
        scales = getattr(self.model, "rate_scales", None)
        optimizer = make_optimizer(options.optimizer, schedule, options, rate_scales=scales)
        self.model.compile_by_default(
            settable(optimizer, callbacks),
            micro_batches=options.micro_batches,
            clip_norm=options.clip_norm or None,
            recompute=options.recompute,
            jit_compile="auto" if options.xla is None else options.xla,
        )

    def fit(
        self,
        *,
        model_dir: PathLike | None,
        resume: Resume,
        verbose: str | int,
        callbacks: Sequence[keras.callbacks.Callback],
    ) -> History:
        """Trains the model; for the arguments see `Task.fit`."""
        if self.options.evaluate_every is not None and not self.evaluates:
            raise ValueError(
                "`evaluate_every` needs held-out text: prepare the corpus with a larger "
                f"held_out_share. Received: {self.why_no_evaluation}"
            )
        with self.task.strategy_scope():
            self.compile(callbacks)
            history = Run(
                task=self.model,
                objective=self,
                plan=self.plan,
                settings=self.options,
                model_dir=model_dir,
                resume=resume,
                verbose=LINE if verbose == "auto" else verbose,
                callbacks=callbacks,
            ).train()
            if history.interrupted:
                raise_stopped(cast(int, history.stopped_by), history.step)
            if self.options.average_checkpoints > 1 or self.options.ema is not None:
                self._average(model_dir, history.step, verbose)
        self.task.check_answers(AFTER_FIT)
        return history

    def _average(self, model_dir: PathLike | None, step: int, verbose: str | int) -> None:
        """Gives the model its average, measures it, and says so in average.json."""
        options, strategy = self.options, current_strategy()
        strategy.agrees(step)  # all wait until the chief has saved the last checkpoint
        if options.ema is not None:
            use_moving_average(self.model)
            found: dict[str, Any] = {"ema": options.ema}
            what = f"the moving average of the weights, with a decay of {options.ema}"
        else:
            folder = Path(cast(PathLike, model_dir)) / "checkpoints"
            steps = average_checkpoints(self.model, folder, options.average_checkpoints)
            found = {"steps": steps}
            what = f"the mean of the checkpoints of steps {', '.join(map(str, steps))}"
        evaluate = self.evaluation(self.model, self.plan[-1], strategy)
        values = {} if evaluate is None else {k: float(v) for k, v in evaluate().items()}
        if not strategy.is_chief:
            return
        if verbose:
            print(f"the model is {what}")
            if values:
                shown = " · ".join(f"{name} {value:.4g}" for name, value in values.items())
                print(f"evaluation of it: {shown}")
        if model_dir is not None:
            content = json.dumps({**found, **values}, indent=2) + "\n"
            atomic.write(Path(model_dir) / "average.json", content.encode())
