import json
import shutil

import keras
import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.keras_hub.checkpoint import to_keras_hub, write_folder
from kbert.checkpoints.keras_hub.names import BACKBONES
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from kbert.tasks import Pretraining
from kbert.tokenizers import BytePairTokenizer, WordPieceTokenizer, load_tokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import assert_close, randomise, tiny_config, tiny_inputs, to_numpy

keras_hub = pytest.importorskip("keras_hub")

# The other form of GELU or another epsilon would be 1e-4 apart on models as small as these.
CLOSE = 2e-5

SIZES = {
    "num_layers": 2,
    "num_heads": 4,
    "hidden_dim": 32,
    "intermediate_dim": 64,
    "max_sequence_length": 24,
    "dropout": 0.1,
}
# Class -> arguments besides SIZES.
CLASSES = {
    "BertBackbone": {"vocabulary_size": 50, "num_segments": 3},
    "AlbertBackbone": {
        "vocabulary_size": 50,
        "embedding_dim": 8,
        "num_layers": 4,
        "num_groups": 2,
        "dropout": 0.0,
    },
    "ElectraBackbone": {"vocab_size": 50, "embedding_dim": 8},
    "DistilBertBackbone": {"vocabulary_size": 50},
    "RobertaBackbone": {"vocabulary_size": 50},
    "XLMRobertaBackbone": {"vocabulary_size": 50},
}
# What a RoBERTa is, in kbert.
BARE = {"num_segments": 0, "pooler_activation": None, "activation": "gelu"}


def backbone(name, **changes):
    """A backbone of KerasHub's with random weights of sigma 0.15."""
    model = getattr(keras_hub.models, name)(**{**SIZES, **CLASSES[name], **changes})
    randomise(model)
    return model


def config_for(name, **changes):
    """A config of kbert's that the class can be."""
    fields = {
        "BertBackbone": {},
        "AlbertBackbone": {"embedding_size": 8, "num_layers": 4, "num_layer_groups": 2},
        "ElectraBackbone": {"embedding_size": 8},
        "DistilBertBackbone": BARE,
        "RobertaBackbone": {**BARE, "layer_norm_epsilon": 1e-5},
        "XLMRobertaBackbone": {**BARE, "layer_norm_epsilon": 1e-5},
    }[name]
    return tiny_config(**{**fields, **changes})


def assert_same_outputs(encoder, model):
    """Sequence and pooled vectors, with padding."""
    inputs = tiny_inputs(encoder.config)
    ours = to_numpy(encoder(inputs))
    theirs = model(inputs)
    if not isinstance(theirs, dict):
        theirs = {"sequence_output": theirs}
    theirs = to_numpy(theirs)
    real = inputs["padding_mask"] == 1
    assert_close(ours["sequence"][real], theirs["sequence_output"][real], CLOSE)
    if "pooled" in ours:
        assert_close(ours["pooled"], theirs["pooled_output"], CLOSE)


def slow_but(names, fast):
    return [x if x in fast else pytest.param(x, marks=pytest.mark.slow) for x in names]


def assert_goes_back(encoder, model):
    """To a model of the same class, weight by weight."""
    name = type(model).__name__
    architecture = next(spec.model_type for spec in BACKBONES if spec.class_name == name)
    back = to_keras_hub(encoder.config, get_arrays(encoder, "encoder"), architecture)
    assert type(back).__name__ == name
    theirs = {weight.path: weight for weight in model.weights}
    assert {weight.path for weight in back.weights} == theirs.keys()
    for weight in back.weights:
        np.testing.assert_array_equal(weight.value, theirs[weight.path].value)


@pytest.mark.parametrize("name", CLASSES)
def test_a_backbone_in_memory_and_back_again(name):
    model = backbone(name)
    encoder = Encoder.from_preset(model)
    assert encoder.count_params() == model.count_params()
    assert encoder.config.dropout == encoder.config.attention_dropout == model.dropout
    assert ("pooled" in encoder(tiny_inputs(encoder.config))) == isinstance(model.output, dict)
    assert_same_outputs(encoder, model)
    assert_goes_back(encoder, model)


