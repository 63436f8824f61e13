"""Names and shapes of a biLM's weights in bilm-tf's HDF5 file.

Shapes: `C` characters, `E` width of a character, `A` filters of all widths, `P` width of the
projection, `U` units of an LSTM.
"""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from kbert.configs.elmo import ElmoConfig


@dataclasses.dataclass(frozen=True)
class Place:
    """One weight: its name in kbert, and its name and shape in bilm-tf's file.

    Attributes:
        ours: kbert's name.
        theirs: name in the HDF5 file.
        shape: shape in the HDF5 file, where a convolution is one over an image of height 1.
    """

    ours: str
    theirs: str
    shape: tuple[int, ...]

    def to_ours(self, array: np.ndarray) -> np.ndarray:
        """Returns the file's array in kbert's shape, without a convolution's axis of height 1."""
        return array[0] if len(self.shape) == 4 else array

    def to_theirs(self, array: np.ndarray) -> np.ndarray:
        """Returns kbert's array in the file's shape, with a convolution's axis of height 1."""
        return array[None] if len(self.shape) == 4 else array


def places(config: ElmoConfig) -> list[Place]:
    """Returns a `Place` for each weight of a biLM, except those of its softmax.

    Example:
        >>> places(ElmoConfig())[1]
        Place(ours='elmo/character_cnn/kernel_0', theirs='CNN/W_cnn_0', shape=(1, 1, 16, 32))
    """
    return [*_characters(config), *_lstm(config)]


def _characters(config: Any) -> Iterator[Place]:
    """Yields the weights of the character CNN: table, convolutions, highway layers, projection."""
    size, total, width = config.character_size, config.num_filters, config.projection_size
    cnn = "elmo/character_cnn"
    yield Place(f"{cnn}/table", "char_embed", (261, size))  # (C, E)
    for i, (characters, number) in enumerate(config.filters):
        yield Place(f"{cnn}/kernel_{i}", f"CNN/W_cnn_{i}", (1, characters, size, number))
        yield Place(f"{cnn}/bias_{i}", f"CNN/b_cnn_{i}", (number,))
    for i in range(config.num_highway):
        for part in ("carry", "transform"):
            ours, theirs = f"{cnn}/highway_{i}/{part}", f"CNN_high_{i}"
            yield Place(f"{ours}_kernel", f"{theirs}/W_{part}", (total, total))  # (A, A)
            yield Place(f"{ours}_bias", f"{theirs}/b_{part}", (total,))
    if total != width:
        yield Place(f"{cnn}/projection_kernel", "CNN_proj/W_proj", (total, width))  # (A, P)
        yield Place(f"{cnn}/projection_bias", "CNN_proj/b_proj", (width,))


def _lstm(config: Any) -> Iterator[Place]:
    """Yields the weights of the LSTM layers, all forward ones before the backward ones."""
    width, units = config.projection_size, config.lstm_size
    for direction, way in enumerate(("forward", "backward")):
        for layer in range(config.num_layers):
            ours = f"elmo/lstm/{way}_{layer}"
            theirs = f"RNN_{direction}/RNN/MultiRNNCell/Cell{layer}/LSTMCell"
            yield Place(f"{ours}/kernel", f"{theirs}/W_0", (2 * width, 4 * units))  # (2P, 4U)
            yield Place(f"{ours}/bias", f"{theirs}/B", (4 * units,))
            yield Place(f"{ours}/projection", f"{theirs}/W_P_0", (units, width))  # (U, P)
