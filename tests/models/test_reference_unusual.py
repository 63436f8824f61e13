"""Equality with Hugging Face's architectures of configs that nobody published, there and back."""

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint, write_checkpoint
from tests.models.references import (
    POSITIONS,
    make_inputs,
    make_reference,
    run_kbert,
    run_reference,
    with_global_tokens,
)
from tests.models.test_reference_family import LOGITS, compare

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytestmark = pytest.mark.tensorflow

_MASKED, _TOKENS, _TEXT = "ForMaskedLM", "ForTokenClassification", "ForSequenceClassification"
SLOW = pytest.mark.slow
_OWN = {"share_att_key": False, "norm_rel_ebd": "none"}
CASES = [
    # Heads have an activation of their own.
    ("modernbert", _TEXT, {"classifier_activation": "relu", "num_attention_heads": 1}),
    (
        "modernbert",
        "ForQuestionAnswering",
        {"hidden_activation": "relu", "classifier_dropout": 0.1},
    ),
    ("modernbert", _MASKED, {"hidden_activation": "silu", "classifier_activation": "tanh"}),
    ("roberta", _MASKED, {"hidden_act": "relu"}),
    ("electra", _MASKED, {"hidden_act": "silu"}),
    # Windows, half of an odd one rounded down and a wide one holding every token; biases of some
    # parts.
    (
        "modernbert",
        _MASKED,
        {"local_attention": 7, "attention_bias": True, "decoder_bias": False},
    ),
    (
        "modernbert",
        _TOKENS,
        {
            **{"local_attention": 30, "hidden_activation": "silu"},
            **{"mlp_bias": True, "norm_bias": True},
        },
    ),
    (
        "modernbert",
        _TEXT,
        {"local_attention": 1000, "classifier_bias": True, "attention_bias": True},
    ),
    ("longformer", "Model", {"attention_window": 64}),
    ("eurobert", _TEXT, {"attention_bias": True}),
    ("eurobert", _TOKENS, {"mlp_bias": True}),
    pytest.param("eurobert", _MASKED, {"mlp_bias": True, "attention_bias": True}, marks=SLOW),
    ("eurobert", _MASKED, {"tie_word_embeddings": True}),
    # Buckets that run ahead of their distances, and tables without.
    ("deberta-v2", "Model", {"position_buckets": 16, "max_relative_positions": 16}),
    pytest.param(
        *("deberta-v2", "Model", {"position_buckets": 16, "max_relative_positions": 10}),
        marks=SLOW,
    ),
    ("deberta-v2", "Model", {"position_buckets": 24, "max_relative_positions": -1}),
    ("deberta-v2", "Model", {**_OWN, "position_buckets": -1, "position_biased_input": True}),
    ("deberta-v2", "Model", {**_OWN, "pos_att_type": "p2c", "type_vocab_size": 2}),
    ("deberta", _MASKED, {"pos_att_type": "c2p", "position_biased_input": True}),
    # One head.
    ("deberta-v2", "Model", {"num_attention_heads": 1}),
    ("deberta", "Model", {"num_attention_heads": 1}),
    ("xlnet", "Model", {"n_head": 1}),
    ("mpnet", "Model", {"num_attention_heads": 1}),
    # The token table is tied to nothing where there is no such head.
    ("bert", _TEXT, {"tie_word_embeddings": False}),
    ("camembert", _MASKED, {"pad_token_id": 3}),
]


def assert_equal(models, checkpoint, ending, features):
    """Of one model of transformers, or of several that are the same."""
    if models[0].config.model_type == "longformer":
        features = with_global_tokens(features)
    ours = run_kbert(checkpoint, features)
    logits = {} if ending == "Model" else LOGITS[ending]
    for model in models:
        compare(ours, run_reference(model, features), features["padding_mask"] == 1, logits)


def segmented(checkpoint):
    return bool(checkpoint.config.num_segments)


@pytest.mark.parametrize(("model_type", "ending", "values"), CASES)
def test_unusual_configs(model_type, ending, values, tmp_path):
    model = make_reference(model_type, ending, **values)
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    left = model_type == "xlnet"
    features = make_inputs(model.config.pad_token_id, segmented(checkpoint), True, left=left)
    write_checkpoint(
        tmp_path / "ours",
        checkpoint.config,
        checkpoint.arrays,
        format="huggingface",
        architecture=model_type,
        task=checkpoint.task,
        labels=checkpoint.labels,
    )
    written, report = type(model).from_pretrained(
        tmp_path / "ours", output_loading_info=True, attn_implementation="eager"
    )
    assert not report["unexpected_keys"]
    assert_equal([model, written.eval()], checkpoint, ending, features)


@pytest.mark.parametrize(
    ("model_type", "values", "case"),
    [
        ("roberta", {}, "left"),
        ("xlm-roberta", {"type_vocab_size": 2}, "within"),
        ("longformer", {}, "left"),
        ("mpnet", {}, "within"),
        ("bert", {"pad_token_id": 3}, "within"),
        *(
            pytest.param(*values, marks=pytest.mark.slow)
            for values in (
                ("roberta", {}, "within"),
                ("xlm-roberta", {"type_vocab_size": 2}, "left"),
                ("longformer", {}, "within"),
                ("mpnet", {}, "left"),
                ("bert", {"pad_token_id": 3}, "left"),
            )
        ),
    ],
)
def test_padding_that_is_not_behind_the_text(model_type, values, case, tmp_path):
    model = make_reference(model_type, _TOKENS, **values)
    model.save_pretrained(tmp_path)
    checkpoint = read_checkpoint(tmp_path)
    pad_id = model.config.pad_token_id
    features = make_inputs(pad_id, segmented(checkpoint), True, left=case == "left")
    if case == "within":
        features["token_ids"][:, [0, 3, 4]] = pad_id
    assert_equal([model], checkpoint, _TOKENS, features)


def test_a_window_of_every_length_is_read(tmp_path):
    """As far as it makes a difference."""
    for window, read in ((4, 4), (5, 4), (2 * POSITIONS + 1, 2 * POSITIONS), (99, 2 * POSITIONS)):
        model = make_reference("modernbert", "Model", local_attention=window, num_hidden_layers=2)
        model.save_pretrained(tmp_path / str(window))
        config = read_checkpoint(tmp_path / str(window)).config
        assert config.attention_pattern == ("global", read)


def test_a_head_that_is_not_tied_is_refused_by_name(tmp_path):
    model = make_reference("bert", _MASKED, tie_word_embeddings=False)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"cls.predictions.decoder.weight' must be equal to 'bert"):
        read_checkpoint(tmp_path)


def test_the_first_deberta_s_keys_have_no_bias(tmp_path):
    model = make_reference("deberta", "Model")
    model.save_pretrained(tmp_path / "theirs")
    checkpoint = read_checkpoint(tmp_path / "theirs")
    arrays = dict(checkpoint.arrays)
    name = "encoder/layers/1/attention/distance_key/bias"
    arrays[name] = arrays[name] + np.float32(0.5)
    options = {"format": "huggingface", "architecture": "deberta"}
    with pytest.raises(ValueError, match=r"has no key biases: .*pos_key_proj.bias of up to 0.5"):
        write_checkpoint(tmp_path / "ours", checkpoint.config, arrays, **options)
