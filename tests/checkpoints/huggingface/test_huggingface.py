import numpy as np
import pytest

from kbert.checkpoints.huggingface import config as huggingface_config
from kbert.checkpoints.huggingface.architectures import find
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.models import describe
from tests.harness import tiny_config

ONES = np.ones(3)
BERT_BASE = {
    "architectures": ["BertForMaskedLM"],
    "attention_probs_dropout_prob": 0.1,
    "gradient_checkpointing": False,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "hidden_size": 768,
    "initializer_range": 0.02,
    "intermediate_size": 3072,
    "layer_norm_eps": 1e-12,
    "max_position_embeddings": 512,
    "model_type": "bert",
    "num_attention_heads": 12,
    "num_hidden_layers": 12,
    "pad_token_id": 0,
    "position_embedding_type": "absolute",
    "transformers_version": "4.6.0.dev0",
    "type_vocab_size": 2,
    "use_cache": True,
    "vocab_size": 30522,
}


def read_config(content, source):
    return huggingface_config.read_config(find(content["model_type"], source), content, source)


def read_weights(arrays, **changes):
    content, _ = export_model(tiny_config(), {})
    return import_model({**content, **changes}, arrays, "").arrays


def test_the_published_config_of_bert_base():
    config = read_config(BERT_BASE, "").replace(pooler_activation="tanh")
    assert config.activation == "gelu"  # the erf form, not what Google's own code trained with
    assert describe(config).parameters == 109_482_240


@pytest.mark.parametrize(
    "keys",
    [
        # What transformers 2 wrote into every config.
        {
            "bos_token_id": 0,
            "do_sample": False,
            "eos_token_ids": 0,
            "length_penalty": 1.0,
            "max_length": 20,
            "num_beams": 1,
            "num_return_sequences": 1,
            "output_past": True,
            "pruned_heads": {},
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 50,
            "top_p": 1.0,
            "torchscript": False,
        },
        # Cross-encoders of Sentence Transformers, before version 4 and since.
        {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
        {"sentence_transformers": {"activation_fn": "torch.nn.Sigmoid", "version": "4.0.1"}},
    ],
)
def test_keys_of_other_programs_say_nothing_about_the_encoder(keys):
    assert read_config({**BERT_BASE, **keys}, "") == read_config(BERT_BASE, "")


def test_what_tinybert_was_distilled_with_is_left():
    content, there = export_model(tiny_config(pooler_activation=None), {"masked_lm/bias": ONES})
    there |= {"fit_dense.weight": ONES, "fit_denses.4.bias": ONES, "bert.fit": ONES}
    checkpoint = import_model(content, there, "")
    assert checkpoint.left == ("fit_dense.weight", "fit_denses.4.bias")
    assert checkpoint.arrays.keys() == {"masked_lm/bias", "encoder/bert.fit"}


@pytest.mark.parametrize(
    ("key", "value", "field", "expected"),
    [
        ("hidden_act", "gelu_new", "activation", "gelu_tanh"),
        ("hidden_act", "relu", "activation", "relu"),
        ("layer_norm_eps", 1e-5, "layer_norm_epsilon", 1e-5),
        ("type_vocab_size", 4, "num_segments", 4),
        ("max_position_embeddings", 64, "max_positions", 64),
        ("hidden_dropout_prob", 0, "dropout", 0),
        ("attention_probs_dropout_prob", 0.3, "attention_dropout", 0.3),
        ("initializer_range", 0.5, "initializer_range", 0.5),
    ],
)
def test_every_value_is_read(key, value, field, expected):
    assert getattr(read_config({**BERT_BASE, key: value}, ""), field) == expected


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "led"}, "architectures bert.*Received: 'led' in there"),
        ({"position_embedding_type": "relative_key"}, "must be 'absolute'.*'relative_key'"),
        ({"is_decoder": True}, "`is_decoder` must be False.*True"),
        ({"rotary_base": 1}, "Every key .* supported.*unknown rotary_base in there"),
        ({"hidden_act": "mish"}, "The activation must be one of gelu, .*'mish' in there"),
        ({"hidden_size": 770}, "multiple of `num_heads`"),
    ],
)
def test_a_config_that_is_not_understood_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        read_config({**BERT_BASE, **changes}, "there")


