"""Encoders of fewer layers: they compute what the whole one does without the others."""

import numpy as np
import pytest

import kbert
from kbert.edit.pruning import keep_layers, prune_heads, prune_neurons
from kbert.layers.block import Block
from kbert.models import Encoder, describe
from kbert.models.weights import get_arrays
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy


class Skipped(Block):
    """A block that gives back what it is given."""

    def call(self, x, bias=None, training=False, **options):
        return x, None


def made(**changes):
    encoder = Encoder(tiny_config(**{"num_layers": 6, **changes}))
    randomise(encoder)
    return encoder


def skipping(encoder, kept):
    """What the encoder gives where the other blocks are skipped."""
    blocks = encoder.layer_blocks
    kinds = [type(block) for block in blocks]
    try:
        for layer, block in enumerate(blocks):
            if layer not in kept:
                block.__class__ = Skipped
        return to_numpy(encoder(tiny_inputs(encoder.config)))
    finally:
        for block, kind in zip(blocks, kinds, strict=True):
            block.__class__ = kind


KEPT = {
    ("bottom", 2): [0, 1],
    ("top", 4): [2, 3, 4, 5],
    ("alternate", 3): [0, 2, 4],
    ("alternate", 4): [0, 1, 3, 4],
    ((1, 2, 5), None): [1, 2, 5],
}


@pytest.mark.parametrize("asked", KEPT)
def test_it_computes_what_is_left_where_blocks_are_skipped(asked):
    encoder, kept = made(), KEPT[asked]
    small = keep_layers(encoder, *asked)
    assert small.config == encoder.config.replace(num_layers=len(kept))
    assert describe(small.config).parameters == small.count_params()
    wanted, found = skipping(encoder, kept), to_numpy(small(tiny_inputs(encoder.config)))
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-6, name)


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        (kind, kept)
        if kind == "modern" or kept == [0, 3, 4]
        else pytest.param(kind, kept, marks=pytest.mark.slow)
        for kept in ([0, 3, 4], [0, 1, 2], [0, 2, 4])
        for kind in ("modern", "alibi", "grouped", "sines")
    ],
)
def test_layers_keep_their_windows_and_wavelengths(kind, kept):
    encoder = made(**KINDS[kind])
    small = keep_layers(encoder, kept)
    windows = [small.config.window(layer) for layer in range(3)]
    assert windows == [encoder.config.window(layer) for layer in kept]
    wanted, found = skipping(encoder, kept), to_numpy(small(tiny_inputs(encoder.config)))
    for name in wanted:
        assert_close(found[name], wanted[name], 1e-5, name)


def test_a_pattern_is_said_as_shortly_as_it_can_be():
    encoder = made(attention_pattern=("global", 4, 4))
    patterns = {(1, 2, 4): (4,), (0, 3): ("global",), (0, 1, 2, 3, 4): ("global", 4, 4)}
    patterns |= {(0, 1, 3): ("global", 4), (1, 3, 4): (4, "global")}
    for kept, pattern in patterns.items():
        assert keep_layers(encoder, kept).config.attention_pattern == pattern


def test_layers_keep_their_heads_and_neurons():
    pruned = prune_neurons(prune_heads(made(), {1: [0], 4: [2, 3]}), {4: [1], 5: [7]})
    small = keep_layers(pruned, [0, 4])
    sizes = {"heads": [4, 2], "intermediate_sizes": [32, 31]}
    assert small.config.edits == ({"kind": "pruned", **sizes},)
    assert_close(
        to_numpy(small(tiny_inputs(small.config))["sequence"]),
        skipping(pruned, [0, 4])["sequence"],
        1e-6,
    )
    # Those of no pruned layer need no edit.
    assert keep_layers(pruned, [0, 2]).config == tiny_config()


def test_layers_that_share_weights():
    encoder = made(num_layer_groups=1)
    small = keep_layers(encoder, "top", 2)
    assert (small.config.num_layers, small.config.num_layer_groups) == (2, 1)
    wanted = get_arrays(encoder, "encoder")
    for name, array in get_arrays(small, "encoder").items():
        np.testing.assert_array_equal(array, wanted[name])
    encoder = made(num_layer_groups=2)
    small = keep_layers(encoder, [1, 2, 4, 5])  # two of each group
    assert (small.config.num_layers, small.config.num_layer_groups) == (4, 2)
    assert keep_layers(encoder, [3, 4]).config.num_layer_groups == 1
    with pytest.raises(ValueError, match=r"as even as.*layers \[0, 3, 4\], of groups \[0, 1, 1\]"):
        keep_layers(encoder, [0, 3, 4])


def test_a_task_keeps_its_head(task, tmp_path):
    small = keep_layers(task, "bottom", 1)
    arrays, head = get_arrays(small, "task"), get_arrays(task, "task")
    same = [name for name in arrays if "layers" not in name]
    assert any("classifier" in name for name in same)
    for name in same:
        np.testing.assert_array_equal(arrays[name], head[name])
    small.save_to_preset(tmp_path, "huggingface")
    again = kbert.tasks.TextClassifier.from_preset(tmp_path)
    assert again.predict(["the fox"]) == small.predict(["the fox"])


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("middle", 2), "one of bottom, top, alternate. Received: 'middle'"),
        (("top",), "`number` must be between 1 and 6 .* Received: number=None"),
        (("top", 7), "Received: number=7"),
        (([0, 1], 3), "Received: 2 layers, number=3"),
        (([],), "indices between 0 and 5"),
        (([2, 1],), "ascending"),
        (([1, 1],), "without duplicates"),
        (([5, 6],), r"Received: \[5, 6\]"),
    ],
)
def test_layers_that_are_not_there_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        keep_layers(made(), *asked)


def test_the_first_layer_of_some_must_stay_and_parts_are_refused():
    with pytest.raises(ValueError, match="The first layer must be kept"):
        keep_layers(made(**KINDS["modern"]), "top", 2)
    with pytest.raises(ValueError, match="without a `part`"):
        keep_layers(made(**KINDS["disentangled"]), "top", 2)
