import keras
import numpy as np
import pytest

from kbert import edit, tasks
from kbert.io.arrays import map_safetensors
from kbert.models import Encoder
from kbert.models.generators.decoder import Decoder
from kbert.models.generators.decoder_encoder import DecoderEncoder
from kbert.models.initial_values import without_drawing
from kbert.models.weights import get_arrays
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import tiny_config

CONFIGS = {
    "bert": tiny_config(),
    "albert": tiny_config(num_layer_groups=1, embedding_size=8),
    "rounded": tiny_config(edits=[{"kind": "rounding"}]),
    "halting": tiny_config("universal_transformer", halting=True),
    "decoder": tiny_config("decoder"),
}
# Tasks need an engine that trains.
TRAINS = pytest.mark.skipif(keras.backend.backend() == "torch", reason="no engine for it")
DRAWING = ("TruncatedNormal", "RandomNormal", "RandomUniform", "GlorotUniform")


@pytest.fixture
def wordpiece(tiny_vocabulary):
    return WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def drawn(monkeypatch):
    """The shapes that initializers draw."""
    shapes = []

    def watch(kind):
        draw = kind.__call__

        def call(self, shape, *args, **kwargs):
            shapes.append(tuple(shape))
            return draw(self, shape, *args, **kwargs)

        monkeypatch.setattr(kind, "__call__", call)

    for name in DRAWING:
        watch(getattr(keras.initializers, name))
    return shapes


class Refusing(keras.initializers.Initializer):
    def __call__(self, shape, dtype=None):
        raise AssertionError("it is drawn")


def assert_equal(found, expected):
    assert list(found) == list(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, name)


def test_keras_gives_a_variable_what_it_was_assigned_and_calls_no_initializer():
    """Pins what Keras keeps to itself: `_initializer`, and when a scope calls it."""
    layer = keras.layers.Layer()
    with without_drawing():
        given = layer.add_weight(name="given", shape=(2,), initializer=Refusing())
        assert isinstance(given._initializer, Refusing)
        given.assign([1.0, 2.0])
        given.assign([3.0, 4.0])
        ones = layer.add_weight(name="ones", shape=(2,), initializer="ones")
    assert given.numpy().tolist() == [3.0, 4.0]
    assert ones.numpy().tolist() == [1.0, 1.0]
    assert given._initializer is None
    given.assign_add([1.0, 1.0])
    assert given.numpy().tolist() == [4.0, 5.0]


def test_a_variable_of_before_is_assigned_to_at_the_end():
    before = keras.Variable([1.0])
    with without_drawing():
        before.assign([2.0])
        assert before.value[0] == 2
    assert before.numpy().tolist() == [2.0]


def test_after_an_error_a_variable_of_before_is_as_it_was():
    before = keras.Variable([1.0])

    def fail():
        with without_drawing():
            before.assign([2.0])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert before.numpy().tolist() == [1.0]


def test_one_inside_of_another_leaves_the_values_to_it():
    layer = keras.layers.Layer()
    with without_drawing():
        with without_drawing():
            first = layer.add_weight(name="first", shape=(), initializer=Refusing())
            first.assign(1.0)
        with without_drawing():
            first.assign(first + 1)
        assert first.value == 2
    assert first.numpy() == 2


@pytest.mark.parametrize("name", CONFIGS)
def test_loading_a_model_draws_nothing(name, tmp_path, drawn):
    kind = Decoder if name == "decoder" else Encoder
    model = kind(CONFIGS[name])
    model.save_to_preset(tmp_path)
    assert drawn
    drawn.clear()
    again = kind.from_preset(tmp_path)
    assert drawn == []
    assert_equal(get_arrays(again, kind.prefix), get_arrays(model, kind.prefix))
    inputs = {"token_ids": np.array([[3, 5, 7, 9]])}
    found, expected = (keras.ops.convert_to_numpy(x(inputs)["sequence"]) for x in (again, model))
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "bfloat16"])
def test_loading_another_precision(dtype, tmp_path, drawn):
    Encoder(tiny_config()).save_to_preset(tmp_path)
    expected = Encoder(tiny_config(), dtype=dtype)
    for place, array in map_safetensors(tmp_path / "model.safetensors").items():
        weight = next(w for w in expected.weights if place.replace("layers/", "layers_") == w.path)
        weight.assign(array)
    drawn.clear()
    found = Encoder.from_preset(tmp_path, dtype=dtype)
    assert drawn == []
    assert_equal(get_arrays(found, "encoder"), get_arrays(expected, "encoder"))


def test_loading_adapters_draws_nothing(tmp_path, drawn):
    encoder = Encoder(tiny_config())
    edit.adapters.add(encoder, "lora", name="reviews")
    encoder.save_to_preset(tmp_path)
    drawn.clear()
    again = Encoder.from_preset(tmp_path)
    assert drawn == []
    assert_equal(get_arrays(again, "encoder"), get_arrays(encoder, "encoder"))


