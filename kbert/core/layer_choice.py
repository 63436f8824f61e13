"""Choices of an encoder's hidden states: which of them make the features, and how they combine.

Hidden state 0 is the embeddings, 1..L are the outputs of the layers.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

MIX = "mix"  # a sum with learned weights, `kbert.layers.ScalarMix`
COMBINATIONS = ("concat", "sum", MIX)
# BERT's Table 7 (Devlin et al. 2019, section 5.3) and ELMo's mix of all hidden states. A name
# begins with its combination; "sum" has equal weights.
CHOICES = {
    "embeddings": lambda last: [0],
    "last": lambda last: [last],
    "second_to_last": lambda last: [last - 1],
    "sum_all": lambda last: list(range(1, last + 1)),
    "sum_last_four": lambda last: list(range(last - 3, last + 1)),
    "concat_last_four": lambda last: list(range(last - 3, last + 1)),
    MIX: lambda last: list(range(last + 1)),
    "mix_all": lambda last: list(range(1, last + 1)),
    "mix_last_four": lambda last: list(range(last - 3, last + 1)),
}
_NUMBERED = re.compile(rf"(?:({'|'.join(COMBINATIONS)}):)?(-?\d+(?:,-?\d+)*)")
LayerChoice = str | int | Sequence[int]


class ChosenLayers(NamedTuple):
    """A choice of hidden states.

    Attributes:
        indices: indices of the hidden states, from 0.
        combination: "sum" (width H), "concat" (as wide as all of them, in this order) or "mix" (a
            sum with learned weights).
    """

    indices: tuple[int, ...]
    combination: str

    @property
    def num_joined(self) -> int:
        """Width of the features as a multiple of the encoder's width."""
        return len(self.indices) if self.combination == "concat" else 1


def choose_layers(layers: LayerChoice, num_layers: int, trained: bool = True) -> ChosenLayers:
    """Resolves a choice of layers to hidden states.

    Args:
        layers: "embeddings" (hidden state 0), "last" (L), "second_to_last" (L - 1), "sum_all" (the
            sum of 1..L), "sum_last_four" (the sum of L - 3..L) or "concat_last_four" (the same four
            concatenated, the lowest first); with learned weights "mix" (0..L), "mix_all" (1..L) or
            "mix_last_four"; or the index of a hidden state, negative from the end; or several
            indices, concatenated in the order given. As a text, indices are separated by commas,
            and may follow a combination: "sum:9,10".
        num_layers: number of layers, L.
        trained: whether a mix is allowed, whose weights are trained.

    Raises:
        ValueError: the name is unknown, the encoder does not have these layers, or a mix is not
            allowed.

    Example:
        >>> choose_layers("sum_last_four", 12)
        ChosenLayers(indices=(9, 10, 11, 12), combination='sum')
        >>> choose_layers([0, -1], 12) == choose_layers("0,12", 12)
        True
        >>> choose_layers("mix:0,-1", 12)
        ChosenLayers(indices=(0, 12), combination='mix')
    """
    if isinstance(layers, str) and layers.startswith(MIX) and not trained:
        raise ValueError(
            "A mix of layers has weights that are trained with a head: use a task with "
            "`feature_layers`, or kbert.layers.ScalarMix on the features of several layers. "
            f"Received: layers={layers!r}"
        )
    if isinstance(layers, str) and layers in CHOICES:
        indices = CHOICES[layers](num_layers)
        if min(indices) < (layers not in ("embeddings", MIX)):
            raise ValueError(
                f"{layers!r} requires an encoder with more layers. Received: one with {num_layers}"
            )
        combination = layers.partition("_")[0]
        return ChosenLayers(tuple(indices), combination if combination in COMBINATIONS else "sum")
    combination, given = _numbered(layers)
    for index in given:
        if isinstance(index, bool) or not hasattr(index, "__index__"):
            raise ValueError(f"The index of a hidden state must be an integer. Received: {index!r}")
        if not -num_layers - 1 <= index <= num_layers:
            raise ValueError(
                f"The index must name one of the hidden states of an encoder with {num_layers} "
                f"layers, 0 (the embeddings) to {num_layers}. Received: {index}"
            )
    if not given:
        raise ValueError("layers must name at least one hidden state. Received: none")
    return ChosenLayers(tuple(int(i) % (num_layers + 1) for i in given), combination)


def choose_states(layers: LayerChoice, encoder: Any, trained: bool = True) -> ChosenLayers:
    """Resolves a choice of layers to hidden states that an encoder returns.

    Args:
        layers: see `choose_layers`.
        encoder: an encoder. If its states are not `num_layers` + 1 of the width `hidden_size`,
            their widths are in its attribute `state_widths`.
        trained: whether a mix is allowed, whose weights are trained.

    Raises:
        ValueError: see `choose_layers`; or a state has another width than the encoder's output.
    """
    config = encoder.config
    widths = getattr(encoder, "state_widths", [config.hidden_size] * (config.num_layers + 1))
    chosen = choose_layers(layers, len(widths) - 1, trained)
    if others := [index for index in chosen.indices if widths[index] != config.hidden_size]:
        raise ValueError(
            f"Hidden states must have the width {config.hidden_size} of the encoder's output. "
            f"Received: layers={layers!r}, of which hidden state {others[0]} has the width "
            f"{widths[others[0]]}"
        )
    return chosen


def _numbered(layers: LayerChoice) -> tuple[str, list[Any]]:
    """Returns the combination and the indices of a choice by indices; both are not checked.

    Raises ValueError for a text of another form.
    """
    if isinstance(layers, str):
        match = _NUMBERED.fullmatch(layers)
        if match is None:
            raise ValueError(
                f"layers must be one of {', '.join(CHOICES)}, or the indices of hidden states, "
                f"such as 12 or sum:9,10. Received: {layers!r}"
            )
        return match[1] or "concat", [int(index) for index in match[2].split(",")]
    if isinstance(layers, Sequence):
        return "concat", list(layers)
    return "sum", [layers]
