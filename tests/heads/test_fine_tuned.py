"""Heads of fine-tuned models: one dense layer each, and the shapes that come out."""

import keras
import numpy as np
import pytest

from kbert.heads import ChoiceHead, SpanHead, TokenHead
from kbert.models.weights import named_weights
from tests.harness import assert_close, randomise, tiny_config, to_numpy

X = np.random.default_rng(0).normal(size=(3, 5, 16)).astype("float32")


def linear(head):
    w = {name: to_numpy(v.value) for name, v in named_weights(head, "h").items()}
    assert list(w) == ["h/dense/kernel", "h/dense/bias"]
    return X @ w["h/dense/kernel"] + w["h/dense/bias"]


def test_tokens():
    head = TokenHead(tiny_config(), 4)
    randomise(head)
    assert_close(to_numpy(head(X)), linear(head), 1e-5)


@pytest.mark.parametrize("head", [ChoiceHead, SpanHead, lambda *a, **k: TokenHead(*a, 4, **k)])
def test_logits_are_float32_under_bfloat16(head):
    for policy in ("mixed_bfloat16", "bfloat16", "float16"):
        logits = keras.tree.flatten(head(tiny_config(), dtype=policy)(X))
        assert {keras.backend.standardize_dtype(x.dtype) for x in logits} == {"float32"}
    for logits in keras.tree.flatten(head(tiny_config(), dtype="mixed_bfloat16")(X)):
        assert keras.backend.standardize_dtype(logits.dtype) == "float32"


def test_spans():
    head = SpanHead(tiny_config())
    randomise(head)
    start, end = head(X)
    expected = linear(head)
    assert_close(to_numpy(start), expected[..., 0], 1e-5)
    assert_close(to_numpy(end), expected[..., 1], 1e-5)


def test_choices():
    head = ChoiceHead(tiny_config())
    randomise(head)
    assert_close(to_numpy(head(X)), linear(head)[..., 0], 1e-5)
