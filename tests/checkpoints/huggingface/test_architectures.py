"""The tables of architectures: published configs, what each cannot be, and oddities of weights."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from kbert import family
from kbert.checkpoints.huggingface import config as huggingface_config
from kbert.checkpoints.huggingface.architectures import architectures, find, identify, infer
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.models import Encoder
from kbert.models.deberta.attention import Disentangled
from kbert.models.deberta.huggingface import USUAL
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
    "jhu-clsp/mmBERT-small": {
        "architectures": ["ModernBertForMaskedLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 2,
        "classifier_activation": "gelu",
        "classifier_pooling": "mean",
        "cls_token_id": 1,
        "eos_token_id": 1,
        "global_attn_every_n_layers": 3,
        "global_rope_theta": 160000.0,
        "hidden_activation": "gelu",
        "hidden_size": 384,
        "intermediate_size": 1152,
        "layer_norm_eps": 1e-05,
        "local_attention": 128,
        "local_rope_theta": 160000.0,
        "mask_token_id": 4,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "modernbert",
        "norm_bias": False,
        "norm_eps": 1e-05,
        "num_attention_heads": 6,
        "num_hidden_layers": 22,
        "pad_token_id": 0,
        "position_embedding_type": "sans_pos",
        "sep_token_id": 1,
        "vocab_size": 256000,
    },
    "EuroBERT/EuroBERT-610m": {
        "architectures": ["EuroBertForMaskedLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "auto_map": {"AutoModel": "modeling_eurobert.EuroBertModel"},
        "bos_token_id": 128000,
        "clf_pooling": "late",
        "eos_token_id": 128001,
        "head_dim": 64,
        "hidden_act": "silu",
        "hidden_dropout": 0.0,
        "hidden_size": 1152,
        "initializer_range": 0.02,
        "intermediate_size": 4096,
        "is_decoder": False,
        "mask_token_id": 128002,
        "max_position_embeddings": 8192,
        "mlp_bias": False,
        "model_type": "eurobert",
        "num_attention_heads": 18,
        "num_hidden_layers": 26,
        "num_key_value_heads": 6,
        "pad_token_id": 128001,
        "pretraining_tp": 1,
        "rms_norm_eps": 1e-05,
        "rope_scaling": None,
        "rope_theta": 250000,
        "tie_word_embeddings": False,
        "use_cache": False,
        "vocab_size": 128256,
    },
    "chandar-lab/NeoBERT": {
        "architectures": ["NeoBERTLMHead"],
        "auto_map": {"AutoModel": "model.NeoBERT"},
        "classifier_init_range": 0.02,
        "decoder_init_range": 0.02,
        "dim_head": 64,
        "embedding_init_range": 0.02,
        "hidden_size": 768,
        "intermediate_size": 3072,
        "kwargs": {"classifier_init_range": 0.02, "trust_remote_code": True},
        "max_length": 4096,
        "model_type": "neobert",
        "norm_eps": 1e-05,
        "num_attention_heads": 12,
        "num_hidden_layers": 28,
        "pad_token_id": 0,
        "vocab_size": 30522,
    },
    "nomic-ai/nomic-bert-2048": {
        "activation_function": "swiglu",
        "architectures": ["NomicBertForPreTraining"],
        "attn_pdrop": 0.0,
        "auto_map": {"AutoModel": "modeling_hf_nomic_bert.NomicBertModel"},
        "bos_token_id": None,
        "causal": False,
        "dense_seq_output": True,
        "embd_pdrop": 0.0,
        "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True,
        "initializer_range": 0.02,
        "layer_norm_epsilon": 1e-12,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "model_type": "nomic_bert",
        "n_embd": 768,
        "n_head": 12,
        "n_inner": 3072,
        "n_layer": 12,
        "n_positions": 2048,
        "pad_vocab_size_multiple": 64,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "rotary_emb_base": 1000,
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_activation": None,
        "summary_first_dropout": 0.0,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "type_vocab_size": 2,
        "use_cache": True,
        "use_flash_attn": True,
        "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": 30528,
    },
    "junnyu/roformer_chinese_base": {
        "architectures": ["RoFormerForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "embedding_size": 768,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 1536,
        "model_type": "roformer",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 0,
        "rotary_value": False,
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 50000,
    },
    "mosaicml/mosaic-bert-base": {
        "alibi_starting_size": 512,
        "architectures": ["BertForMaskedLM"],
        "attention_probs_dropout_prob": 0.0,
        "auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"},
        "classifier_dropout": None,
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
        "type_vocab_size": 2,
        "use_cache": True,
        "vocab_size": 30528,
    },
    "nghuyong/ernie-3.0-medium-zh": {
        "architectures": ["ErnieForMaskedLM"],
        "attention_probs_dropout_prob": 0.1,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048,
        "model_type": "ernie",
        "num_attention_heads": 12,
        "num_hidden_layers": 6,
        "pad_token_id": 0,
        "task_type_vocab_size": 16,
        "type_vocab_size": 4,
        "use_task_id": True,
        "vocab_size": 40000,
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
    "allenai/longformer-base-4096": {
        "attention_mode": "longformer",
        "attention_probs_dropout_prob": 0.1,
        "attention_window": [512] * 12,
        "bos_token_id": 0,
        "eos_token_id": 2,
        "gradient_checkpointing": False,
        "hidden_act": "gelu",
        "hidden_dropout_prob": 0.1,
        "hidden_size": 768,
        "ignore_attention_mask": False,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-05,
        "max_position_embeddings": 4098,
        "model_type": "longformer",
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 1,
        "sep_token_id": 2,
        "type_vocab_size": 1,
        "vocab_size": 50265,
    },
    "xlnet-base-cased": {
        "architectures": ["XLNetLMHeadModel"],
        "attn_type": "bi",
        "bi_data": False,
        "bos_token_id": 1,
        "clamp_len": -1,
        "d_head": 64,
        "d_inner": 3072,
        "d_model": 768,
        "dropout": 0.1,
        "end_n_top": 5,
        "eos_token_id": 2,
        "ff_activation": "gelu",
        "initializer_range": 0.02,
        "layer_norm_eps": 1e-12,
        "mem_len": None,
        "model_type": "xlnet",
        "n_head": 12,
        "n_layer": 12,
        "pad_token_id": 5,
        "reuse_len": None,
        "same_length": False,
        "start_n_top": 5,
        "summary_activation": "tanh",
        "summary_last_dropout": 0.1,
        "summary_type": "last",
        "summary_use_proj": True,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 250}},
        "untie_r": True,
        "vocab_size": 32000,
    },
    "google/mobilebert-uncased": {
        "attention_probs_dropout_prob": 0.1,
        "classifier_activation": False,
        "embedding_size": 128,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.0,
        "hidden_size": 512,
        "initializer_range": 0.02,
        "intermediate_size": 512,
        "intra_bottleneck_size": 128,
        "key_query_shared_bottleneck": True,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "model_type": "mobilebert",
        "normalization_type": "no_norm",
        "num_attention_heads": 4,
        "num_feedforward_networks": 4,
        "num_hidden_layers": 24,
        "pad_token_id": 0,
        "transformers_version": "4.6.0.dev0",
        "trigram_input": True,
        "true_hidden_size": 128,
        "type_vocab_size": 2,
        "use_bottleneck": True,
        "use_bottleneck_attention": False,
        "vocab_size": 30522,
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
    config = huggingface_config.read_config(identify(content, name), content, name)
    expected = family(name)
    if name.startswith("xlnet"):  # its own code has the tanh form
        expected = expected.replace(activation="gelu")
    assert config.replace(pooler_activation=expected.pooler_activation) == expected
    # And back: every key that was read is written with its value.
    table = identify(content, name)
    written, _ = export_model(expected, {}, architecture=table.name or table.model_type)
    for key, value in written.items():
        # Without a tokenizer the ids of tokens are none.
        other = key in ("architectures", "auto_map") or value is None
        assert content.get(key, value) == value or other, key


def read(name, **changes):
    content = {**PUBLISHED[name], **changes}
    return huggingface_config.read_config(identify(content, name), content, "there")


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("roberta-base", {"pad_token_id": None}, "`pad_token_id` must be an id.*None in there"),
        ("roberta-base", {"is_decoder": True}, "`is_decoder` must be False"),
        ("albert-base-v2", {"inner_group_num": 2}, "`inner_group_num` must be 1.*2 in there"),
        ("albert-base-v2", {"num_hidden_layers": 18, "num_hidden_groups": 14}, "14 groups of 18"),
        ("distilbert-base-uncased", {"hidden_size": 768}, "unknown hidden_size in there"),
        ("distilbert-base-uncased", {"activation": "gelu2"}, "activation must be.*'gelu2'"),
        ("google/electra-small-discriminator", {"summary": 1}, "unknown summary in there"),
        ("answerdotai/ModernBERT-base", {"classifier_pooling": "max"}, "one of cls, mean.*'max'"),
        ("answerdotai/ModernBERT-base", {"classifier_activation": "mish"}, "one of gelu.*'mish'"),
        ("answerdotai/ModernBERT-base", {"layer_types": ["full_attention"]}, "each of the layers"),
        ("answerdotai/ModernBERT-base", {"global_attn_every_n_layers": 0}, "number of layers.* 0 "),
        (
            "answerdotai/ModernBERT-base",
            {"local_attention": 1},
            "`local_attention` must be .* at least 2. Received: 1 in there",
        ),
        ("answerdotai/ModernBERT-base", {"local_attention": 2.5}, "`local_attention` .*: 2.5 in"),
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
            {"norm_rel_ebd": "rms"},
            "`norm_rel_ebd` must be 'none'.*Received: 'rms'",
        ),
        (
            "microsoft/deberta-v3-base",
            {"pos_att_type": "p2p"},
            "must name p2c or c2p, or both. Received: 'p2p' in there",
        ),
        (
            "microsoft/deberta-v3-base",
            {"relative_attention": False},
            "`relative_attention` must be True.*Received: False in",
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
        (
            "allenai/longformer-base-4096",
            {"attention_window": [512, 256]},
            r"a number, or one for each of 12 layers. Received: \[512, 256\] in there",
        ),
        (
            "allenai/longformer-base-4096",
            {"attention_window": 511},
            "must be an even number of tokens.*Received: 511",
        ),
        (
            "allenai/longformer-base-4096",
            {"attention_mode": "n2"},
            "`attention_mode` must be longformer.*Received: 'n2' in there|must be 'longformer'",
        ),
        (
            "allenai/longformer-base-4096",
            {"ignore_attention_mask": True},
            "`ignore_attention_mask` must be False",
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
    with pytest.raises(ValueError, match=f"must have {key}"):
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


def test_what_a_deberta_must_say():
    """Absent, transformers makes a model without disentangled attention."""
    content = dict(PUBLISHED["microsoft/deberta-v3-base"])
    del content["relative_attention"]
    with pytest.raises(ValueError, match=r"`relative_attention` must be .*Received: none in there"):
        import_model(content, {}, "there")


def test_what_a_deberta_is_that_says_nothing_of_its_distances():
    """By transformers' defaults, which are none of version 3's values."""
    left_out = ("position_biased_input", "share_att_key", "norm_rel_ebd", "position_buckets")
    content = {k: v for k, v in PUBLISHED["microsoft/deberta-v3-base"].items() if k not in left_out}
    config = import_model(content, {}, "there").config
    assert config.positions == "learned"
    assert dict(config.part) == {
        "name": "disentangled",
        "position_buckets": 0,
        "max_distance": 512,
        "shared_projections": False,
        "table_norm": False,
    }


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


def test_the_windows_of_a_longformer():
    def pattern(**changes):
        return read("allenai/longformer-base-4096", **changes).attention_pattern

    assert pattern(attention_window=64) == (64,)
    several = [32, 64, 128] * 4
    assert pattern(attention_window=several) == tuple(several)
    content = {**PUBLISHED["allenai/longformer-base-4096"]}
    del content["attention_window"], content["attention_mode"], content["ignore_attention_mask"]
    assert huggingface_config.read_config(find("longformer", ""), content, "") == read(
        "allenai/longformer-base-4096"
    )
    long = family("allenai/longformer-base-4096").replace(attention_pattern=[32, 64, 128])
    assert export_model(long, {})[0]["attention_window"] == several


def test_a_number_of_layers_that_would_fill_memory():
    content = {**PUBLISHED["distilbert-base-uncased"], "n_layers": 10**12}
    with pytest.raises(ValueError, match=r"probably damaged. Received: 1,000,000,000,000 in there"):
        import_model(content, {}, "there")


def test_an_electra_without_its_projection():
    """Absent, `embedding_size` is 128: then embeddings of the hidden width say so."""
    content = {**PUBLISHED["google/electra-small-discriminator"], "vocab_size": 9}
    del content["embedding_size"]
    arrays = {"electra.embeddings.word_embeddings.weight": np.zeros((9, 256), "float32")}
    message = r"embeddings_project if its .*embedding_size=128, hidden_size=256, .*width 256 an"
    with pytest.raises(ValueError, match=message):
        import_model(content, arrays, "there")
    found = import_model({**content, "embedding_size": 256}, arrays, "there")
    assert found.config.embedding_width == 256


def test_rows_of_roberta_s_positions_follow_its_padding():
    assert read("roberta-base", pad_token_id=0).max_positions == 513
    assert read("roberta-base", max_position_embeddings=130).max_positions == 128
    assert read("roberta-base", type_vocab_size=2).num_segments == 2


def test_an_unknown_architecture_lists_the_known():
    with pytest.raises(ValueError, match=f"{', '.join(architectures())}. Received: 'led' in there"):
        import_model({"model_type": "led"}, {}, "there")


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
        ({"padding_id": 1}, (), "bpe", "roberta"),
        ({"num_segments": 0, "layer_norm_epsilon": 1e-5}, (), None, "roberta"),
        ({"num_segments": 0, "layer_norm_epsilon": 1e-5}, (), "unigram", "xlm-roberta"),
    ],
)
def test_the_architecture_that_is_written(changes, names, kind, expected):
    assert infer(tiny_config(**changes), names, kind) == expected


@pytest.mark.parametrize("model_type", architectures())
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
        "neobert": "chandar-lab/NeoBERT",
        "eurobert": "EuroBERT/EuroBERT-2.1B",
        "nomic_bert": "nomic-ai/nomic-bert-2048",
        "roformer": "junnyu/roformer_chinese_base",
        "mosaicbert": "mosaicml/mosaic-bert-base",
        "ernie": "nghuyong/ernie-3.0-base-zh",
        "longformer": "allenai/longformer-large-4096",
        "mpnet": "microsoft/mpnet-base",
        "squeezebert": "squeezebert/squeezebert-uncased",
        "convbert": "YituTech/conv-bert-base",
        "xlnet": "xlnet-base-cased",
        "reformer": "google/reformer-enwik8",
        "mobilebert": "google/mobilebert-uncased",
        "gpt2": "gpt2-large",
        "openai-gpt": "openai-gpt",
        "bart": "facebook/bart-base",
        "mbart": "facebook/mbart-large-cc25",
        "pegasus": "google/pegasus-large",
        "marian": "Helsinki-NLP/opus-mt-en-de",
        "t5": "google/flan-t5-small",
        # Of one function with another: written where they are named.
        "camembert": None,
        "deberta": None,
        "mt5": None,
    }
    if rows[model_type] is None:
        return
    kind = "unigram" if model_type == "xlm-roberta" else "wordpiece"
    assert infer(family(rows[model_type]), (), kind) == model_type


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("bert", {"embedding_size": 4}, "support this model: its embeddings have the hid"),
        ("bert", {"num_layer_groups": 1}, "its layers share no weights"),
        ("bert", {"num_segments": 0}, "it has 1 or more segments"),
        ("bert", {"pooler_activation": "relu"}, "its pooler has tanh"),
        ("bert", {"embedding_size": 4, "num_segments": 0}, "hidden width; it has 1 or more"),
        ("roberta", {"num_segments": 1}, "its single segment is num_segments=0"),
        ("roberta", {"num_segments": 0, "num_layer_groups": 1}, "its layers share no weights"),
        ("albert", {"pooler_activation": "gelu"}, "ALBERT does not .*: its pooler has tanh"),
        ("distilbert", {}, "num_segments is 0 in all of them; its pooler has relu"),
        ("distilbert", {"num_segments": 0, "layer_norm_epsilon": 1e-5}, "epsilon is 1e-12 in all"),
        ("electra", {}, "ELECTRA does not support this model: its pooler has gelu"),
        ("deberta-v2", {}, "does not support this model: its part is 'disentangled'"),
        ("deberta", KINDS["disentangled"], "it has position_buckets=0, shared_projections=False"),
        ("bert", {"padding_id": 0}, "padding_id is None in all of them"),
        ("bert", {"head_activation": "relu"}, "head_activation is None in all of them"),
        ("roberta", {"head_activation": "relu"}, "its masked-LM head has the activation 'gelu'"),
        ("modernbert", {"positions": "rotary", "pooler_activation": "relu"}, "of its other heads"),
        ("modernbert", {**KINDS["modern"], "pooling": "late"}, "its pooling is first or mean"),
        ("modernbert", {**KINDS["modern"], "pooling": "last"}, "its pooling is first or mean"),
        (
            "eurobert",
            {**KINDS["grouped"], "pooler_activation": "gelu", "pooling": "last"},
            "EuroBERT does not .*: its pooling is one of first, mean, late. ",
        ),
        ("longformer", {"num_segments": 0}, "not support this model: its part is 'global_tokens'"),
        (
            "longformer",
            {**KINDS["global tokens"], "attention_pattern": ("global", 4)},
            "each of its layers has a window",
        ),
        ("roberta", KINDS["global tokens"], r"attention_pattern is \('global',\) in all of them"),
        ("mobilebert", {}, "its part is 'bottleneck'"),
        ("convbert", {}, "its part is 'dynamic_convolution'"),
        ("mpnet", {"num_segments": 0}, "its part is 'relative_bias' with the default buckets"),
        ("squeezebert", {}, "its part is 'grouped'"),
        (
            "squeezebert",
            {**KINDS["grouped products"], "layer_norm_epsilon": 1e-5},
            "its epsilon is 1e-12",
        ),
        (
            "mpnet",
            {"num_segments": 0, "part": {"name": "relative_bias", "num_buckets": 16}},
            "its part is 'relative_bias' with the default buckets",
        ),
        ("mpnet", {**KINDS["relative bias"], "padding_id": 0}, "its padding id is 1"),
        (
            "mobilebert",
            {**KINDS["bottleneck"], "embedding_size": None},
            "its embeddings are narrower than its layers",
        ),
        ("led", {}, "architectures bert, roberta, .* Received: 'led' in `architecture`"),
        ("t5", {}, "T5 does not support this model: its config is of the kind Seq2SeqConfig"),
    ],
)
def test_what_an_architecture_cannot_be(architecture, changes, message):
    with pytest.raises(ValueError, match=message):
        export_model(tiny_config(**changes), {}, architecture=architecture)


def test_convbert_s_heads_are_those_that_attend():
    config = tiny_config(**KINDS["convolution"]).replace(pooler_activation=None)
    content, _ = export_model(config, {}, architecture="convbert")
    assert (content["num_attention_heads"], content["head_ratio"]) == (4, 2)
    assert import_model(content, {}, "there").config == config
    others = {**content, "num_attention_heads": 6, "head_ratio": 3}
    assert import_model(others, {}, "there").config == config
    one = {**content, "num_attention_heads": 4, "head_ratio": 8}
    assert import_model(one, {}, "there").config == config.replace(num_heads=1)
    with pytest.raises(ValueError, match=r"`head_ratio` must be a whole number above 0. .*'2'"):
        import_model({**content, "head_ratio": "2"}, {}, "there")


def test_mpnet_s_padding_and_buckets_are_fixed():
    config = tiny_config(**KINDS["relative bias"], **_ROBERTA, pooler_activation=None)
    content, _ = export_model(config, {}, architecture="mpnet")
    assert content["max_position_embeddings"] == config.max_positions + 2
    assert import_model(content, {}, "there").config == config
    with pytest.raises(ValueError, match=r"The padding id must be 1, .* Received: 0 in there"):
        import_model({**content, "pad_token_id": 0}, {}, "there")
    with pytest.raises(ValueError, match="relative_attention_num_buckets"):
        import_model({**content, "relative_attention_num_buckets": 16}, {}, "there")


def test_a_model_that_hugging_face_has_not_is_named():
    for kind, told in (
        ("transformer_xl", "a Transformer-XL"),
        ("universal_transformer", "a Universal"),
    ):
        with pytest.raises(ValueError, match=f"no architecture for this model.*Received: {told}"):
            export_model(tiny_config(kind), {})


def test_groups_that_hugging_face_rounds_otherwise_are_refused():
    with pytest.raises(ValueError, match=r"assigns .*Received: 14 groups of 18 layers"):
        export_model(tiny_config(num_layers=18, num_layer_groups=14), {})


# What a RoBERTa or its like is, and what its masked-LM head has, whatever the config says.
_ROBERTA = {"padding_id": 1, "head_activation": "gelu"}


def arrays_of(config):
    encoder = Encoder(config)
    randomise(encoder)
    return get_arrays(encoder, "encoder")


@pytest.mark.parametrize("architecture", ["roberta", "electra"])
def test_a_masked_lm_head_with_an_activation_of_its_own(architecture):
    changes = {"pooler_activation": None, "num_segments": 0 if architecture == "roberta" else 2}
    config = tiny_config(activation="gelu_tanh", **changes)
    with pytest.raises(ValueError, match=r"activation 'gelu', whatever .* activation 'gelu_tanh'"):
        export_model(config, {"masked_lm/bias": np.zeros(40)}, architecture=architecture)
    content, _ = export_model(config, {}, architecture=architecture)
    assert import_model(content, {}, "there").config.head_activation == "gelu"


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
    # Padding is a token without a position, and of the segment too.
    np.testing.assert_array_equal(again.arrays["encoder/embeddings/padding"], np.ones(16))
    positions[1] = 2
    again = import_model(content, there, "")
    np.testing.assert_array_equal(again.arrays["encoder/embeddings/padding"], np.full(16, 3))
    del there["roberta.embeddings.token_type_embeddings.weight"]
    with pytest.raises(ValueError, match=r"weights of a RoBERTa must .*token_type_embeddings"):
        import_model(content, there, "")


def test_roberta_with_segments_keeps_them():
    config = tiny_config(num_segments=3, **_ROBERTA)
    arrays = arrays_of(config)
    content, there = export_model(config, arrays)
    assert content["model_type"] == "roberta"
    again = import_model(content, there, "")
    assert again.config == config
    assert again.arrays.keys() == arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(again.arrays[name], array)


def test_an_old_file_of_a_roberta_classifier_also_has_a_pooler_that_nothing_reads():
    config = tiny_config(num_segments=0, **_ROBERTA)
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
    with pytest.raises(ValueError, match="must be the identity, as kbert has none"):
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
    counted = config.replace(padding_id=4, head_activation="gelu")
    assert import_model(content, there, "").config == counted
    assert export_model(counted, {}, tokenizer=Tokenizer())[0]["pad_token_id"] == 4
    with pytest.raises(ValueError, match=r"the tokenizer's 4, .* Received: padding_id=1"):
        export_model(counted.replace(padding_id=1), {}, tokenizer=Tokenizer())
    content, _ = export_model(tiny_config(), {}, tokenizer=Tokenizer())
    assert content["pad_token_id"] == 4


def test_eurobert_s_biases():
    """What a head learned has a place where feed-forward parts have biases too, of zeros."""
    config = tiny_config(
        **KINDS["grouped"], activation="silu", pooler_activation=None, rotary_base=500.0
    )
    arrays = arrays_of(config)
    rng = np.random.default_rng(0)
    arrays |= {"masked_lm/table": rng.normal(size=(40, 16)), "masked_lm/bias": np.zeros(40)}
    content, there = export_model(config, arrays)
    assert (content["model_type"], content["mlp_bias"]) == ("eurobert", False)
    assert not any(name.endswith(".bias") for name in there)
    arrays["masked_lm/bias"] = rng.normal(size=40)
    content, there = export_model(config, arrays)
    assert (content["attention_bias"], content["mlp_bias"]) == (False, True)
    assert sum(name.endswith(".bias") for name in there) == 1 + 3 * config.num_layers
    found = import_model(content, there, "there")
    assert found.config == config.replace(use_bias=True, bias_exceptions=("attention",))
    for name, array in found.arrays.items():
        np.testing.assert_array_equal(array, arrays.get(name, np.zeros_like(array)))
    assert arrays.keys() < found.arrays.keys()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"clf_pooling": "max"}, "must be one of bos, mean, late. Received: 'max'"),
        ({"head_dim": 32}, "hidden width divided by .*: 32"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "of the type 'default'.*yarn"),
        ({"num_key_value_heads": 7}, "multiple of `num_key_value_heads`"),
    ],
)
def test_what_a_eurobert_may_say(changes, message):
    with pytest.raises(ValueError, match=message):
        read("EuroBERT/EuroBERT-610m", **changes)


def test_nomic_s_files_of_before():
    """Names and a fused projection of nomic's own code, and a head without biases."""
    config = family("nomic-ai/nomic-bert-2048").replace(
        vocabulary_size=40, hidden_size=16, num_layers=2, num_heads=4, intermediate_size=32
    )
    arrays = arrays_of(config)
    rng = np.random.default_rng(0)
    shapes = {"transform/kernel": (16, 16), "norm/gamma": (16,), "norm/beta": (16,)}
    arrays |= {f"masked_lm/{name}": rng.normal(size=shape) for name, shape in shapes.items()}
    zeros = {"masked_lm/transform/bias": np.zeros(16), "masked_lm/bias": np.zeros(40)}
    content, there = export_model(config, {**arrays, **zeros})
    before = {}
    names = {
        "nomic_bert.embeddings.LayerNorm": "bert.emb_ln",
        "nomic_bert.layers": "bert.encoder.layers",
        "nomic_bert.embeddings": "bert.embeddings",
        "self_attn.o_proj": "attn.out_proj",
        "gate_proj": "fc12",
        "up_proj": "fc11",
        "down_proj": "fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }
    for name, array in there.items():
        for new, old in names.items():
            name = name.replace(new, old)
        before[name] = array
    for i in range(2):
        place = f"bert.encoder.layers.{i}"
        parts = [before.pop(f"{place}.self_attn.{part}_proj.weight") for part in "qkv"]
        before[f"{place}.attn.Wqkv.weight"] = np.concatenate(parts)
    del before["cls.predictions.transform.dense.bias"], before["cls.predictions.bias"]
    bare = {name.removeprefix("bert."): array for name, array in before.items()}
    for named in (before, bare):
        found = import_model(content, named, "there")
        assert found.arrays.keys() == arrays.keys() | zeros.keys()
        for name, array in {**arrays, **zeros}.items():
            np.testing.assert_array_equal(found.arrays[name], array, err_msg=name)
    with pytest.raises(ValueError, match=r"`qkv_proj_bias` must be False.*True"):
        read("nomic-ai/nomic-bert-2048", qkv_proj_bias=True)


def test_a_reformer_s_config_as_its_first_release_wrote_it():
    """With keys of BERT's that no code of its own reads."""
    content = {
        "architectures": ["ReformerModelWithLMHead"],
        "attention_head_size": 64,
        "attention_probs_dropout_prob": 0.1,
        "attn_layers": ["local", "lsh", "local", "lsh", "local", "lsh"],
        "axial_norm_std": 1.0,
        "axial_pos_embds": True,
        "axial_pos_embds_dim": [64, 192],
        "axial_pos_shape": [512, 1024],
        "chunk_size_feed_forward": 0,
        "chunk_size_lm_head": 0,
        "eos_token_id": 2,
        "feed_forward_size": 512,
        "hash_seed": None,
        "hidden_act": "relu",
        "hidden_dropout_prob": 0.05,
        "hidden_size": 256,
        "initializer_range": 0.02,
        "intermediate_size": 3072,
        "is_decoder": True,
        "layer_norm_eps": 1e-12,
        "local_attention_probs_dropout_prob": 0.05,
        "local_attn_chunk_length": 64,
        "local_num_chunks_after": 0,
        "local_num_chunks_before": 1,
        "lsh_attention_probs_dropout_prob": 0.0,
        "lsh_attn_chunk_length": 64,
        "lsh_num_chunks_after": 0,
        "lsh_num_chunks_before": 1,
        "max_position_embeddings": 524288,
        "model_type": "reformer",
        "num_attention_heads": 2,
        "num_buckets": [64, 128],
        "num_chunks_after": 0,
        "num_chunks_before": 1,
        "num_hashes": 1,
        "num_hidden_layers": 6,
        "output_past": True,
        "pad_token_id": 0,
        "sinusoidal_pos_embds": False,
        "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 100}},
        "type_vocab_size": 2,
        "vocab_size": 320,
    }
    found = import_model(content, {}, "there").config
    row = family("google/reformer-crime-and-punishment")
    assert found == row.replace(attention_pattern=("local", "lsh") * 3)
