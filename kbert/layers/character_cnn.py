"""Word embeddings from characters: a table, convolutions, highway layers, a projection.

Shapes: `...` any leading axes (rows and words), `N` words, `C` characters a word, `E` width of a
character, `F` filters of one width, `A` filters of all widths, `P` width of the output.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
from keras import ops

from kbert.core.types import Shape, Tensor
from kbert.layers.activations import get_activation
from kbert.layers.highway import Highway
from kbert.layers.ids import take_rows, whole_numbers


class CharacterCNN(keras.layers.Layer):
    """Embeds each word from its characters only, so that no word is unknown.

    (Kim et al. 2016, https://arxiv.org/abs/1508.06615; `_build_word_char_embeddings` in
    bilm/training.py of allenai/bilm-tf.) The convolutions have no padding and are max-pooled over
    each word. A padding word (zeros) is embedded as zero vectors of characters pass through the
    network, as in the original; the result is not a zero vector.

    Args:
        character_size: width of a character embedding, E.
        filters: (width, count) of each convolution.
        num_highway: number of highway layers after the convolutions.
        projection_size: width of the output, P. There is no projection if the total number of
            filters is already P.
        activation: activation after max pooling, a name of `get_activation`.
        num_characters: rows of the table; row i belongs to id i + 1, and id 0 is padding.

    Raises:
        ValueError: no filters, or words with fewer characters than the widest filter.

    Example:
        >>> cnn = CharacterCNN(4, filters=((1, 8), (3, 16)), num_highway=1, projection_size=6)
        >>> word = [259, 98, 101, 260, 261]  # begin, "b", "e", end, filler
        >>> tuple(cnn(ops.array([[word, word]])).shape)
        (1, 2, 6)
    """

    def __init__(
        self,
        character_size: int,
        filters: Sequence[tuple[int, int]],
        num_highway: int,
        projection_size: int,
        activation: str = "relu",
        num_characters: int = 261,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.character_size = character_size
        self.filters = tuple((int(width), int(count)) for width, count in filters)
        if not self.filters or min(map(min, self.filters)) < 1:
            raise ValueError(
                "`filters` must be pairs (width, count) of positive integers, at least one. "
                f"Received: {filters!r}"
            )
        self.projection_size = projection_size
        self.num_characters = num_characters
        self.activation_name = activation
        self.activation = get_activation(activation)
        self.highways = [
            Highway(dtype=self.dtype_policy, name=f"highway_{i}") for i in range(num_highway)
        ]

    def build(self, character_ids_shape: Shape) -> None:
        self._check_characters(character_ids_shape[-1])
        self.table = self.add_weight(
            name="table",
            shape=(self.num_characters, self.character_size),
            initializer=keras.initializers.RandomUniform(-1.0, 1.0),
            # The lookup comes before the cast, as for every table.
            autocast=False,
        )
        self.kernels, self.biases = [], []
        for index, (width, count) in enumerate(self.filters):
            kernel = self.add_weight(
                name=f"kernel_{index}",
                shape=(width, self.character_size, count),
                initializer=self._kernel_initializer(width),
            )
            self.kernels.append(kernel)
            bias = self.add_weight(name=f"bias_{index}", shape=(count,), initializer="zeros")
            self.biases.append(bias)
        total = sum(count for _, count in self.filters)
        for highway in self.highways:
            highway.build((None, total))
        self.has_projection = total != self.projection_size
        if self.has_projection:
            self.projection_kernel = self.add_weight(
                name="projection_kernel",
                shape=(total, self.projection_size),
                initializer=keras.initializers.RandomNormal(stddev=math.sqrt(1 / total)),
            )
            self.projection_bias = self.add_weight(
                name="projection_bias", shape=(self.projection_size,), initializer="zeros"
            )

    def _check_characters(self, characters: Any) -> None:
        """Raises ValueError if the widest filter has more than `characters`; None = unknown."""
        widest = max(width for width, _ in self.filters)
        if characters is not None and characters < widest:
            raise ValueError(
                f"A word must have at least as many characters as the widest filter, {widest}. "
                f"Received: {characters} characters"
            )

    def _kernel_initializer(self, width: int) -> keras.initializers.Initializer:
        if self.activation_name == "relu":
            return keras.initializers.RandomUniform(-0.05, 0.05)
        return keras.initializers.RandomNormal(stddev=math.sqrt(1 / (width * self.character_size)))

    def call(self, character_ids: Tensor, training: bool = False) -> Tensor:
        """Embeds words.

        Args:
            character_ids: (..., C) integers; 0 is padding, id i + 1 is row i of the table.
            training: whether the output will be differentiated.

        Returns:
            (..., P).
        """
        character_ids = whole_numbers(character_ids, "character_ids")
        *leading, characters = ops.shape(character_ids)
        ids = ops.reshape(character_ids, (-1, characters))  # (N, C)
        padded = ops.concatenate([ops.zeros_like(self.table[:1]), self.table])
        x = ops.cast(take_rows(padded, ids), self.compute_dtype)  # (N, C, E)
        answers = [
            ops.max(ops.conv(x, kernel, padding="valid"), axis=1) + bias  # (N, C - width + 1, F)
            for kernel, bias in zip(self.kernels, self.biases, strict=True)
        ]
        x = self.activation(ops.concatenate(answers, axis=-1), training)  # (N, A)
        for highway in self.highways:
            x = highway(x)
        if self.has_projection:
            x = ops.matmul(x, self.projection_kernel) + self.projection_bias
        return ops.reshape(x, (*leading, self.projection_size))
