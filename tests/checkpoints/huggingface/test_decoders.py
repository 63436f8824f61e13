"""Configs and weights of Hugging Face's GPT and GPT-2 as published, and what is refused.

`tests/models/generators/test_reference_decoder.py` shows that what is read computes the same.
"""

import numpy as np
import pytest

from kbert import family
from kbert.checkpoints import read_checkpoint, write_checkpoint
from kbert.checkpoints.huggingface.architectures import find, infer
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.configs.decoder import DecoderConfig
from kbert.models.generators.decoder import Decoder
from kbert.models.weights import get_arrays
from tests.harness import randomise, tiny_config

# As published on the hub.
_GPT = {
    "attn_pdrop": 0.1,
    "embd_pdrop": 0.1,
    "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05,
    "n_embd": 768,
    "n_head": 12,
    "n_layer": 12,
    "resid_pdrop": 0.1,
    "summary_activation": None,
    "summary_first_dropout": 0.1,
    "summary_proj_to_labels": True,
    "summary_type": "cls_index",
    "summary_use_proj": True,
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}
PUBLISHED = {
    "openai-gpt": {
        **_GPT,
        "afn": "gelu",
        "architectures": ["OpenAIGPTLMHeadModel"],
        "model_type": "openai-gpt",
        "n_ctx": 512,
        "n_positions": 512,
        "n_special": 0,
        "predict_special_tokens": True,
        "vocab_size": 40478,
    },
    "gpt2": {
        **_GPT,
        "activation_function": "gelu_new",
        "architectures": ["GPT2LMHeadModel"],
        "bos_token_id": 50256,
        "eos_token_id": 50256,
        "model_type": "gpt2",
        "n_ctx": 1024,
        "n_positions": 1024,
        "vocab_size": 50257,
    },
}
SMALL = {"n_embd": 8, "n_head": 2, "n_layer": 2, "vocab_size": 11, "n_positions": 6}


def read(content, arrays=None):
    return import_model(content, arrays or {}, "there").config


def small(name="gpt2", **changes):
    return {**PUBLISHED[name], **SMALL, **changes}


def decoder_of(name="gpt2"):
    decoder = Decoder(read(small(name)))
    randomise(decoder)
    return decoder


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_those_of_the_family(name):
    config = read(PUBLISHED[name])
    assert config == family(name)
    assert infer(config, [], "bpe") == name
    content, _ = export_model(config, {})
    assert content.items() <= (PUBLISHED[name] | {"n_inner": None}).items()
    assert read(content) == config


@pytest.mark.parametrize(
    ("changes", "field", "expected"),
    [
        ({"activation_function": "gelu"}, "activation", "gelu"),
        ({"activation_function": "relu"}, "activation", "relu"),
        ({"n_inner": 24}, "intermediate_size", 24),
        ({"n_inner": None}, "intermediate_size", 32),
        ({"layer_norm_epsilon": 1e-3}, "layer_norm_epsilon", 1e-3),
        ({"attn_pdrop": 0.3}, "attention_dropout", 0.3),
        ({"resid_pdrop": 0, "embd_pdrop": 0}, "dropout", 0),
        ({"initializer_range": 0.5}, "initializer_range", 0.5),
        ({"reorder_and_upcast_attn": True}, "block", "pre_norm"),
    ],
)
def test_every_value_is_read_and_written_again(changes, field, expected):
    config = read(small(**changes))
    assert getattr(config, field) == expected
    content, _ = export_model(config, {})
    assert read(content) == config


def test_gelu_is_the_tanh_form_in_gpt_alone():
    assert read(small("openai-gpt")).activation == "gelu_tanh"
    assert read(small(activation_function="gelu")).activation == "gelu"
    content, _ = export_model(family("openai-gpt"), {})
    assert content["afn"] == "gelu"


def test_another_rate_on_embeddings_is_said_and_left(caplog):
    assert read(small(embd_pdrop=0.2)).dropout == 0.1
    assert "that of GPT-2's resid_pdrop, 0.1; embd_pdrop is not used: 0.2 in" in (caplog.text)
    caplog.clear()
    read(small())
    assert not caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            small(scale_attn_weights=False),
            "`scale_attn_weights` must be True in a config of .*GPT-2",
        ),
        (small(scale_attn_by_inverse_layer_idx=True), "layer_idx` must be False.*Received: True"),
        (small(add_cross_attention=True), "`add_cross_attention` must be False"),
        (small(rotary=True), "Every key .* supported.*unknown rotary in there"),
        (small("openai-gpt", afn="gelu_new"), "must be one of gelu, relu, silu, swish. Received"),
        (small("openai-gpt", n_inner=3), "unknown n_inner"),
    ],
)
def test_what_changes_the_function_is_refused(content, message):
    with pytest.raises(ValueError, match=message):
        read(content)


@pytest.mark.parametrize("name", PUBLISHED)
def test_files_without_prefix_and_with_buffers_as_published(name):
    decoder = decoder_of(name)
    _, there = export_model(decoder.config, get_arrays(decoder, "decoder"))
    bare = {key.removeprefix("transformer."): array for key, array in there.items()}
    buffers = {"h.0.attn.bias": np.ones((1, 1, 6, 6)), "h.1.attn.masked_bias": np.ones(())}
    bare |= buffers | {"position_ids": np.arange(6)}
    checkpoint = import_model(small(name), bare, "there")
    left = {*buffers, "position_ids"}
    assert set(checkpoint.left) == {f"transformer.{key}" for key in left}
    assert checkpoint.task == {"kind": "causal_lm"}
    expected = get_arrays(decoder, "decoder")
    assert checkpoint.arrays.keys() == expected.keys()
    for key, array in expected.items():
        np.testing.assert_array_equal(checkpoint.arrays[key], array, err_msg=key)


