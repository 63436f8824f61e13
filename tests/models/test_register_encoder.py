"""An encoder with a class of its own: made, saved, loaded and refused as the design says."""

import dataclasses

import keras
import numpy as np
import pytest

import kbert
from kbert.configs import EncoderConfig
from kbert.models import Encoder, Seq2Seq, describe
from kbert.tokenizers import WordPieceTokenizer
from tests.harness import randomise, tiny_config, tiny_inputs, to_numpy


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoubledConfig(EncoderConfig):
    kind = "doubled"
    told = "an encoder that doubles"
    UNUSED = ("attention_pattern",)

    factor: float = 2.0


@keras.saving.register_keras_serializable(package="tests")
class Doubled(Encoder):
    config_class = DoubledConfig

    def _run_layers(self, inputs, training, reads, positions):
        layers = super()._run_layers(inputs, training, reads, positions)
        doubled = [self.config.factor * x for x in layers.hidden_states]
        return layers._replace(hidden_states=doubled)


def doubled_config(**changes):
    return DoubledConfig(**{**tiny_config().to_dict(), **changes})


@pytest.fixture(scope="module")
def doubled():
    encoder = Encoder(doubled_config(), dtype="float32")
    randomise(encoder)
    return encoder


def test_its_config_decides_the_class(doubled):
    assert type(doubled) is Doubled
    assert type(Encoder(tiny_config())) is Encoder
    assert doubled.weights[0].path == "encoder/embeddings/token"
    assert describe(doubled.config).held_parameters == doubled.count_params()


def test_it_is_loaded_from_a_preset_and_by_keras(doubled, tmp_path):
    inputs = tiny_inputs(doubled.config)
    doubled.save_to_preset(tmp_path / "preset")
    doubled.save(tmp_path / "model.keras")
    for again in (
        Encoder.from_preset(tmp_path / "preset"),
        Doubled.from_preset(tmp_path / "preset"),
        keras.saving.load_model(tmp_path / "model.keras"),
    ):
        assert type(again) is Doubled
        assert again.config == doubled.config
        found, expected = (to_numpy(x(inputs)["sequence"]) for x in (again, doubled))
        np.testing.assert_array_equal(found, expected)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("eagerly")
def test_a_task_takes_it(doubled, tmp_path, tiny_vocabulary):
    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    encoder = Encoder(doubled_config(vocabulary_size=len(tiny_vocabulary)))
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    task.save_to_preset(tmp_path)
    again = kbert.tasks.TextClassifier.from_preset(tmp_path)
    assert type(again.encoder) is Doubled
    (expected,), (found,) = task.predict(["the fox"]), again.predict(["the fox"])
    assert found["probabilities"] == pytest.approx(expected["probabilities"], abs=1e-6)


def test_another_config_is_refused():
    with pytest.raises(TypeError, match=r"of the class DoubledConfig.*Received: EncoderConfig"):
        Doubled(tiny_config())
    with pytest.raises(TypeError, match=r"of the class EncoderConfig.*Received: 3"):
        Encoder(3)


def test_a_field_without_use_is_refused():
    with pytest.raises(
        ValueError, match=r"not support `attention_pattern`. Received: \(.global., 2"
    ):
        doubled_config(attention_pattern=("global", 2))


@pytest.mark.parametrize("format", ["huggingface", "keras_hub"])
def test_no_other_library_is_told_that_it_is_bert(doubled, tmp_path, format):
    with pytest.raises(ValueError, match=r"does not support this model|no architecture for this"):
        doubled.save_to_preset(tmp_path / format, format)
    assert not (tmp_path / format).exists() or not list((tmp_path / format).iterdir())


def test_no_encoder_decoder_begins_with_it(doubled):
    with pytest.raises(ValueError, match=r"an encoder like BERT.*Received: kind='doubled'"):
        Seq2Seq.from_encoder(doubled)


def test_the_folder_of_an_unknown_kind_is_refused(doubled, tmp_path):
    doubled.save_to_preset(tmp_path)
    file = tmp_path / "kbert.json"
    file.write_text(file.read_text().replace("doubled", "trebled"))
    with pytest.raises(ValueError, match=r"the keys format_version and .*encoder or .*trebled"):
        Encoder.from_preset(tmp_path)
