"""LoRA to and from peft: the same weights in the same places, the same logits."""

import json

import numpy as np
import pytest

import kbert
from kbert.edit import adapters
from kbert.edit.adapters.base import weights_of
from tests.harness import assert_close, randomise, tiny_config, tiny_inputs, to_numpy

pytestmark = pytest.mark.tensorflow
torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
# Kind of model -> the config's changes, and what peft calls query and value there.
MODELS = {
    "bert": ({}, ["query", "value"]),
    "roberta": ({"num_segments": 0, "layer_norm_epsilon": 1e-5}, ["query", "value"]),
    "distilbert": (
        {"num_segments": 0, "pooler_activation": None},
        ["q_lin", "v_lin"],
    ),
    "electra": ({"embedding_size": 8, "pooler_activation": None}, ["query", "value"]),
    "deberta-v2": (
        {
            "part": {"name": "disentangled", "position_buckets": 8, "max_distance": 24},
            **{"positions": "none", "num_segments": 0, "pooler_activation": None},
            **{"layer_norm_epsilon": 1e-7},
        },
        ["query_proj", "value_proj"],
    ),
}


def base_of(kind, folder):
    """An encoder, and its model of transformers."""
    encoder = kbert.Encoder(tiny_config(**MODELS[kind][0]))
    randomise(encoder)
    encoder.save_to_preset(folder, "huggingface", architecture=kind)
    return encoder, transformers.AutoModel.from_pretrained(folder).eval()


def inputs_of(encoder):
    """Without the id that RoBERTa takes for padding."""
    inputs = tiny_inputs(encoder.config)
    return {**inputs, "token_ids": np.maximum(inputs["token_ids"], 4)}


def torch_states(model, inputs):
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names |= {"segment_ids": "token_type_ids"}
    with torch.no_grad():
        given = {names[k]: torch.tensor(v.astype("int64")) for k, v in inputs.items()}
        return model(**given).last_hidden_state.numpy()


@pytest.mark.parametrize("kind", list(MODELS))
def test_what_peft_has_written_is_read(tmp_path, kind):
    encoder, model = base_of(kind, tmp_path / "base")
    config = peft.LoraConfig(r=3, lora_alpha=6, lora_dropout=0.1, target_modules=MODELS[kind][1])
    adapted = peft.get_peft_model(model, config)
    rng = torch.Generator().manual_seed(0)
    for name, weight in adapted.named_parameters():
        if "lora_" in name:
            weight.data = torch.randn(weight.shape, generator=rng) * 0.3
    adapted.save_pretrained(tmp_path / "adapter")
    before = to_numpy(encoder(inputs_of(encoder))["sequence"])
    adapters.read_peft(encoder, tmp_path / "adapter")
    inputs = inputs_of(encoder)
    real = inputs["padding_mask"] > 0
    expected = torch_states(adapted.eval(), inputs)
    found = to_numpy(encoder(inputs)["sequence"])
    assert np.abs(before - found).max() > 0.05
    assert_close(found[real], expected[real], 2e-5)
    adapter = encoder.variants.added["peft"]
    assert (adapter.rank, adapter.scale, adapter.dropout) == (3, 2.0, 0.1)
    assert adapter.targets == ("query", "value")


@pytest.mark.parametrize("kind", ["bert", "distilbert"])
def test_peft_reads_what_is_written(tmp_path, kind):
    encoder, model = base_of(kind, tmp_path / "base")
    targets = ("query", "key", "attention_output", "intermediate", "output")
    adapters.add(encoder, "lora", rank=2, alpha=5.0, targets=targets)
    for weight in weights_of(encoder, "lora"):
        rng = np.random.default_rng(len(weight.path))
        weight.assign(rng.normal(0, 0.3, tuple(weight.shape)))
    adapters.write_peft(encoder, tmp_path / "adapter")
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    inputs = inputs_of(encoder)
    real = inputs["padding_mask"] > 0
    found = to_numpy(encoder(inputs)["sequence"])
    assert_close(torch_states(adapted, inputs)[real], found[real], 2e-5)
    again, _ = base_of(kind, tmp_path / "base")
    adapters.read_peft(again, tmp_path / "adapter")
    assert_close(to_numpy(again(inputs)["sequence"]), found, 1e-6)


