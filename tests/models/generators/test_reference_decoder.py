"""Equality with Hugging Face's GPT and GPT-2, from folders that it wrote and to folders it reads.

Random weights of sigma 0.15: with 0.02 the forms of GELU and the epsilons cannot be told apart.
"""

import json

import numpy as np
import pytest
from keras import ops

from kbert import family
from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.decoding import Greedy, decode
from kbert.io.arrays import read_safetensors
from kbert.models.generators.decoder import Decoder
from kbert.models.weights import get_arrays, named_weights, set_arrays
from tests.harness import SIGMA, assert_close, assert_gradients_close, randomise, to_numpy
from tests.models.references import gradients

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

B, T, V, P = 3, 18, 90, 20
SIZES = {
    "vocab_size": V,
    "n_positions": P,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    **dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0),
}
# model_type -> names of config and class, and values of the config.
MODELS = {
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {**SIZES, "n_inner": 96}),
    "openai-gpt": ("OpenAIGPTConfig", "OpenAIGPTLMHeadModel", SIZES),
    "modernbert-decoder": (
        "ModernBertDecoderConfig",
        "ModernBertDecoderForCausalLM",
        {
            "vocab_size": V,
            "max_position_embeddings": P,
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "local_attention": 8,  # four tokens, of prompts of 3 to 8
            **dict.fromkeys((f"{x}_token_id" for x in ("bos", "eos", "cls", "sep")), 0),
            "pad_token_id": V - 1,  # a row without a gradient, of no token below
        },
    ),
}
# model_type -> the row of the family that is written as it.
ROWS = {
    "gpt2": "gpt2",
    "openai-gpt": "openai-gpt",
    "modernbert-decoder": "jhu-clsp/ettin-decoder-17m",
}


def reference(model_type, **changes):
    """A language model of transformers, every weight drawn."""
    config_class, name, own = MODELS[model_type]
    config = getattr(transformers, config_class)(**{**own, **changes})
    config._attn_implementation = "eager"
    model = getattr(transformers, name)(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = (".ln_" in name or "norm" in name) and name.endswith("weight")
            weight.normal_(1.0 if scale else 0.0, SIGMA)
    return model


def inputs():
    return np.random.default_rng(0).integers(0, V - 1, (B, T)).astype("int32")


def run(model, token_ids, **options):
    return model(torch.tensor(token_ids).long(), **options)


@pytest.mark.jax_slow
@pytest.mark.parametrize("model_type", MODELS)
def test_states_and_logits_equal_hugging_face(model_type, tmp_path):
    model = reference(model_type)
    model.save_pretrained(tmp_path)
    decoder = Decoder.from_preset(tmp_path)
    with torch.no_grad():
        theirs = run(model, inputs(), output_hidden_states=True, output_attentions=True)
    out = decoder(inputs(), return_hidden_states=True, return_attention=True)
    ours = to_numpy({**out, "logits": decoder.logits(out["sequence"])})
    states = theirs.hidden_states
    assert len(ours["hidden_states"]) == len(states) == decoder.config.num_layers + 1
    for i, (a, b) in enumerate(zip(ours["hidden_states"], states, strict=True)):
        assert_close(a, b.numpy(), 1e-4, f"hidden state {i}")
    for i, (a, b) in enumerate(zip(ours["attention"], theirs.attentions, strict=True)):
        assert_close(a, b.numpy(), 1e-4, f"attention {i}")
    logits = theirs.logits.numpy()
    assert np.abs(logits).max() > 1
    assert_close(ours["logits"], logits, 1e-4, "logits")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        # What the file says goes before half of `local_attention`.
        *(
            ("modernbert-decoder", changes)
            for changes in (
                {"sliding_window": 7, "attention_bias": True, "decoder_bias": False},
                {
                    **{"sliding_window": 1, "local_attention": 3},
                    **{"mlp_bias": True, "norm_bias": True},
                },
                {"sliding_window": 500, "hidden_activation": "silu", "num_attention_heads": 1},
                {
                    "local_attention": 11,
                    **{"classifier_activation": "relu", "classifier_bias": True},
                },
            )
        ),
        ("gpt2", {"n_head": 1, "activation_function": "relu"}),
        ("openai-gpt", {"n_head": 1, "afn": "silu"}),
    ],
)
def test_unusual_configs_there_and_back(model_type, changes, tmp_path):
    model = reference(model_type, **changes)
    model.save_pretrained(tmp_path / "theirs")
    decoder = Decoder.from_preset(tmp_path / "theirs")
    with torch.no_grad():
        theirs = run(model, inputs()).logits.numpy()
    assert_close(to_numpy(decoder.logits(decoder(inputs())["sequence"])), theirs, 1e-4)
    # A token at a time, with the cache.
    logits, cache = decoder.prefill(inputs()[:, :15], None, max_new_tokens=3)
    for t in range(3):
        assert_close(to_numpy(logits), theirs[:, 14 + t], 1e-4, f"step {t}")
        logits, cache = decoder.step(inputs()[:, 15 + t], cache, t)
    decoder.save_to_preset(tmp_path / "ours", format="huggingface")
    written = type(model).from_pretrained(tmp_path / "ours", attn_implementation="eager").eval()
    with torch.no_grad():
        assert_close(run(written, inputs()).logits.numpy(), theirs, 1e-4)


