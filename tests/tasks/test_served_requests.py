"""Every served entry point: in chunks it answers as at once, and it answers what warms it up."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert import tasks
from kbert.core.graphs import graph
from kbert.decoding import Beam, Sampling
from kbert.export.savedmodel.tf_serving import warm_up_requests
from kbert.signatures import requests
from tests.harness import assert_close
from tests.tasks.generation import writing

pytestmark = pytest.mark.tensorflow

TEXTS = [
    "the red fox",
    "",
    "a dog jumps over the moon. " * 4,
    "dog",
    "x",
    "fox, is it?",
    "the " * 9,
]
MASKED = ["[MASK] red fox", "", "a [MASK] jumps [MASK]. " * 3, "no", "[MASK]", "the", "a dog"]
LETTERS = ["a b c", "", "d e f g h a b c", "a", "b c", "h g", "c c c c"]


def encoder(config):
    keras.utils.set_random_seed(1)
    return kbert.Encoder(config)


def answerer(config, tokenizer):
    sizes = {"max_length": 16, "max_question_length": 4, "doc_stride": 4}
    return tasks.QuestionAnswerer(encoder(config), tokenizer, n_best=3, **sizes)


def discriminator(config, tokenizer):
    return tasks.ReplacedTokenDetection(encoder(config), tokenizer)


def classifier(config, tokenizer):
    return tasks.TextClassifier(encoder(config), tokenizer, ["no", "yes"], max_length=16)


def in_windows(config, tokenizer):
    sizes = {"max_length": 8, "doc_stride": 3}
    return tasks.TextRegressor(encoder(config), tokenizer, **sizes)


def tagger(config, tokenizer):
    return tasks.TokenClassifier(encoder(config), tokenizer, ["O", "B-x"], max_length=16)


slow = pytest.mark.slow
# Task, arguments of `signatures`, and for each entry point columns.
CASES = [
    pytest.param(
        classifier,
        {},
        {"classify": [TEXTS], "classify_pairs": [TEXTS, TEXTS[::-1]]},
        id="classifier",
        marks=slow,
    ),
    pytest.param(in_windows, {}, {"score_pairs": [TEXTS, TEXTS[::-1]]}, id="windows"),
    pytest.param(
        tagger,
        {},
        {"tag": [TEXTS], "tag_words": [[["the", "", "fox"], ["", "", ""], ["dog", "red", ""]]]},
        id="tagger",
        marks=slow,
    ),
    pytest.param(answerer, {}, {"answer": [TEXTS, TEXTS[::-1]]}, id="answerer", marks=slow),
    pytest.param(
        lambda *parts: tasks.MultipleChoice(encoder(parts[0]), parts[1]),
        {},
        {"choose": [TEXTS[:3], [["fox", "the dog " * 9, ""], ["", "", ""], ["a", "b", "moon"]]]},
        id="choice",
        marks=slow,
    ),
    pytest.param(
        lambda *parts: tasks.Pretraining(encoder(parts[0]), parts[1]),
        {"top_k": 2},
        {"fill_mask": [MASKED], "encode": [TEXTS], "next_sentence": [TEXTS, TEXTS]},
        id="pretraining",
    ),
    pytest.param(discriminator, {}, {"detect_replaced": [TEXTS]}, id="detector", marks=slow),
    pytest.param(
        lambda *_: writing.causal_lm(),
        {"method": Sampling(), "max_new_tokens": 6, "seed": 3},
        {"generate": [LETTERS]},
        id="sampling",
    ),
    pytest.param(
        lambda *_: writing.translator(0.15),
        {"method": Beam(3, num_results=2), "max_new_tokens": 6},
        {"translate": [LETTERS]},
        id="translator",
        marks=slow,
    ),
]


@pytest.mark.parametrize(("make", "options", "entries"), CASES)
def test_chunks_answer_as_the_whole(make, options, entries, config, tokenizer, monkeypatch):
    signatures = make(config, tokenizer).signatures(**options)
    for name, columns in entries.items():
        signature = signatures[name]
        specs = list(signature.inputs)
        whole = graph(signature.function, autograph=False, input_signature=specs)
        monkeypatch.setattr(requests, "TOKENS_AT_ONCE", 40)
        served = requests.bounded(signature).function
        served = graph(served, autograph=False, input_signature=specs)
        columns = [tf.constant(x) for x in columns]
        wanted, found = whole(*columns), served(*columns)
        real = found["padding_mask"].numpy()[..., None] if "padding_mask" in found else 1
        for output, x in wanted.items():
            assert found[output].shape == x.shape
            if x.dtype.is_floating:
                where = real if output == "sequence" else 1  # padding has no meaning there
                size = max(1.0, float(np.abs(x).max(initial=0.0)))
                assert_close(found[output] * where, x * where, 1e-6 * size, output)
            else:
                np.testing.assert_array_equal(found[output], x)
        asked = list(warm_up_requests(signature))
        assert len(asked) == 2
        for request in asked:
            served(*(tf.constant(request[spec.name]) for spec in specs))


def test_a_question_without_a_context(config, tokenizer):
    signature = requests.bounded(
        tasks.MultipleChoice(encoder(config), tokenizer).signatures()["choose"]
    )
    message = r"one text for each row of choices(.|\n)*contexts and rows:'\n0\n1"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        signature.function(tf.constant([], tf.string), tf.constant([["a", "b"]]))