def test_a_missing_size_is_named():
    content = {k: v for k, v in BERT_BASE.items() if k != "vocab_size"}
    with pytest.raises(ValueError, match=r"must have vocab_size. Received: there"):
        read_config(content, "there")


def test_configs_go_both_ways():
    config = tiny_config(activation="gelu_tanh", layer_norm_epsilon=1e-5, pooler_activation=None)
    content, _ = export_model(config, {})
    assert read_config(content, "") == config


def hub_arrays(prefix="bert.", pooler=True):
    """A file as transformers writes it: PyTorch's names and layout, random values."""
    rng = np.random.default_rng(0)
    shapes = {
        "embeddings.word_embeddings.weight": (40, 16),
        "embeddings.position_embeddings.weight": (24, 16),
        "embeddings.token_type_embeddings.weight": (2, 16),
        "embeddings.LayerNorm.weight": (16,),
        "embeddings.LayerNorm.bias": (16,),
    }
    for i in range(2):
        layer = f"encoder.layer.{i}"
        for name, (rows, columns) in {
            "attention.self.query": (16, 16),
            "attention.self.key": (16, 16),
            "attention.self.value": (16, 16),
            "attention.output.dense": (16, 16),
            "intermediate.dense": (32, 16),
            "output.dense": (16, 32),
        }.items():
            shapes[f"{layer}.{name}.weight"] = (rows, columns)
            shapes[f"{layer}.{name}.bias"] = (rows,)
        for name in ("attention.output.LayerNorm", "output.LayerNorm"):
            shapes[f"{layer}.{name}.weight"] = shapes[f"{layer}.{name}.bias"] = (16,)
    if pooler:
        shapes |= {"pooler.dense.weight": (16, 16), "pooler.dense.bias": (16,)}
    return {
        prefix + name: rng.normal(size=shape).astype("float32") for name, shape in shapes.items()
    }


def test_weights_go_both_ways():
    there = hub_arrays()
    here = read_weights(there)
    query = there["bert.encoder.layer.1.attention.self.query.weight"]
    value = there["bert.encoder.layer.1.attention.self.value.weight"]
    kernel = here["encoder/layers/1/attention/qkv/kernel"]
    np.testing.assert_array_equal(kernel[:, :16], query.T)
    np.testing.assert_array_equal(kernel[:, 32:], value.T)
    _, back = export_model(tiny_config(), here)
    assert back.keys() == there.keys()
    for name in there:
        np.testing.assert_array_equal(back[name], there[name])


def test_no_prefix_old_names_of_norms_and_buffers():
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ): array
        for name, array in hub_arrays(prefix="").items()
    }
    old["embeddings.position_ids"] = np.arange(24)[None]
    here = read_weights(old)
    expected = read_weights(hub_arrays())
    assert here.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(here[name], expected[name])


def test_heads_come_along():
    there = hub_arrays()
    there["cls.predictions.bias"] = np.ones(40, "float32")
    there["cls.predictions.decoder.weight"] = there["bert.embeddings.word_embeddings.weight"]
    there["cls.seq_relationship.weight"] = np.ones((2, 16), "float32")
    there["classifier.weight"] = np.ones((3, 16), "float32")
    there["classifier.bias"] = np.ones(3, "float32")
    here = read_weights(there)
    assert here["masked_lm/bias"].shape == (40,)
    assert here["sentence/dense/kernel"].shape == (16, 2)
    assert here["classifier/dense/kernel"].shape == (16, 3)


def test_an_untied_output_matrix_is_refused():
    there = hub_arrays()
    there["cls.predictions.decoder.weight"] = np.ones((40, 16), "float32")
    with pytest.raises(ValueError, match=r"decoder.weight' must be equal to .*word_embeddings"):
        read_weights(there)


def test_what_no_rule_takes_is_handed_back():
    there = hub_arrays()
    there["bert.encoder.layer.2.output.dense.bias"] = np.ones(16, "float32")
    assert "encoder/bert.encoder.layer.2.output.dense.bias" in read_weights(there)