@pytest.mark.parametrize(("rank", "missing"), [(4, ["lora_alpha"]), (8, ["r", "lora_alpha"])])
def test_what_a_folder_does_not_say_is_as_peft_takes_it(tmp_path, rank, missing):
    encoder, model = base_of("bert", tmp_path / "base")
    config = peft.LoraConfig(r=rank, lora_alpha=1, target_modules=["query", "value"])
    adapted = peft.get_peft_model(model, config)
    for name, weight in adapted.named_parameters():
        if "lora_B" in name:
            weight.data.fill_(0.1)
    adapted.save_pretrained(tmp_path / "adapter")
    path = tmp_path / "adapter/adapter_config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: x for k, x in content.items() if k not in missing}))
    _, model = base_of("bert", tmp_path / "base")
    adapted = peft.PeftModel.from_pretrained(model, tmp_path / "adapter").eval()
    adapters.read_peft(encoder, tmp_path / "adapter")
    assert encoder.variants.added["peft"].scale == 8 / rank
    inputs = inputs_of(encoder)
    real = inputs["padding_mask"] > 0
    found = to_numpy(encoder(inputs)["sequence"])
    assert_close(found[real], torch_states(adapted, inputs)[real], 2e-5)


def test_what_is_not_understood_is_refused(tmp_path):
    encoder, model = base_of("bert", tmp_path / "base")
    folder = tmp_path / "adapter"
    with pytest.raises(FileNotFoundError, match=r"must contain adapter_config.json"):
        adapters.read_peft(encoder, folder)
    config = peft.LoraConfig(r=2, target_modules=["query", "value"])
    peft.get_peft_model(model, config).save_pretrained(folder)
    content = json.loads((folder / "adapter_config.json").read_text())
    for changes, message in (
        ({"peft_type": "IA3"}, "peft_type='IA3'"),
        ({"use_dora": True}, "`use_dora` of peft's LoRA must be False to .* Received: True"),
        ({"rank_pattern": {"query": 4}}, "`rank_pattern`"),
        ({"bias": "all"}, "`bias` of peft's LoRA must be 'none' to .* Received: 'all'"),
        ({"r": 4}, "`r` must be the rank of the weights. Received: r=4"),
        ({"r": None}, "`rank` must be a whole number"),
        ({"init_lora_weights": "pissa"}, "`init_lora_weights` .* must be True to be .*'pissa'"),
        ({"alora_invocation_tokens": [1]}, r"these options of .*alora_invocation_tokens=\[1\]"),
    ):
        (folder / "adapter_config.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(ValueError, match=message):
            adapters.read_peft(encoder, folder)
        assert not encoder.variants.added
    (folder / "adapter_config.json").write_text(json.dumps(content))
    smaller = kbert.Encoder(tiny_config(num_layers=1))
    with pytest.raises(ValueError, match="Each weight must belong to LoRA of a kernel"):
        adapters.read_peft(smaller, folder)
    narrow = kbert.Encoder(tiny_config(hidden_size=8))
    with pytest.raises(ValueError, match=r"must be of shape \(8, 2\). Received: \(16, 2\)"):
        adapters.read_peft(narrow, folder)
    assert not narrow.variants.added
    adapters.add(encoder, "houlsby", size=2)
    with pytest.raises(ValueError, match="can only contain LoRA"):
        adapters.write_peft(encoder, folder)


@pytest.mark.parametrize("kind", ["bert", "roberta", "electra", "distilbert"])
def test_a_classifier_of_peft_has_its_head_in_the_folder(tmp_path, kind, tiny_vocabulary):
    """`modules_to_save`: LoRA and head give peft's logits."""
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    changes = {**MODELS[kind][0], "vocabulary_size": tokenizer.vocabulary_size}
    encoder = kbert.Encoder(tiny_config(**changes))
    randomise(encoder)
    encoder.save_to_preset(tmp_path / "base", "huggingface", architecture=kind)
    tokenizer.save(tmp_path / "base")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "base", num_labels=3
    )
    saved = ["pre_classifier", "classifier"] if kind == "distilbert" else None
    config = peft.LoraConfig(
        task_type="SEQ_CLS", r=3, target_modules=MODELS[kind][1], modules_to_save=saved
    )
    adapted = peft.get_peft_model(model, config)
    rng = torch.Generator().manual_seed(0)
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data = torch.randn(weight.shape, generator=rng) * 0.3
    adapted.save_pretrained(tmp_path / "adapter")
    task = kbert.tasks.TextClassifier.from_preset(
        tmp_path / "base", labels=["a", "b", "c"], new_head=True
    )
    adapters.read_peft(task, tmp_path / "adapter")
    inputs = inputs_of(task.encoder)
    with torch.no_grad():
        expected = adapted.eval()(
            input_ids=torch.tensor(inputs["token_ids"].astype("int64")),
            attention_mask=torch.tensor(inputs["padding_mask"].astype("int64")),
            **(
                {"token_type_ids": torch.tensor(inputs["segment_ids"].astype("int64"))}
                if kind in ("bert", "electra")
                else {}
            ),
        ).logits.numpy()
    assert_close(to_numpy(task(inputs)["classifier"]), expected, 5e-5)
    with pytest.raises(ValueError, match=r"pass the task, such as .*classifier[./]"):
        adapters.read_peft(kbert.Encoder.from_preset(tmp_path / "base"), tmp_path / "adapter")
    two = kbert.tasks.TextClassifier.from_preset(
        tmp_path / "base", labels=["a", "b"], new_head=True
    )
    with pytest.raises(ValueError, match="shape of classifier/dense/kernel"):
        adapters.read_peft(two, tmp_path / "adapter")
    assert not two.encoder.variants.added


