"""Bottlenecks to and from folders of `adapters`: by its layout, and by the package where it is."""

import importlib
import json

import numpy as np
import pytest

import kbert
from kbert.edit import adapters
from kbert.edit.adapters.adapterhub import reduction_factor
from kbert.edit.adapters.base import weights_of
from kbert.edit.adapters.files import FOREIGN_FILE
from kbert.edit.adapters.foreign import write_adapter_files
from kbert.io.arrays import read_safetensors
from tests.harness import assert_close, randomise, tiny_config, tiny_inputs, to_numpy

pytestmark = pytest.mark.tensorflow
FILE = "adapter.safetensors"
CONFIG = {
    **dict.fromkeys(("adapter_residual_before_ln", "cross_adapter", "ln_before"), False),
    **dict.fromkeys(("ln_after", "is_parallel", "phm_layer", "use_gating"), False),
    **dict.fromkeys(("original_ln_after", "output_adapter", "residual_before_ln"), True),
    **{"init_weights": "bert", "inv_adapter": None, "leave_out": [], "phm_dim": 4},
    **{"reduction_factor": 4, "scaling": 1.0},
}
KINDS = {
    "double_seq_bn": {"mh_adapter": True, "original_ln_before": False, "non_linearity": "swish"},
    "seq_bn": {"mh_adapter": False, "original_ln_before": True, "non_linearity": "relu"},
}
MODELS = {
    "bert": {},
    "roberta": {"num_segments": 0, "layer_norm_epsilon": 1e-5},
    "distilbert": {"num_segments": 0, "pooler_activation": None},
}
# What stands before and behind the number of a layer, for each of its parts.
PLACES = {
    "bert": ("bert.encoder.layer", "attention.output.adapters", "output.adapters"),
    "roberta": ("encoder.layer", "attention.output.adapters", "output.adapters"),
    "distilbert": (
        *("transformer.layer", "attention_adapters.adapters"),
        "output_adapters.adapters",
    ),
}


def base_of(kind):
    encoder = kbert.Encoder(tiny_config(**MODELS[kind]))
    randomise(encoder)
    return encoder


def made_folder(folder, model, kind, size=4, hidden=16, layers=2, **changes):
    """As `adapters` 1.3 writes one, without the package; and its weights."""
    rng = np.random.default_rng(0)
    stem, *places = PLACES[model]
    arrays = {}
    for layer in range(layers):
        for place in places if KINDS[kind]["mh_adapter"] else places[1:]:
            start = f"{stem}.{layer}.{place}.reviews"
            for row, shape in (("down.0", (size, hidden)), ("up", (hidden, size))):
                for part, x in (("weight", shape), ("bias", shape[:1])):
                    key = f"{start}.adapter_{row}.{part}"
                    arrays[key] = rng.normal(0, 0.3, x).astype("float32")
    content = {
        "config": {**CONFIG, **KINDS[kind], **changes},
        **{"hidden_size": hidden, "model_class": "X", "model_name": "x", "model_type": model},
        **{"name": "reviews", "version": "adapters.1.3.0"},
    }
    write_adapter_files(folder, content, arrays, FILE)
    return arrays


@pytest.mark.parametrize("model", list(MODELS))
@pytest.mark.parametrize("kind", list(KINDS))
def test_a_folder_is_read_and_written(tmp_path, model, kind):
    arrays = made_folder(tmp_path / "theirs", model, kind)
    encoder = base_of(model)
    before = to_numpy(encoder(tiny_inputs(encoder.config))["sequence"])
    adapters.read_adapterhub(encoder, tmp_path / "theirs")
    found = encoder.variants.added["reviews"]
    assert (found.kind, found.size) == ({"seq_bn": "pfeiffer"}.get(kind, "houlsby"), 4)
    assert found.activation == ("relu" if kind == "seq_bn" else "silu")
    after = to_numpy(encoder(tiny_inputs(encoder.config))["sequence"])
    assert np.abs(before - after).max() > 0.05
    for layer, block in enumerate(encoder.blocks):
        down = block.adapter_reviews.bottlenecks[1].down
        stem, _, place = PLACES[model]
        key = f"{stem}.{layer}.{place}.reviews.adapter_down.0"
        np.testing.assert_array_equal(down.kernel.value, arrays[f"{key}.weight"].T)
        np.testing.assert_array_equal(down.bias.value, arrays[f"{key}.bias"])
    adapters.write_adapterhub(encoder, tmp_path / "ours")
    ours = read_safetensors(tmp_path / "ours" / FILE)
    assert ours.keys() == {key.removeprefix("bert.") for key in arrays}
    for key, array in arrays.items():
        np.testing.assert_array_equal(ours[key.removeprefix("bert.")], array)
    theirs, own = (
        json.loads((tmp_path / x / FOREIGN_FILE).read_text()) for x in ("theirs", "ours")
    )
    assert own["model_type"] == model
    shared = own["config"].keys() & theirs["config"].keys()
    assert {"mh_adapter", "reduction_factor", "scaling"} <= shared
    assert {key: own["config"][key] for key in shared} == {
        key: theirs["config"][key] for key in shared
    }


