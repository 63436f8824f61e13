"""Learning rate schedules over the steps of a run."""

import math
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.training.optimization.settings import DECAY_SHARE, DECAYS, JOINS

TRIANGLE_RATIO = 32  # peak of the slanted triangle over its lowest rate


def fine_tuning_schedule(
    learning_rate: float, total_steps: int, warmup_share: float = 0.1, decay: str = "linear"
) -> "WarmupDecay":
    """Returns a schedule of linear warm-up over a share of the run, then a decay.

    The two meet at the peak, as in transformers' `get_linear_schedule_with_warmup`. In BERT's own
    program the rate drops at that point (`join="switch"` of `WarmupDecay`).

    Args:
        learning_rate: Peak learning rate.
        total_steps: Steps of the run.
        warmup_share: Share of the run that is warm-up, from 0 to 1.
        decay: One of the decays of `WarmupDecay`; "linear" goes to 0.

    Returns:
        The schedule.

    Raises:
        ValueError: `warmup_share` is out of range.

    Example:
        >>> schedule = fine_tuning_schedule(1e-4, 100)
        >>> [round(float(schedule(step)) * 1e4, 3) for step in (0, 5, 10, 55, 100)]
        [0.0, 0.5, 1.0, 0.5, 0.0]
    """
    if not 0 <= warmup_share <= 1:
        raise ValueError(f"`warmup_share` must be from 0 to 1. Received: {warmup_share}")
    warmup_steps = round(warmup_share * total_steps)
    return WarmupDecay(learning_rate, total_steps, warmup_steps, decay, join="after")