@pytest.mark.parametrize("name", slow_but(CLASSES, ("AlbertBackbone", "RobertaBackbone")))
def test_a_preset_and_back_again(name, tmp_path):
    model = backbone(name)
    model.save_to_preset(str(tmp_path / "theirs"))
    encoder = Encoder.from_preset(tmp_path / "theirs")
    assert_same_outputs(encoder, model)
    assert_goes_back(encoder, model)


# A BERT is written with its task below.
@pytest.mark.parametrize(
    "name",
    slow_but(
        [name for name in CLASSES if name != "XLMRobertaBackbone"],
        ("AlbertBackbone", "RobertaBackbone"),
    ),
)
def test_what_we_write_they_load(name, tmp_path):
    encoder = Encoder(config_for(name))
    randomise(encoder)
    encoder.save_to_preset(tmp_path, format="keras_hub")
    model = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert type(model).__name__ == name
    assert model.count_params() == encoder.count_params()
    assert_same_outputs(encoder, model)
    again = Encoder.from_preset(tmp_path)
    assert again.config == encoder.config
    ours, read = get_arrays(encoder, "encoder"), get_arrays(again, "encoder")
    assert read.keys() == ours.keys()
    for weight in ours:
        np.testing.assert_array_equal(read[weight], ours[weight])


def test_wide_electra_and_xlm_roberta_are_asked_for_by_name():
    for architecture, class_name, source in (
        ("electra", "ElectraBackbone", "BertBackbone"),
        ("xlm-roberta", "XLMRobertaBackbone", "RobertaBackbone"),
    ):
        encoder = Encoder(config_for(source))
        arrays = get_arrays(encoder, "encoder")
        model = to_keras_hub(encoder.config, arrays, architecture)
        assert type(model).__name__ == class_name
        assert read_checkpoint(model).config == encoder.config


def test_a_pooler_where_one_side_has_none(caplog):
    bare = Encoder(config_for("ElectraBackbone", pooler_activation=None))
    model = to_keras_hub(bare.config, get_arrays(bare, "encoder"))
    assert not np.any(model.get_layer("pooled_dense").kernel)
    assert read_checkpoint(model).config == bare.config
    pooled = Encoder(config_for("RobertaBackbone", pooler_activation="tanh"))
    model = to_keras_hub(pooled.config, get_arrays(pooled, "encoder"))
    assert read_checkpoint(model).config == pooled.config.replace(pooler_activation=None)
    assert "RobertaBackbone does not support encoder/pooler/kernel, encoder/pooler/bias" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation": "gelu"}, r"\)\n  BertBackbone: activation is 'gelu_tanh' in it\n"),
        ({"layer_norm_epsilon": 1e-5}, "BertBackbone: layer_norm_epsilon is 1e-12 in it\n"),
        ({"attention_dropout": 0.5}, "BertBackbone: it has one dropout rate\n"),
        ({"pooler_activation": "gelu"}, "BertBackbone: its pooler has tanh\n"),
        ({"num_segments": 0}, "BertBackbone: it has segments\n"),
        ({"num_segments": 2, "num_layers": 5, "num_layer_groups": 2}, "groups .* have one size"),
        ({"num_layer_groups": 1}, "AlbertBackbone: it also projects embeddings of the hidden"),
    ],
)
def test_what_they_cannot_be_is_refused(changes, message, tmp_path):
    encoder = Encoder(tiny_config(**changes))
    with pytest.raises(ValueError, match=f"KerasHub does not support this.*(?s:.*){message}"):
        encoder.save_to_preset(tmp_path, format="keras_hub")
    assert not any(tmp_path.iterdir())


def test_an_architecture_they_do_not_have():
    with pytest.raises(ValueError, match=r"must be one of bert, .*Received: 'elmo'"):
        to_keras_hub(tiny_config(), {}, "elmo")


def test_other_objects_and_classes_are_refused(tmp_path):
    with pytest.raises(TypeError, match=r"supports KerasHub's BertBack.*Received: Dense in mem"):
        Encoder.from_preset(keras.layers.Dense(1))
    model = keras_hub.models.GPT2Backbone(
        vocabulary_size=9, num_layers=1, num_heads=2, hidden_dim=8, intermediate_dim=8
    )
    with pytest.raises(TypeError, match="Received: GPT2Backbone in memory"):
        Encoder.from_preset(model)
    model.save_to_preset(str(tmp_path))
    with pytest.raises(ValueError, match=r"Received: GPT2Backbone in .*config.json"):
        Encoder.from_preset(tmp_path)