def test_the_package_makes_every_size_again(tmp_path):
    for hidden in (128, 312, 768, 1000, 1024):
        sizes = range(1, 2 * hidden)
        found = [int(hidden // reduction_factor(hidden, size)) for size in sizes]
        assert found == list(sizes)
    encoder = kbert.Encoder(tiny_config())  # of width 16, and 16 // (16 / 13) is 12
    adapters.add(encoder, "pfeiffer", size=13, pooler=False)
    adapters.write_adapterhub(encoder, tmp_path)
    content = json.loads((tmp_path / FOREIGN_FILE).read_text())
    assert int(16 // content["config"]["reduction_factor"]) == 13


def torch_states(model, inputs):
    torch = importlib.import_module("torch")
    names = {"token_ids": "input_ids", "padding_mask": "attention_mask"}
    names |= {"segment_ids": "token_type_ids"}
    with torch.no_grad():
        given = {names[k]: torch.tensor(v.astype("int64")) for k, v in inputs.items()}
        return model(**given).last_hidden_state.numpy()


@pytest.mark.parametrize("kind", list(KINDS))
@pytest.mark.parametrize("model", list(MODELS))
def test_the_package_computes_the_same(tmp_path, model, kind):
    """Where `adapters` is installed, which needs a transformers of version 4."""
    package = pytest.importorskip("adapters")
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    encoder = base_of(model)
    encoder.save_to_preset(tmp_path / "base", "huggingface", architecture=model)
    theirs = transformers.AutoModel.from_pretrained(tmp_path / "base").eval()
    package.init(theirs)
    config = package.AdapterConfig.load(kind, reduction_factor=4)
    theirs.add_adapter("reviews", config=config)
    rng = torch.Generator().manual_seed(0)
    for name, weight in theirs.named_parameters():
        if ".adapters." in name:
            weight.data = torch.randn(weight.shape, generator=rng) * 0.3
    theirs.set_active_adapters("reviews")
    theirs.save_adapter(str(tmp_path / "theirs"), "reviews", use_safetensors=True)
    inputs = tiny_inputs(encoder.config)
    inputs["token_ids"] = np.maximum(inputs["token_ids"], 4)  # 1 is RoBERTa's padding
    real = inputs["padding_mask"] > 0
    expected = torch_states(theirs, inputs)
    adapters.read_adapterhub(encoder, tmp_path / "theirs")
    assert_close(to_numpy(encoder(inputs)["sequence"])[real], expected[real], 2e-5)
    # And back: other weights, which the package reads.
    for weight in weights_of(encoder, "reviews"):
        weight.assign(np.random.default_rng(3).normal(0, 0.3, tuple(weight.shape)))
    adapters.write_adapterhub(encoder, tmp_path / "ours")
    again = transformers.AutoModel.from_pretrained(tmp_path / "base").eval()
    package.init(again)
    again.load_adapter(str(tmp_path / "ours"), set_active=True, use_safetensors=True)
    found = to_numpy(encoder(inputs)["sequence"])
    assert np.abs(found - expected).max() > 0.05
    assert_close(torch_states(again.eval(), inputs)[real], found[real], 2e-5)


def test_what_is_not_understood_is_refused(tmp_path):
    encoder, folder = base_of("bert"), tmp_path / "x"
    made_folder(folder, "bert", "seq_bn")
    content = json.loads((folder / FOREIGN_FILE).read_text())

    def refused(message, error=ValueError, **changes):
        config = {**content["config"], **changes.pop("config", {})}
        (folder / FOREIGN_FILE).write_text(json.dumps({**content, "config": config, **changes}))
        with pytest.raises(error, match=message):
            adapters.read_adapterhub(encoder, folder)
        assert not encoder.variants.added

    refused("`ln_before` of a bottleneck .* must be False to be .*True", config={"ln_before": True})
    refused("`scaling` .* must be 1.0 to .* Received: 'learned'", config={"scaling": "learned"})
    refused("`inv_adapter` .*Received: 'nice'", config={"inv_adapter": "nice"})
    refused(r"double_seq_bn \(Houlsby\).*mh_adapter=True", config={"mh_adapter": True})
    refused("Received: .*non_linearity='elu'", config={"non_linearity": "elu"})
    refused("called 'other' in .* Received: bert.encoder.layer.0", name="other")
    refused("the settings of one adapter.*Received: config", name=None)
    # Of version 1, where "gelu" was the approximation by tanh.
    (folder / FOREIGN_FILE).write_text(
        json.dumps({"name": "reviews", "config": {**content["config"], "non_linearity": "gelu"}})
    )
    adapters.read_adapterhub(encoder, folder)
    assert encoder.variants.added["reviews"].activation == "gelu_tanh"
    adapters.remove(encoder, "reviews")
    made_folder(folder, "bert", "seq_bn", layers=3)
    with pytest.raises(ValueError, match=r"Received: 4 that are missing, .*2/feed_forward"):
        adapters.read_adapterhub(encoder, folder)
    assert not encoder.variants.added
    (folder / FILE).rename(folder / "pytorch_adapter.bin")
    with pytest.raises(FileNotFoundError, match=r"use_safetensors=True.*is never read\). Received"):
        adapters.read_adapterhub(encoder, folder)
    made_folder(folder, "bert", "seq_bn")
    albert = kbert.Encoder(tiny_config(num_layer_groups=1, embedding_size=8))
    with pytest.raises(ValueError, match=r"bert, electra, .*Received: albert"):
        adapters.read_adapterhub(albert, folder)
    for kind, options in (("lora", {}), ("houlsby", {}), ("pfeiffer", {"pooler": True})):
        adapters.add(encoder, kind, **options)
        with pytest.raises(ValueError, match=f"can only contain bottlenecks.*'kind': '{kind}'"):
            adapters.write_adapterhub(encoder, tmp_path / "never")
        adapters.remove(encoder, kind)
    assert not (tmp_path / "never").exists()
