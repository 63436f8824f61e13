"""Encoder-decoders that begin with an encoder's weights, and the encoder that is both sides."""

import numpy as np
import pytest

from kbert.models import Encoder, PrefixSeq2Seq, Seq2Seq
from kbert.models.weights import get_arrays
from tests.harness import assert_close, compiled, randomise, tiny_config, to_numpy
from tests.models.generators.tiny import MODES, check_decoding, padded

SOURCES, TARGETS = (7, 3), (4, 6)


def make_inputs():
    source, source_mask = padded(SOURCES)
    target, _ = padded(TARGETS, seed=1)
    return {
        "encoder_token_ids": source,
        "encoder_padding_mask": source_mask,
        "decoder_token_ids": target,
    }


def make_encoder(**changes):
    encoder = Encoder(tiny_config(**changes))
    randomise(encoder)
    return encoder


@pytest.mark.jax_slow
@pytest.mark.parametrize(
    "changes", [{}, {"num_segments": 0}, {"num_layer_groups": 1}], ids=["bert", "roberta", "shared"]
)
def test_the_source_s_side_is_the_encoder(changes):
    encoder, inputs = make_encoder(**changes), make_inputs()
    seq2seq = Seq2Seq.from_encoder(encoder)
    expected = encoder(
        {
            "token_ids": inputs["encoder_token_ids"],
            "padding_mask": inputs["encoder_padding_mask"],
        }
    )
    found = seq2seq(inputs)["encoder_sequence"]
    assert_close(to_numpy(found), to_numpy(expected["sequence"]), 1e-5)
    assert seq2seq.count_params() == seq2seq.config.count_parameters()


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_target_s_side_has_what_fits(layers):
    encoder = make_encoder()
    seq2seq = Seq2Seq.from_encoder(encoder, num_decoder_layers=layers)
    theirs, ours = get_arrays(encoder, "encoder"), get_arrays(seq2seq, "seq2seq")
    segments = theirs["encoder/embeddings/segment"]
    np.testing.assert_array_equal(
        ours["seq2seq/decoder_positions/position"],
        theirs["encoder/embeddings/position"] + segments[1],
    )
    for layer in range(min(layers, 2)):
        for name in ("attention/qkv/kernel", "feed_forward/output/bias", "attention_norm/gamma"):
            np.testing.assert_array_equal(
                ours[f"seq2seq/decoder_layers/{layer}/{name}"],
                theirs[f"encoder/layers/{layer}/{name}"],
            )
    # What looks at the source, and layers that the encoder does not have, begin anew.
    assert ours["seq2seq/decoder_layers/0/cross_attention/query/kernel"].std() < 0.05
    assert ours[f"seq2seq/decoder_layers/{layers - 1}/attention/qkv/kernel"].std() < (
        0.05 if layers == 3 else np.inf
    )


def test_it_is_saved_like_any_other(tmp_path):
    seq2seq = Seq2Seq.from_encoder(make_encoder())
    seq2seq.save_to_preset(tmp_path)
    again = Seq2Seq.from_preset(tmp_path)
    a, b = (to_numpy(model(make_inputs())["sequence"]) for model in (seq2seq, again))
    np.testing.assert_array_equal(a, b)


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", [Seq2Seq.from_encoder, PrefixSeq2Seq])
def test_narrow_embeddings_are_refused(kind):
    with pytest.raises(ValueError, match=r"must equal its .*embedding_size=8, hidden_size=16"):
        kind(make_encoder(embedding_size=8))


def numpy_mask(source, target):
    """(S + T, S + T) what sees what: the mask of UniLM's figure 1."""
    seen = np.zeros((source + target, source + target), bool)
    seen[:, :source] = True
    seen[source:, source:] = np.tri(target, dtype=bool)
    return seen


@pytest.mark.jax_slow
def test_a_prefix_model_sees_the_source_and_the_target_so_far():
    model, inputs = PrefixSeq2Seq(make_encoder()), make_inputs()
    out = to_numpy(model(inputs, return_attention=True, return_hidden_states=True))
    seen = numpy_mask(7, 6)
    assert ((out["encoder_attention"][0][0] > 0) == seen[:7, :7]).all()
    assert ((out["cross_attention"][0][0] > 0) == seen[7:, :7]).all()
    assert ((out["attention"][0][0] > 0) == seen[7:, 7:]).all()
    assert (out["cross_attention"][0][1, :, :, 3:] == 0).all()  # padding
    whole = out["cross_attention"][0].sum(-1) + out["attention"][0].sum(-1)
    assert_close(whole, np.ones_like(whole), 1e-5)
    assert_close(out["hidden_states"][-1], out["sequence"], 0)


@pytest.mark.jax_slow
@pytest.mark.parametrize("changes", [{}, {"num_segments": 0}, {"num_layer_groups": 1}])
def test_a_prefix_model_is_the_encoder_with_another_mask(changes):
    """A source alone, and a target of one token, which sees all: the encoder's own rows."""
    encoder = make_encoder(**changes)
    source, _ = padded([5])
    inputs = {"encoder_token_ids": source, "decoder_token_ids": np.array([[8]])}
    out = PrefixSeq2Seq(encoder)(inputs)
    alone = to_numpy(encoder(source)["sequence"])
    assert_close(to_numpy(out["encoder_sequence"]), alone, 1e-5)
    assert np.abs(to_numpy(out["sequence"])).max() > 0.1


@pytest.mark.jax_slow
def test_padding_of_the_source_moves_no_target():
    model, inputs = PrefixSeq2Seq(make_encoder()), make_inputs()
    out = to_numpy(model(inputs)["sequence"])
    for row in range(2):
        alone = {
            "encoder_token_ids": inputs["encoder_token_ids"][row : row + 1, : SOURCES[row]],
            "decoder_token_ids": inputs["decoder_token_ids"][row : row + 1, : TARGETS[row]],
        }
        assert_close(out[row, : TARGETS[row]], to_numpy(model(alone)["sequence"])[0], 1e-5)


@pytest.mark.slow
@pytest.mark.jax_slow
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", [Seq2Seq.from_encoder, PrefixSeq2Seq])
def test_decoding_with_the_cache_is_decoding_from_scratch(kind, mode):
    model = kind(make_encoder())
    step = model.step if mode == "op by op" else compiled(model.step)
    check_decoding(model, *padded(SOURCES), step, count=4)
