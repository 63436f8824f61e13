"""Settings of evaluation, checkpoints and early stopping of a run."""

from kbert.core.options import Options, option


class RunSettings(Options):
    """Settings of how a `kbert.training.Run` evaluates, saves, keeps the best weights and ends.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> RunSettings(metric="mlm_loss").mode, RunSettings(metric="accuracy").mode
        ('min', 'max')
    """

    evaluate_every: int | None = option(
        None,
        help="Steps between evaluations; the end is always evaluated.",
        at_least=1,
        changes_numbers=False,
    )
    checkpoint_every: int | None = option(
        1000, help="Steps between checkpoints.", at_least=1, changes_numbers=False
    )
    checkpoint_minutes: float | None = option(
        None, help="Minutes between checkpoints.", at_least=0, changes_numbers=False
    )
    keep_checkpoints: int = option(
        3, help="Number of newest checkpoints to keep.", at_least=1, changes_numbers=False
    )
    tensorboard: bool = option(
        False,
        help="Write curves to model_dir/tensorboard; pip install 'kbert[tensorboard]' shows them.",
        changes_numbers=False,
    )
    metric: str | None = option(
        None,
        help="Evaluation metric that selects the best weights; for a loss the smallest is best. "
        "Default: none is kept.",
        flag=False,
    )
    patience: int | None = option(
        None,
        help="Early stopping: evaluations without improvement before the run stops.",
        at_least=1,
        flag=False,
    )
    keep_best: bool = option(
        True, help="Whether the task has its best weights at the end, or its last.", flag=False
    )

    @property
    def mode(self) -> str:
        """Direction of `metric`: "min" for a loss, "max" for others."""
        return "min" if self.metric is not None and self.metric.endswith("loss") else "max"
