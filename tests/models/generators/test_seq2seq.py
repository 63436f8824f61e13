import keras
import numpy as np
import pytest
from keras import ops

from kbert.models import Seq2Seq
from kbert.models.weights import get_arrays, named_weights
from tests.harness import (
    assert_close,
    assert_gradients_close,
    compiled,
    layer_gradients,
    randomise,
    to_numpy,
)
from tests.models.generators.tiny import MODES, SIZES, check_decoding, padded, tiny_seq2seq

SOURCES, TARGETS = (7, 3), (4, 6)


def make_inputs():
    source, source_mask = padded(SOURCES)
    target, target_mask = padded(TARGETS, seed=1)
    return {
        "encoder_token_ids": source,
        "encoder_padding_mask": source_mask,
        "decoder_token_ids": target,
        "decoder_padding_mask": target_mask,
    }


@pytest.fixture(
    scope="module", params=["post_norm", pytest.param("pre_norm", marks=pytest.mark.jax_slow)]
)
def seq2seq(request):
    return tiny_seq2seq(block=request.param)


def torch_twin(seq2seq):
    """torch.nn's layers, an implementation that shares nothing with ours, with its weights."""
    import torch

    config, arrays = seq2seq.config, get_arrays(seq2seq, "seq2seq")
    common = {
        "d_model": config.hidden_size,
        "nhead": config.num_heads,
        "dim_feedforward": config.intermediate_size,
        "dropout": 0.0,
        "layer_norm_eps": config.layer_norm_epsilon,
        "batch_first": True,
        "norm_first": config.block == "pre_norm",
    }

    def put(parameter, name):
        value = torch.from_numpy(arrays[name])
        parameter.data = value.T.contiguous() if value.ndim == 2 else value

    def fill(layer, name, norms):
        slot = "_input_norm" if common["norm_first"] else "_norm"
        put(layer.self_attn.in_proj_weight, f"{name}/attention/qkv/kernel")
        put(layer.self_attn.in_proj_bias, f"{name}/attention/qkv/bias")
        parts = {
            "attention/output": layer.self_attn.out_proj,
            "feed_forward/intermediate": layer.linear1,
            "feed_forward/output": layer.linear2,
        }
        if "cross_attention" in norms:
            cross = layer.multihead_attn
            parts["cross_attention/output"] = cross.out_proj
            for end, parameter in (("kernel", cross.in_proj_weight), ("bias", cross.in_proj_bias)):
                both = [arrays[f"{name}/cross_attention/{x}/{end}"] for x in ("query", "key_value")]
                parameter.data = torch.from_numpy(np.concatenate(both, -1).T.copy())
        for part, linear in parts.items():
            put(linear.weight, f"{name}/{part}/kernel")
            put(linear.bias, f"{name}/{part}/bias")
        for number, part in enumerate(norms, 1):
            norm = getattr(layer, f"norm{number}")
            put(norm.weight, f"{name}/{part}{slot}/gamma")
            put(norm.bias, f"{name}/{part}{slot}/beta")
        return layer

    encoder = [
        fill(
            torch.nn.TransformerEncoderLayer(**common),
            f"seq2seq/encoder_layers/{i}",
            ("attention", "feed_forward"),
        )
        for i in range(config.num_layers)
    ]
    decoder = [
        fill(
            torch.nn.TransformerDecoderLayer(**common),
            f"seq2seq/decoder_layers/{i}",
            ("attention", "cross_attention", "feed_forward"),
        )
        for i in range(config.decoder_layers)
    ]
    return encoder, decoder


def numpy_embedded(seq2seq, ids):
    from kbert.layers import sinusoids

    table, config = to_numpy(seq2seq.token_embedding), seq2seq.config
    positions = sinusoids(config.max_positions, config.hidden_size)[: ids.shape[1]]
    return table[ids] * config.hidden_size**0.5 + positions


