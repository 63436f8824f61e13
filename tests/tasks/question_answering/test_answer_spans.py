"""Decoding against a plain search over all spans."""

import keras
import numpy as np
import pytest
from keras import ops

from kbert.tasks.question_answering.answer_spans import NO_SPAN, best_spans, choose, merge_windows


def all_spans(start_logits, end_logits, starts, ends, max_length):
    """Every valid span of one window as (score, start, end), from the best."""
    found = [
        (start_logits[i] + end_logits[j], starts[i], ends[j])
        for i in range(len(starts))
        for j in range(i, min(i + max_length, len(starts)))
        if starts[i] >= 0 and ends[j] >= 0
    ]
    return sorted(found, key=lambda span: -span[0])


def random_window(rng, batch, tokens):
    logits = rng.normal(0, 3, (2, batch, tokens)).astype("float32")
    places = np.tile(np.arange(tokens) * 3, (batch, 1))
    starts = np.where(rng.random((batch, tokens)) < 0.6, places, -1).astype("int32")
    ends = np.where(rng.random((batch, tokens)) < 0.6, places + 2, -1).astype("int32")
    return *logits, starts, ends


@pytest.mark.parametrize(
    ("tokens", "max_length", "count"), [(17, 5, 4), (9, 30, 20), (3, 1, 20), (24, 2, 1), (1, 3, 2)]
)
def test_best_spans_equal_a_search_over_all(tokens, max_length, count):
    rng = np.random.default_rng(tokens)
    window = random_window(rng, 6, tokens)
    found = best_spans(*window, max_length=max_length, count=count)
    found = {name: ops.convert_to_numpy(x) for name, x in found.items()}
    for row in range(6):
        wanted = all_spans(*(x[row] for x in window), max_length)[:count]
        wanted += [(NO_SPAN, 0, 0)] * (count - len(wanted))
        for rank, (score, start, end) in enumerate(wanted):
            assert found["scores"][row, rank] == pytest.approx(score, rel=1e-6)
            assert (found["starts"][row, rank], found["ends"][row, rank]) == (start, end)


@pytest.mark.tensorflow
def test_the_same_compiled_for_any_shape():
    import tensorflow as tf

    def function(*window):
        return best_spans(*window, max_length=4, count=6)

    spec = [tf.TensorSpec([None, None], kind) for kind in (tf.float32, tf.float32)]
    spec += [tf.TensorSpec([None, None], tf.int32)] * 2
    graph = tf.function(function, input_signature=spec)
    rng = np.random.default_rng(0)
    for shape in ((2, 8), (5, 19), (0, 16)):
        window = random_window(rng, *shape)
        for name, x in function(*window).items():
            np.testing.assert_array_equal(graph(*window)[name], x)


def merged_by_hand(questions, windows, count):
    answers = {}
    for row, question in enumerate(questions):
        entry = answers.setdefault(question, ([], []))
        spans = (windows[k][row].tolist() for k in ("scores", "starts", "ends"))
        entry[0].extend(zip(*spans, strict=True))
        entry[1].append(float(windows["null_scores"][row]))
    return {q: (sorted(s, key=lambda x: -x[0])[:count], min(n)) for q, (s, n) in answers.items()}


def test_windows_of_a_question_merge():
    rng = np.random.default_rng(1)
    questions = np.repeat(np.arange(5), [1, 4, 2, 1, 7]).astype("int32")
    window = random_window(rng, len(questions), 11)
    found = best_spans(*window, max_length=3, count=4)
    windows = {name: ops.convert_to_numpy(x) for name, x in found.items()}
    windows["null_scores"] = rng.normal(size=len(questions)).astype("float32")
    merged = {k: v.numpy() for k, v in merge_windows(questions, 5, windows).items()}
    for question, (spans, null) in merged_by_hand(questions, windows, 4).items():
        rows = (merged[name][question].tolist() for name in ("scores", "starts", "ends"))
        assert list(zip(*rows, strict=True)) == spans
        assert merged["null_scores"][question] == pytest.approx(null)


def test_no_questions_merge_to_none():
    windows = {k: np.zeros((0, 3), "int32") for k in ("starts", "ends")}
    windows |= {"scores": np.zeros((0, 3), "float32"), "null_scores": np.zeros(0, "float32")}
    merged = merge_windows(np.zeros(0, "int32"), 0, windows)
    assert {k: tuple(v.shape) for k, v in choose(merged, 0.0).items()} == {
        **dict.fromkeys(("starts", "ends", "probabilities", "scores"), (0,)),
        **dict.fromkeys(("null_probabilities", "null_scores"), (0,)),
        "span_probabilities": (0, 3),
    }


def decide(scores, null, threshold):
    merged = {
        "scores": np.array([scores], "float32"),
        "starts": np.array([[5, 7, 0][: len(scores)]], "int32"),
        "ends": np.array([[6, 9, 0][: len(scores)]], "int32"),
        "null_scores": np.array([null], "float32"),
    }
    found = choose({k: keras.ops.convert_to_tensor(v) for k, v in merged.items()}, threshold)
    return {k: ops.convert_to_numpy(v)[0] for k, v in found.items()}


@pytest.mark.tensorflow
def test_the_threshold_decides_whether_to_answer():
    scores, null = [4.0, 2.0, NO_SPAN], 4.5
    always = decide(scores, null, None)
    assert (always["starts"], always["ends"], always["null_probabilities"]) == (5, 6, 0)
    softmax = np.exp([4.0, 2.0]) / np.exp([4.0, 2.0]).sum()
    np.testing.assert_allclose(always["span_probabilities"], [*softmax, 0], rtol=1e-6)

    abstains = decide(scores, null, 0.0)
    assert (abstains["starts"], abstains["ends"]) == (0, 0)
    total = np.exp([4.0, 2.0, 4.5]).sum()
    assert abstains["probabilities"] == pytest.approx(np.exp(4.5) / total)
    assert (abstains["scores"], abstains["null_scores"]) == (4.0, 4.5)

    answers = decide(scores, null, 0.5)  # not more than the threshold above
    assert (answers["starts"], answers["ends"]) == (5, 6)
    assert answers["probabilities"] == pytest.approx(np.exp(4.0) / total)


@pytest.mark.tensorflow
def test_without_a_span_there_is_no_answer():
    nothing = decide([NO_SPAN, NO_SPAN, NO_SPAN], 1.0, None)
    assert (nothing["starts"], nothing["ends"], nothing["probabilities"]) == (0, 0, 0)
    assert decide([NO_SPAN] * 3, -50.0, 1e12)["probabilities"] == 1.0
