"""Configs of Hugging Face's encoder-decoders as published, and what is refused.

`tests/models/generators/test_reference_seq2seq.py` shows that what is read computes the same.
"""

import re

import numpy as np
import pytest

from kbert import Seq2Seq, family
from kbert.checkpoints import write_checkpoint
from kbert.checkpoints.huggingface.config import write_config
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.layers.positions import sinusoids
from kbert.models.bart.huggingface import Marian
from kbert.models.weights import get_arrays
from kbert.tokenizers import MarianTokenizer, train_unigram
from tests.harness import randomise

# Keys as published on the hub, of files of several years.
_SIDES = ("encoder", "decoder")
_BART = {
    "activation_dropout": 0.1,
    "activation_function": "gelu",
    "add_bias_logits": False,
    "add_final_layer_norm": False,
    "attention_dropout": 0.1,
    "bos_token_id": 0,
    "classif_dropout": 0.1,
    "d_model": 768,
    **{f"{side}_attention_heads": 12 for side in _SIDES},
    **{f"{side}_ffn_dim": 3072 for side in _SIDES},
    **{f"{side}_layerdrop": 0.0 for side in _SIDES},
    **{f"{side}_layers": 6 for side in _SIDES},
    "decoder_start_token_id": 2,
    "dropout": 0.1,
    "early_stopping": True,
    "eos_token_id": 2,
    "forced_eos_token_id": 2,
    "init_std": 0.02,
    "is_encoder_decoder": True,
    "max_position_embeddings": 1024,
    "model_type": "bart",
    "no_repeat_ngram_size": 3,
    "normalize_before": False,
    "normalize_embedding": True,
    "num_beams": 4,
    "num_hidden_layers": 6,
    "pad_token_id": 1,
    "scale_embedding": False,
    "task_specific_params": {"summarization": {"num_beams": 4}},
    "use_cache": True,
    "vocab_size": 50265,
}
_T5 = {
    "d_ff": 2048,
    "d_kv": 64,
    "d_model": 512,
    "decoder_start_token_id": 0,
    "dropout_rate": 0.1,
    "eos_token_id": 1,
    "initializer_factor": 1.0,
    "is_encoder_decoder": True,
    "layer_norm_epsilon": 1e-06,
    "model_type": "t5",
    "n_positions": 512,
    "num_heads": 8,
    "num_layers": 6,
    "output_past": True,
    "pad_token_id": 0,
    "relative_attention_num_buckets": 32,
    "vocab_size": 32128,
}
_FLAN = {
    **_T5,
    **{"d_ff": 1024, "num_heads": 6, "num_layers": 8, "num_decoder_layers": 8},
    **{"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False},
}
PUBLISHED = {
    "facebook/bart-base": _BART,
    "t5-small": _T5,
    "google/flan-t5-small": _FLAN,
    "google/mt5-small": {**_FLAN, "model_type": "mt5", "vocab_size": 250112},
}


def read(content, arrays=None):
    return import_model(content, arrays or {}, "there").config


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_those_of_the_family(name):
    # Whether T5's output has a table of its own is in the weights.
    config = read(PUBLISHED[name], {"lm_head.weight": np.ones((1, 1), "float32")}
                  if "flan" in name or "mt5" in name else None)  # fmt: skip
    assert config == family(name)
    kind = PUBLISHED[name]["model_type"]
    content, _ = export_model(config, {"seq2seq/embeddings/token": np.zeros((2, 2), "float32")},
                              architecture=kind)  # fmt: skip
    for key in (*PUBLISHED[name].keys() & content.keys(), "model_type"):
        assert content[key] == PUBLISHED[name][key], key
    assert content["architectures"][0].endswith("ForConditionalGeneration")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("facebook/bart-base", {"normalize_before": True}, "`normalize_before` must be False"),
        ("facebook/bart-base", {"encoder_layerdrop": 0.1}, "`encoder_layerdrop` must be 0.0"),
        (
            "facebook/bart-base",
            {"decoder_ffn_dim": 5},
            "`decoder_ffn_dim` must be equal to `encoder_ffn_dim`.*Received: 5 and 3072",
        ),
        ("facebook/bart-base", {"is_encoder_decoder": False}, "`is_encoder_decoder` must be True"),
        ("facebook/bart-base", {"tie_word_embeddings": False}, "`tie_word_embeddings` must be"),
        ("facebook/bart-base", {"rope_theta": 1.0}, "unknown rope_theta"),
        ("t5-small", {"feed_forward_proj": "gated-mish"}, "activation must be.*Received: 'mish'"),
        ("t5-small", {"feed_forward_proj": "half-relu"}, "activation must .*Received: 'half-relu'"),
        ("t5-small", {"dense_act_fn": "mish"}, "activation must be one of gelu.*Received: 'mish'"),
        ("t5-small", {"is_decoder": True}, "`is_decoder` must be False"),
    ],
)
def test_what_kbert_does_not_support_is_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        read({**PUBLISHED[name], **changes})


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu", "tanh"])
@pytest.mark.parametrize("feed_forward", ["dense", "gated"])
def test_a_t5_of_any_activation_is_written_and_read(activation, feed_forward):
    changes = {"activation": activation, "feed_forward": feed_forward}
    config = family("t5-small").replace(**changes)
    content, _ = export_model(config, {})
    assert read(content) == config
    if (activation, feed_forward) != ("gelu", "gated"):  # "gated-gelu" is the tanh form
        del content["dense_act_fn"]
        assert read(content) == config


