"""Selects the hidden states of an encoder that make a token's features.

Shapes: `B` batch, `T` tokens, `H` hidden width, `L` layers, `D` width of the features.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from keras import ops

# BERT's Table 7 (Devlin et al. 2019, section 5.3), with equal weights in sums; for learned weights
# use `kbert.layers.ScalarMix`. Hidden state 0 is the embeddings, 1..L are the layers.
CHOICES = {
    "embeddings": lambda last: [0],
    "last": lambda last: [last],
    "second_to_last": lambda last: [last - 1],
    "sum_all": lambda last: list(range(1, last + 1)),
    "sum_last_four": lambda last: list(range(last - 3, last + 1)),
    "concat_last_four": lambda last: list(range(last - 3, last + 1)),
}


class ChosenLayers(NamedTuple):
    """A choice of hidden states, which are summed (width H) or concatenated (wider).

    Attributes:
        indices: indices of the hidden states, from 0.
        joined: whether the states are concatenated, in this order, instead of summed.
    """

    indices: tuple[int, ...]
    joined: bool

    @property
    def num_joined(self) -> int:
        """Width of the features as a multiple of the encoder's width."""
        return len(self.indices) if self.joined else 1

    def take(self, hidden_states: Sequence[Any]) -> Any:
        """Combines L+1 tensors (B, T, H) to (B, T, D); sums are computed in float32."""
        chosen = [ops.cast(hidden_states[index], "float32") for index in self.indices]
        if self.joined:
            return ops.concatenate(chosen, -1)
        return sum(chosen[1:], chosen[0])


def choose_layers(layers: str | int | Sequence[int], num_layers: int) -> ChosenLayers:
    """Resolves a choice of layers to hidden states.

    Args:
        layers: "embeddings" (hidden state 0), "last" (L), "second_to_last" (L - 1), "sum_all" (the
            sum of 1..L), "sum_last_four" (the sum of L - 3..L) or "concat_last_four" (the same four
            concatenated, the lowest first); or the index of a hidden state, negative from the end;
            or several indices, concatenated in the order given.
        num_layers: number of layers, L.

    Raises:
        ValueError: the name is unknown, or the encoder does not have these layers.

    Example:
        >>> choose_layers("sum_last_four", 12)
        ChosenLayers(indices=(9, 10, 11, 12), joined=False)
        >>> choose_layers([0, -1], 12)
        ChosenLayers(indices=(0, 12), joined=True)
    """
    if isinstance(layers, str):
        if layers not in CHOICES:
            raise ValueError(
                f"layers must be one of {', '.join(CHOICES)}, or the indices of hidden states. "
                f"Received: {layers!r}"
            )
        indices = CHOICES[layers](num_layers)
        if min(indices) < (layers != "embeddings"):
            raise ValueError(
                f"{layers!r} requires an encoder with more layers. Received: one with {num_layers}"
            )
        return ChosenLayers(tuple(indices), layers.startswith("concat"))
    single = not isinstance(layers, Sequence)
    indices_given: list[Any] = list(layers) if isinstance(layers, Sequence) else [layers]
    for index in indices_given:
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise ValueError(f"The index of a hidden state must be an integer. Received: {index!r}")
        if not -num_layers - 1 <= index <= num_layers:
            raise ValueError(
                f"The index must name one of the hidden states of an encoder with {num_layers} "
                f"layers, 0 (the embeddings) to {num_layers}. Received: {index}"
            )
    if not indices_given:
        raise ValueError("layers must name at least one hidden state. Received: none")
    return ChosenLayers(tuple(int(i) % (num_layers + 1) for i in indices_given), joined=not single)
