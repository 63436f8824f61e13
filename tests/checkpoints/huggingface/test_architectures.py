"""The tables of architectures: published configs, what each cannot be, and oddities of weights."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kbert import family
from kbert.checkpoints.huggingface import config as huggingface_config
from kbert.checkpoints.huggingface.architectures import ARCHITECTURES, find, infer
from kbert.checkpoints.huggingface.architectures.deberta import USUAL
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.models import Encoder
from kbert.models.parts import Disentangled
from kbert.models.weights import get_arrays
from tests.harness import KINDS, randomise, tiny_config

# As published on the hub.
PUBLISHED = {
    "roberta-base": {
        "architectures": ["RobertaForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "model_type": "roberta",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "xlm-roberta-base": {
        "architectures": ["XLMRobertaForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514,
        "model_type": "xlm-roberta",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "output_past": True,
        "pad_token_id": 1,
        "position_embedding_type": "absolute",
        "transformers_version": "4.17.0.dev0",
        "type_vocab_size": 1,
        "use_cache": True,
        "vocab_size": 250002,
    },
    "albert-base-v2": {
        "architectures": ["AlbertForMaskedLM"],
        "attention_probs_dropout_prob": 0,
        "bos_token_id": 2,
        "classifier_dropout_prob": 0.1,
        "down_scale_factor": 1,
        "embedding_size": 128,
        "eos_token_id": 3,
        "gap_size": 0,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "inner_group_num": 1,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "albert",
        "net_structure_type": 0,
        "num_attention_heads": 12,
        "num_hidden_groups": 1,
        "num_hidden_layers": 12,
        "num_memory_blocks": 0,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": 30000,
    },
    "distilbert-base-uncased": {
        "activation": "gelu",
        "architectures": ["DistilBertForMaskedLM"],
        "attention_dropout": 0.1,
        "dim": 768,
        "dropout": 0.1,
        "hidden_dim": 3072,
        "initializer_range": 0.02,
        "max_position_embeddings": 512,
        "model_type": "distilbert",
        "n_heads": 12,
        "n_layers": 6,
        "pad_token_id": 0,
        "qa_dropout": 0.1,
        "seq_classif_dropout": 0.2,
        "sinusoidal_pos_embds": False,
        "tie_weights_": True,
        "transformers_version": "4.10.0.dev0",
        "vocab_size": 30522,
    },
    "answerdotai/ModernBERT-base": {
        "architectures": ["ModernBertForMaskedLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 50281,
        "classifier_activation": "gelu",
        "classifier_bias": False,
        "classifier_dropout": 0.0,
        "classifier_pooling": "mean",
        "cls_token_id": 50281,
        "decoder_bias": True,
        "deterministic_flash_attn": False,
        "embedding_dropout": 0.0,
        "eos_token_id": 50282,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "gradient_checkpointing": False,
        "hidden_activation": "gelu",
        "hidden_size": 768,
        "initializer_cutoff_factor": 2.0,
        "initializer_range": 0.02,
        "intermediate_size": 1152,
        "layer_norm_eps": 1e-05,
        "local_attention": 128,
        "local_rope_theta": 10000.0,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "mlp_dropout": 0.0,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": 12,
        "num_hidden_layers": 22,
        "position_embedding_type": "absolute",
        "reference_compile": None,
        "sep_token_id": 50282,
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        "transformers_version": "4.47.0.dev0",
        "vocab_size": 50368,
    },
    "microsoft/deberta-v3-base": {
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-7,
        "max_position_embeddings": 512,
        "max_relative_positions": -1,
        "model_type": "deberta-v2",
        "norm_rel_ebd": "layer_norm",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pos_att_type": "p2c|c2p",
        "position_biased_input": False,
        "position_buckets": 256,
        "relative_attention": True,
        "share_att_key": True,
        "type_vocab_size": 0,
        "vocab_size": 128100,
    },
    "google/electra-small-discriminator": {
        "architectures": ["ElectraForPreTraining"],
        "attention_probs_dropout_prob": 0.1,
        "embedding_size": 128,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 1024,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "electra",
        "num_attention_heads": 4,
        "num_hidden_layers": 12,
        "summary_activation": "gelu",
        "summary_last_dropout": 0.1,
        "summary_type": "first",
        "summary_use_proj": True,
        "type_vocab_size": 2,
        "vocab_size": 30522,
    },
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_those_of_the_family(name):
    content = PUBLISHED[name]
    config = huggingface_config.read_config(find(content["model_type"], name), content, name)
    expected = family(name)
    assert config.replace(pooler_activation=expected.pooler_activation) == expected
    # And back: every key that was read is written with its value.
    written, _ = export_model(expected, {}, architecture=content["model_type"])
    for key, value in written.items():
        # Without a tokenizer the ids of tokens are none.
        assert content.get(key, value) == value or key == "architectures" or value is None, key


def read(name, **changes):
    content = {**PUBLISHED[name], **changes}
    return huggingface_config.read_config(find(content["model_type"], name), content, "there")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("roberta-base", {"pad_token_id": None}, "`pad_token_id` must be an id.*None in there"),
        ("roberta-base", {"is_decoder": True}, "`is_decoder` must be False"),
        ("albert-base-v2", {"inner_group_num": 2}, "`inner_group_num` must be 1.*2 in there"),
        ("albert-base-v2", {"num_hidden_layers": 18, "num_hidden_groups": 14}, "14 groups of 18"),
        ("distilbert-base-uncased", {"hidden_size": 768}, "unknown hidden_size in there"),
        ("distilbert-base-uncased", {"activation": "gelu2"}, "activation must be.*'gelu2'"),
        ("google/electra-small-discriminator", {"tie_word_embeddings": False}, "must be True"),
        ("google/electra-small-discriminator", {"summary": 1}, "unknown summary in there"),
        ("answerdotai/ModernBERT-base", {"classifier_pooling": "max"}, "one of cls, mean.*'max'"),
        ("answerdotai/ModernBERT-base", {"mlp_bias": True}, "all have a bias or none.*mlp_bias"),
        ("answerdotai/ModernBERT-base", {"layer_types": ["full_attention"]}, "each of the layers"),
        ("answerdotai/ModernBERT-base", {"global_attn_every_n_layers": 0}, "number of layers.* 0 "),
        ("answerdotai/ModernBERT-base", {"local_attention": 127}, "even number of tokens.*127 in"),
        (
            "answerdotai/ModernBERT-base",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}},
            "type 'default' for full_attention.*yarn",
        ),
        (
            "microsoft/deberta-v3-base",
            {"conv_kernel_size": 3},
            "`conv_kernel_size` must be 0 .*Received: 3 in there",
        ),
        (
            "microsoft/deberta-v3-base",
            {"position_biased_input": True},
            "`position_biased_input` must be False",
        ),
        (
            "microsoft/deberta-v3-base",
            {"pos_att_type": "p2p"},
            "must name p2c or c2p, or both. Received: 'p2p' in there",
        ),
        (
            "microsoft/deberta-v3-base",
            {"position_buckets": -1},
            "`position_buckets` must be given.*Received: -1 in",
        ),
        (
            "microsoft/deberta-v3-base",
            {"position_buckets": 7},
            "must be even.*Received: position_buckets=7",
        ),
        (
            "microsoft/deberta-v3-base",
            {"max_relative_positions": 10**30},
            "`max_distance` must be .* in there",
        ),
        (
            "microsoft/deberta-v3-base",
            {"max_relative_positions": "x"},
            "must be a whole number. Received: 'x' in there",
        ),
        (
            "microsoft/deberta-v3-base",
            {"embedding_size": 128},
            "must be the hidden size, 768. Received: 128 in there",
        ),
    ],
)
def test_configs_that_are_not_understood_are_refused(name, changes, message):
    with pytest.raises(ValueError, match=message):
        read(name, **changes)


@pytest.mark.parametrize("name", ["roberta-base", "distilbert-base-uncased"])
def test_a_missing_size_is_named(name):
    key = "n_layers" if "distil" in name else "num_hidden_layers"
    content = {k: v for k, v in PUBLISHED[name].items() if k != key}
    with pytest.raises(ValueError, match=f"must give {key}"):
        huggingface_config.read_config(find(content["model_type"], name), content, "")


@settings(max_examples=300, deadline=None)
@given(
    name=st.sampled_from(sorted(PUBLISHED)),
    values=st.lists(
        st.sampled_from(
            [None, "x", -1, 0, 1, 1.5, True, [], {}, [1], {"a": 1}, 10**30, float("nan")]
        ),
        min_size=1,
        max_size=2,
    ),
    data=st.data(),
)
def test_values_of_any_kind_are_read_or_refused(name, values, data):
    keys = sorted({*PUBLISHED[name], "model_type", "id2label", "num_labels"})
    changes = {data.draw(st.sampled_from(keys)): value for value in values}
    arrays = {"classifier.weight": np.ones((3, 4)), "classifier.bias": np.ones(3)}
    try:
        import_model({**PUBLISHED[name], **changes}, arrays, "there")
    except ValueError:
        return


@pytest.mark.parametrize(
    "key", ["relative_attention", "position_biased_input", "share_att_key", "norm_rel_ebd"]
)
def test_what_a_deberta_must_say(key):
    """Absent, transformers makes another model."""
    content = {k: v for k, v in PUBLISHED["microsoft/deberta-v3-base"].items() if k != key}
    with pytest.raises(ValueError, match=f"`{key}` must be .*Received: none in there"):
        import_model(content, {}, "there")


def test_the_attention_of_a_deberta():
    def part(**changes):
        return dict(read("microsoft/deberta-v3-base", **changes).part)

    usual = {"name": "disentangled", "position_buckets": 256, "max_distance": 512}
    for both in ("c2p|p2c", "P2C | c2p", ["c2p", "p2c"]):
        assert part(pos_att_type=both) == usual
    assert part(pos_att_type=["c2p"]) == {**usual, "terms": ["content_to_position"]}
    assert part(max_relative_positions=0, max_position_embeddings=600)["max_distance"] == 600
    assert part(max_relative_positions=300)["max_distance"] == 300
    written, _ = export_model(read("microsoft/deberta-v3-base", pos_att_type="c2p"), {})
    assert written["pos_att_type"] == "c2p"
    bare = family("microsoft/deberta-v3-base").replace(part={"name": "disentangled"})
    written, _ = export_model(bare, {})
    assert huggingface_config.read_config(find("deberta-v2", ""), written, "") == family(
        "microsoft/deberta-v3-base"
    )
    assert {**Disentangled().to_dict(), "terms": USUAL["terms"]} == USUAL
    assert Disentangled().terms == USUAL["terms"]


def test_the_masked_lm_head_of_deberta_by_both_of_its_names():
    config = tiny_config(**KINDS["disentangled"], activation="gelu", pooler_activation=None)
    arrays = arrays_of(config)
    rng = np.random.default_rng(0)
    shapes = {"transform/kernel": (16, 16), "transform/bias": (16,), "bias": (40,)}
    shapes |= {"norm/gamma": (16,), "norm/beta": (16,)}
    arrays |= {f"masked_lm/{name}": rng.normal(size=shape) for name, shape in shapes.items()}
    content, there = export_model(config, arrays)
    assert "cls.predictions.transform.LayerNorm.weight" in there
    head = "lm_predictions.lm_head."
    other = {
        name.replace("cls.predictions.transform.", head).replace("cls.predictions.", head): array
        for name, array in there.items()
    }
    assert sum(name.startswith(head) for name in other) == 5
    other["mask_predictions.dense.weight"] = np.zeros((16, 16))  # a head of Microsoft's
    for names in (there, other):
        found = import_model(content, names, "there")
        assert found.task["kind"] == "pretrain"
        assert found.arrays.keys() == arrays.keys()
        for name, array in arrays.items():
            np.testing.assert_array_equal(found.arrays[name], array)
    assert found.left == ("mask_predictions.dense.weight",)


def test_a_number_of_layers_that_would_fill_memory():
    content = {**PUBLISHED["distilbert-base-uncased"], "n_layers": 10**12}
    with pytest.raises(
        ValueError, match=r"taken to be damaged. Received: 1,000,000,000,000 in there"
    ):
        import_model(content, {}, "there")


def test_an_electra_without_its_projection():
    """Absent, `embedding_size` is 128: then embeddings of the hidden width say so."""
    content = {**PUBLISHED["google/electra-small-discriminator"], "vocab_size": 9}
    del content["embedding_size"]
    arrays = {"electra.embeddings.word_embeddings.weight": np.zeros((9, 256), "float32")}
    message = r"embeddings_project must widen .*embedding_size=128, hidden_size=256, .*width 256 an"
    with pytest.raises(ValueError, match=message):
        import_model(content, arrays, "there")
    found = import_model({**content, "embedding_size": 256}, arrays, "there")
    assert found.config.embedding_width == 256


def test_rows_of_roberta_s_positions_follow_its_padding():
    assert read("roberta-base", pad_token_id=0).max_positions == 513
    assert read("roberta-base", max_position_embeddings=130).max_positions == 128
    assert read("roberta-base", type_vocab_size=2).num_segments == 2


def test_an_unknown_architecture_lists_the_known():
    with pytest.raises(ValueError, match=f"{', '.join(ARCHITECTURES)}. Received: 't5' in there"):
        import_model({"model_type": "t5"}, {}, "there")


@pytest.mark.parametrize(
    ("changes", "names", "kind", "expected"),
    [
        ({}, (), None, "bert"),
        ({"num_layer_groups": 1}, (), None, "albert"),
        ({"num_layer_groups": 2, "embedding_size": 8}, (), None, "albert"),
        ({"embedding_size": 16}, (), None, "electra"),
        ({"pooler_activation": "gelu"}, (), None, "electra"),
        ({"pooler_activation": None}, ("discriminator/output/bias",), None, "electra"),
        ({"num_segments": 0, "pooler_activation": None}, (), "wordpiece", "distilbert"),
        ({"num_segments": 0, "pooler_activation": "relu"}, (), None, "distilbert"),
        ({"num_segments": 0}, (), "bpe", "roberta"),
        ({"num_segments": 0, "layer_norm_epsilon": 1e-5}, (), None, "roberta"),
        ({"num_segments": 0, "layer_norm_epsilon": 1e-5}, (), "unigram", "xlm-roberta"),
    ],
)
def test_the_architecture_that_is_written(changes, names, kind, expected):
    assert infer(tiny_config(**changes), names, kind) == expected


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_what_is_inferred_can_be_written(model_type):
    """The family's rows are written as what they are, but for XLM-R, which a vocabulary tells."""
    rows = {
        "bert": "bert-tiny",
        "roberta": "roberta-base",
        "xlm-roberta": "xlm-roberta-base",
        "albert": "albert-base-v2",
        "distilbert": "distilbert-base-uncased",
        "electra": "google/electra-base-discriminator",
        "modernbert": "answerdotai/ModernBERT-base",
        "modernbert-decoder": "jhu-clsp/ettin-decoder-17m",
        "deberta-v2": "microsoft/deberta-v3-small",
        "gpt2": "gpt2-large",
        "openai-gpt": "openai-gpt",
    }
    kind = "unigram" if model_type == "xlm-roberta" else "wordpiece"
    assert infer(family(rows[model_type]), (), kind) == model_type


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("bert", {"embedding_size": 4}, "BERT cannot be this model: its embeddings are of the hid"),
        ("bert", {"num_layer_groups": 1}, "its layers share no weights"),
        ("bert", {"num_segments": 0}, "it has 1 or more segments"),
        ("bert", {"pooler_activation": "relu"}, "its pooler has tanh"),
        ("bert", {"embedding_size": 4, "num_segments": 0}, "hidden width; it has 1 or more"),
        ("roberta", {"num_segments": 1}, "its one segment is no segment to kbert"),
        ("roberta", {"num_segments": 0, "num_layer_groups": 1}, "its layers share no weights"),
        ("albert", {"pooler_activation": "gelu"}, "ALBERT cannot be .*: its pooler has tanh"),
        ("distilbert", {}, "num_segments is 0 in all of them; its pooler has relu"),
        ("distilbert", {"num_segments": 0, "layer_norm_epsilon": 1e-5}, "epsilon is 1e-12 in all"),
        ("electra", {}, "ELECTRA cannot be this model: its pooler has gelu"),
        ("deberta-v2", {}, "positions is 'none' in all of them; its part is 'disentangled'"),
        ("t5", {}, "architectures bert, roberta, .* Received: 't5' in `architecture`"),
    ],
)
def test_what_an_architecture_cannot_be(architecture, changes, message):
    with pytest.raises(ValueError, match=message):
        export_model(tiny_config(**changes), {}, architecture=architecture)


