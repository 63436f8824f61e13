"""Weights of Hugging Face's folders in other formats than safetensors, under old names too."""

import json
import shutil

import numpy as np
import pytest

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.weights import read_weights
from tests.harness import assert_close, to_numpy

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SIZES = {
    "vocab_size": 40,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 24,
}


def make(kind, **changes):
    """A model of transformers' with weights that are large enough to tell."""
    torch.manual_seed(0)
    config_class = transformers.AutoConfig.for_model(kind.removesuffix("-model").split("-")[0])
    config = type(config_class)(**SIZES, **changes)
    model = {
        "bert": transformers.BertForPreTraining,
        "bert-model": transformers.BertModel,
        "roberta": transformers.RobertaForMaskedLM,
        "bert-classify": transformers.BertForSequenceClassification,
    }[kind](config)
    with torch.no_grad():
        for weight in model.parameters():
            weight.copy_(torch.randn_like(weight) * 0.15)
    return model.eval()


def save(folder, model, state, **config):
    """A folder as people made them: a config, and whatever they gave to torch.save."""
    folder.mkdir(exist_ok=True)
    content = {**json.loads(model.config.to_json_string()), **config}
    content = {key: x for key, x in content.items() if x is not None}
    (folder / "config.json").write_text(json.dumps(content))
    torch.save(state, folder / "pytorch_model.bin")


def old_names(state):
    """Those of the first files, which followed TensorFlow's."""

    def rename(name):
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        return name.replace("LayerNorm.bias", "LayerNorm.beta")

    return {rename(name): tensor for name, tensor in state.items()}


def without_prefix(state):
    return {name.removeprefix("bert."): tensor for name, tensor in state.items()}


def with_tied_copies(state):
    """SpanBERT, BERT-wwm, SciBERT: the decoder and its bias as tensors of their own."""
    copy = {"cls.predictions.decoder.weight": state["bert.embeddings.word_embeddings.weight"]}
    bias = {"cls.predictions.decoder.bias": state["cls.predictions.bias"].clone()}
    return {**state, **copy, **bias}


def with_buffers(state):
    """ClinicalBERT and what version 4 saved; TinyBERT's projections to its teacher's width."""
    ids = torch.arange(24)[None]
    buffers = {"bert.embeddings.position_ids": ids, "bert.embeddings.token_type_ids": ids * 0}
    fit = {"fit_dense.weight": torch.ones(3, 16), "fit_dense.bias": torch.ones(3)}
    return {**state, **buffers, **fit}


def of_data_parallel(state):
    return {f"module.{name}": tensor for name, tensor in state.items()}


def compiled(state):
    return {f"_orig_mod.{name}": tensor for name, tensor in state.items()}


def compiled_within(state):
    inner = {name.replace("bert.", "bert._orig_mod.", 1): x for name, x in state.items()}
    return of_data_parallel(inner)


def in_half(state):
    return {name: tensor.half() for name, tensor in state.items()}


def assert_same_model(folder, model):
    ids = np.random.default_rng(0).integers(5, 40, (2, 9))
    with torch.no_grad():
        theirs = model.base_model(torch.tensor(ids))
    encoder = kbert.Encoder.from_preset(folder)
    ours = to_numpy(encoder(ids))
    assert_close(ours["sequence"], theirs.last_hidden_state, 1e-4)
    if "pooled" in ours:
        assert_close(ours["pooled"], theirs.pooler_output, 1e-4)


NAMES = (
    *(dict, old_names, without_prefix, with_tied_copies, with_buffers),
    *(of_data_parallel, compiled, compiled_within),
)
# A file from before version 1.6 of PyTorch is read otherwise, and its names as any other's.
IN_STREAM = (dict, with_tied_copies)


@pytest.mark.parametrize(
    ("stream", "change"),
    [
        pytest.param(stream, x, marks=[pytest.mark.slow] if stream and x not in IN_STREAM else [])
        for stream in (False, True)
        for x in NAMES
    ],
)
def test_a_bert_as_files_name_it(tmp_path, change, stream):
    model = make("bert")
    save(tmp_path / "x", model, change(model.state_dict()))
    if stream:
        state = change(model.state_dict())
        path = tmp_path / "x/pytorch_model.bin"
        torch.save(state, path, _use_new_zipfile_serialization=False)
    assert_same_model(tmp_path / "x", model)
    checkpoint = read_checkpoint(tmp_path / "x")
    assert checkpoint.task == {"kind": "pretrain", "next_sentence": True}
    for name, expected in {
        "masked_lm/transform/kernel": model.cls.predictions.transform.dense.weight.T,
        "masked_lm/bias": model.cls.predictions.bias,
        "sentence/dense/kernel": model.cls.seq_relationship.weight.T,
    }.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], expected.detach())


