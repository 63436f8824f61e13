"""Rows whose tokens attend only to tokens of lower or equal order: the masks of UniLM."""

import numpy as np
import pytest

from kbert.models import Encoder, PrefixSeq2Seq, Reformer, TransformerXl, Xlnet
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy

LENGTH, SOURCE = 12, 5


def orders(length=LENGTH, source=SOURCE):
    """(4, T): bidirectional, sequence to sequence, left to right, right to left."""
    places = np.arange(length)
    rows = [0 * places, np.where(places < source, 0, places), places, length - places]
    return np.stack(rows).astype("int32")


def make(**changes):
    encoder = Encoder(tiny_config(**changes))
    randomise(encoder)
    return encoder


def make_inputs(encoder, length=LENGTH):
    """Four rows of different lengths, one of each kind."""
    inputs = tiny_inputs(encoder.config, batch=4, length=length)
    inputs["padding_mask"] = (np.arange(length) < [[length], [9], [10], [8]]).astype("int32")
    return {**inputs, "attention_order": orders(length)}


ENCODERS = ["bert", "modern", "alibi", "disentangled", "grouped"]


@pytest.mark.parametrize(
    "kind", [pytest.param(k, marks=pytest.mark.jax_slow) if k != "bert" else k for k in ENCODERS]
)
@pytest.mark.parametrize("length", [LENGTH, 23])  # whole rows of scores, and blocks
def test_only_lower_orders_are_attended_to(kind, length):
    encoder = make(**KINDS.get(kind, {}))
    inputs = make_inputs(encoder, length)
    out = to_numpy(encoder(inputs, return_attention=True))
    order, mask = inputs["attention_order"], inputs["padding_mask"] > 0
    for layer, weights in enumerate(out["attention"]):
        for row in range(4):
            seen = np.zeros((length, length), bool)
            for query in range(length):
                for key in range(length):
                    window = encoder.config.window(layer)
                    near = window is None or abs(query - key) <= window // 2
                    seen[query, key] = (
                        near and mask[row, key] and order[row, key] <= order[row, query]
                    )
            real = mask[row]
            assert ((weights[row] > 0) == seen)[:, real].all()
    # In blocks, if the layers have windows.
    found = to_numpy(encoder(inputs)["sequence"])
    assert_close(found[mask], out["sequence"][mask], 1e-5)


@pytest.mark.jax_slow
def test_each_row_is_as_its_kind_alone():
    encoder = make()
    inputs = make_inputs(encoder)
    mixed = to_numpy(encoder(inputs)["sequence"])
    mask = inputs["padding_mask"]

    def row(number, **changes):
        length = mask[number].sum()
        one = {name: x[number : number + 1, :length] for name, x in inputs.items()}
        del one["attention_order"], one["padding_mask"]
        return {name: np.ascontiguousarray(x) for name, x in {**one, **changes}.items()}

    def alone(number, one):
        expected = to_numpy(encoder(one)["sequence"])[0]
        assert_close(mixed[number, : mask[number].sum()], expected, 1e-5)

    alone(0, row(0))
    one = row(2)
    alone(2, {**one, "causal_mask": np.ones_like(one["token_ids"])})
    # From right to left: from left to right through the row turned around, with its positions.
    one = {name: x[:, ::-1] for name, x in row(3).items()}
    places = np.arange(one["token_ids"].shape[1])[None, ::-1]
    turned = {**one, "position_ids": places, "causal_mask": np.ones_like(places)}
    turned = {name: np.ascontiguousarray(x) for name, x in turned.items()}
    expected = to_numpy(encoder(turned)["sequence"])[0, ::-1]
    assert_close(mixed[3, : mask[3].sum()], expected, 1e-5)
    # From sequence to sequence: a prefix model, whose segments are 0 and 1.
    segments = (np.arange(LENGTH) >= SOURCE).astype("int32")
    two = {**inputs, "segment_ids": np.where(np.arange(4)[:, None] == 1, segments, 0)}
    ids = row(1)["token_ids"]
    sides = {"encoder_token_ids": ids[:, :SOURCE], "decoder_token_ids": ids[:, SOURCE:]}
    found = to_numpy(PrefixSeq2Seq(encoder)(sides))
    expected = np.concatenate([found["encoder_sequence"], found["sequence"]], 1)[0]
    assert_close(to_numpy(encoder(two)["sequence"])[1, : mask[1].sum()], expected, 1e-5)


@pytest.mark.jax_slow
def test_packed_examples_keep_their_order():
    encoder = make()
    inputs = make_inputs(encoder, 6)
    alone = to_numpy(encoder({**inputs, "padding_mask": np.ones((4, 6), "int32")})["sequence"])
    packed = {name: x.reshape(1, -1) for name, x in inputs.items() if name != "padding_mask"}
    packed["position_ids"] = np.tile(np.arange(6), 4)[None]
    packed["example_ids"] = np.repeat(np.arange(1, 5), 6)[None]
    found = to_numpy(encoder(packed)["sequence"])
    assert_close(found.reshape(4, 6, -1), alone, 1e-5)


@pytest.mark.tensorflow
def test_gradients_reach_no_later_token():
    import tensorflow as tf

    encoder = make()
    inputs = make_inputs(encoder)
    table = encoder.embeddings(inputs["token_ids"], inputs["segment_ids"])
    order, mask = inputs["attention_order"], inputs["padding_mask"] > 0
    (bias,) = {id(x): x for x in encoder._layer_biases(inputs, in_blocks=False)}.values()
    query = 6
    with tf.GradientTape() as tape:
        x = tf.convert_to_tensor(table)
        tape.watch(x)
        hidden = x
        for block in encoder.layer_blocks:
            hidden = block(hidden, bias)[0]
        picked = tf.reduce_sum(
            hidden[:, query] * tf.constant(np.random.default_rng(0).normal(size=16), tf.float32)
        )
    size = np.abs(tape.gradient(picked, x).numpy()).max(-1)
    expected = (order <= order[:, query : query + 1]) & mask
    np.testing.assert_array_equal(size > 0, expected)


def test_models_with_an_order_of_their_own_take_none():
    for kind in (Reformer, TransformerXl, Xlnet):
        assert "attention_order" not in kind.INPUTS
    encoder = Encoder(tiny_config(**KINDS["xlnet"]))
    ids = np.ones((1, 8), "int32")
    with pytest.raises(ValueError, match=r"has the inputs .*Received: token_ids, attention_order"):
        encoder({"token_ids": ids, "attention_order": ids})
