"""The exported tagger: loaded as TensorFlow Serving loads it, asked in strings."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import kbert
from kbert.tasks import TokenClassifier
from kbert.tokenizers import (
    BytePairTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    train_byte_pair,
    train_unigram,
)
from tests.export import session
from tests.harness import assert_close
from tests.tasks.pretraining.test_export import SERVING, TEXT_OPERATIONS, operations, python
from tests.tokenizers.unigram.sentencepiece_reference import corpus

pytestmark = pytest.mark.tensorflow

TAGS = ["O", "B-thing", "I-thing"]
TEXTS = ["the quick  fox", "", "un-flinching\u3000dog " * 30, "\t\n", "  ça 💡 x"]
WORDS = [["the", "quick", "fox", ""], ["", "two words", "fox", "dog"], [""] * 4]
OPERATIONS = {
    "wordpiece": TEXT_OPERATIONS,
    "bpe": {"SentencepieceOp", "SentencepieceTokenizeOp"},
    "unigram": {"FastSentencepieceTokenize", "NormalizeUTF8"},
}


@pytest.fixture(
    scope="module",
    params=["wordpiece", *(pytest.param(x, marks=pytest.mark.slow) for x in ("bpe", "unigram"))],
)
def exported(request, config, tiny_vocabulary, tmp_path_factory):
    """(kind of tokenizer, task, path of its SavedModel)."""
    if request.param == "wordpiece":
        tokenizer = WordPieceTokenizer(tiny_vocabulary)
    elif request.param == "bpe":
        tokenizer = BytePairTokenizer(*train_byte_pair(corpus(), 400))
    else:
        tokenizer = UnigramTokenizer(train_unigram(corpus(), 300))
    keras.utils.set_random_seed(1)
    config = config.replace(vocabulary_size=tokenizer.vocabulary_size)
    task = TokenClassifier(kbert.Encoder(config), tokenizer, TAGS)
    path = task.export(tmp_path_factory.mktemp(request.param), max_bytes=2**20)
    return request.param, task, path


def check(answer, wanted):
    for row, expected in enumerate(wanted):
        count = len(expected["words"])
        found = {name: values[row] for name, values in answer.items()}
        labels = [label.decode() for label in found["labels"]]
        assert labels[:count] == expected["labels"]
        assert not any(labels[count:])
        assert_close(found["scores"][:count], expected["probabilities"], 1e-5)
        assert not np.any(found["scores"][count:])
        if "words" in found:
            assert [word.decode() for word in found["words"][:count]] == expected["words"]
            for name in ("starts", "ends"):
                assert found[name][:count].tolist() == expected[name]
                assert not np.any(found[name][count:])


@pytest.mark.slow
def test_the_session_loader_gives_the_same_answers(exported):
    _, task, path = exported
    default, tagged, words = session.ask(
        path,
        ("serving_default", {"text": TEXTS[:1]}),
        ("tag", {"text": TEXTS}),
        ("tag_words", {"words": WORDS}),
    )
    check(default, task.predict(TEXTS[:1]))
    check(tagged, task.predict(TEXTS))
    assert tagged["words"].shape == (5, 60)
    rows = [["the", "quick", "fox"], WORDS[1], []]
    check(words, task.predict(rows))
    assert words["labels"].shape == (3, 4)


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["wordpiece"], indirect=True)
def test_a_fresh_process_needs_tensorflow_text_alone(exported):
    _, task, path = exported
    request = json.dumps([("tag", {"text": TEXTS[:1]})])
    (answer,) = json.loads(python(SERVING / "session.py", path, request).splitlines()[-1])
    assert answer["labels"] == [task.predict(TEXTS[:1])[0]["labels"]]


@pytest.mark.parametrize("exported", ["wordpiece"], indirect=True)
def test_bad_input_has_a_defined_answer(exported):
    _, _task, path = exported
    signatures = tf.saved_model.load(path).signatures

    def tag(*texts):
        answer = signatures["tag"](text=tf.constant(texts, tf.string))
        return {name: values.numpy() for name, values in answer.items()}

    for name, values in tag().items():
        assert values.shape == (0, 0), name
    assert tag("", " ")["words"].shape == (2, 0)
    broken = tag(b"\xff\xfe fox\xc3 dog")
    assert broken["words"].tolist() == [[b"\xff\xfe", b"fox\xc3", b"dog"]]
    assert broken["starts"].tolist() == [[0, 3, 8]]
    assert set(broken["labels"][0]) <= {label.encode() for label in TAGS}
    one_word = tag("x" * 1_000_000, "fox")
    assert one_word["words"].shape == (2, 1)
    assert one_word["ends"].tolist() == [[1_000_000], [3]]
    none = signatures["tag_words"](words=tf.zeros([2, 0], tf.string))
    assert none["labels"].shape == none["scores"].shape == (2, 0)
    with pytest.raises((tf.errors.InvalidArgumentError, TypeError), match="string"):
        signatures["tag"](text=tf.constant([1.5]))


@pytest.mark.slow
@pytest.mark.parametrize("exported", ["wordpiece", "bpe"], indirect=True)
def test_a_megabyte_is_read_whole(exported):
    _, _, path = exported
    tag = tf.saved_model.load(path).signatures["tag"]
    answer = tag(text=tf.constant(["red foxes " * 100_000]))
    assert answer["labels"].shape == (1, 200_000)
    assert not np.any(answer["labels"] == b"")


def test_no_operation_that_tensorflow_serving_may_lack(exported):
    kind, _, path = exported
    names = operations(path)
    foreign = {x for x in names if x.startswith("TFText>") or op_def_registry.get(x) is None}
    assert {name.removeprefix("TFText>") for name in foreign} <= OPERATIONS[kind]
    assert not {"PyFunc", "EagerPyFunc"} & names


def test_answers_are_float32_whatever_the_model_computes_in(config, tokenizer):
    task = TokenClassifier(kbert.Encoder(config, dtype="mixed_bfloat16"), tokenizer, TAGS)
    answer = task.signatures()["tag"].function(tf.constant(["the fox"]))
    assert answer["scores"].dtype == tf.float32