@pytest.mark.jax_slow
@pytest.mark.parametrize("model_type", MODELS)
def test_gradients_equal_hugging_face(model_type):
    model = reference(model_type)
    values = {name: array.numpy() for name, array in model.state_dict().items()}
    checkpoint = import_model(model.config.to_dict(), values, "the reference")
    decoder = Decoder(checkpoint.config)
    set_arrays(decoder, "decoder", checkpoint.part("decoder/"), checkpoint.source)
    token_ids = np.concatenate([inputs(), np.arange(V)[None, :T]])
    weight = np.random.default_rng(1).normal(size=(len(token_ids), T, V)).astype("float32")
    (run(model, token_ids).logits * torch.tensor(weight)).sum().backward()
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters()}

    def our_loss():
        return ops.sum(
            decoder.logits(decoder(token_ids)["sequence"]) * ops.convert_to_tensor(weight)
        )

    ours = gradients(our_loss, named_weights(decoder, "decoder"))
    expected = import_model(model.config.to_dict(), theirs, "the reference").part("decoder/")
    assert_gradients_close(ours, expected)


@pytest.mark.jax_slow
@pytest.mark.parametrize("model_type", MODELS)
def test_transformers_loads_what_is_written_and_gives_the_same(model_type, tmp_path):
    small = {"vocabulary_size": V, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
    small |= {"intermediate_size": 128, "max_positions": P}
    if model_type == "modernbert-decoder":
        small["attention_pattern"] = ("global", 5)
    decoder = Decoder(family(ROWS[model_type]).replace(**small))
    randomise(decoder)
    decoder.save_to_preset(tmp_path, format="huggingface")
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report.values()), report
    assert type(model).__name__ == MODELS[model_type][1]
    with torch.no_grad():
        theirs = run(model.eval(), inputs()).logits.numpy()
    ours = to_numpy(decoder.logits(decoder(inputs())["sequence"]))
    assert_close(ours, theirs, 1e-4, "logits")
    again = Decoder.from_preset(tmp_path)
    assert again.config == decoder.config
    arrays = get_arrays(again, "decoder")
    for name, array in get_arrays(decoder, "decoder").items():
        np.testing.assert_array_equal(arrays[name], array, err_msg=name)


@pytest.mark.tensorflow
@pytest.mark.parametrize("model_type", MODELS)
def test_there_and_back_is_bit_equal(model_type, tmp_path):
    model = reference(model_type)
    model.save_pretrained(tmp_path / "theirs")
    Decoder.from_preset(tmp_path / "theirs").save_to_preset(tmp_path / "ours", "huggingface")
    before, after = (
        read_safetensors(tmp_path / x / "model.safetensors") for x in ("theirs", "ours")
    )
    assert before.keys() == after.keys()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array, err_msg=name)
    keys = [key for key in MODELS[model_type][2] if "token_id" not in key]
    first, second = (
        json.loads((tmp_path / x / "config.json").read_text()) for x in ("theirs", "ours")
    )
    assert {key: second[key] for key in keys} == {key: first[key] for key in keys}
    assert second["architectures"] == first["architectures"]
    assert read_checkpoint(tmp_path / "ours").task == {"kind": "causal_lm"}


@pytest.mark.tensorflow  # numbers: another backend would say the same
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("openai-gpt", 116_534_784),
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("jhu-clsp/ettin-decoder-17m", 16_913_600),
        ("jhu-clsp/ettin-decoder-1b", 1_031_314_112),
    ],
)
def test_parameters_of_the_published_sizes(name, parameters):
    config = family(name)
    assert config.count_parameters() == parameters
    # The formula's, and those of a model of two layers and few entries.
    small = config.replace(
        num_layers=2,
        hidden_size=2 * config.num_heads,
        intermediate_size=5,
        vocabulary_size=9,
        max_positions=4,
        attention_pattern=tuple(x if x == "global" else 2 for x in config.attention_pattern),
    )
    assert Decoder(small).count_params() == small.count_parameters()


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "model_type",  # openai-gpt has the positions of gpt2
    ["gpt2", pytest.param("openai-gpt", marks=pytest.mark.slow), "modernbert-decoder"],
)
def test_greedy_texts_equal_hugging_face(model_type):
    """Prompts of three lengths in one batch here, one by one there."""
    model = reference(model_type)
    values = {name: array.numpy() for name, array in model.state_dict().items()}
    checkpoint = import_model(model.config.to_dict(), values, "the reference")
    decoder = Decoder(checkpoint.config)
    set_arrays(decoder, "decoder", checkpoint.part("decoder/"), checkpoint.source)
    lengths, new = np.array([3, 8, 5]), 7
    prompts = inputs()[:, :8]
    mask = (np.arange(8) < lengths[:, None]).astype("int32")

    def theirs(row, stop_id):
        prompt = torch.tensor(prompts[row : row + 1, : lengths[row]]).long()
        # Told, because a token that is the padding's would be taken for padding.
        mask = torch.ones_like(prompt)
        settings = {"max_new_tokens": new, "do_sample": False, "pad_token_id": 0}
        found = model.generate(prompt, attention_mask=mask, **settings, eos_token_id=stop_id)
        return found[0, lengths[row] :].tolist()

    stop_id = theirs(0, None)[4]  # what the first row writes fifth, if not before
    logits, cache = decoder.prefill(prompts, mask, new)
    found = decode(
        decoder.step, logits, cache, method=Greedy(), max_new_tokens=new, stop_ids=[stop_id]
    )
    for row, (ids, length) in enumerate(zip(found.token_ids, found.lengths, strict=True)):
        assert np.array(ids)[0, : int(length[0])].tolist() == theirs(row, stop_id)
    assert int(found.lengths[0, 0]) <= 5