def test_weights_of_an_adapted_backbone_are_listed():
    model = backbone("BertBackbone")
    model.enable_lora(2)
    with pytest.raises(ValueError, match=r"\+ unexpected encoder/transformer_layer_0/.*lora"):
        Encoder.from_preset(model)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_quantised_weights_are_refused():
    model = backbone("DistilBertBackbone", num_layers=1)
    model.quantize("int8")
    with pytest.raises(ValueError, match=r"Quantised weights are not supported.*more in memory"):
        Encoder.from_preset(model)


@pytest.fixture(scope="module")
def preset(tmp_path_factory):
    """A folder that nobody changes."""
    folder = tmp_path_factory.mktemp("preset")
    backbone("BertBackbone").save_to_preset(str(folder))
    return folder


@pytest.fixture
def saved(preset, tmp_path):
    return shutil.copytree(preset, tmp_path, dirs_exist_ok=True)


def change_config(folder, **changes):
    content = json.loads((folder / "config.json").read_text())
    content["config"] |= changes
    (folder / "config.json").write_text(json.dumps(content))


@pytest.mark.filterwarnings("ignore:Skipping nested container")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rotary": True}, "Every key .* supported.*unknown rotary in .*config.json"),
        ({"num_layers": 1}, "do not fit its config.*with [0-9,]+ numbers for [0-9,]+$"),
        ({"num_layers": 900}, "do not fit its config.*with [0-9,]+ numbers for [0-9,]+$"),
        ({"num_layers": 10**9}, "at most 1000 layers.*Received: 1,000,000,000 in .*config.json"),
        ({"num_layers": 3}, "damaged or do not fit its config.*Received: .*model.weights.h5"),
        ({"hidden_dim": 16}, "damaged or do not fit its config.*Received: .*model.weights.h5"),
    ],
)
def test_a_config_that_does_not_fit(saved, changes, message):
    change_config(saved, **changes)
    with pytest.raises(ValueError, match=f"(?s){message}"):
        Encoder.from_preset(saved)


def test_heads_of_a_preset_are_named_as_left(saved):
    assert read_checkpoint(saved).left == ()
    (saved / "task.weights.h5").touch()
    assert read_checkpoint(saved).left == ("task.weights.h5",)


def test_a_preset_in_several_files(saved):
    model = keras_hub.models.Backbone.from_preset(str(saved))
    (saved / "model.weights.h5").unlink()
    model.save_weights(str(saved / "model.weights.json"), max_shard_size=5e-5)
    assert len(list(saved.glob("model_*.weights.h5"))) > 1
    assert_same_outputs(Encoder.from_preset(saved), model)


def test_nan_weights_are_named(saved):
    model = keras_hub.models.Backbone.from_preset(str(saved))
    bias = model.get_layer("pooled_dense").bias
    bias.assign(bias + np.nan)
    model.save_to_preset(str(saved))
    with pytest.raises(ValueError, match="missing, NaN or infinite: pooled_dense/bias"):
        Encoder.from_preset(saved)


def test_damaged_weights(saved):
    weights = saved / "model.weights.h5"
    weights.write_bytes(weights.read_bytes()[:2000])
    with pytest.raises(ValueError, match=r"damaged, truncated.*Received: .*model.weights.h5"):
        Encoder.from_preset(saved)


def test_weights_that_are_declared_and_not_there(saved):
    import h5py

    with h5py.File(saved / "model.weights.h5", "r+") as file:
        names = []
        file.visititems(lambda name, x: names.append(name) if isinstance(x, h5py.Dataset) else None)
        del file[names[0]]
        file.create_dataset(names[0], (40_000, 40_000), "float32")
    with pytest.raises(ValueError, match=r"read as zeros. Received: .* of shape \(40000, 40000\)"):
        Encoder.from_preset(saved)


def test_an_index_of_weights_that_is_no_json(saved):
    (saved / "model.weights.h5").unlink()
    (saved / "model.weights.json").write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"nested too deeply\). Received: .*model.weights.json"):
        Encoder.from_preset(saved)


