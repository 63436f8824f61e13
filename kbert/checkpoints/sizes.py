"""Checks that declared sizes are plausible before memory is allocated for them.

Otherwise a damaged config could fill the memory with a model that no weights fit, and a damaged
file of weights with arrays that it does not contain.
"""

from typing import Any

from kbert.configs.base import Config
from kbert.configs.encoder import EncoderConfig

# Not lower, because a model may be loaded in part (strict=False).
_LARGEST_RATIO = 20
_ALWAYS_ALLOWED = 1 << 26  # numbers: 256 MiB
MOST_LAYERS = 1000  # tables of names and the loop over layers grow with them


def fewest_numbers(config: Any) -> int:
    """Returns the fewest parameters that a model of a config has: its tables and matrices.

    For a config other than an `EncoderConfig` this is the exact number.

    Example:
        >>> fewest_numbers(EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=4))
        616
    """
    if not isinstance(config, EncoderConfig):
        return config.count_parameters()
    width = config.hidden_size
    block = 4 * width * width + 2 * width * config.intermediate_size
    rows = config.vocabulary_size + (config.max_positions if config.num_layers else 0)
    return rows * config.embedding_width + config.num_blocks * block


def check_size(config: Config, stored: int, source: str) -> None:
    """Raises ValueError if the config's model is far larger than the stored weights.

    Args:
        config: config of the model.
        stored: number of parameters in the weights.
        source: where config and weights are from, for the error message.

    Raises:
        ValueError: the model would be more than 20 times as large as the weights, and larger than
            2^26 parameters.
    """
    fewest = fewest_numbers(config)
    if fewest > max(_LARGEST_RATIO * stored, _ALWAYS_ALLOWED):
        raise ValueError(
            f"A model must be at most {_LARGEST_RATIO} times as large as its weights: otherwise "
            f"its config is probably damaged. Received: {fewest:,} numbers by the config, "
            f"{stored:,} in the weights of {source}"
        )


def check_ratio(declared: int, stored: int, source: str) -> None:
    """Raises ValueError if a file's arrays are far larger than the file; weights hardly compress.

    Args:
        declared: bytes of the arrays, by their shapes.
        stored: bytes of the file.
        source: name of the file, for the error message.

    Raises:
        ValueError: the arrays would be more than 20 times as large as the file, and larger than
            256 MiB.
    """
    if declared > max(_LARGEST_RATIO * stored, 4 * _ALWAYS_ALLOWED):
        raise ValueError(
            f"The arrays of a file must be at most {_LARGEST_RATIO} times as large as the file: "
            f"otherwise it is probably damaged. Received: {declared:,} bytes declared in "
            f"{source}, which has {stored:,}"
        )
