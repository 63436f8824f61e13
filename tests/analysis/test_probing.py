"""Probes of layers against scikit-learn on features, and on states whose answer is known."""

import sys
from itertools import chain

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from kbert.analysis import Probe, probe
from kbert.analysis.probing import _learn_mix, _mix_gradients, _softmax
from kbert.extraction import features

WORDS = [["the", "red", "fox", "jumps"], ["a", "king", "walked"], ["blue", "river"]] * 4
TAGS = [["D", "A", "N", "V"], ["D", "N", "V"], ["A", "N"]] * 4
TEXTS = [f"{colour} {thing}" for thing in "pen fox dog cat".split() for colour in ("red", "blue")]
COLOURS = ["warm", "cold"] * 4


def test_words_by_layer(encoder, tokenizer):
    found = probe(encoder, tokenizer, WORDS[:9], TAGS[:9], validation_data=(WORDS[9:], TAGS[9:]))
    assert found.scores.shape == (encoder.config.num_layers + 1,)
    train = np.concatenate(features(encoder, tokenizer, WORDS[:9], layers=1, words=True))
    test = np.concatenate(features(encoder, tokenizer, WORDS[9:], layers=1, words=True))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    model.fit(train, list(chain(*TAGS[:9])))
    assert found.scores[1] == model.score(test, list(chain(*TAGS[9:])))
    assert found.scores[0] == 1.0  # the tag follows from the word
    assert found.baseline == pytest.approx(3 / 9)  # N
    assert found.best_layer == 0


def test_texts_with_a_split_and_a_mix(encoder, tokenizer):
    found = probe(encoder, tokenizer, TEXTS, COLOURS, validation_split=0.25, mix=True, max_length=9)
    assert found.mix.sum() == pytest.approx(1, abs=1e-5)
    assert 0 <= found.expected_layer <= encoder.config.num_layers
    assert found.baseline == 0.5


def test_gradients_of_the_mix():
    rng = np.random.default_rng(0)
    states, answers = rng.normal(size=(3, 5, 4)), np.eye(2)[rng.integers(0, 2, 5)]
    parameters = [rng.normal(size=shape) for shape in ((3,), (4, 2), (2,))]

    def loss():
        scalars, kernel, bias = parameters
        mixed = np.tensordot(_softmax(scalars), states, 1)
        return -np.log((_softmax(mixed @ kernel + bias) * answers).sum(1)).mean()

    for parameter, gradient in zip(
        parameters, _mix_gradients(states, answers, *parameters), strict=True
    ):
        for index in np.ndindex(parameter.shape):
            losses = []
            for change in (1e-5, -2e-5):
                parameter[index] += change
                losses.append(loss())
            parameter[index] += 1e-5
            assert gradient[index] == pytest.approx((losses[0] - losses[1]) / 2e-5, abs=1e-7)


def test_the_mix_finds_the_layer_that_knows():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 200)
    states = rng.normal(size=(4, 200, 6)).astype("float32")
    states[2, :, 0] += 4 * labels
    mix = _learn_mix(states, labels)
    assert mix.argmax() == 2
    found = Probe(scores=np.array([0.5, 0.5, 1.0, 0.5]), baseline=0.5, mix=mix)
    assert found.expected_layer == pytest.approx(mix[1] + 2 * mix[2] + 3 * mix[3])
    assert found.best_layer == 2


@pytest.mark.parametrize(
    ("labels", "options", "message"),
    [
        (["warm"] * 8, {}, "two classes and held-out examples. Received: 1 classes"),
        (COLOURS, {"validation_split": 0.05}, "Received: 2 classes, 0 held-out labels"),
        (COLOURS, {"validation_split": 0.0}, "between 0 and 1. Received: validation_split=0.0"),
        (COLOURS, {"validation_split": 1.2}, "between 0 and 1. Received: validation_split=1.2"),
        (COLOURS, {"validation_split": -1}, "between 0 and 1. Received: validation_split=-1"),
        (None, {}, "There is no column 'label'"),
    ],
    ids=["one class", "nothing held out", "0", "1.2", "-1", "no labels"],
)
def test_what_cannot_be_probed(encoder, tokenizer, labels, options, message):
    with pytest.raises(ValueError, match=message):
        probe(encoder, tokenizer, TEXTS, labels, **options)


@pytest.mark.parametrize(
    "options", [{"layers": -1}, {"pooling": "cls"}, {"words": True}, {"with_tokens": True}], ids=str
)
def test_what_a_probe_sets_itself(encoder, tokenizer, options):
    ((name, value),) = options.items()
    with pytest.raises(TypeError, match=f"A probe sets .* itself.* Received: {name}={value!r}$"):
        probe(encoder, tokenizer, TEXTS, COLOURS, **options)


def test_each_word_has_a_label(encoder, tokenizer):
    wrong = [["D", "A", "N"], *TAGS[1:4]]
    with pytest.raises(ValueError, match=r"have a label\. Received: 9 words and 8 labels"):
        probe(encoder, tokenizer, WORDS[:4], wrong, validation_split=0.25)


def test_without_a_mix_no_layer_is_expected():
    with pytest.raises(ValueError, match="requires probe"):
        _ = Probe(np.ones(3), 0.5).expected_layer


def test_without_scikit_learn(encoder, tokenizer, monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn.linear_model", None)
    with pytest.raises(ImportError, match=r"A probe needs the extra.*kbert\[sklearn\]"):
        probe(encoder, tokenizer, TEXTS, COLOURS)