def test_targets_at_later_positions_are_as_after_other_tokens():
    seq2seq = tiny_seq2seq(positions="learned")
    inputs = make_inputs()
    whole = to_numpy(seq2seq(inputs)["sequence"])
    places = np.broadcast_to(np.arange(6, dtype="int32"), (2, 6))
    same = to_numpy(seq2seq({**inputs, "decoder_position_ids": places})["sequence"])
    np.testing.assert_array_equal(same, whole)
    moved = {**inputs, "decoder_position_ids": places + 9}
    table = seq2seq.decoder_positions.position
    rows = to_numpy(table)
    table.assign(np.roll(rows, -9, axis=0))  # so row 0 is what row 9 was
    expected = to_numpy(seq2seq(inputs)["sequence"])
    table.assign(rows)
    np.testing.assert_array_equal(to_numpy(seq2seq(moved)["sequence"]), expected)
    assert np.abs(expected - whole).max() > 1e-3


@pytest.mark.jax_slow
def test_it_is_torch_s_transformer(seq2seq):
    import torch

    inputs = make_inputs()
    encoder, decoder = torch_twin(seq2seq)
    x, y = (
        torch.from_numpy(numpy_embedded(seq2seq, inputs[f"{side}_token_ids"]).astype("float32"))
        for side in ("encoder", "decoder")
    )
    unread = torch.from_numpy(inputs["encoder_padding_mask"] == 0)
    later = torch.triu(torch.ones(y.shape[1], y.shape[1], dtype=torch.bool), 1)

    def normed(x, side):
        if seq2seq.config.block == "post_norm":
            return x
        norm = getattr(seq2seq, f"{side}_norm")
        gamma, beta = (torch.from_numpy(np.asarray(w.numpy())) for w in (norm.gamma, norm.beta))
        return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, norm.epsilon)

    for layer in encoder:
        layer.train()  # or padded rows take another path, which zeroes them
        x = layer(x, src_key_padding_mask=unread)
    x = normed(x, "encoder")
    for layer in decoder:
        y = layer(y, x, tgt_mask=later, memory_key_padding_mask=unread)
    y = normed(y, "decoder")

    del inputs["decoder_padding_mask"]  # causal already; torch would give NaN for rows of padding
    out = to_numpy(seq2seq(inputs))
    real = inputs["encoder_padding_mask"] == 1
    assert_close(out["encoder_sequence"][real], x.detach().numpy()[real], 1e-4)
    assert_close(out["sequence"], y.detach().numpy(), 1e-4)

    weights = np.random.default_rng(5).normal(size=out["sequence"].shape).astype("float32")
    (y * torch.from_numpy(weights)).sum().backward()
    ours = layer_gradients(
        seq2seq, lambda: ops.sum(seq2seq(inputs)["sequence"] * ops.convert_to_tensor(weights))
    )
    ours = {path.split("/", 1)[1]: gradient for path, gradient in ours.items()}
    kernels = {"encoder_layers_0/attention/qkv/kernel": encoder[0].self_attn.in_proj_weight}
    kernels |= {
        f"decoder_layers_{i}/{name}/kernel": weight
        for i, layer in enumerate(decoder)
        for name, weight in (
            ("attention/qkv", layer.self_attn.in_proj_weight),
            ("cross_attention/output", layer.multihead_attn.out_proj.weight),
            ("feed_forward/intermediate", layer.linear1.weight),
        )
    }
    assert_gradients_close(
        {name: ours[name] for name in kernels},
        {name: weight.grad.numpy().T for name, weight in kernels.items()},
    )


@pytest.mark.jax_slow
def test_outputs_and_their_shapes(seq2seq):
    inputs = make_inputs()
    out = seq2seq(inputs, return_hidden_states=True, return_attention=True)
    specs = seq2seq.compute_output_spec(inputs, return_hidden_states=True, return_attention=True)
    keras.tree.assert_same_structure(out, specs)
    for tensor, spec in zip(keras.tree.flatten(out), keras.tree.flatten(specs), strict=True):
        assert tuple(tensor.shape) == spec.shape
    for states, last in (
        ("hidden_states", "sequence"),
        ("encoder_hidden_states", "encoder_sequence"),
    ):
        np.testing.assert_array_equal(to_numpy(out[states][-1]), to_numpy(out[last]))
    crossed = to_numpy(out["cross_attention"][0])
    assert (crossed[1, :, :, SOURCES[1] :] == 0).all()
    assert_close(crossed.sum(-1), np.ones(crossed.shape[:-1]), 1e-5)


