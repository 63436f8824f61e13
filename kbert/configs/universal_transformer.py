"""The configuration of the Universal Transformer."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import check_flag, check_real
from kbert.configs.encoder import EncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class UniversalTransformerConfig(EncoderConfig):
    """Sizes and options of an encoder that applies one block repeatedly.

    (Dehghani et al. 2018, https://arxiv.org/abs/1807.03819; the encoder of the paper, for BERT's
    tasks.) The defaults are those of its code, `universal_transformer.py` and `_util.py` of
    tensorflow/tensor2tensor.

    Args:
        num_layers: most steps, each of which applies the block once.
        halting: whether each token halts by itself: its output stays fixed once its halting
            probabilities add up to more than `halting_threshold`. Otherwise every token takes
            `num_layers` steps.
        halting_threshold: sum of halting probabilities at which a token halts; above 0, at most 1.
        ponder_weight: weight of the ponder loss that is added to the task's loss. It is the mean
            over tokens of their number of steps plus the weight of the last step.

    Raises:
        ValueError: a value is out of range, or a field that the model does not use is set.

    Example:
        >>> config = UniversalTransformerConfig(vocabulary_size=32, hidden_size=8, num_layers=6,
        ...                                     num_heads=2, intermediate_size=16)
        >>> config.num_blocks, config.count_blocks()
        (1, 609)
    """

    kind = "universal_transformer"
    told = "a Universal Transformer, which kbert.Encoder loads"

    positions: str = "sinusoidal"
    halting: bool = True
    halting_threshold: float = 0.99
    ponder_weight: float = 0.01

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {
        **EncoderConfig.CHOICES,
        "positions": ("sinusoidal",),
    }
    LATER: ClassVar[tuple[str, ...]] = (
        *EncoderConfig.LATER,
        *("halting", "halting_threshold", "ponder_weight"),
    )
    UNUSED = (
        *("num_layer_groups", "attention_pattern", "rotary_base", "local_rotary_base", "block"),
        *("positions", "part", "edits"),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_flag("halting", self.halting)
        check_real(
            "halting_threshold",
            self.halting_threshold,
            "above 0 and at most 1",
            lambda x: 0 < x <= 1,
        )
        check_real("ponder_weight", self.ponder_weight, "0 or more", lambda x: x >= 0)

    @property
    def num_blocks(self) -> int:
        return 1

    def count_blocks(self) -> int:
        return super().count_blocks() + self.halting * (self.hidden_size + 1)
