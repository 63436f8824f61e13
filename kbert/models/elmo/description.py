"""Parameter counts of ELMo's bidirectional language models, by formula."""

import dataclasses
from typing import cast

from kbert.catalog.families import Row
from kbert.configs.elmo import ElmoConfig


@dataclasses.dataclass(frozen=True)
class ElmoDescription:
    """Sizes and parameter counts of a bidirectional language model; `print` shows them as a table.

    Attributes:
        name: name passed to `describe`; for a config, the names of the published models that have
            it, or None.
        config: config of the model.
        parameters: number of parameters, including the softmax if the config has one. The published
            weights have none.
        softmax_parameters: number of these that belong to the softmax.
        tokenizer: kind of tokenizer for training data, "words", although the model reads
            characters. None for a custom config.
    """

    name: str | None
    config: ElmoConfig
    parameters: int
    softmax_parameters: int
    tokenizer: str | None

    @property
    def held_parameters(self) -> int:
        """Number of parameters of `kbert.Elmo(config)`: all of them."""
        return self.parameters

    def __str__(self) -> str:
        config = self.config
        filters = " ".join(f"{width}x{number}" for width, number in config.filters)
        clips = [config.cell_clip, config.projection_clip]
        softmax = f", {self.softmax_parameters:,} of them the softmax's"
        lines = {
            "model": self.name or "a custom config",
            "layers": f"{config.num_layers} of each direction, "
            + ("with" if config.skip_connections else "without")
            + " skip connections",
            "width": f"{config.hidden_size:,}, {config.projection_size:,} of each direction",
            "LSTM state": f"{config.lstm_size:,}, clipped at "
            + " and ".join("nothing" if clip is None else f"{clip:g}" for clip in clips),
            "characters": f"{config.max_characters} a word, width {config.character_size}",
            "filters": f"{filters}, {config.activation}, {config.num_highway} highway",
            **(
                {"vocabulary": f"{config.vocabulary_size:,} of the softmax"}
                if config.vocabulary_size
                else {}
            ),
            "parameters": f"{self.parameters:,}"
            + (softmax if self.softmax_parameters else ", no softmax"),
        }
        return "\n".join(f"{name:20}{value}" for name, value in lines.items())


def describe_elmo(row: Row, name: str | None = None) -> ElmoDescription:
    """Counts a bidirectional language model's parameters; see `kbert.describe`.

    Args:
        row: table entry of the model.
        name: `name` of the description.

    Example:
        >>> describe_elmo(Row(ElmoConfig(vocabulary_size=10))).softmax_parameters
        5130
    """
    config = cast(ElmoConfig, row.config)
    total = config.count_parameters()
    softmax = total - config.replace(vocabulary_size=None).count_parameters()
    return ElmoDescription(name, config, total, softmax, row.tokenizer)
