"""The exported question answerer: windows and answers inside the graph."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import kbert
from kbert.tasks import QuestionAnswerer
from kbert.tokenizers import BytePairTokenizer, UnigramTokenizer, train_byte_pair, train_unigram
from tests.export import session
from tests.harness import assert_close
from tests.tasks.pretraining.test_export import TEXT_OPERATIONS, operations
from tests.tasks.question_answering.questions import toy_questions

pytestmark = pytest.mark.tensorflow

TABLE = toy_questions(4, longest=90)
PAIRS = [
    *zip(TABLE["question"], TABLE["context"], strict=True),
    ("", "the moon"),
    ("he?", ""),
    ("in?", " \t\n"),
    ("the " * 50, "Ein süßer König 👍🏽 北京 e\u0301té, " * 9),
]


def make_task(config, tokenizer):
    """An untrained task that sometimes answers and sometimes does not."""
    keras.utils.set_random_seed(1)
    config = config.replace(vocabulary_size=tokenizer.vocabulary_size)
    task = QuestionAnswerer(kbert.Encoder(config), tokenizer, n_best=3)
    margins = [a["null_score"] - a["score"] for a in task.predict(PAIRS) if a["answer"]]
    task.null_threshold = float(np.median(margins))
    return task


@pytest.fixture(scope="module")
def exported(config, tokenizer, tmp_path_factory):
    task = make_task(config, tokenizer)
    return task, task.export(tmp_path_factory.mktemp("export"))


def check(task, path):
    questions, contexts = map(list, zip(*PAIRS, strict=True))
    (answer,) = session.ask(path, ("serving_default", {"question": questions, "context": contexts}))
    wanted = task.predict(PAIRS)
    assert len({bool(want["answer"]) for want in wanted[:4]}) == 2  # answered, and not
    for row, want in enumerate(wanted):
        assert answer["answer"][row].decode() == want["answer"]
        assert (answer["start"][row], answer["end"][row]) == (want["start"], want["end"])
        for name in ("probability", "score", "null_score"):
            assert answer[name][row] == pytest.approx(want[name], abs=1e-5)


@pytest.mark.slow
def test_the_session_loader_gives_the_answers_of_predict(exported):
    check(*exported)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_other_tokenizers_serve_too(kind, config, tmp_path):
    texts = [text for pair in PAIRS for text in pair] * 3
    if kind == "bpe":
        tokenizer = BytePairTokenizer(*train_byte_pair(texts, 330))
    else:
        tokenizer = UnigramTokenizer(train_unigram(texts, 120))
    task = make_task(config, tokenizer)
    path = task.export(tmp_path)
    check(task, path)
    own = {"TFText>FastSentencepieceTokenize"} if kind == "unigram" else set()
    assert unknown_operations(path) <= TEXT_OPERATIONS | own


def unknown_operations(path):
    names = operations(path)
    assert not {"PyFunc", "EagerPyFunc"} & names
    text = {name for name in names if name.startswith(("TFText>", "FastWordpiece"))}
    return text | {name for name in names if op_def_registry.get(name) is None}


def test_no_operation_that_tensorflow_serving_may_lack(exported):
    _, path = exported
    assert unknown_operations(path) <= TEXT_OPERATIONS


def test_bad_input_has_a_defined_answer(exported):
    _task, path = exported
    serve = tf.saved_model.load(path).signatures["answer"]

    def ask(questions, contexts):
        texts = {"question": questions, "context": contexts}
        answer = serve(**{name: tf.constant(x, tf.string) for name, x in texts.items()})
        return {name: x.numpy() for name, x in answer.items()}

    assert {name: x.shape for name, x in ask([], []).items()} == dict.fromkeys(
        ("answer", "start", "end", "score", "probability", "null_score"), (0,)
    )
    empty = ask(["", "he?"], ["", " "])
    assert empty["answer"].tolist() == [b"", b""]
    assert not empty["end"].any()
    broken = ask([b"\xffhe?"], [b"the \xff\xfe king \xe5\x8c"])
    text = b"the \xff\xfe king \xe5\x8c".decode("utf-8", "replace")
    assert broken["answer"][0].decode() == text[broken["start"][0] : broken["end"][0]]
    with pytest.raises(
        tf.errors.InvalidArgumentError, match="All inputs must have the same number of rows"
    ):
        ask(["he?"], ["a", "b"])
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a string tensor"):
        serve(question=tf.constant([1.5]), context=tf.constant(["a"]))


@pytest.mark.slow
def test_a_context_of_a_megabyte_is_read_to_its_end(config, tokenizer, tmp_path):
    task = make_task(config, tokenizer)
    task.null_threshold = None
    serve = tf.saved_model.load(task.export(tmp_path, max_bytes=2**20)).signatures["answer"]
    short = "the queen was in the house. "
    context = short + "fox " * 250_000 + short
    answer = serve(question=tf.constant(["in?"]), context=tf.constant([context]))
    start, end = int(answer["start"][0]), int(answer["end"][0])
    assert answer["answer"][0].numpy().decode() == context[start:end] != ""
    assert_close(answer["score"], [task.predict([("in?", context)])[0]["score"]], 1e-4)