@pytest.mark.parametrize(
    "changes", [{}, {"positions": "learned"}, {"embeddings": "normalised"}, {"block": "pre_norm"}]
)
def test_counts(changes):
    seq2seq = tiny_seq2seq(**changes)
    assert seq2seq.count_params() == seq2seq.config.count_parameters()


@pytest.mark.jax_slow
def test_padding_changes_nothing(seq2seq):
    inputs = make_inputs()
    out = to_numpy(seq2seq(inputs)["sequence"])
    for row in range(2):
        alone = {
            "encoder_token_ids": inputs["encoder_token_ids"][row : row + 1, : SOURCES[row]],
            "decoder_token_ids": inputs["decoder_token_ids"][row : row + 1, : TARGETS[row]],
        }
        expected = to_numpy(seq2seq(alone)["sequence"])
        assert_close(out[row, : TARGETS[row]], expected[0], 1e-5)


@pytest.mark.slow
@pytest.mark.jax_slow
@pytest.mark.parametrize("mode", MODES)
def test_decoding_with_the_cache_is_decoding_from_scratch(seq2seq, mode):
    step = seq2seq.step if mode == "op by op" else compiled(seq2seq.step)
    check_decoding(seq2seq, *padded(SOURCES), step, count=4)


@pytest.mark.jax_slow
def test_it_is_saved_and_revived(seq2seq, tmp_path):
    seq2seq.save_to_preset(tmp_path / "preset")
    seq2seq.save(tmp_path / "model.keras")
    for again in (
        Seq2Seq.from_preset(tmp_path / "preset"),
        keras.models.load_model(tmp_path / "model.keras"),
    ):
        assert again.config == seq2seq.config
        found = get_arrays(again, "seq2seq")
        for name, expected in get_arrays(seq2seq, "seq2seq").items():
            np.testing.assert_array_equal(found[name], expected)


@pytest.mark.jax_slow
def test_what_an_untrained_model_starts_from():
    """Logits of about unit variance whatever the width: the loss begins near log V."""
    config = tiny_seq2seq(hidden_size=64, vocabulary_size=500).config
    keras.utils.set_random_seed(0)
    logits = to_numpy(Seq2Seq(config).logits(Seq2Seq(config)(make_inputs())["sequence"]))
    assert 0.3 < logits.std() < 2


def test_names_of_weights_last():
    names = list(named_weights(tiny_seq2seq(positions="learned", block="pre_norm"), "seq2seq"))
    assert {
        "seq2seq/embeddings/token",
        "seq2seq/encoder_positions/position",
        "seq2seq/decoder_positions/position",
        "seq2seq/encoder_layers/1/attention/qkv/kernel",
        "seq2seq/encoder_layers/1/feed_forward_input_norm/gamma",
        "seq2seq/decoder_layers/2/cross_attention/key_value/bias",
        "seq2seq/decoder_layers/2/cross_attention_input_norm/beta",
        "seq2seq/encoder_norm/gamma",
        "seq2seq/decoder_norm/beta",
    } <= set(names)
    assert len(set(names)) == len(names)


def test_bad_input(seq2seq):
    ids, _ = padded([5])
    with pytest.raises(ValueError, match=r"max_positions=24\. Received: 25 tokens"):
        seq2seq({"encoder_token_ids": np.ones((1, 25), "int32"), "decoder_token_ids": ids})
    with pytest.raises(ValueError, match=r"max_positions=24.*24 tokens after the start token"):
        seq2seq.prefill(ids, None, 24, ops.convert_to_tensor([2]))
    for inputs in ({"encoder_token_ids": ids}, ids, {**make_inputs(), "segment_ids": ids}):
        with pytest.raises(ValueError, match="inputs of an encoder-decoder must be"):
            seq2seq(inputs)
    with pytest.raises(TypeError, match=r"kbert.Seq2Seq must be of the class Seq2SeqConfig"):
        Seq2Seq(SIZES)


@pytest.mark.jax_slow
def test_training_draws_other_dropout():
    seq2seq = tiny_seq2seq(dropout=0.5)
    randomise(seq2seq)
    a, b = (to_numpy(seq2seq(make_inputs(), training=True)["sequence"]) for _ in range(2))
    assert np.abs(a - b).max() > 0.1
