"""Choices of hidden states: names, indices, and what is none."""

import pytest

from kbert.core.layer_choice import ChosenLayers, choose_layers


@pytest.mark.parametrize(
    ("layers", "indices", "combination"),
    [
        ("embeddings", [0], "sum"),
        ("last", [12], "sum"),
        ("second_to_last", [11], "sum"),
        ("sum_all", range(1, 13), "sum"),
        ("sum_last_four", range(9, 13), "sum"),
        ("concat_last_four", range(9, 13), "concat"),
        ("mix", range(13), "mix"),
        ("mix_all", range(1, 13), "mix"),
        ("mix_last_four", range(9, 13), "mix"),
        (-1, [12], "sum"),
        ((3, -2), [3, 11], "concat"),
        ("-1", [12], "concat"),
        ("3,-2", [3, 11], "concat"),
        ("sum:3,-2", [3, 11], "sum"),
        ("mix:0,12", [0, 12], "mix"),
    ],
)
def test_choices(layers, indices, combination):
    chosen = choose_layers(layers, 12)
    assert chosen == ChosenLayers(tuple(indices), combination)
    assert chosen.num_joined == (len(indices) if combination == "concat" else 1)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ("sum", "layers must be one of embeddings, last.*such as 12 or sum:9,10. Received: 'sum'"),
        ("sum:", "Received: 'sum:'"),
        ("max:1,2", "Received: 'max:1,2'"),
        ("1,,2", "Received: '1,,2'"),
        (3, r"2 layers, 0 \(the embeddings\) to 2. Received: 3"),
        ("0,-4", r"Received: -4"),
        ("concat_last_four", "'concat_last_four' requires an encoder with more layers.*with 2"),
        ("mix_last_four", "'mix_last_four' requires an encoder with more layers.*with 2"),
        ((True,), "must be an integer. Received: True"),
        (1.0, "must be an integer. Received: 1.0"),
        ((), "at least one hidden state. Received: none"),
    ],
)
def test_what_is_no_choice(layers, message):
    with pytest.raises(ValueError, match=message):
        choose_layers(layers, 2)


@pytest.mark.parametrize("layers", ["mix", "mix_all", "mix:0,1"])
def test_a_mix_where_nothing_is_trained(layers):
    with pytest.raises(ValueError, match=f"use a task with `feature_layers`.*layers='{layers}'"):
        choose_layers(layers, 2, trained=False)
