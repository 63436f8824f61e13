"""RoBERTa in fairseq's layout, of transformers' weights: the same outputs."""

import argparse

import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.fairseq.checkpoint import read_folder
from tests.harness import assert_close, to_numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SETTINGS = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "activation_fn": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "max_positions": 24,
    "arch": "roberta_base",
    "lr": [0.0006],
}
# From Hugging Face's names to fairseq's, as convert_roberta_original_pytorch_checkpoint.py of
# transformers has them the other way round.
NAMES = [
    ("roberta.embeddings.word_embeddings", "embed_tokens"),
    ("roberta.embeddings.position_embeddings", "embed_positions"),
    ("roberta.embeddings.LayerNorm", "emb_layer_norm"),
    ("roberta.encoder.layer.", "layers."),
    ("attention.self.query", "self_attn.q_proj"),
    ("attention.self.key", "self_attn.k_proj"),
    ("attention.self.value", "self_attn.v_proj"),
    ("attention.output.dense", "self_attn.out_proj"),
    ("attention.output.LayerNorm", "self_attn_layer_norm"),
    ("intermediate.dense", "fc1"),
    ("output.dense", "fc2"),
    ("output.LayerNorm", "final_layer_norm"),
]


def make(model_class, **changes):
    torch.manual_seed(0)
    config = transformers.RobertaConfig(
        vocab_size=40, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=26, type_vocab_size=1, layer_norm_eps=1e-5,
        **changes,
    )  # fmt: skip
    model = model_class(config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.15)
        model.roberta.embeddings.token_type_embeddings.weight.zero_()
    return model.eval()


def fairseq_state(model, prefix="decoder.", packed=True, head="mnli"):
    state = {}
    for name, tensor in model.state_dict().items():
        if "token_type" in name or "pooler" in name or "position_ids" in name:
            continue
        if name.startswith("lm_head."):
            short = name.replace("decoder.weight", "weight")
            if short != "lm_head.decoder.bias":
                state[prefix + short] = tensor
            continue
        if name.startswith("classifier."):
            state[name.replace("classifier", f"classification_heads.{head}")] = tensor
            continue
        for theirs, ours in NAMES:
            name = name.replace(theirs, ours)
        state[f"{prefix}sentence_encoder.{name}"] = tensor
    if packed:
        for i in range(2):
            start = f"{prefix}sentence_encoder.layers.{i}.self_attn."
            for kind in ("weight", "bias"):
                parts = [state.pop(f"{start}{x}_proj.{kind}") for x in "qkv"]
                state[f"{start}in_proj_{kind}"] = torch.cat(parts)
    return state


def save(folder, state, **changes):
    content = {"args": argparse.Namespace(**SETTINGS), "model": state, **changes}
    content = {key: x for key, x in content.items() if x is not None}
    torch.save(content, folder / "model.pt")
    (folder / "dict.txt").write_text("the 9\n")


@pytest.mark.parametrize(
    ("prefix", "packed", "changes"),
    [
        ("decoder.", True, {}),  # the release of 2019
        ("decoder.", False, {"last_optimizer_state": {"state": {}, "param_groups": []}}),
        # Since version 0.10.
        ("encoder.", False, {"args": None, "cfg": {"model": argparse.Namespace(**SETTINGS)}}),
        ("encoder.", False, {"args": None, "cfg": {"model": SETTINGS}}),
    ],
)
def test_the_outputs_are_those_of_transformers(tmp_path, prefix, packed, changes):
    model = make(transformers.RobertaForMaskedLM)
    state = fairseq_state(model, prefix, packed)
    version = f"{prefix}sentence_encoder.version"
    save(tmp_path, {**state, version: torch.tensor([3.0])}, **changes)
    encoder = kbert.Encoder.from_preset(tmp_path)
    ids = np.random.default_rng(0).integers(5, 40, (2, 9))
    with torch.no_grad():
        theirs = model.roberta(torch.tensor(ids)).last_hidden_state
    assert_close(to_numpy(encoder(ids))["sequence"], theirs, 1e-5)
    checkpoint = read_checkpoint(tmp_path)
    assert checkpoint.left == (version,)
    assert checkpoint.task == {"kind": "pretrain", "next_sentence": False}
    bias = model.lm_head.bias.detach().numpy()
    np.testing.assert_array_equal(checkpoint.arrays["masked_lm/bias"], bias)


