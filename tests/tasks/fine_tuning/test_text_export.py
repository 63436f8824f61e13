"""SavedModels of classification and regression: asked as TensorFlow Serving does, also badly."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.tasks import TextClassifier, TextRegressor
from tests.export import session
from tests.harness import assert_close
from tests.tasks.pretraining.test_export import TEXT_OPERATIONS, operations

pytestmark = pytest.mark.tensorflow

TEXTS = ["the quick fox", "a dog jumps over the moon", "", "the red pen " * 40]
PAIRS = [("the red pen", "it is day"), ("fox", "the moon " * 40), ("", ""), ("dog", "")]


@pytest.fixture(scope="module")
def classifier(config, tokenizer):
    """Reads long texts in windows."""
    keras.utils.set_random_seed(1)
    return TextClassifier(kbert.Encoder(config), tokenizer, ["no", "ja, größer"], doc_stride=20)


@pytest.fixture(scope="module")
def exported(classifier, tmp_path_factory):
    return classifier.export(tmp_path_factory.mktemp("classifier"))


def check(answer, wanted):
    for row, prediction in enumerate(wanted):
        probabilities = prediction["probabilities"]
        assert answer["labels"][row] == list(probabilities)
        assert_close(answer["scores"][row], list(probabilities.values()), 1e-5)
        if "label" in prediction:
            assert answer["label"][row] == prediction["label"]
            assert answer["score"][row] == pytest.approx(prediction["probability"], abs=1e-5)
        else:
            given = np.array(list(probabilities))[np.array(answer["chosen"][row])]
            assert given.tolist() == prediction["labels"]


@pytest.mark.slow
def test_the_session_loader_gives_the_answers(classifier, exported):
    first, second = ([*texts] for texts in zip(*PAIRS, strict=True))
    single, default, pairs, nothing = session.ask_json(
        exported,
        ("classify", {"text": TEXTS}),
        ("serving_default", {"text": TEXTS[:1]}),
        ("classify_pairs", {"first": first, "second": second}),
        ("classify", {"text": []}),
    )
    check(single, classifier.predict(TEXTS))
    check(default, classifier.predict(TEXTS[:1]))
    check(pairs, classifier.predict(PAIRS))
    assert nothing == {"label": [], "score": [], "labels": [], "scores": []}


def assert_served(path):
    """No operation is in it that TensorFlow Serving may lack."""
    from tensorflow.python.framework import op_def_registry

    found = operations(path)
    text = {name for name in found if op_def_registry.get(name) is None}
    text |= {name for name in found if name.startswith("TFText>")}
    assert text <= TEXT_OPERATIONS
    assert not {"PyFunc", "EagerPyFunc"} & found


@pytest.mark.slow
def test_no_operation_that_tensorflow_serving_may_lack(exported):
    assert_served(exported)


@pytest.mark.parametrize(
    "stride",
    [pytest.param(None, id="cut"), pytest.param(20, id="windows", marks=pytest.mark.slow)],
)
def test_bad_input_has_a_defined_answer(config, tokenizer, stride, tmp_path):
    keras.utils.set_random_seed(1)
    task = TextClassifier(kbert.Encoder(config), tokenizer, ["a", "b"], doc_stride=stride)
    path = task.export(tmp_path, max_bytes=2**21)
    assert_served(path)
    model = tf.saved_model.load(path)
    classify, pairs = (model.signatures[name] for name in ("classify", "classify_pairs"))
    texts = ["", b"\xff\xfe fox \xc3", "fox \x00 dog", "fox " * 262_144]  # the last: a megabyte
    answer = classify(text=tf.constant(texts))
    assert_close(answer["scores"].numpy().sum(1), np.ones(4), 1e-5)
    only_text = classify(text=tf.constant(["", " fox ", "fox dog"]))
    assert_close(answer["scores"][:3], only_text["scores"], 1e-5)
    long = tf.constant(["dog " * 262_144])
    assert np.isfinite(pairs(first=long, second=long)["scores"]).all()
    if stride is None:  # what the default limit leaves of it is more than the task reads
        default = tf.saved_model.load(task.export(tmp_path)).signatures["classify"]
        assert_close(default(text=long)["scores"], classify(text=long)["scores"], 1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected to be a string tensor"):
        classify(text=tf.constant([1.5]))
    wanted = r"All inputs must have the same number of rows.*of first, second:\] \[2\] \[1\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=wanted):
        pairs(first=tf.constant(["a", "b"]), second=tf.constant(["a"]))


def test_several_labels_and_pairs_first(config, tokenizer):
    task = TextClassifier(
        kbert.Encoder(config), tokenizer, ["a", "b"], multi_label=True, threshold={"a": 0, "b": 1}
    )
    name, entry = next(iter(task.signatures(pairs=True).items()))
    assert name == "classify_pairs"
    answer = entry.function(*map(tf.constant, zip(*PAIRS, strict=True)))
    answer = {name: x.numpy() for name, x in answer.items()}
    answer["labels"] = [[name.decode() for name in row] for row in answer["labels"]]
    check(answer, task.predict(PAIRS))
    assert answer["chosen"].tolist() == [[True, False]] * 4


def test_a_regressor(config, tokenizer):
    task = TextRegressor(kbert.Encoder(config, dtype="mixed_bfloat16"), tokenizer)
    entries = task.signatures()
    single = entries["score"].function(tf.constant(TEXTS))
    pairs = entries["score_pairs"].function(*map(tf.constant, zip(*PAIRS, strict=True)))
    assert single["score"].dtype == tf.float32
    assert_close(single["score"], task.predict(TEXTS), 1e-2)
    assert_close(pairs["score"], task.predict(PAIRS), 1e-2)
