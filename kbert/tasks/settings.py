"""Settings of pretraining by `fit`: length, optimizer, checkpoints, and batches of a corpus."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from kbert.core.options import option
from kbert.data.denoising.settings import DenoisingSettings
from kbert.data.pretraining.settings import MaskingSettings, Settings
from kbert.training.optimization.settings import OptimizerSettings
from kbert.training.run.settings import RunSettings


class StepsSettings(OptimizerSettings, RunSettings):
    """Settings of a run of a number of updates: its length, optimizer and final weights.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.
    """

    steps: int = option(help="Optimizer updates of the whole run.", at_least=1)
    seed: int = option(0, help="Seed of weights, dropout, order and masks.", at_least=0)
    recompute: bool = option(
        False,
        help="Gradient checkpointing: compute each layer again in the backward pass, storing only "
        "its input. Less memory, a third more computation, the same results.",
        compiled=True,
        changes_numbers=False,
    )
    xla: bool | None = option(None, help="Compile with XLA. Default: on a GPU.", compiled=True)
    evaluation_steps: int | None = option(
        None, help="Batches per evaluation. Default: all.", at_least=1, changes_numbers=False
    )
    average_checkpoints: int = option(
        1,
        help="Number of last checkpoints whose mean becomes the final weights; as many are kept, "
        "and --checkpoint_every is 1000 or less, so that they are from the last quarter.",
        at_least=1,
        changes_numbers=False,
    )

    def check(self) -> None:
        if self.average_checkpoints > 1 and self.ema is not None:
            raise ValueError(
                "average_checkpoints and ema exclude each other: leave out one of them. "
                f"Received: average_checkpoints={self.average_checkpoints}, ema={self.ema}"
            )
        averaged = ("ema", self.ema), ("average_checkpoints", self.average_checkpoints)
        averages = [f"{name}={x}" for name, x in averaged if x not in (None, 1)]
        metric = self.metric if self.keep_best else None
        chosen = {"metric": metric, "patience": self.patience}
        selects = [f"{name}={x!r}" for name, x in chosen.items() if x is not None]
        if averages and selects:
            raise ValueError(
                "The final weights are either the best ones or an average: leave out metric (or "
                "set keep_best=False) and patience, or leave out ema and average_checkpoints. "
                f"Received: {', '.join([*selects, *averages])}"
            )
        num_checkpoints = -(-self.steps // (self.checkpoint_every or self.steps))
        if self.average_checkpoints > min(num_checkpoints, self.keep_checkpoints):
            raise ValueError(
                f"average_checkpoints={self.average_checkpoints} requires as many checkpoints: "
                "raise keep_checkpoints, or lower checkpoint_every. Received: keep_checkpoints="
                f"{self.keep_checkpoints}, and {num_checkpoints} checkpoints by "
                f"steps={self.steps}, checkpoint_every={self.checkpoint_every}"
            )


def checkpoint_defaults(settings: Mapping[str, Any]) -> dict[str, int]:
    """Returns checkpoint settings that keep enough checkpoints for `average_checkpoints`.

    Args:
        settings: some settings of `StepsSettings`: `steps`, and `average_checkpoints` if given.

    Returns:
        `checkpoint_every` and `keep_checkpoints`; empty if nothing is averaged.

    Example:
        >>> checkpoint_defaults({"steps": 4000, "average_checkpoints": 5})
        {'checkpoint_every': 200, 'keep_checkpoints': 5}
    """
    averaged = settings.get("average_checkpoints", 1)
    if averaged <= 1:
        return {}
    # So that they are from the last quarter of the run; from less of it if the run is long.
    every = -(-settings["steps"] // (4 * averaged))
    defaults: Any = {x.name: x.default for x in dataclasses.fields(StepsSettings)}
    return {
        "checkpoint_every": min(every, defaults["checkpoint_every"]),
        "keep_checkpoints": max(averaged, defaults["keep_checkpoints"]),
    }


class CorpusSettings(StepsSettings):
    """Settings of `fit` on a corpus.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> CorpusSettings(steps=1000).sequence_length
        128
    """

    batch_size: int = Settings.with_default("batch_size", 256)
    sequence_length: int = Settings.with_default("sequence_length", 128)
    phases: str | None = option(
        None,
        help="Phases of training, each a sequence length and its share of the steps, as "
        "length:share[:batch_size[:masked_share]],… For example 128:0.9:256,512:0.1:64, or "
        "128:0.9:256:0.3,512:0.1::0.15. Replaces --sequence_length.",
    )


class MaskedSettings(CorpusSettings, MaskingSettings):
    """Settings of `fit` on a corpus, for tasks that fill masks.

    Args:
        {options}
    """


class DenoisedSettings(CorpusSettings):
    """Settings of `fit` on a corpus, for tasks that restore corrupted text.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.
    """

    noise: str = DenoisingSettings.with_default("noise", "bart")


class HybridSettings(MaskedSettings):
    """Settings of `fit` on a corpus, for a task that fills masks and generates text.

    Args:
        {options}
    """

    causal_share: float = option(
        1 / 16, help="Share of the sequences that are causal, evenly spread.", above=0, below=1
    )


class MixedSettings(MaskedSettings):
    """Settings of `fit` on a corpus, for `UniLM`, whose sequences are of four kinds.

    Args:
        {options}
    """

    attention_shares: tuple[float, float, float, float] = Settings.with_default(
        "attention_shares", (2.0, 2.0, 1.0, 1.0)
    )
