import keras
import numpy as np
import pytest
from keras import ops

from kbert.models import Decoder
from kbert.models.weights import get_arrays, named_weights
from tests.harness import assert_close, compiled, to_numpy
from tests.models.generators.tiny import SIZES, padded, tiny_decoder

LENGTHS = (9, 5, 1)


# The last one's windows are of two and four tokens, of rows of nine and more.
KINDS = {
    "pre_norm": {},
    "post_norm": {"block": "post_norm"},
    "modern": {
        "block": "pre_norm_except_first",
        "positions": "rotary",
        "rotary_base": 160_000.0,
        "local_rotary_base": 10_000.0,
        "attention_pattern": (2, 4, "global"),
        "feed_forward": "gated",
        "norm": "layer_no_bias",
        "embedding_norm": True,
        "use_bias": False,
        "output": "transformed",
        "num_layers": 3,
    },
    "sines": {"positions": "sinusoidal", "norm": "rms", "attention_pattern": (3,)},
}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(kind, marks=() if kind == "modern" else pytest.mark.jax_slow) for kind in KINDS
    ],
)
def decoder(request):
    return tiny_decoder(**KINDS[request.param])


def logits_behind(decoder, texts):
    """(B, V) of the token behind each text, computed from scratch, always in the same shape."""
    ids = np.zeros((len(texts), SIZES["max_positions"]), "int32")
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    logits = to_numpy(decoder.logits(decoder(ids)["sequence"]))
    return np.stack([row[len(text) - 1] for row, text in zip(logits, texts, strict=True)])


@pytest.mark.jax_slow
def test_outputs_and_their_shapes(decoder):
    ids, mask = padded(LENGTHS)
    inputs = {"token_ids": ids, "padding_mask": mask}
    out = decoder(inputs, return_hidden_states=True, return_attention=True)
    assert sorted(out) == ["attention", "hidden_states", "sequence"]
    specs = decoder.compute_output_spec(inputs, return_hidden_states=True, return_attention=True)
    keras.tree.assert_same_structure(out, specs)
    for tensor, spec in zip(keras.tree.flatten(out), keras.tree.flatten(specs), strict=True):
        assert tuple(tensor.shape) == spec.shape
    np.testing.assert_array_equal(to_numpy(out["hidden_states"][-1]), to_numpy(out["sequence"]))
    assert decoder.count_params() == decoder.config.count_parameters()


@pytest.mark.jax_slow
def test_a_token_knows_nothing_of_those_behind_it(decoder):
    ids, _ = padded([8])
    changed = ids.copy()
    changed[0, 5:] = 7
    a, b = (to_numpy(decoder(x)["sequence"]) for x in (ids, changed))
    np.testing.assert_array_equal(a[0, :5], b[0, :5])
    assert (np.abs(a[0, 5:7] - b[0, 5:7]).max(-1) > 1e-3).all()
    attention = decoder(ids, return_attention=True)["attention"]
    for layer, probabilities in enumerate(map(to_numpy, attention)):
        assert (np.triu(probabilities[0, 0], 1) == 0).all()
        window = decoder.config.window(layer)
        if window is not None:
            assert (np.tril(probabilities[0, 0], -window) == 0).all()
            assert np.diagonal(probabilities[0, 0], 1 - window).min() > 0


@pytest.mark.jax_slow
def test_padding_changes_nothing(decoder):
    ids, mask = padded(LENGTHS)
    out = to_numpy(decoder({"token_ids": ids, "padding_mask": mask})["sequence"])
    for row, length in enumerate(LENGTHS):
        alone = to_numpy(decoder(ids[row : row + 1, :length])["sequence"])
        assert_close(out[row, :length], alone[0], 1e-5)