def test_a_folder_is_bit_equal_to_safetensors_whichever_way_it_was_saved(tmp_path):
    model = make("bert")
    model.save_pretrained(tmp_path / "new")
    save(tmp_path / "old", model, model.state_dict())
    new, old = (read_checkpoint(tmp_path / name) for name in ("new", "old"))
    assert old.config == new.config
    assert old.arrays.keys() == new.arrays.keys()
    for name, array in new.arrays.items():
        np.testing.assert_array_equal(old.arrays[name], array)


def test_half_precision(tmp_path):
    model = make("bert")
    save(tmp_path / "x", model, in_half(model.state_dict()), torch_dtype="float16")
    arrays = read_checkpoint(tmp_path / "x").arrays
    expected = model.bert.embeddings.word_embeddings.weight.half().float().detach()
    np.testing.assert_array_equal(arrays["encoder/embeddings/token"], expected)


def test_codebert_is_a_roberta_without_a_head(tmp_path):
    model = make("roberta", type_vocab_size=1)
    state = {k: x for k, x in model.state_dict().items() if not k.startswith("lm_head.")}
    save(tmp_path / "x", model, state, architectures=["RobertaModel"])
    assert_same_model(tmp_path / "x", model)


def test_scibert_says_no_architecture(tmp_path):
    """Its config is Google's bert_config.json under another name."""
    model = make("bert")
    save(tmp_path / "x", model, old_names(model.state_dict()))
    content = {**SIZES, "hidden_act": "gelu", "type_vocab_size": 2}
    (tmp_path / "x/config.json").write_text(json.dumps(content))
    assert_same_model(tmp_path / "x", model)


def test_a_fine_tuned_model_with_its_labels(tmp_path):
    model = make("bert-classify", num_labels=3, id2label={0: "a", 1: "b", 2: "c"})
    save(tmp_path / "x", model, model.state_dict(), architectures=[type(model).__name__])
    checkpoint = read_checkpoint(tmp_path / "x")
    assert checkpoint.task == {"kind": "classify"}
    assert checkpoint.labels == ("a", "b", "c")


def test_shards_of_pickles(tmp_path):
    model = make("bert")
    save(tmp_path / "x", model, {})
    state = model.state_dict()
    names = [*state]
    places = {}
    for i, part in enumerate((names[:20], names[20:]), 1):
        file = f"pytorch_model-0000{i}-of-00002.bin"
        torch.save({name: state[name] for name in part}, tmp_path / "x" / file)
        places |= dict.fromkeys(part, file)
    (tmp_path / "x/pytorch_model.bin").unlink()
    index = tmp_path / "x/pytorch_model.bin.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": places}))
    assert_same_model(tmp_path / "x", model)
    index.write_text(json.dumps({"weight_map": dict.fromkeys(places, "model.safetensors")}))
    with pytest.raises(ValueError, match=r"must name bin files in its folder.*'model.safetensors'"):
        read_checkpoint(tmp_path / "x")


def test_safetensors_come_first(tmp_path):
    model = make("bert-model")
    model.save_pretrained(tmp_path / "x")
    shutil.copy(tmp_path / "x/config.json", tmp_path / "config.json")
    (tmp_path / "x/pytorch_model.bin").write_bytes(b"something else")
    assert "embeddings.word_embeddings.weight" in read_weights(tmp_path / "x")
    with pytest.raises(ValueError, match=r"one of model.safetensors, .*bin.index.json"):
        read_weights(tmp_path)


def test_a_pickle_that_would_run_code_is_refused_with_its_name(tmp_path):
    class Evil:
        def __reduce__(self):
            return exec, (f"open({str(tmp_path / 'made')!r}, 'w')",)

    model = make("bert-model")
    save(tmp_path / "x", model, {**model.state_dict(), "x": Evil()})
    message = r"let alone called. Received: __builtin__.exec at byte [\d,]+ of data.pkl in .*/x/pyt"
    with pytest.raises(ValueError, match=message):
        kbert.Encoder.from_preset(tmp_path / "x")
    assert not (tmp_path / "made").exists()