def test_the_output_matrix_is_the_token_table_or_refused():
    decoder = decoder_of()
    _, there = export_model(decoder.config, get_arrays(decoder, "decoder"))
    table = there["transformer.wte.weight"]
    tied = import_model(small(), {**there, "lm_head.weight": table}, "there")
    assert tied.arrays.keys() == get_arrays(decoder, "decoder").keys()
    del there["transformer.wte.weight"]  # of the two names one is in the file, either of them
    other = import_model(small(), {**there, "lm_head.weight": table}, "there")
    np.testing.assert_array_equal(other.arrays["decoder/embeddings/token"], table)
    there["transformer.wte.weight"] = table
    with pytest.raises(ValueError, match=r"lm_head.weight' must be equal to 'transformer.wte"):
        import_model(small(), {**there, "lm_head.weight": table + 1}, "there")


def test_heads_and_unknown_weights_are_handed_back():
    decoder = decoder_of()
    _, there = export_model(decoder.config, get_arrays(decoder, "decoder"))
    there |= {"qa_outputs.weight": np.ones((2, 8)), "transformer.h.9.ln_1.bias": np.ones(8)}
    found = import_model(small(), there, "there")
    assert {"qa_outputs.weight", "decoder/transformer.h.9.ln_1.bias"} <= found.arrays.keys()
    assert found.task is None
    assert found.foreign_head == (
        "a head of GPT2LMHeadModel that kbert has no task for (qa_outputs.weight)"
    )
    found = import_model({**small(), "architectures": None}, there, "there")
    assert found.foreign_head.startswith("a head of GPT-2 that")


def test_a_decoder_that_the_architecture_cannot_be():
    with pytest.raises(ValueError, match=r"GPT does not support this model: .*four times as wide"):
        export_model(family("openai-gpt").replace(intermediate_size=100), {})
    with pytest.raises(ValueError, match=r"GPT does not .* this model: .*no activation 'gelu'"):
        export_model(family("openai-gpt").replace(activation="gelu"), {})
    with pytest.raises(ValueError, match="block is 'post_norm' in all of them"):
        export_model(family("gpt2"), {}, architecture="openai-gpt")
    with pytest.raises(ValueError, match=r"BERT does not .* model: .*of the kind EncoderConfig"):
        export_model(family("gpt2"), {}, architecture="bert")
    with pytest.raises(
        ValueError, match=r"GPT-2 does not support this model: .*of the kind DecoderConfig"
    ):
        export_model(tiny_config(), {}, architecture="gpt2")


def test_formats_of_each_kind_of_model(tmp_path):
    elmo = family("elmo-small")
    for config, formats in ((family("gpt2"), "kbert, huggingface"), (elmo, "kbert, bilm")):
        with pytest.raises(ValueError, match=f"one of {formats}. Received: 'keras_hub'"):
            write_checkpoint(tmp_path, config, {}, "keras_hub")
    with pytest.raises(ValueError, match=r"DecoderConfig or a Seq2SeqConfig. Received: Elmo"):
        infer(elmo, [], None)


@pytest.mark.parametrize("name", PUBLISHED)
def test_kbert_s_own_folder(name, tmp_path):
    decoder = decoder_of(name)
    decoder.save_to_preset(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    assert isinstance(checkpoint.config, DecoderConfig)
    assert checkpoint.config == decoder.config
    arrays = get_arrays(Decoder.from_preset(tmp_path), "decoder")
    for key, array in get_arrays(decoder, "decoder").items():
        np.testing.assert_array_equal(arrays[key], array, err_msg=key)


def test_the_kind_of_model_that_a_folder_holds_is_named(tmp_path):
    from kbert.models import Encoder

    decoder_of().save_to_preset(tmp_path, format="huggingface")
    with pytest.raises(ValueError, match=r"kbert.Encoder loads. Received: a decoder, which"):
        Encoder.from_preset(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sliding_window": 0}, "`sliding_window` must be .* at least 1. Received: 0 in there"),
        ({"sliding_window": None}, "`sliding_window` must be .*: None in there"),
        ({"local_attention": 1}, "`local_attention` must be .* at least 2. Received: 1 in there"),
    ],
)
def test_a_window_is_refused_by_the_file_s_key(changes, message):
    sizes = {"vocabulary_size": 9, "hidden_size": 8, "num_layers": 2, "num_heads": 2}
    table = find("modernbert-decoder", "memory")
    config = DecoderConfig(**sizes, intermediate_size=16, **table.fixed)
    windowed = config.replace(attention_pattern=("global", 4), local_rotary_base=10_000.0)
    content, _ = export_model(windowed, {}, architecture="modernbert-decoder")
    if "local_attention" in changes:
        del content["sliding_window"]
    with pytest.raises(ValueError, match=message):
        import_model({**content, **changes}, {}, "there")
    whole, _ = export_model(config, {}, architecture="modernbert-decoder")
    import_model({**whole, **changes}, {}, "there")  # no layer has one
