import numpy as np

from kbert.layers import (
    FeedForward,
)
from tests.harness import run_layer_test

X = np.random.default_rng(0).normal(size=(2, 5, 8)).astype("float32")


def test_feed_forward():
    layer = FeedForward(12, activation="gelu", name="ff")
    weights = {
        "ff/intermediate/kernel": (8, 12),
        "ff/intermediate/bias": (12,),
        "ff/output/kernel": (12, 8),
        "ff/output/bias": (8,),
    }
    run_layer_test(layer, (X,), weights, (2, 5, 8))
