"""What a fine-tuning is set to; the defaults are those of BERT's paper, appendix A.3.

The defaults are nearly GPT's too (openai/finetune-transformer-lm, train.py), which has a learning
rate of 6.25e-5 and a warm-up of 0.002 of the steps.
"""

from typing import Any

from kbert.models.memory import PRECISIONS
from kbert.options import Options, option
from kbert.tasks.fine_tuning.settings import FitSettings


class TaskSettings(Options):
    """What a task is made with: None is the task's own default.

    Args:
        {options}
    """

    max_length: int | None = option(None, help="Tokens of a row. Default: the task's.", at_least=4)
    stride: int | None = option(
        None, help="Read longer texts in windows, each this many tokens after the last.", at_least=1
    )
    pooling: str | None = option(
        None, help="How windows become one answer.", choices=("mean", "max")
    )
    dropout: float | None = option(
        None, help="Before the head. Default: the encoder's.", at_least=0, at_most=1
    )
    both_orders: bool | None = option(
        None,
        help="Of a decoder, which reads from left to right: read pairs in both orders, as GPT does "
        "to tell whether texts are alike (mrpc, qqp). Default: for numbers of pairs (stsb).",
    )
    auxiliary_lm_weight: float | None = option(
        None,
        help="Of a decoder: weight of its own loss on the texts. Default: 0.5.",
        at_least=0,
    )


class Settings(FitSettings, TaskSettings):
    """How one model is fine-tuned: the arguments of `fit`, of the task, and of the computer.

    Args:
        {options}

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> Settings(epochs=4).learning_rate
        5e-05
    """

    checkpoint_every: int = FitSettings.with_default("checkpoint_every", 500)
    precision: str = option("float32", help="Weights are float32.", choices=tuple(PRECISIONS))
    strategy: str = option(
        "one_device",
        help="mirrored: all GPUs of this machine.",
        choices=("one_device", "mirrored"),
        changes_numbers=False,
    )
    tune_threshold: bool = option(
        False,
        help="Set the threshold of no answer, or of any number of labels, by the development data. "
        "Default: for squad2 and multilabel.",
        by_task=True,
    )

    def training(self) -> dict[str, Any]:
        """The arguments of a task's `fit`."""
        return self.arguments(of=FitSettings)
