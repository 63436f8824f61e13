import json
import pathlib
import weakref

import numpy as np
import pytest

from kbert.catalog.families import family
from kbert.models import Elmo, Encoder, weights
from kbert.models.generators.decoder import Decoder
from kbert.models.weights import get_arrays, named_weights, set_arrays
from tests.harness import tiny_config

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["bert-tiny", "elmo-small", "gpt2-tiny", "openai-gpt"])
def test_weight_names_and_shapes_are_those_of_the_golden_file(name):
    """A renamed weight must fail here, not with whoever loads an older preset."""
    if "gpt" in name:
        small = {"num_layers": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 256}
        small |= {"vocabulary_size": 100, "max_positions": 32}
        weights = named_weights(Decoder(family(name).replace(**small)), "decoder")
    elif name.startswith("elmo"):
        weights = named_weights(Elmo(family(name).replace(vocabulary_size=100)), "elmo")
    else:
        weights = named_weights(Encoder(family(name)), "encoder")
    shapes = {name: list(weight.shape) for name, weight in weights.items()}
    assert shapes == json.loads((GOLDEN / f"{name}.json").read_text())


def test_the_model_s_own_name_is_no_part_of_weight_names():
    names = named_weights(Encoder(tiny_config(), name="teacher"), "encoder")
    assert list(names) == list(named_weights(Encoder(tiny_config()), "encoder"))


def test_a_preset_that_does_not_fit_changes_nothing():
    encoder = Encoder(tiny_config())
    before = get_arrays(encoder, "encoder")
    arrays = {**before, "encoder/pooler/bias": np.zeros(3, "float32")}
    arrays["encoder/extra"] = arrays.pop("encoder/embeddings/token")
    with pytest.raises(ValueError, match="Received: a test") as error:
        set_arrays(encoder, "encoder", arrays, "a test")
    for line in (
        "- missing encoder/embeddings/token (40, 16)",
        "+ unexpected encoder/extra (40, 16)",
        "! shape of encoder/pooler/bias: expected (16,), is (3,)",
    ):
        assert line in str(error.value)
    for name, value in get_arrays(encoder, "encoder").items():
        np.testing.assert_array_equal(value, before[name])


def test_consumed_arrays_are_freed_one_by_one(monkeypatch):
    """While a model loads, its memory must not hold each weight twice."""
    model, source = Encoder(tiny_config()), Encoder(tiny_config())
    arrays = {name: np.array(x) for name, x in get_arrays(source, "encoder").items()}
    references = [weakref.ref(array) for array in arrays.values()]
    alive = []

    def copied(array):
        alive.append(sum(reference() is not None for reference in references))
        return copy(array)

    copy = weights._copied
    monkeypatch.setattr(weights, "_copied", copied)
    set_arrays(model, "encoder", dict(arrays), "a file")
    assert set(alive) == {len(references)}
    alive.clear()
    set_arrays(model, "encoder", arrays, "a file", consume=True)
    assert alive == list(range(len(references), 0, -1))
    assert not arrays
    for name, array in get_arrays(source, "encoder").items():
        np.testing.assert_array_equal(get_arrays(model, "encoder")[name], array)


def test_integers_are_no_weights():
    encoder = Encoder(tiny_config())
    arrays = get_arrays(encoder, "encoder")
    arrays["encoder/pooler/bias"] = np.ones(16, "int64")
    with pytest.raises(ValueError, match=r"Received: encoder/pooler/bias \(int64\) in a test"):
        set_arrays(encoder, "encoder", arrays, "a test")


def test_what_a_lenient_load_leaves_is_logged_and_told(caplog):
    source = Encoder(tiny_config(num_layers=1))
    encoder = Encoder(tiny_config())
    before = get_arrays(encoder, "encoder")
    arrays = get_arrays(source, "encoder")
    arrays["encoder/extra"] = arrays.pop("encoder/pooler/bias")
    left = set_arrays(encoder, "encoder", arrays, "a test", strict=False)
    assert left.unexpected == ("encoder/extra",)
    assert "encoder/pooler/bias" in left.missing
    assert all("layers/1/" in name or "pooler/bias" in name for name in left.missing)
    assert "a test: weights left unchanged: encoder/" in caplog.text
    assert "not used: encoder/extra" in caplog.text
    for name, value in get_arrays(encoder, "encoder").items():
        expected = before[name] if name in left.missing else arrays[name]
        np.testing.assert_array_equal(value, expected)


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x,
        lambda x: np.asfortranarray(x),
        lambda x: np.repeat(x, 2, axis=-1)[..., ::2],
        lambda x: x.astype("float64"),
        lambda x: x.astype("float16"),
    ],
    ids=["as it is", "transposed", "strided", "float64", "float16"],
)
def test_weights_are_copies_of_the_arrays(make):
    encoder = Encoder(tiny_config())
    rng = np.random.default_rng(0)
    arrays = {
        name: make(rng.normal(size=weight.shape).astype("float32"))
        for name, weight in named_weights(encoder, "encoder").items()
    }
    wanted = {name: np.array(x, "float32") for name, x in arrays.items()}
    set_arrays(encoder, "encoder", arrays, "memory")
    for x in arrays.values():
        x[...] = 0
    found = get_arrays(encoder, "encoder")
    assert all(np.array_equal(found[name], x) for name, x in wanted.items())