def test_groups_that_hugging_face_rounds_otherwise_are_refused():
    with pytest.raises(ValueError, match=r"rounds .*Received: 14 groups of 18 layers"):
        export_model(tiny_config(num_layers=18, num_layer_groups=14), {})


def arrays_of(config):
    encoder = Encoder(config)
    randomise(encoder)
    return get_arrays(encoder, "encoder")


@pytest.mark.parametrize("architecture", ["roberta", "electra"])
def test_a_masked_lm_head_with_an_activation_of_its_own(architecture):
    changes = {"pooler_activation": None, "num_segments": 0 if architecture == "roberta" else 2}
    config = tiny_config(activation="gelu_tanh", **changes)
    with pytest.raises(ValueError, match=r"activation 'gelu' whatever .* activation='gelu_tanh'"):
        export_model(config, {"masked_lm/bias": np.zeros(40)}, architecture=architecture)
    assert export_model(config, {}, architecture=architecture)


def test_roberta_s_rows_without_a_use_are_zeros_and_its_segment_is_none():
    config = tiny_config(num_segments=0, layer_norm_epsilon=1e-5)
    arrays = arrays_of(config)
    content, there = export_model(config, arrays)
    positions = there["roberta.embeddings.position_embeddings.weight"]
    assert content["max_position_embeddings"] == len(positions) == 26
    assert not positions[:2].any()
    assert content["pad_token_id"] == 1
    np.testing.assert_array_equal(positions[2:], arrays["encoder/embeddings/position"])
    segments = there["roberta.embeddings.token_type_embeddings.weight"]
    assert segments.shape == (1, 16)
    assert not segments.any()
    assert content["type_vocab_size"] == 1
    segments += 1
    again = import_model(content, there, "")
    np.testing.assert_array_equal(
        again.arrays["encoder/embeddings/position"], arrays["encoder/embeddings/position"] + 1
    )
    del there["roberta.embeddings.token_type_embeddings.weight"]
    with pytest.raises(ValueError, match=r"weights of a RoBERTa hold .*token_type_embeddings"):
        import_model(content, there, "")


