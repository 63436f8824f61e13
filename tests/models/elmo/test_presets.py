"""Folders that kbert.Elmo is saved to and loaded from, and its answers as a language model."""

import keras
import numpy as np
import pytest

import kbert
from kbert import Elmo
from kbert.conversion import convert
from kbert.layers import ScalarMix
from kbert.models.weights import get_arrays
from tests.harness import assert_close, randomise, to_numpy
from tests.models.elmo.elmo_reference import NumpyBiLM, make_options, make_weights, write_folder

pytestmark = pytest.mark.jax_slow  # of files, which no backend reads

WORDS = ["</S>", "<S>", "<UNK>", "the", "sun", "größer", "rare"]


@pytest.fixture(scope="module")
def released(tmp_path_factory):
    """(options, weights, their folder)."""
    options = make_options()
    weights = make_weights(options)
    folder = tmp_path_factory.mktemp("released")
    write_folder(folder, options, weights)
    return options, weights, folder


@pytest.fixture(scope="module")
def speaker(released):
    """A language model with the weights of the release and a softmax over six of seven words."""
    bare = Elmo.from_preset(released[2])
    config = bare.config.replace(vocabulary_size=6)
    elmo = Elmo(config, tokenizer=kbert.WordTokenizer(WORDS))
    randomise(elmo.softmax, sigma=1.0)
    for weight, value in zip(elmo.weights, bare.weights):  # noqa: B905 (the softmax comes last)
        weight.assign(value)
    return elmo


def same_weights(a, b):
    ours, others = get_arrays(a, "elmo"), get_arrays(b, "elmo")
    assert ours.keys() == others.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], others[name])


def test_kbert_s_own_folder_keeps_softmax_and_words(speaker, tmp_path):
    speaker.save_to_preset(tmp_path)
    loaded = Elmo.from_preset(tmp_path, dtype="mixed_bfloat16")
    same_weights(loaded, speaker)
    assert loaded.config == speaker.config
    assert loaded.compute_dtype == "bfloat16"
    assert loaded.tokenizer.vocabulary == WORDS
    # As in the folder of a task, whose tokenizer makes characters.
    kbert.CharacterTokenizer(12).save(tmp_path)
    (tmp_path / "vocab.txt").unlink(missing_ok=True)
    assert Elmo.from_preset(tmp_path).tokenizer is None


def test_the_released_format_keeps_neither(speaker, released, tmp_path):
    speaker.save_to_preset(tmp_path, format="bilm")
    loaded = Elmo.from_preset(tmp_path)
    assert loaded.softmax is None
    assert loaded.tokenizer is None
    same_weights(loaded, Elmo.from_preset(released[2]))


def test_words_in_a_release_folder_are_left_alone(released, tmp_path):
    options, weights, _ = released
    write_folder(tmp_path, options, weights)
    (tmp_path / "vocab.txt").write_text("the\nsun\n")  # no vocabulary of a softmax
    assert Elmo.from_preset(tmp_path).tokenizer is None


def test_a_mix_stays_as_it_was_handed_in(released, tmp_path):
    elmo = Elmo.from_preset(released[2], mix=ScalarMix())
    assert to_numpy(elmo.mix.gamma.value) == 1
    assert len(elmo.mix.weights) == 2
    with pytest.raises(ValueError, match=r"with a mix cannot be saved.*mix=<ScalarMix"):
        elmo.save_to_preset(tmp_path)


def test_folders_of_another_kind(released, tmp_path):
    rule = "must contain an encoder .*Received: a language model"
    with pytest.raises(ValueError, match=rule):
        kbert.Encoder.from_preset(released[2])
    with pytest.raises(ValueError, match=r"Encoders and decoders can be converted.*an ELMo in"):
        convert(released[2], tmp_path / "converted", format="huggingface")
    if keras.backend.backend() != "torch":  # on which no task is made
        with pytest.raises(ValueError, match=rule):
            kbert.tasks.adapt(released[2], kbert.WordTokenizer(WORDS))
    kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=9)).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"must contain a language model .*Received: an encoder"):
        Elmo.from_preset(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"download the options.json .*'elmo-original'"):
        Elmo.from_preset("elmo-original")
    with pytest.raises(FileNotFoundError, match="Received: 'elmo-no'"):
        Elmo.from_preset("elmo-no")


@pytest.mark.parametrize("prefix", ["the sun", ["größer"], ""])
def test_next_words_equal_the_reference(prefix, speaker, released):
    options, weights, _ = released
    words = prefix.split() if isinstance(prefix, str) else prefix
    answers = speaker.predict_next(prefix, top_k=6)
    kernel, bias = to_numpy(speaker.softmax.kernel), to_numpy(speaker.softmax.bias)
    for number, direction in enumerate(("forward", "backward")):
        reference = NumpyBiLM(options, weights)
        read = ["<S>", *words] if not number else ["</S>", *words[::-1]]
        top = reference.read([reference.word(word) for word in read], number)[-1][-1]
        odds = np.exp(kernel @ top + bias)
        wanted = dict(zip(WORDS[:6], odds / odds.sum(), strict=True))
        found = answers[direction]
        assert [word for word, _ in found] == sorted(wanted, key=lambda word: -wanted[word])
        assert_close([p for _, p in found], [wanted[word] for word, _ in found], 1e-5)
    assert speaker.predict_next(prefix, top_k=2)["forward"] == answers["forward"][:2]


def test_what_cannot_answer(speaker, released):
    bare = Elmo.from_preset(released[2])
    with pytest.raises(ValueError, match=r"released weights have neither.*without a softmax"):
        bare.predict_next("the")
    with pytest.raises(ValueError, match="Received: an Elmo without a tokenizer"):
        Elmo(speaker.config).predict_next("the")
    for top_k in (0, 7, 1.5, "2", None):
        with pytest.raises(
            ValueError, match=rf"in 1\.\.6, the softmax's words. Received: {top_k!r}"
        ):
            speaker.predict_next("the", top_k=top_k)
