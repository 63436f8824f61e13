"""The configuration of ELMo's bidirectional language models."""

import dataclasses
from typing import ClassVar

from kbert.configs.base import (
    Config,
    check_activation,
    check_count,
    check_positive,
    check_rate,
)

# The begin and end markers of a word, and at least one byte between them.
_FEWEST_CHARACTERS = 3


@dataclasses.dataclass(frozen=True, kw_only=True)
class ElmoConfig(Config):
    """Sizes and options of a bidirectional language model of ELMo.

    The defaults are those of the original (Peters et al. 2018, https://arxiv.org/abs/1802.05365;
    bin/train_elmo.py of allenai/bilm-tf).

    Args:
        character_size: width of a character's embedding.
        filters: (width in characters, number of filters) of each convolution.
        num_highway: number of highway layers after the convolutions.
        activation: activation of the convolutions; the original uses "relu" and supports "tanh".
        max_characters: most characters of a word, including its begin and end markers; longer
            words are truncated.
        lstm_size: width of a cell's state.
        projection_size: width of a cell's output, and of a word's embedding.
        num_layers: number of LSTM layers in each direction.
        cell_clip: largest absolute value in a cell's state; None = no bound.
        projection_clip: largest absolute value in a cell's projected output; None = no bound.
        skip_connections: whether each layer after the first adds its input to its output. Released
            weights exist with and without them.
        dropout: dropout rate on the input of each LSTM layer.
        vocabulary_size: words of the softmax; None = no softmax, as in released weights.

    Raises:
        ValueError: a value is out of range, or two values are inconsistent.

    Example:
        >>> ElmoConfig().hidden_size, ElmoConfig().count_parameters()
        (1024, 93600848)
    """

    kind: ClassVar[str] = "elmo"
    told: ClassVar[str] = "a language model of ELMo's, which kbert.Elmo loads"
    FORMATS: ClassVar[tuple[str, ...]] = ("kbert", "bilm")

    character_size: int = 16
    filters: tuple[tuple[int, int], ...] = (
        *((1, 32), (2, 32), (3, 64), (4, 128)),
        *((5, 256), (6, 512), (7, 1024)),
    )
    num_highway: int = 2
    activation: str = "relu"
    max_characters: int = 50
    lstm_size: int = 4096
    projection_size: int = 512
    num_layers: int = 2
    cell_clip: float | None = 3.0
    projection_clip: float | None = 3.0
    skip_connections: bool = True
    dropout: float = 0.1
    vocabulary_size: int | None = None

    def __post_init__(self) -> None:
        for name in ("character_size", "lstm_size", "projection_size", "num_layers"):
            check_count(name, getattr(self, name), minimum=1)
        check_count("num_highway", self.num_highway, minimum=0)
        check_count("max_characters", self.max_characters, minimum=_FEWEST_CHARACTERS)
        if self.vocabulary_size is not None:
            check_count("vocabulary_size", self.vocabulary_size, minimum=1)
        self._check_filters()
        check_activation("activation", self.activation)
        for name in ("cell_clip", "projection_clip"):
            if getattr(self, name) is not None:
                check_positive(name, getattr(self, name))
        if not isinstance(self.skip_connections, bool):
            raise ValueError(
                f"`skip_connections` must be True or False. Received: {self.skip_connections!r}"
            )
        check_rate("dropout", self.dropout)

    def _check_filters(self) -> None:
        """Raises ValueError for invalid `filters`, and makes them a tuple of tuples."""
        filters = self.filters
        pairs = isinstance(filters, list | tuple) and bool(filters)
        if not pairs or not all(isinstance(f, list | tuple) and len(f) == 2 for f in filters):
            raise ValueError(f"`filters` must be pairs (width, number). Received: {filters!r}")
        for width, number in filters:
            check_count("filters", width, minimum=1)
            check_count("filters", number, minimum=1)
        widest = max(width for width, _ in filters)
        if widest > self.max_characters:
            raise ValueError(
                "`filters` must not be wider than `max_characters`, the length of a word. "
                f"Received: width {widest}, max_characters={self.max_characters}"
            )
        # JSON turns tuples into lists; one form makes configs comparable.
        object.__setattr__(self, "filters", tuple((width, number) for width, number in filters))

    @property
    def hidden_size(self) -> int:
        """Width of each layer's output: both directions concatenated."""
        return 2 * self.projection_size

    @property
    def num_filters(self) -> int:
        """Number of filters of all convolutions, which is the width of the highway layers."""
        return sum(number for _, number in self.filters)

    def count_parameters(self) -> int:
        """Returns the number of weights of a model of this config, including any softmax."""
        projection, total = self.projection_size, self.num_filters
        # One row fewer than there are ids: the row of the padding is zero and not a weight.
        characters = 261 * self.character_size
        characters += sum(
            width * self.character_size * number + number for width, number in self.filters
        )
        characters += self.num_highway * 2 * (total * total + total)
        if total != projection:
            characters += total * projection + projection
        gates = 4 * self.lstm_size
        layer = 2 * projection * gates + gates + self.lstm_size * projection
        softmax = (self.vocabulary_size or 0) * (projection + 1)
        return characters + 2 * self.num_layers * layer + softmax
