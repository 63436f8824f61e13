"""Which unknown keys of a config.json are harmless, and which may stand for another model."""

import json

import pytest

from kbert.checkpoints.huggingface.architectures import architectures
from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from kbert.checkpoints.huggingface.unread_keys import says_nothing
from kbert.configs.decoder import DecoderConfig
from kbert.configs.reformer import ReformerConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from tests.harness import KINDS, tiny_config

HARMLESS = {
    # What made the model, and what is made with it.
    "unsloth_fixed": True,
    "unsloth_version": "2024.9",
    "vocab_file": "vocab.txt",
    "merges_file": "merges.txt",
    "base_model_name_or_path": "bert-base-cased",
    "_commit_hash": "abc",
    "_flash_attn_2_enabled": False,
    "model_name": "mine",
    "license": "mit",
    "torch_version": "2.1",
    "kobart_version": 2.0,
    "kobert_version": 1.0,
    "uniem_embedding_strategy": "last_mean",
    "export_model_type": "transformer",
    # The tokenizer's.
    "model_max_length": 512,
    "max_seq_length": 128,
    "do_lower_case": True,
    "mask_token_id": 4,
    "padding_side": "right",
    # How it was trained.
    "loss_type": "ForMaskedLM",
    "label_smoothing": 0.1,
    "learning_rate": 2e-5,
    "num_train_epochs": 3,
    "per_device_train_batch_size": 8,
    "warmup_ratio": 0.1,
    "weight_decay": 0.01,
    "adam_epsilon": 1e-8,
    "fp16": True,
    "seed": 42,
    "mlm_probability": 0.15,
    "matryoshka_dimensions": [64, 32],
    "best_metric": 0.9,
    # How it is loaded.
    "trust_remote_code": True,
    "seq_length": 512,
    # How it is computed.
    "attn_implementation": "sdpa",
    "use_flash_attention": True,
    # Not set.
    "rope_scaling": None,
    "another": None,
}
# Each is of a published architecture that calls itself after one of these, or would change it.
OTHER_MODELS = {
    "auto_map": {"AutoModel": "modeling_mine.Mine"},
    "rope_theta": 10000.0,
    "rotary": True,
    "use_bias": False,
    "num_experts": 8,
    "num_key_value_heads": 2,
    "layer_norm_type": "rms_norm",
    "norm_first": True,
    "emb_pooler": "mean",
    "alibi_starting_size": 512,
    "attention_window": [512],
    "adapter_layers": 2,
    "lora_rank": 8,
    "pooling_mode": "mean",
    "hidden_act_name": "mish",
    "output_dim": 3,
    "scale_embeddings": True,
    "classifier_activation": "tanh",
    "conv_kernel_size": 9,
    "feed_forward_proj": "gated-gelu",
    "attn_logit_softcapping": 50.0,
    "embedding_multiplier": 12.0,
    "logit_scale": 0.5,
    "sliding_window_size": 128,
    "use_layernorm2": True,
    "residual_dropout": 0.1,
}
SIZES = {"vocabulary_size": 9, "hidden_size": 8, "num_layers": 1, "num_heads": 2}


def config_of(model_type):
    architecture = architectures()[model_type]
    if architecture.config_class is ReformerConfig:
        return ReformerConfig(**SIZES, intermediate_size=32)
    if architecture.config_class is DecoderConfig:
        fixed = architecture.fixed
        return DecoderConfig(**SIZES, intermediate_size=32, **fixed)
    if architecture.config_class is Seq2SeqConfig:
        gated = {"feed_forward": "gated", "activation": "gelu_tanh", "output": "untied"}
        kinds = {"t5": {"output": "tied_scaled"}, "mt5": gated}
        changes = kinds.get(model_type, {"initializer_range": 0.02})
        rates = dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), 0.1)
        return Seq2SeqConfig(
            **{**SIZES, "intermediate_size": 32, **rates, **architecture.fixed, **changes}
        )
    changes = {"num_layer_groups": 1} if architecture.shared_layers else {}
    kinds = {"deberta-v2": "disentangled", "longformer": "global tokens", "xlnet": "xlnet"}
    kinds |= {"mobilebert": "bottleneck", "mpnet": "relative bias", "convbert": "convolution"}
    kinds["squeezebert"] = "grouped products"
    changes |= KINDS[kinds[model_type]] if model_type in kinds else {}
    if model_type == "deberta":  # the first version
        first = {"position_buckets": 0, "shared_projections": False, "table_norm": False}
        changes |= KINDS["disentangled"]
        changes["part"] = {**KINDS["disentangled"]["part"], **first}
    changes |= {
        "pooler_activation": architecture.pooler_activations[0],
        "activation": next(iter(architecture.activations.values())),
    }
    return tiny_config(**{**changes, **architecture.fixed})


def content_of(model_type):
    config = config_of(model_type)
    if model_type in ("roberta", "xlm-roberta"):
        config = config.replace(num_segments=0)
    content, _ = export_model(config, {}, architecture=model_type)
    return content


@pytest.mark.parametrize("model_type", architectures())
def test_harmless_keys_change_nothing_and_are_named(model_type, caplog):
    content = content_of(model_type)
    found = import_model({**content, **HARMLESS}, {}, "there").config
    assert found == import_model(content, {}, "there").config
    (record,) = caplog.records
    assert record.getMessage().startswith("there: not used, as they do not change the model: ")
    said = record.getMessage().rpartition(": ")[2].split(", ")
    known = {*architectures()[model_type].ignored}
    assert said == [key for key in HARMLESS if key not in known]


@pytest.mark.parametrize("model_type", architectures())
@pytest.mark.parametrize("key", OTHER_MODELS)
def test_keys_that_may_change_the_model_are_refused(model_type, key, caplog):
    table = architectures()[model_type]
    alike = [x for x in architectures().values() if x.model_type == table.model_type]
    marks = {mark for other in alike for mark in other.marks}
    own = {*table.fields, *table.ignored, *marks}
    if key in own or (model_type, key) == ("longformer", "attention_window"):
        pytest.skip("its own; tests/checkpoints/huggingface/test_architectures.py has it")
    content = {**content_of(model_type), **HARMLESS, key: OTHER_MODELS[key]}
    unknown = f"Every key .* supported.*Received: unknown {key} in"
    with pytest.raises(ValueError, match=f"{unknown}|`{key}` must be .* that kbert supports"):
        import_model(content, {}, "there")
    assert not caplog.records


def test_no_key_of_another_architecture_passes_for_harmless():
    """What one architecture reads must not be silently left in another's file."""
    keys = {key for table in architectures().values() for key in (*table.fields, *table.required)}
    keys -= {"max_length"}  # NeoBERT's; in all others it is of generation
    assert not [key for key in keys if says_nothing(key, 1)]


def test_a_config_that_transformers_writes_whole():
    """Every attribute, as programs do that dump `config.to_dict()`."""
    transformers = pytest.importorskip("transformers")
    made = transformers.BertConfig(vocab_size=9, hidden_size=8, num_attention_heads=2)
    content = json.loads(json.dumps(made.to_dict()))
    assert import_model(content, {}, "there").config.vocabulary_size == 9
