"""Equality with models of code that lies with their weights, both ways."""

import numpy as np
import pytest
from keras import ops

from kbert.catalog.families import family
from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.huggingface import export_model, import_model, write_folder
from kbert.models import Encoder
from kbert.models.weights import named_weights, set_arrays
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import VOCABULARY, gradients, make_inputs, run_kbert

torch = pytest.importorskip("torch")

from tests.models import remote  # noqa: E402  # needs torch

NEOBERT = {
    "model_type": "neobert",
    "architectures": ["NeoBERTLMHead"],
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 100,  # 72 inside: two thirds, and up to a multiple of 8
    "norm_eps": 1e-5,
    "max_length": 24,
    "pad_token_id": 0,
    "auto_map": {"AutoModel": "model.NeoBERT"},
}
# Twelve heads, whose slopes are no one series.
MOSAICBERT = {
    "model_type": "bert",
    "architectures": ["BertForMaskedLM"],
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 12,
    "intermediate_size": 40,
    "max_position_embeddings": 24,
    "alibi_starting_size": 24,
    "auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"},
}
MODELS = {
    "neobert": (remote.NeoBert, NEOBERT, "NeoBERTForSequenceClassification"),
    "mosaicbert": (remote.MosaicBert, MOSAICBERT, "BertForSequenceClassification"),
}


def arrays_of(model):
    return {name: array.numpy() for name, array in model.state_dict().items()}


def tensors(features):
    zeros = np.zeros_like(features["token_ids"])
    names = ("token_ids", "segment_ids", "padding_mask")
    return [torch.tensor(features.get(name, zeros)).long() for name in names]


def of_head(arrays, head):
    """The weights that a class of one head has."""
    others = {
        "masked_lm": ("dense.", "classifier.", "bert.pooler."),
        "classifier": ("decoder.", "cls."),
    }
    return {name: x for name, x in arrays.items() if not name.startswith(others[head])}


@pytest.mark.jax_slow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("head", ["masked_lm", "classifier"])
@pytest.mark.parametrize("padded", [True, False])
def test_outputs_equal_the_formulas(name, head, padded):
    cls, content, classifier = MODELS[name]
    model = remote.make(cls, **content)
    if head == "classifier":
        content = {**content, "architectures": [classifier]}
    checkpoint = import_model(content, of_head(arrays_of(model), head), "there")
    features = make_inputs(0, bool(checkpoint.config.num_segments), padded)
    ours = run_kbert(checkpoint, features)
    with torch.no_grad():
        states, attentions, pooled, heads = model(*tensors(features))
    real = features["padding_mask"] == 1
    for a, b in zip(ours["hidden_states"], states, strict=True):
        assert_close(a[real], b.numpy()[real], 1e-4, "hidden state")
    for a, b in zip(ours["attention"], attentions, strict=True):
        a, b = np.moveaxis(a, 1, -1)[real], np.moveaxis(b.numpy(), 1, -1)[real]
        assert_close(a, b, 1e-4, "attention")
    expected = heads[head].numpy()
    if head == "masked_lm":
        assert_close(ours[head][real], expected[real], 1e-4, head)
    else:
        assert_close(ours["pooled"], pooled.numpy(), 1e-4, "pooled")
        assert_close(ours[head], expected, 1e-4, head)


@pytest.mark.jax_slow
@pytest.mark.parametrize("name", MODELS)
def test_gradients_equal_the_formulas(name):
    cls, content, _ = MODELS[name]
    model = remote.make(cls, **content)
    arrays = of_head(arrays_of(model), "masked_lm")
    checkpoint = import_model(content, arrays, "there")
    encoder = Encoder(checkpoint.config)
    set_arrays(encoder, "encoder", checkpoint.part("encoder/"), checkpoint.source)
    features = make_inputs(0, bool(checkpoint.config.num_segments), padded=True)
    rng = np.random.default_rng(1)
    size = (*features["token_ids"].shape, content["hidden_size"])
    weight = rng.normal(size=size).astype("float32")
    weight *= features["padding_mask"][..., None]
    states, *_ = model(*tensors(features))
    (states[-1] * torch.tensor(weight)).sum().backward()
    theirs = {n: p.grad.numpy() for n, p in model.named_parameters() if p.grad is not None}
    expected = import_model(content, theirs, "there").arrays
    expected = {n: x for n, x in expected.items() if n.startswith("encoder/")}

    def loss():
        return ops.sum(encoder(features)["sequence"] * ops.convert_to_tensor(weight))

    assert_gradients_close(gradients(loss, named_weights(encoder, "encoder")), expected)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("head", ["masked_lm", "classifier"])
def test_there_and_back_is_bit_equal(name, head, tmp_path):
    cls, content, classifier = MODELS[name]
    if head == "classifier":
        content = {**content, "architectures": [classifier]}
    arrays = of_head(arrays_of(remote.make(cls, **content)), head)
    arrays.pop("cls.predictions.decoder.weight", None)  # a copy of the token table
    first = import_model(content, arrays, "there")
    written, again = export_model(
        first.config, first.arrays, architecture=name, labels=first.labels
    )
    assert again.keys() == arrays.keys()
    for key, array in arrays.items():
        np.testing.assert_array_equal(again[key], array, err_msg=key)
    assert written["model_type"] == content["model_type"]
    assert written["architectures"] == content["architectures"]
    assert all("--" in place for place in written["auto_map"].values())
    write_folder(
        tmp_path,
        first.config,
        first.arrays,
        architecture=name,
        labels=first.labels,
        task=first.task,
    )
    second = read_checkpoint(tmp_path)
    assert (second.config, second.task, second.labels) == (first.config, first.task, first.labels)


def test_neobert_s_width_and_base():
    config = import_model(NEOBERT, {}, "there").config
    assert config.intermediate_size == 72
    row = family("chandar-lab/NeoBERT")
    assert export_model(row, {})[0]["intermediate_size"] == 3072
    for changes, message in (
        ({"intermediate_size": 20}, "feed-forward width is a multiple of 8"),
        ({"rotary_base": 500.0}, "rotary base is 10,000"),
    ):
        with pytest.raises(ValueError, match=message):
            export_model(row.replace(**changes), {}, architecture="neobert")
