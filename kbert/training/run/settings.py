"""Settings of evaluation, checkpoints and early stopping of a run."""

from kbert.core.options import Options, option

_LOWER_IS_BETTER = ("loss", "nll", "perplexity")  # also with a prefix, such as "forward_perplexity"


def is_lower_better(metric: str) -> bool:
    """Returns whether the smallest value of a metric is the best, by the end of the metric's name.

    Example:
        >>> [is_lower_better(name) for name in ("mlm_loss", "backward_perplexity", "accuracy")]
        [True, True, False]
    """
    return metric.endswith(_LOWER_IS_BETTER)


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
        None,
        help="Minutes between checkpoints. Those between the checkpoints of --checkpoint_every are "
        "kept only until the next one.",
        at_least=0,
        changes_numbers=False,
    )
    keep_checkpoints: int = option(
        3, help="Number of newest checkpoints to keep.", at_least=1, changes_numbers=False
    )
    tensorboard: bool = option(
        False,
        help="Write curves to model_dir/tensorboard; to view them, install kbert[tensorboard].",
        changes_numbers=False,
    )
    metric: str | None = option(
        None,
        help="Evaluation metric that selects the best weights; for a loss or perplexity the "
        "smallest is best. Default: no best weights are kept.",
        flag=False,
    )
    patience: int | None = option(
        None,
        help="Early stopping: evaluations without improvement before training stops.",
        at_least=1,
        flag=False,
    )
    keep_best: bool = option(True, help="Restore the best weights after training.", flag=False)

    @property
    def mode(self) -> str:
        """Direction of `metric`: "min" for a loss or perplexity, "max" for others."""
        return "min" if self.metric is not None and is_lower_better(self.metric) else "max"
