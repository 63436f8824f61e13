"""Settings of fine-tuning; the defaults are those of BERT's paper, appendix A.3."""

from collections.abc import Mapping

from kbert.core.options import option
from kbert.training.optimization.settings import OptimizerSettings
from kbert.training.run.settings import RunSettings


class FitSettings(RunSettings):
    """Settings of `FineTuningTask.fit`.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range.

    Example:
        >>> FitSettings(epochs=4).learning_rate
        5e-05
    """

    epochs: int = option(3, help="Passes over the training data.", at_least=1, by_task=True)
    batch_size: int = option(
        32, help="Examples per update, over all devices.", at_least=1, by_task=True
    )
    learning_rate: float = option(
        5e-5, help="Peak learning rate, after warm-up.", at_least=0, by_task=True, compiled=True
    )
    warmup_share: float = option(
        0.1,
        help="Share of the steps for linear warm-up; a decay follows.",
        at_least=0,
        at_most=1,
        compiled=True,
    )
    decay: str = OptimizerSettings.with_default(
        "decay",
        "linear",
        help="Decay after warm-up: linear or cosine to 0, constant, or slanted_triangular, "
        "ULMFiT's, which rises from a 32nd of the peak and falls back to it.",
        choices=("linear", "cosine", "constant", "slanted_triangular"),
    )
    weight_decay: float = option(
        0.01,
        help="Weight decay of AdamW, not applied to biases and LayerNorm.",
        at_least=0,
        compiled=True,
    )
    layer_decay: float | None = option(
        None,
        help="Factor of the learning rate from each layer to the one below, such as ELECTRA's 0.8.",
        at_least=0,
        at_most=1,
        compiled=True,
    )
    unfreeze_every: float | None = option(
        None,
        help="Gradual unfreezing: epochs, or a fraction of one, until the next layer is trained "
        "too, from the top; the head is trained from the start, the embeddings come last. Default: "
        "all are trained from the start.",
        above=0,
        compiled=True,
    )
    freeze: tuple[str, ...] = option(
        (),
        help="Weights to freeze, as patterns of their names: "
        "encoder/embeddings/*,encoder/layers_0/*, or encoder/*.",
    )
    class_weights: Mapping[str, float] | str | None = option(
        None,
        help="Class weights in the loss, as spam=3,ham=1, or balanced: by inverse frequency.",
    )
    sample_weight: str | None = option(
        None,
        help="Column of the training data with the weight of each example in the loss, a number of "
        "0 or more; in fit() also an array. Evaluations count every example once. Default: equal "
        "weights.",
    )
    micro_batches: int = option(
        1,
        help="Gradient accumulation: parts into which a device splits its share of a batch; less "
        "memory.",
        at_least=1,
        compiled=True,
    )
    recompute: bool = option(
        False,
        help="Gradient checkpointing: compute each layer again in the backward pass, storing only "
        "its input. Less memory, a third more computation, the same results.",
        compiled=True,
        changes_numbers=False,
    )
    seed: int = option(0, help="Seed of a new head, dropout and the order of the data.", at_least=0)
    metric: str | None = option(
        None,
        help="Evaluation metric that selects the best weights; for a loss the smallest is best. "
        "Default: the task's.",
        by_task=True,
    )
    patience: int | None = RunSettings.with_default("patience", None, flag=True)
    evaluate_every: int | None = option(
        None, help="Steps between evaluations. Default: once an epoch.", at_least=1
    )
    checkpoint_every: int | None = option(
        None,
        help="Steps between checkpoints; each epoch ends with one.",
        at_least=1,
        changes_numbers=False,
    )
    # The newest, and one before it in case the newest is damaged.
    keep_checkpoints: int = RunSettings.with_default("keep_checkpoints", 2)
    by_length: bool = option(
        True,
        help="Batch texts of similar length together, which saves padding.",
        flag=False,
    )
