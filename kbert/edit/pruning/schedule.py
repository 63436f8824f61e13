"""Gradual pruning: base class of callbacks that zero more and more weights during training."""

import inspect
from typing import Any, ClassVar

import keras
from absl import logging

from kbert.core.options import Options, option, with_options
from kbert.core.types import Logs


class PruningSettings(Options):
    """Settings of the schedule by which the share of zeros grows.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.
    """

    sparsity: float = option(help="Share of zeros at the end.", above=0, below=1)
    end_step: int | float = option(
        0.7,
        help="Updates until `sparsity` is reached, fewer than those of the run, so that the "
        "remaining weights can recover. Below 1: a share of the run's updates.",
        above=0,
    )
    begin_step: int | float = option(
        0,
        help="Updates before the first weights are pruned. Below 1: a share of the run's updates.",
        at_least=0,
    )
    initial_sparsity: float = option(
        0.0, help="Share of zeros at `begin_step`.", at_least=0, below=1
    )
    frequency: int = option(1, help="Updates between two prunings.", at_least=1)

    def check(self) -> None:
        if self.initial_sparsity > self.sparsity:
            raise ValueError(
                "`initial_sparsity` must be at most `sparsity`. Received: "
                f"sparsity={self.sparsity}, initial_sparsity={self.initial_sparsity}"
            )
        steps = self.begin_step, self.end_step
        if any(isinstance(x, float) and x >= 1 for x in steps):
            raise ValueError(
                "`begin_step` and `end_step` must be whole numbers of updates, or shares of the "
                f"run below 1. Received: begin_step={self.begin_step}, end_step={self.end_step}"
            )
        if _are_alike(*steps):
            _check_order(*steps)

    def in_updates(self, total: int | None) -> tuple[int, int]:
        """Returns `begin_step` and `end_step` of a run as numbers of updates.

        Args:
            total: number of updates of the run; None = unknown.

        Raises:
            ValueError: a step is a share and the total is unknown, or `end_step` is not after
                `begin_step`.

        Example:
            >>> PruningSettings(sparsity=0.5, begin_step=10, end_step=0.7).in_updates(200)
            (10, 140)
        """
        steps = []
        for name in ("begin_step", "end_step"):
            value = getattr(self, name)
            if isinstance(value, float):
                if total is None:
                    raise ValueError(
                        f"`{name}` must be a number of updates if the length of the run is "
                        f"unknown (with kbert's `fit` it may be a share). Received: {name}={value}"
                    )
                value = round(value * total)
            steps.append(value)
        _check_order(*steps)
        return steps[0], steps[1]


def _are_alike(begin: float, end: float) -> bool:
    """Whether both steps are numbers of updates, or both are shares of a run; 0 counts as both."""
    return begin == 0 or isinstance(begin, float) == isinstance(end, float)


def _check_order(begin: float, end: float) -> None:
    """Raises ValueError unless `end_step` is after `begin_step`, in the same unit."""
    if begin >= end:
        raise ValueError(
            f"`end_step` must be after `begin_step`. Received: begin_step={begin}, end_step={end}"
        )


class GradualPruning(keras.callbacks.Callback):
    """A callback of `fit` that increases the share of zeros. After s updates it is

        f + (i - f) · (1 - (s - begin) / (end - begin))³

    where i is the `initial_sparsity` and f the `sparsity` (Zhu & Gupta 2017,
    https://arxiv.org/abs/1710.01878, section 3). Subclasses choose which weights become zeros.

    Attributes:
        settings_class: class of the constructor's arguments; their descriptions replace `{options}`
            in the docstring of a subclass.
        begin_step: updates before the first choice of weights; if the setting is a share of the
            run, it is a number of updates from the start of `fit` on.
        end_step: updates before the last choice of weights; a share becomes a number of updates
            like that of `begin_step`.
        may_be_best: whether the sparsity is reached. `train` reads it: earlier weights do not count
            as the best.

    Args:
        sparsity: share of zeros at the end.
        **settings: other fields of `settings_class`, such as `end_step`; see `PruningSettings`.

    Raises:
        TypeError: there is no such setting.
        ValueError: a value is out of range; in `fit`: `end_step` is not before the end of the run,
            or the backend is not TensorFlow.
    """

    settings_class: ClassVar[type[PruningSettings]] = PruningSettings

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        cls.__doc__ = with_options(cls.__doc__, cls.settings_class)
        first, *other_parameters = cls.settings_class.parameters()
        first = first.replace(kind=first.POSITIONAL_OR_KEYWORD)
        cls.__signature__ = inspect.Signature([first, *other_parameters])

    def __init__(self, sparsity: float, **settings: Any) -> None:
        super().__init__()
        arguments = {"sparsity": sparsity, **settings}
        self.settings: Any = self.settings_class.from_arguments(arguments, type(self).__name__)
        self.begin_step, self.end_step = self.settings.begin_step, self.settings.end_step
        self.may_be_best = False

    def prepare(self, model: Any) -> Any:
        """Returns the model to call `fit` on: the given one, or a copy with the required edit."""
        return model

    def finish(self, model: Any) -> Any:
        """Returns an ordinary model with zeros, given the model that `fit` has pruned."""
        return model

    def sparsity_after(self, step: int) -> float:
        """Returns the target share of zeros after `step` updates.

        Example:
            >>> pruning = GradualPruning(0.8, begin_step=10, end_step=30)
            >>> [round(pruning.sparsity_after(step), 3) for step in (0, 10, 20, 30, 40)]
            [0.0, 0.0, 0.7, 0.8, 0.8]
        """
        if step < self.begin_step:
            return 0.0
        remaining_share = 1 - min(1.0, (step - self.begin_step) / (self.end_step - self.begin_step))
        final_sparsity = self.settings.sparsity
        return (
            final_sparsity + (self.settings.initial_sparsity - final_sparsity) * remaining_share**3
        )

    def is_due(self, step: int) -> bool:
        """Whether weights are chosen after `step` updates.

        It depends on that number only, so that a resumed run chooses when an uninterrupted one
        would.
        """
        return step >= self.begin_step and not (step - self.begin_step) % self.settings.frequency

    @property
    def step(self) -> int:
        """Number of updates that the optimizer has made."""
        return int(self.model.optimizer.iterations.numpy())

    def on_train_begin(self, logs: Logs = None) -> None:
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "Gradual pruning requires the TensorFlow backend: set KERAS_BACKEND=tensorflow. "
                f"Received: KERAS_BACKEND={keras.backend.backend()}"
            )
        updates = self.params.get("updates")
        self.begin_step, self.end_step = self.settings.in_updates(updates)
        # With updates made already, this run may be a resumed one: only a fresh run is checked.
        if updates is not None and not self.step and updates <= self.end_step:
            raise ValueError(
                f"`end_step` must be less than the {updates} updates of the run, so that the "
                f"remaining weights can recover. Received: end_step={self.end_step}"
            )
        self.may_be_best = False

    def on_train_end(self, logs: Logs = None) -> None:
        if not self.may_be_best:
            logging.warning(
                "The run ended after %d updates, before the end of the pruning after %d: the "
                "share of zeros in the kernels is below %g",
                *(self.step, self.end_step, self.settings.sparsity),
            )
