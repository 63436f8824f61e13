"""The configuration of the AWD-LSTM."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import check_choice, check_count, check_positive, check_rate, check_real
from kbert.configs.encoder import IDENTITY, EncoderConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class AwdLstmConfig(EncoderConfig):
    """Sizes and options of an AWD-LSTM (Merity et al. 2017, https://arxiv.org/abs/1708.02182).

    The defaults are those of ULMFiT's language model (Howard & Ruder 2018, section 4.1,
    https://arxiv.org/abs/1801.06146, with the 1,152 units and the rates of fastai's code).

    Args:
        vocabulary_size: rows of the token table, which is also the matrix of the softmax.
        hidden_size: width of the embeddings and of the last layer.
        num_layers: number of LSTM layers.
        intermediate_size: units of each LSTM layer but the last.
        max_positions: longest sequence that the tasks make, in tokens; not the size of a weight.
        embedding_dropout: share of the vocabulary whose embeddings are zeros in a step.
        input_dropout: dropout rate on the input of the first layer, with one mask for all tokens of
            a sequence.
        dropout: the same between the layers; also the rate before heads.
        output_dropout: the same on the output of the last layer.
        weight_dropout: share of the recurrent weights that are zeros in a step.
        activation_penalty: weight of the mean square of the outputs in the loss (AR, "alpha").
        temporal_penalty: weight of the mean square of the difference of successive outputs of the
            last layer in the loss (TAR, "beta").
        pooler_activation: "identity": "pooled" is the last, the largest and the mean output
            concatenated; None = there is no "pooled".

    Raises:
        ValueError: a value is out of range, or a field that the model does not use is set.

    Example:
        >>> config = AwdLstmConfig(vocabulary_size=60_000)
        >>> config.layer_sizes, config.count_embeddings() + config.count_blocks()
        ([(400, 1152), (1152, 1152), (1152, 400)], 44262464)
    """

    kind = "awd_lstm"
    told = "an AWD-LSTM, which kbert.Encoder loads"
    FORMATS: ClassVar[tuple[str, ...]] = ("kbert",)

    hidden_size: int = 400
    num_layers: int = 3
    num_heads: int = 1
    intermediate_size: int = 1152
    max_positions: int = 1400
    num_segments: int = 0
    activation: str = "tanh"
    dropout: float = 0.15
    attention_dropout: float = 0.0
    pooler_activation: str | None = IDENTITY
    pooling: str = "concat"
    positions: str = "none"
    embedding_norm: bool = False
    embedding_dropout: float = 0.02
    input_dropout: float = 0.25
    output_dropout: float = 0.1
    weight_dropout: float = 0.2
    activation_penalty: float = 2.0
    temporal_penalty: float = 1.0

    CHOICES: ClassVar[dict[str, tuple[str, ...]]] = {"output": EncoderConfig.CHOICES["output"]}
    LATER: ClassVar[tuple[str, ...]] = (
        *EncoderConfig.LATER,
        *("num_heads", "num_segments", "activation", "attention_dropout", "layer_norm_epsilon"),
        *("embedding_size", "num_layer_groups"),
    )
    UNUSED: ClassVar[tuple[str, ...]] = (
        *("num_heads", "num_segments", "embedding_size", "num_layer_groups", "part", "edits"),
        *("activation", "positions", "rotary_base", "local_rotary_base", "attention_pattern"),
        *("feed_forward", "norm", "block", "embedding_norm", "attention_dropout", "pooling"),
        *("pooler_norm", "bias_exceptions", "num_key_value_heads", "padding_id"),
    )

    def __post_init__(self) -> None:
        for name in ("attention_pattern", "bias_exceptions", "edits"):
            if isinstance(getattr(self, name), list):  # JSON has no tuples
                object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check_unused()
        for name in (
            *("vocabulary_size", "hidden_size", "num_layers", "intermediate_size"),
            "max_positions",
        ):
            check_count(name, getattr(self, name), minimum=1)
        for name in (
            *("dropout", "embedding_dropout", "input_dropout", "output_dropout"),
            "weight_dropout",
        ):
            check_rate(name, getattr(self, name))
        for name in ("activation_penalty", "temporal_penalty"):
            check_real(name, getattr(self, name), "0 or more", lambda x: x >= 0)
        check_positive("initializer_range", self.initializer_range)
        check_choice("output", self.output, self.CHOICES["output"])
        if self.pooler_activation is not None:
            check_choice("pooler_activation", self.pooler_activation, (IDENTITY,))

    @property
    def layer_sizes(self) -> list[tuple[int, int]]:
        """(width of the input, units) of each LSTM layer."""
        inside = [self.intermediate_size] * (self.num_layers - 1)
        return list(zip([self.hidden_size, *inside], [*inside, self.hidden_size], strict=True))

    @property
    def state_size(self) -> int:
        """Numbers in the state of a sequence: cell and hidden state of all layers."""
        return sum(2 * units for _, units in self.layer_sizes)

    def count_embeddings(self) -> int:
        return self.vocabulary_size * self.hidden_size

    def count_blocks(self) -> int:
        return sum(4 * units * (width + units + 1) for width, units in self.layer_sizes)

    def count_pooler(self) -> int:
        return 0