def test_roberta_with_segments_keeps_them():
    config = tiny_config(num_segments=3)
    arrays = arrays_of(config)
    content, there = export_model(config, arrays, architecture="roberta")
    again = import_model(content, there, "")
    assert again.config == config
    assert again.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_an_old_file_of_a_roberta_classifier_also_has_a_pooler_that_nothing_reads():
    config = tiny_config(num_segments=0)
    arrays = arrays_of(config)
    head = {"classifier/dense/kernel": np.ones((16, 3)), "classifier/dense/bias": np.ones(3)}
    content, there = export_model(config, {**arrays, **head}, architecture="roberta")
    assert content["architectures"] == ["RobertaForSequenceClassification"]
    there["roberta.pooler.dense.weight"] = np.zeros((16, 16))
    there["roberta.pooler.dense.bias"] = np.zeros(16)
    checkpoint = import_model(content, there, "")
    assert checkpoint.left == ("roberta.pooler.dense.weight", "roberta.pooler.dense.bias")
    again = checkpoint.arrays
    assert again.keys() == {**arrays, **head}.keys()
    np.testing.assert_array_equal(again["encoder/pooler/kernel"], arrays["encoder/pooler/kernel"])


def test_albert_projects_embeddings_of_any_width():
    config = tiny_config(num_layer_groups=1, embedding_size=16)
    content, there = export_model(config, arrays_of(config))
    weight = there["albert.encoder.embedding_hidden_mapping_in.weight"]
    np.testing.assert_array_equal(weight, np.eye(16))
    assert import_model(content, there, "").config == config
    weight[0, 1] = 0.5
    with pytest.raises(ValueError, match="the projection must be the identity"):
        import_model(content, there, "")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"summary_type": "mean"}, "`summary_type` must be 'first'.*Received: 'mean'"),
        ({"summary_activation": None}, "`summary_activation` must be one of gelu.*None"),
    ],
)
def test_electra_s_summaries(changes, message):
    config = tiny_config(pooler_activation="gelu")
    head = {"choice/dense/kernel": np.ones((16, 1)), "choice/dense/bias": np.ones(1)}
    content, there = export_model(config, {**arrays_of(config), **head})
    assert content["architectures"] == ["ElectraForMultipleChoice"]
    assert import_model(content, there, "").config.pooler_activation == "gelu"
    with pytest.raises(ValueError, match=message):
        import_model({**content, **changes}, there, "")


def test_special_ids_come_from_the_tokenizer():
    class Tokenizer:
        kind, pad_id, cls_id, sep_id = "bpe", 4, 7, 8

    config = tiny_config(num_segments=0)
    content, there = export_model(config, arrays_of(config), tokenizer=Tokenizer())
    ids = {key: value for key, value in content.items() if key.endswith("_token_id")}
    assert ids == {"pad_token_id": 4, "bos_token_id": 7, "eos_token_id": 8}
    assert len(there["roberta.embeddings.position_embeddings.weight"]) == 24 + 5
    assert import_model(content, there, "").config == config
    content, _ = export_model(tiny_config(), {}, tokenizer=Tokenizer())
    assert content["pad_token_id"] == 4