def test_a_classifier(tmp_path):
    model = make(transformers.RobertaForSequenceClassification, num_labels=3)
    save(tmp_path, fairseq_state(model))
    checkpoint = read_folder(tmp_path)
    assert checkpoint.task == {"kind": "classify"}
    assert checkpoint.labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    kernel = model.classifier.out_proj.weight.detach().numpy().T
    np.testing.assert_array_equal(checkpoint.arrays["classifier/dense/kernel"], kernel)
    inner = model.classifier.dense.weight.detach().numpy().T
    np.testing.assert_array_equal(checkpoint.arrays["encoder/pooler/kernel"], inner)


def test_what_is_another_model_is_refused(tmp_path):
    state = fairseq_state(make(transformers.RobertaForMaskedLM))

    def refused(message, state=state, **changes):
        save(tmp_path, state, **changes)
        with pytest.raises(ValueError, match=rf"(?s){message}.*in .*model.pt") as error:
            read_checkpoint(tmp_path)
        return error

    refused("Received: neither", args=None)
    settings = {**SETTINGS, "encoder_normalize_before": True}
    refused("`encoder_normalize_before` must be False", args=argparse.Namespace(**settings))
    for key in ("layernorm_embedding", "no_scale_embedding"):
        refused(f"`{key}` must be True", args=argparse.Namespace(**SETTINGS, **{key: False}))
    settings = {key: x for key, x in SETTINGS.items() if key != "encoder_layers"}
    refused("Received: no encoder_layers", args=argparse.Namespace(**settings))
    words = "decoder.sentence_encoder.embed_tokens.weight"
    refused("no roberta.embeddings.word", {k: x for k, x in state.items() if k != words})
    two = {f"classification_heads.{x}.dense.weight": torch.ones(2) for x in "ab"}
    refused("one head for classes. Received: a, b", {**state, **two})
    untied = {**state, "decoder.lm_head.weight": torch.ones(40, 16)}
    save(tmp_path, untied)
    with pytest.raises(ValueError, match="kbert ties these weights"):
        read_checkpoint(tmp_path)


def test_the_activation_under_the_classes_is_tanh(tmp_path):
    model = make(transformers.RobertaForSequenceClassification, num_labels=3)
    tanh, relu = (argparse.Namespace(**SETTINGS, pooler_activation_fn=x) for x in ("tanh", "relu"))
    save(tmp_path, fairseq_state(model), args=relu)
    with pytest.raises(
        ValueError, match=r"`pooler_activation_fn` must be 'tanh'.*Received: 'relu'"
    ):
        read_checkpoint(tmp_path)
    save(tmp_path, fairseq_state(model), args=tanh)
    assert read_checkpoint(tmp_path).config.pooler_activation == "tanh"
    # Without such a head nothing has that activation.
    save(tmp_path, fairseq_state(make(transformers.RobertaForMaskedLM)), args=relu)
    assert read_checkpoint(tmp_path).config.pooler_activation is None


def test_a_weight_that_nothing_is_made_of_is_listed(tmp_path):
    state = fairseq_state(make(transformers.RobertaForMaskedLM))
    save(tmp_path, {**state, "decoder.extra": torch.ones(2)})
    with pytest.raises(ValueError, match=r"\+ unexpected encoder/extra"):
        kbert.Encoder.from_preset(tmp_path)


def test_nothing_that_args_names_is_run(tmp_path):
    class Evil:
        def __reduce__(self):
            return open, (str(tmp_path / "made"), "w")

    state = fairseq_state(make(transformers.RobertaForMaskedLM))
    save(tmp_path, state, args=argparse.Namespace(**SETTINGS, task=Evil()))
    with pytest.raises(
        ValueError, match=r"Received: io.open at byte [\d,]+ of data.pkl in .*model"
    ):
        read_checkpoint(tmp_path)
    assert not (tmp_path / "made").exists()
