import keras
import numpy as np
from scipy.special import erf

from kbert.heads import DiscriminatorHead
from kbert.models.weights import named_weights
from tests.harness import assert_close, randomise, tiny_config, to_numpy

X = np.random.default_rng(0).normal(size=(2, 6, 16)).astype("float32")


def test_it_is_a_transform_and_a_logit():
    head = DiscriminatorHead(tiny_config(activation="gelu"))
    randomise(head)
    w = {n: to_numpy(v.value) for n, v in named_weights(head, "discriminator").items()}
    assert {name: value.shape for name, value in w.items()} == {
        "discriminator/transform/kernel": (16, 16),
        "discriminator/transform/bias": (16,),
        "discriminator/output/kernel": (16, 1),
        "discriminator/output/bias": (1,),
    }
    x = X @ w["discriminator/transform/kernel"] + w["discriminator/transform/bias"]
    x = x * (1 + erf(x / np.sqrt(2))) / 2
    expected = x @ w["discriminator/output/kernel"] + w["discriminator/output/bias"]
    assert_close(to_numpy(head(X)), expected[..., 0], 1e-5)


def test_logits_are_float32_under_bfloat16():
    head = DiscriminatorHead(tiny_config(), dtype="mixed_bfloat16")
    assert keras.backend.standardize_dtype(head(X).dtype) == "float32"
    assert head.transform.compute_dtype == "bfloat16"