@keras.saving.register_keras_serializable("kbert")
class WarmupDecay(keras.optimizers.schedules.LearningRateSchedule):
    """Linear warm-up from 0, then a decay.

    The published programs join the two in different ways, chosen by `join`:

    - `"switch"`, BERT and ALBERT: `learning_rate * step / warmup_steps` while
      `step < warmup_steps`, then the decay at `step`, as if there had been no warm-up. So the rate
      drops at the switch to `learning_rate * (1 - warmup / total)`. (google-research/bert
      `optimization.py`.)
    - `"product"`, ELECTRA: the decay at `step` times `min(1, step / warmup_steps)`.
      (google-research/electra `model/optimization.py`.)
    - `"after"`, RoBERTa and SpanBERT: the decay begins where the warm-up ends.
      (facebookresearch/fairseq `optim/lr_scheduler/polynomial_decay_schedule.py`.)
    - `"constant"`, T5 and PEGASUS: like "after", but without a rise: the rate is `learning_rate`
      during the warm-up. (Raffel et al. 2020, section 3.1.2, with `"inverse_sqrt"`.)

    Args:
        learning_rate: Peak learning rate.
        total_steps: Step at which the decay ends; the rate stays constant after it.
        warmup_steps: Steps of the linear rise; 0 for none.
        decay: `"linear"` (to 0), `"cosine"` (half a wave, to 0), `"polynomial"` (the linear decay
            to the power `power`), `"constant"` (no decay), `"inverse_sqrt"`, `"wsd"` or
            `"slanted_triangular"`.
            `"inverse_sqrt"` is the Transformer's: `learning_rate * sqrt(warmup_steps / step)`. It
            has no end, and meets the warm-up at the peak with every `join`. The paper's peak is
            `(hidden_size * warmup_steps) ** -0.5` (Vaswani et al. 2017, section 5.3).
            `"wsd"` (warm-up, stable, decay) stays at the peak and falls to 0 over the last
            `decay_share` of the run. The factor is one minus the root of the share of the fall
            that is over (Hägele et al. 2024, section 3, https://arxiv.org/abs/2405.18392).
            `"slanted_triangular"` rises linearly from a 32nd of the peak and falls linearly back to
            it, for `join="after"` (Howard & Ruder 2018, equation 3, with `cut = warmup_steps`,
            `cut_frac = warmup_steps / total_steps` and `ratio = 32`,
            https://arxiv.org/abs/1801.06146).
        power: Exponent of `"polynomial"`.
        join: How warm-up and decay meet: `"switch"`, `"product"`, `"after"` or `"constant"`.
        decay_share: Share of the run over which `"wsd"` falls.

    Raises:
        ValueError: A value is out of range, or two values do not fit together.

    Example:
        >>> schedule = WarmupDecay(1e-4, total_steps=100, warmup_steps=10)
        >>> [round(float(schedule(step)) * 1e4, 3) for step in (0, 5, 9, 10, 50, 100, 200)]
        [0.0, 0.5, 0.9, 0.9, 0.5, 0.0, 0.0]
        >>> schedule = WarmupDecay((512 * 4000) ** -0.5, 100_000, 4000, "inverse_sqrt")
        >>> [f"{float(schedule(step)):.3g}" for step in (2000, 4000, 16_000)]
        ['0.000349', '0.000699', '0.000349']
        >>> schedule = WarmupDecay(0.01, 100_000, 10_000, "inverse_sqrt", join="constant")
        >>> [round(float(schedule(step)), 4) for step in (0, 10_000, 40_000)]
        [0.01, 0.01, 0.005]
        >>> schedule = WarmupDecay(1.0, 100, 10, "wsd", decay_share=0.2)
        >>> [round(float(schedule(step)), 3) for step in (5, 10, 80, 85, 100)]
        [0.5, 1.0, 1.0, 0.5, 0.0]
        >>> schedule = WarmupDecay(3.2, 100, 10, "slanted_triangular", join="after")
        >>> [round(float(schedule(step)), 3) for step in (0, 5, 10, 55, 100)]
        [0.1, 1.65, 3.2, 1.65, 0.1]
    """

    def __init__(
        self,
        learning_rate: float,
        total_steps: int,
        warmup_steps: int = 0,
        decay: str = "linear",
        power: float = 1.0,
        join: str = "switch",
        decay_share: float = DECAY_SHARE,
    ) -> None:
        for name, value in (("learning_rate", learning_rate), ("power", power)):
            if not 0 < value < math.inf:
                raise ValueError(f"`{name}` must be above 0 and finite. Received: {value}")
        if decay not in DECAYS:
            raise ValueError(f"`decay` must be one of {DECAYS}. Received: {decay!r}")
        if join not in JOINS:
            raise ValueError(f"`join` must be one of {JOINS}. Received: {join!r}")
        if total_steps < 1 or not 0 <= warmup_steps <= total_steps:
            raise ValueError(
                "A schedule requires total_steps >= 1 and 0 <= warmup_steps <= total_steps. "
                f"Received: total_steps={total_steps}, warmup_steps={warmup_steps}"
            )
        if power != 1.0 and decay != "polynomial":
            raise ValueError(
                f"`power` requires decay='polynomial'. Received: decay={decay!r}, power={power}"
            )
        if not 0 < decay_share <= 1:
            raise ValueError(
                f"`decay_share` must be above 0 and at most 1. Received: {decay_share}"
            )
        if decay_share != DECAY_SHARE and decay != "wsd":
            raise ValueError(
                "`decay_share` requires decay='wsd'. "
                f"Received: decay={decay!r}, decay_share={decay_share}"
            )
        if decay == "slanted_triangular" and join != "after":
            raise ValueError(
                "The two sides of decay='slanted_triangular' meet at the peak: `join` must be "
                f"'after'. Received: join={join!r}"
            )
        if decay == "inverse_sqrt" and not warmup_steps:
            raise ValueError(
                "`warmup_steps` must be at least 1 for decay='inverse_sqrt', which begins at the "
                f"end of the warm-up. Received: warmup_steps={warmup_steps}"
            )
        self.learning_rate = learning_rate
        self.total_steps = total_steps
        self.warmup_steps = warmup_steps
        self.decay = decay
        self.power = power
        self.join = join
        self.decay_share = decay_share

    def __call__(self, step: Tensor) -> Tensor:
        """Returns the rate of the update that follows `step` updates."""
        step = ops.cast(step, "float32")
        # Begin and length of the decay; a run may be all warm-up.
        begin = self.warmup_steps if self.join in ("after", "constant") else 0
        length = max(self.total_steps - begin, 1)
        remaining = 1.0 - ops.clip(step - begin, 0.0, float(length)) / length
        if self.decay == "cosine":
            share = 0.5 * (1.0 + ops.cos(math.pi * (1.0 - remaining)))
        elif self.decay == "wsd":
            fall_steps = max(self.decay_share * self.total_steps, 1.0)
            fall_progress = 1.0 - ops.clip((self.total_steps - step) / fall_steps, 0.0, 1.0)
            share = 1.0 - ops.sqrt(fall_progress)
        elif self.decay == "constant":
            share = ops.ones_like(remaining)
        elif self.decay == "inverse_sqrt":
            share = ops.rsqrt(ops.maximum(step / self.warmup_steps, 1.0))
        else:
            share = ops.power(remaining, self.power)
        if self.warmup_steps and self.join != "constant":
            rise = step / self.warmup_steps
            if self.join == "product":
                share = share * ops.minimum(rise, 1.0)
            else:
                share = ops.where(step < self.warmup_steps, rise, share)
        if self.decay == "slanted_triangular":
            share = (1.0 + share * (TRIANGLE_RATIO - 1)) / TRIANGLE_RATIO
        return self.learning_rate * share

    def get_config(self) -> dict[str, Any]:
        return {
            "learning_rate": self.learning_rate,
            "total_steps": self.total_steps,
            "warmup_steps": self.warmup_steps,
            "decay": self.decay,
            "power": self.power,
            "join": self.join,
            "decay_share": self.decay_share,
        }


def settable(optimizer: keras.optimizers.Optimizer, callbacks: Any) -> keras.optimizers.Optimizer:
    """Returns the optimizer, or a copy with a constant learning rate if a callback sets the rate.

    The constant is the peak of the schedule. In Keras no callback can set the rate of an optimizer
    that has a schedule.

    Args:
        optimizer: optimizer whose learning rate is a `WarmupDecay`.
        callbacks: callbacks of `fit`: one, a list of them, or None.

    Example:
        >>> sgd = keras.optimizers.SGD(WarmupDecay(0.5, 10))
        >>> callback = keras.callbacks.LearningRateScheduler(lambda epoch: 0.1)
        >>> settable(sgd, []) is sgd, float(settable(sgd, [callback]).learning_rate)
        (True, 0.5)
    """
    rate_callbacks = (keras.callbacks.LearningRateScheduler, keras.callbacks.ReduceLROnPlateau)
    if not any(isinstance(callback, rate_callbacks) for callback in keras.tree.flatten(callbacks)):
        return optimizer
    config = optimizer.get_config()
    peak = config["learning_rate"]["config"]["learning_rate"]
    return type(optimizer).from_config({**config, "learning_rate": peak})