@pytest.mark.parametrize("value", [False, None])
@pytest.mark.parametrize("changes", [{}, {"model_type": "mbart"}])
def test_configs_of_transformers_3_and_4_have_a_key_of_blenderbot(changes, value):
    content = {**_BART, **changes}
    if changes:
        content |= {"normalize_before": True, "add_final_layer_norm": True}
    key = "do_blenderbot_90_layernorm"
    assert read({**content, key: value}) == read(content)
    with pytest.raises(ValueError, match=f"`{key}` must be False"):
        read({**content, key: True})


def test_vocabularies_of_marian_fit_its_embeddings():
    content = {**_BART, "model_type": "marian", "normalize_embedding": False}
    content |= {"decoder_vocab_size": 90}
    with pytest.raises(ValueError, match="`decoder_vocab_size` must be equal to `vocab_size`"):
        read(content)
    config = read({**content, "share_encoder_decoder_embeddings": False})
    assert (config.vocabulary_size, config.target_vocabulary_size) == (50265, 90)


def test_other_positions_than_sines_are_refused():
    content = {**_BART, "model_type": "marian", "normalize_embedding": False, "d_model": 24}
    name = "model.encoder.embed_positions.weight"
    table = sinusoids(1024, 24, halves=True)
    read(content, {name: table})
    with pytest.raises(ValueError, match=f"must be sines and cosines.*other values in {name}"):
        read(content, {name: table + 0.1})


@pytest.mark.parametrize(
    ("name", "changes", "architecture", "message"),
    [
        ("transformer-tiny", {}, None, "positions is 'sinusoidal_halves' in all of them"),
        ("t5-small", {"dropout": 0.2}, None, "it has one dropout rate"),
        ("t5-small", {}, "mt5", "it does not scale states"),
        ("facebook/bart-base", {"initializer_range": None}, None, "it has an initializer_range"),
        ("facebook/bart-base", {"norm": "rms"}, None, "norm is 'layer' in all of them"),
    ],
)
def test_what_transformers_does_not_have_is_refused(name, changes, architecture, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        export_model(family(name).replace(**changes), {}, architecture=architecture)


def test_a_tied_t5_of_version_1_1_is_written_for_all_versions(tmp_path):
    """transformers 4 reads `tie_word_embeddings`, 5 the file and `scale_decoder_outputs`."""
    sizes = {"vocabulary_size": 9, "hidden_size": 8, "num_layers": 1, "num_heads": 2}
    config = family("google/flan-t5-small").replace(**sizes, output="tied", intermediate_size=4)
    seq2seq = Seq2Seq(config)
    randomise(seq2seq)
    arrays = get_arrays(seq2seq, "seq2seq")
    content, renamed = export_model(config, arrays)
    assert content["tie_word_embeddings"] is False
    np.testing.assert_array_equal(renamed["lm_head.weight"], renamed["shared.weight"])
    write_checkpoint(tmp_path, config, arrays, "huggingface")
    assert Seq2Seq.from_preset(tmp_path).config == config


def test_a_target_language_of_marian_is_refused():
    model = train_unigram(["the light of the night"] * 9, 30, layout="fairseq")
    tokenizer = MarianTokenizer(model, ["</s>", "<unk>", "▁the", ">>de<<", "<pad>"])
    config = family("Helsinki-NLP/opus-mt-en-de")
    content = write_config(Marian(), config, tokenizer)
    ids = [content[f"{name}_token_id"] for name in ("eos", "pad")]
    assert ids == [0, 4]
    with pytest.raises(ValueError, match=r"write the code in the texts.*target_language='>>de<<'"):
        write_config(Marian(), config, tokenizer.with_languages(target=">>de<<"))


_MNLI = {  # the keys of facebook/bart-large-mnli
    **_BART,
    **{"_num_labels": 3, "classifier_dropout": 0.0, "gradient_checkpointing": False},
    **{"architectures": ["BartForSequenceClassification"], "output_past": False},
    "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"},
    "label2id": {"contradiction": 0, "neutral": 1, "entailment": 2},
}


def head(prefix="classification_head", outputs=3):
    inner = {f"{prefix}.dense.weight": np.ones((8, 8)), f"{prefix}.dense.bias": np.ones(8)}
    last = f"{prefix}.out_proj" if prefix == "classification_head" else prefix
    shapes = {f"{last}.weight": np.ones((outputs, 8)), f"{last}.bias": np.ones(outputs)}
    return shapes | (inner if prefix == "classification_head" else {})


def test_a_published_classifier_with_the_buffers_of_old_files(caplog):
    versions = {f"model.{side}.version": np.ones(1) for side in _SIDES}
    found = import_model(_MNLI, head() | versions, "there")
    assert found.task == {"kind": "classify", "dropout": 0.0}
    assert found.labels == ("contradiction", "neutral", "entailment")
    assert set(found.left) == {*versions}
    assert {"pooler/kernel", "pooler/bias", "classifier/dense/kernel"} <= found.arrays.keys()
    found = import_model({**_MNLI, "architectures": None}, head("qa_outputs", 2), "there")
    assert found.task == {"kind": "answer"}


def test_heads_that_read_other_rows_are_refused():
    message = r"must be equal to `eos_token_id`. Received: 0 and 2"
    for arrays in (head(), head("qa_outputs", 2)):
        with pytest.raises(ValueError, match=message):
            import_model({**_MNLI, "decoder_start_token_id": 0}, arrays, "there")
    mbart = {"model_type": "mbart", "normalize_before": True, "add_final_layer_norm": True}
    mbart["architectures"] = ["MBartForSequenceClassification"]
    found = import_model({**_MNLI, **mbart}, head(), "there")
    assert (found.task, found.labels) == (None, None)
    assert found.foreign_head.startswith("a head of MBartForSequenceClassification that kbert has")
