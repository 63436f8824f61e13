import keras
import numpy as np

from kbert.heads import SentenceHead
from kbert.models.weights import named_weights
from tests.harness import assert_close, randomise, tiny_config, to_numpy

POOLED = np.random.default_rng(0).normal(size=(3, 16)).astype("float32")


def test_it_is_one_dense_layer():
    head = SentenceHead(tiny_config())
    randomise(head)
    w = {name: to_numpy(v.value) for name, v in named_weights(head, "sentence").items()}
    assert {name: value.shape for name, value in w.items()} == {
        "sentence/dense/kernel": (16, 2),
        "sentence/dense/bias": (2,),
    }
    expected = POOLED @ w["sentence/dense/kernel"] + w["sentence/dense/bias"]
    assert_close(to_numpy(head(POOLED)), expected, 1e-5)


def test_any_number_of_classes():
    assert SentenceHead(tiny_config(), num_classes=5)(POOLED).shape == (3, 5)


def test_logits_are_float32_under_bfloat16():
    logits = SentenceHead(tiny_config(), dtype="mixed_bfloat16")(POOLED)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