@pytest.mark.parametrize(
    ("decoder", "mode"),
    [
        *(pytest.param(kind, "op by op", marks=pytest.mark.tensorflow) for kind in KINDS),
        *(
            pytest.param(
                *(kind, "XLA"),
                marks=[] if kind == "modern" else [pytest.mark.slow, pytest.mark.jax_slow],
            )
            for kind in KINDS
        ),
    ],
    indirect=["decoder"],
)
def test_decoding_with_the_cache_is_decoding_from_scratch(decoder, mode):
    ids, mask = padded(LENGTHS)
    texts = [list(row[:length]) for row, length in zip(ids, LENGTHS, strict=True)]
    step = decoder.step if mode == "op by op" else compiled(decoder.step)
    logits, cache = decoder.prefill(ids, mask, max_new_tokens=6)
    rng = np.random.default_rng(3)
    for t in range(6):
        assert_close(to_numpy(logits), logits_behind(decoder, texts), 2e-5, f"{t}")
        new = rng.integers(1, 40, len(texts)).astype("int32")
        for text, token in zip(texts, new, strict=True):
            text.append(token)
        logits, cache = step(ops.convert_to_tensor(new), cache, ops.convert_to_tensor(t, "int32"))


@pytest.mark.jax_slow
def test_prompts_without_a_mask_have_no_padding(decoder):
    ids, mask = padded([4, 4])
    with_mask, without = (decoder.prefill(ids, m, max_new_tokens=2)[0] for m in (mask, None))
    np.testing.assert_array_equal(to_numpy(with_mask), to_numpy(without))


@pytest.mark.jax_slow
def test_it_is_saved_and_revived(decoder, tmp_path):
    decoder.save_to_preset(tmp_path / "preset")
    decoder.save(tmp_path / "model.keras")
    ids, _ = padded([5])
    for again in (
        Decoder.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.config == decoder.config
        expected, found = get_arrays(decoder, "decoder"), get_arrays(again, "decoder")
        assert expected.keys() == found.keys()
        for name in expected:
            np.testing.assert_array_equal(expected[name], found[name])
        assert_close(to_numpy(again(ids)["sequence"]), to_numpy(decoder(ids)["sequence"]), 1e-6)


def test_names_of_weights_last():
    names = list(named_weights(tiny_decoder(num_layers=1), "decoder"))
    block = "decoder/layers/0"
    dense = [f"{x}/{y}" for x in ("attention/qkv", "attention/output") for y in ("kernel", "bias")]
    dense += ["feed_forward/intermediate/kernel", "feed_forward/intermediate/bias"]
    dense += ["feed_forward/output/kernel", "feed_forward/output/bias"]
    norms = ["attention_input_norm", "feed_forward_input_norm"]
    norms = [f"{name}/{weight}" for name in norms for weight in ("gamma", "beta")]
    assert sorted(names) == sorted(
        ["decoder/embeddings/token", "decoder/positions/position"]
        + [f"{block}/{name}" for name in dense + norms]
        + ["decoder/norm/gamma", "decoder/norm/beta"]
    )


def test_bad_input(decoder):
    ids, _ = padded([5])
    with pytest.raises(ValueError, match=r"max_positions=24\. Received: 25 tokens"):
        decoder(np.ones((1, 25), "int32"))
    with pytest.raises(ValueError, match="Received: 20 tokens in the prompt, max_new_tokens=5"):
        decoder.prefill(np.ones((1, 20), "int32"), None, max_new_tokens=5)
    with pytest.raises(ValueError, match=r"`token_ids` and optionally `padding_mask`.*segment_ids"):
        decoder({"token_ids": ids, "segment_ids": ids})
    with pytest.raises(ValueError, match=r"\(batch, tokens\)\. Received: shape \(5,\)"):
        decoder(ids[0])
    with pytest.raises(TypeError, match=r"kbert.Decoder must be of the class DecoderConfig"):
        Decoder(SIZES)


@pytest.mark.jax_slow
def test_half_precision_gives_logits_in_full(decoder):
    half = Decoder(decoder.config, dtype="mixed_bfloat16")
    half.set_weights(decoder.get_weights())
    ids, mask = padded(LENGTHS)
    logits, cache = half.prefill(ids, mask, max_new_tokens=2)
    assert "float32" in str(logits.dtype)
    expected, _ = decoder.prefill(ids, mask, max_new_tokens=2)
    assert_close(to_numpy(logits), to_numpy(expected), 0.15)
    logits, _ = half.step(ops.convert_to_tensor([1, 2, 3]), cache, 0)
    assert np.isfinite(to_numpy(logits)).all()