@TRAINS
def test_a_task_and_its_head(tmp_path, drawn, wordpiece):
    task = tasks.TextClassifier(
        Encoder(tiny_config(vocabulary_size=wordpiece.vocabulary_size)), wordpiece, ["a", "b"]
    )
    task.save_to_preset(tmp_path)
    drawn.clear()
    again = tasks.Task.from_preset(tmp_path)
    assert drawn == []
    for prefix, part in task.parts.items():
        assert_equal(get_arrays(again.parts[prefix], prefix), get_arrays(part, prefix))


@TRAINS
def test_a_new_head_has_the_numbers_that_it_had_when_all_was_drawn(tmp_path, drawn, wordpiece):
    config = tiny_config(vocabulary_size=wordpiece.vocabulary_size)
    Encoder(config).save_to_preset(tmp_path)
    wordpiece.save(tmp_path)
    keras.utils.set_random_seed(5)
    expected = tasks.TextClassifier(Encoder(config), wordpiece, ["a", "b", "c"])
    drawn.clear()
    keras.utils.set_random_seed(5)
    found = tasks.TextClassifier.from_preset(tmp_path, new_head=True, labels=["a", "b", "c"])
    assert drawn == [(16, 3)]
    heads = [get_arrays(task.parts["classifier"], "classifier") for task in (found, expected)]
    assert_equal(*heads)


def test_weights_that_a_file_lacks_have_the_numbers_that_they_had(tmp_path, drawn):
    config = tiny_config(num_layers=1)
    Encoder(config).save_to_preset(tmp_path)
    (tmp_path / "kbert.json").write_text(
        (tmp_path / "kbert.json").read_text().replace('"num_layers": 1', '"num_layers": 2')
    )
    keras.utils.set_random_seed(5)
    expected = get_arrays(Encoder(tiny_config()), "encoder")
    keras.utils.set_random_seed(5)
    drawn.clear()
    found = get_arrays(Encoder.from_preset(tmp_path, strict=False), "encoder")
    file = map_safetensors(tmp_path / "model.safetensors")
    assert sorted(drawn) == [(16, 16), (16, 32), (16, 48), (32, 16)]
    assert_equal(found, {name: file.get(name, array) for name, array in expected.items()})


def test_missing_weights_are_named(tmp_path):
    Encoder(tiny_config(num_layers=1)).save_to_preset(tmp_path)
    (tmp_path / "kbert.json").write_text(
        (tmp_path / "kbert.json").read_text().replace('"num_layers": 1', '"num_layers": 2')
    )
    with pytest.raises(ValueError, match="- missing encoder/layers/1/attention/qkv/kernel"):
        Encoder.from_preset(tmp_path)
    assert Encoder(tiny_config()).weights[0].numpy().any()  # nothing is left behind


def test_new_rows_of_a_decoder_s_table_are_drawn_alone(tmp_path, drawn):
    decoder = Decoder(tiny_config("decoder"))
    arrays = get_arrays(decoder, "decoder")
    drawn.clear()
    keras.utils.set_random_seed(5)
    found = DecoderEncoder.from_arrays(decoder.config, arrays, "a test")
    assert drawn == [(43, 16)]
    found = found.decoder.token_embedding.numpy()
    keras.utils.set_random_seed(5)
    larger = decoder.config.replace(vocabulary_size=len(found))
    expected = Decoder(larger).token_embedding.numpy()
    np.testing.assert_array_equal(found[:40], arrays["decoder/embeddings/token"])
    np.testing.assert_array_equal(found[40:], expected[40:])


def test_a_model_does_not_change_with_its_file(tmp_path):
    """On backends that take arrays for their own where they can."""
    encoder = Encoder(tiny_config())
    encoder.save_to_preset(tmp_path)
    again = Encoder.from_preset(tmp_path)
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    with open(path, "r+b") as file:
        file.seek(start)
        file.write(bytes(len(content) - start))
    assert_equal(get_arrays(again, "encoder"), get_arrays(encoder, "encoder"))


@pytest.mark.tensorflow
def test_tensorflow_s_variables_are_called_as_in_a_model_that_was_drawn(tmp_path):
    encoder = Encoder(tiny_config())
    encoder.save_to_preset(tmp_path)
    for model in (encoder, Encoder.from_preset(tmp_path)):
        for variable in model.variables:
            assert variable.path.endswith(f"/{variable.name}")
            assert variable.value.name == f"{variable.path}:0"


@pytest.mark.tensorflow
def test_replicas_have_the_file_s_values(tmp_path, mirrored, drawn):
    encoder = Encoder(tiny_config())
    encoder.save_to_preset(tmp_path)
    drawn.clear()
    with mirrored.scope():
        again = Encoder.from_preset(tmp_path)
    assert drawn == []
    expected = get_arrays(encoder, "encoder")
    assert_equal(get_arrays(again, "encoder"), expected)
    for weight, array in zip(again.weights, expected.values(), strict=True):
        assert len(weight.value.values) == 2
        for value in weight.value.values:
            np.testing.assert_array_equal(value, array)