def test_models_of_other_formats_are_not_overwritten(saved, tmp_path):
    encoder = Encoder(tiny_config())
    for format_, kind in (("kbert", "a kbert preset"), ("huggingface", "a Hugging Face model")):
        folder = tmp_path / format_
        encoder.save_to_preset(folder, format=format_)
        with pytest.raises(ValueError, match=f"contains {kind}.*choose another"):
            encoder.save_to_preset(folder, format="keras_hub")
        with pytest.raises(ValueError, match=r"contains a KerasHub preset.*choose another"):
            encoder.save_to_preset(saved, format=format_)


TEXTS = ["Red foxes jumped, jumping!", "a Café the quick [MASK] fox"]


def saved_tokenizer(folder, encoder, tokenizer):
    arrays = get_arrays(encoder, "encoder")
    write_folder(folder, encoder.config, arrays, tokenizer=tokenizer)
    return keras_hub.models.Tokenizer.from_preset(str(folder))


@pytest.mark.parametrize("lowercase", [True, False])
def test_a_wordpiece_tokenizer_goes_along(tmp_path, tiny_vocabulary, lowercase):
    ours = WordPieceTokenizer([*tiny_vocabulary, "Red", "Caf"], lowercase=lowercase)
    encoder = Encoder(config_for("BertBackbone"))
    theirs = saved_tokenizer(tmp_path, encoder, ours)
    assert type(theirs).__name__ == "BertTokenizer"
    texts = [text.replace("[MASK]", "") for text in TEXTS]
    assert [list(map(int, theirs(text))) for text in texts] == ours.encode(texts).to_list()


def test_a_byte_pair_tokenizer_goes_along(tmp_path):
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "re", "Ġf", "ed", "<mask>"]
    ours = BytePairTokenizer(vocabulary, ["r e", "Ġ f", "e d"])
    theirs = saved_tokenizer(tmp_path, Encoder(config_for("RobertaBackbone")), ours)
    assert type(theirs).__name__ == "RobertaTokenizer"
    text = "red foxes, Café"
    assert list(map(int, theirs(text))) == ours.encode(text).numpy().tolist()


def test_a_tokenizer_that_theirs_is_not_stays_away(tmp_path, tiny_vocabulary, caplog):
    encoder = Encoder(config_for("BertBackbone"))
    arrays = get_arrays(encoder, "encoder")
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "<mask>"]
    for tokenizer, reason in (
        (BytePairTokenizer(vocabulary, []), "requires a tokenizer of kind wordpiece, not bpe"),
        (WordPieceTokenizer(tiny_vocabulary, split_chinese=False), "split Chinese characters"),
        (WordPieceTokenizer(tiny_vocabulary, added_tokens=[tiny_vocabulary[-1]]), "added tokens"),
    ):
        write_folder(tmp_path, encoder.config, arrays, tokenizer=tokenizer)
        assert reason in caplog.text
        assert not (tmp_path / "tokenizer.json").exists()
    encoder = Encoder(config_for("RobertaBackbone"))
    for options, reason in (
        ({"normalization": "nfc"}, "do not support normalization"),
        ({"added_tokens": ["a"]}, "do not support added tokens"),
    ):
        caplog.clear()
        tokenizer = BytePairTokenizer(vocabulary, [], **options)
        arrays = get_arrays(encoder, "encoder")
        write_folder(tmp_path, encoder.config, arrays, tokenizer=tokenizer)
        assert reason in caplog.text


def test_a_task_saves_what_keras_hub_runs(tmp_path, tiny_vocabulary, caplog):
    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    config = config_for("BertBackbone", vocabulary_size=tokenizer.vocabulary_size)
    task = Pretraining(Encoder(config), tokenizer)
    task.save_to_preset(tmp_path, format="keras_hub")
    assert "does not support masked_lm/bias, masked_lm/transform/kernel" in caplog.text
    model = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert_same_outputs(task.encoder, model)
    assert keras_hub.models.Tokenizer.from_preset(str(tmp_path)).vocabulary == tiny_vocabulary
    assert load_tokenizer(tmp_path).vocabulary == tiny_vocabulary