@pytest.mark.parametrize("where", ["text", "token"])
def test_one_kernel_for_query_key_and_value_is_cut_into_theirs(tmp_path, where, tiny_vocabulary):
    """ModernBERT has one `Wqkv`, and one name for the dense layer under every head."""
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    sizes = {"vocab_size": tokenizer.vocabulary_size, "hidden_size": 16, "intermediate_size": 24}
    auto, kind, answer = {
        "text": (
            transformers.ModernBertForSequenceClassification,
            kbert.tasks.TextClassifier,
            "classifier",
        ),
        "token": (
            transformers.ModernBertForTokenClassification,
            kbert.tasks.TokenClassifier,
            "tokens",
        ),
    }[where]
    torch.manual_seed(0)
    model = auto(
        transformers.ModernBertConfig(
            **sizes, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0, num_labels=3
        )
    )
    model.save_pretrained(tmp_path / "base")
    tokenizer.save(tmp_path / "base")
    config = peft.LoraConfig(
        r=3, target_modules=["Wqkv", "attn.Wo"], modules_to_save=["classifier", "head"]
    )
    adapted = peft.get_peft_model(model, config)
    for weight in adapted.parameters():
        if weight.requires_grad:
            weight.data = torch.randn(weight.shape) * 0.3
    adapted.save_pretrained(tmp_path / "adapter")
    task = kind.from_preset(tmp_path / "base", labels=["a", "b", "c"], new_head=True)
    adapters.read_peft(task, tmp_path / "adapter")
    inputs = inputs_of(task.encoder)
    with torch.no_grad():
        expected = adapted.eval()(
            input_ids=torch.tensor(inputs["token_ids"].astype("int64")),
            attention_mask=torch.tensor(inputs["padding_mask"].astype("int64")),
        ).logits.numpy()
    real = inputs["padding_mask"] > 0 if where == "token" else slice(None)
    assert_close(to_numpy(task(inputs)[answer])[real], expected[real], 5e-5)
    with pytest.raises(ValueError, match=r"into one\. Received: '(query|key|value)'"):
        adapters.write_peft(task, tmp_path / "written")
