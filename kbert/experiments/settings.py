"""What a fine-tuning is set to; the defaults are those of BERT's paper, appendix A.3.

The defaults are nearly GPT's too (openai/finetune-transformer-lm, train.py), which has a learning
rate of 6.25e-5 and a warm-up of 0.002 of the steps.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

# A run may go on with other values of these: what is learned does not depend on them.
_NO_MATTER = ("strategy", "checkpoint_every")
_CHOICES = {
    "precision": ("float32", "mixed_bfloat16"),
    "strategy": ("one_device", "mirrored"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """How one model is fine-tuned.

    Args:
        learning_rate: the highest, after the warm-up.
        batch_size: examples of an update, of all devices together.
        epochs: passes over the training data.
        warmup_share: share of the steps in which the learning rate rises from 0; then it falls.
        weight_decay: AdamW's, not applied to biases and LayerNorm.
        layer_decay: factor of the learning rate from each layer to the one below; None = 1.
        freeze: patterns of weights' names that are not trained, such as "encoder/embeddings/*".
        class_weights: label -> weight of its examples in the loss, or "balanced".
        micro_batches: parts that a device's share of a batch is computed in, one after the other.
        metric: the metric that decides which checkpoint is best; None = the task's.
        patience: evaluations without a better metric after which training ends; None = never.
        evaluate_every: steps between evaluations; None = once an epoch.
        checkpoint_every: steps between checkpoints.
        seed: of the new head, of dropout and of the order of the data.
        precision: "float32" or "mixed_bfloat16"; weights are float32.
        strategy: "one_device", or "mirrored" for all GPUs of this machine.
        max_length: tokens of a row; None = the task's default.
        stride: tokens by which a window follows the one before in longer texts; None = the task's.
        pooling: how the windows of a text are made one, "mean" or "max"; None = the task's.
        dropout: before the head; None = the encoder's.
        both_orders: whether a decoder reads pairs in both orders; None = the task's.
        auxiliary_lm_weight: of a decoder's own loss on the texts; None = 0.5.
        tune_threshold: whether the threshold of "no answer", or of any number of labels, is set to
            what is best on the development data.

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> Settings(epochs=4).learning_rate
        5e-05
    """

    learning_rate: float = 5e-5
    batch_size: int = 32
    epochs: int = 3
    warmup_share: float = 0.1
    weight_decay: float = 0.01
    layer_decay: float | None = None
    freeze: tuple[str, ...] = ()
    class_weights: Mapping[str, float] | str | None = None
    micro_batches: int = 1
    metric: str | None = None
    patience: int | None = None
    evaluate_every: int | None = None
    checkpoint_every: int = 500
    seed: int = 0
    precision: str = "float32"
    strategy: str = "one_device"
    max_length: int | None = None
    stride: int | None = None
    pooling: str | None = None
    dropout: float | None = None
    both_orders: bool | None = None
    auxiliary_lm_weight: float | None = None
    tune_threshold: bool = False

    def __post_init__(self):
        object.__setattr__(self, "freeze", tuple(self.freeze))
        at_least_one = ("batch_size", "epochs", "micro_batches", "patience", "evaluate_every")
        at_least_one += ("checkpoint_every", "max_length", "stride")
        for name in at_least_one:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`{name}` must be at least 1. Received: {value}")
        shares = ("warmup_share", "layer_decay", "dropout")
        for name in shares:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"`{name}` must lie in 0..1. Received: {value}")
        if self.learning_rate < 0 or self.weight_decay < 0:
            raise ValueError(
                "`learning_rate` and `weight_decay` must not be below 0. Received: "
                f"learning_rate={self.learning_rate}, weight_decay={self.weight_decay}"
            )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(choices)}. "
                    f"Received: {getattr(self, name)!r}"
                )

    def replace(self, **changes: Any) -> "Settings":
        """A copy with other values."""
        return dataclasses.replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """All fields, as JSON can hold them."""
        fields = dataclasses.asdict(self)
        return {**fields, "freeze": list(self.freeze)}

    def identity(self) -> dict[str, Any]:
        """The fields that what is learned depends on."""
        return {name: x for name, x in self.to_dict().items() if name not in _NO_MATTER}

    def training(self) -> dict[str, Any]:
        """The arguments of a task's `fit`."""
        names = (
            *("learning_rate", "batch_size", "epochs", "warmup_share", "weight_decay"),
            *("layer_decay", "freeze", "class_weights", "micro_batches", "metric", "patience"),
            *("evaluate_every", "checkpoint_every", "seed"),
        )
        return {name: getattr(self, name) for name in names}
