import keras
import numpy as np
import pytest

from kbert.heads import MaskedLMHead
from kbert.layers import get_activation
from kbert.models import Encoder
from kbert.models.weights import named_weights
from tests.harness import assert_close, numpy_norm, randomise, tiny_config, to_numpy

X = np.random.default_rng(0).normal(size=(2, 6, 16)).astype("float32")
POSITIONS = np.array([[1, 4, 0], [5, 0, 0]])


def make(**changes):
    encoder = Encoder(tiny_config(**changes))
    head = MaskedLMHead(encoder.config, encoder.token_embedding, dtype=encoder.dtype_policy)
    randomise(encoder)
    randomise(head, seed=1)
    return encoder, head


@pytest.mark.jax_slow
@pytest.mark.parametrize("embedding_size", [None, 4])
def test_it_is_transform_norm_and_the_tied_table(embedding_size):
    encoder, head = make(embedding_size=embedding_size)
    w = {n: to_numpy(v.value) for n, v in named_weights(head, "masked_lm").items()}
    width = embedding_size or 16
    assert {name: value.shape for name, value in w.items()} == {
        "masked_lm/bias": (40,),
        "masked_lm/transform/kernel": (16, width),
        "masked_lm/transform/bias": (width,),
        "masked_lm/norm/gamma": (width,),
        "masked_lm/norm/beta": (width,),
    }
    gathered = X[np.arange(2)[:, None], POSITIONS]
    x = gathered @ w["masked_lm/transform/kernel"] + w["masked_lm/transform/bias"]
    x = to_numpy(get_activation("gelu_tanh")(x.astype("float32")))
    x = numpy_norm(x, 1e-12) * w["masked_lm/norm/gamma"] + w["masked_lm/norm/beta"]
    expected = x @ to_numpy(encoder.token_embedding.value).T + w["masked_lm/bias"]
    assert_close(to_numpy(head(X, POSITIONS)), expected, 1e-5)


def test_an_untied_head_is_a_product_with_its_own_table():
    _, head = make(output="untied", embedding_size=4)
    w = {n: to_numpy(v.value) for n, v in named_weights(head, "masked_lm").items()}
    assert {name: value.shape for name, value in w.items()} == {
        "masked_lm/table": (40, 16),
        "masked_lm/bias": (40,),
    }
    gathered = X[np.arange(2)[:, None], POSITIONS]
    expected = gathered @ w["masked_lm/table"].T + w["masked_lm/bias"]
    assert_close(to_numpy(head(X, POSITIONS)), expected, 1e-5)


def test_the_table_stays_the_encoder_s():
    encoder, head = make()
    assert all(weight is not encoder.token_embedding for weight in head.weights)
    before = to_numpy(head(X, POSITIONS))
    encoder.token_embedding.assign(2 * to_numpy(encoder.token_embedding.value))
    bias = to_numpy(head.bias.value)
    assert_close(to_numpy(head(X, POSITIONS)) - bias, 2 * (before - bias), 1e-5)


def test_logits_are_float32_under_bfloat16():
    encoder = Encoder(tiny_config(), dtype="mixed_bfloat16")
    head = MaskedLMHead(encoder.config, encoder.token_embedding, dtype="mixed_bfloat16")
    logits = head(X, POSITIONS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
    assert head.transform.compute_dtype == "bfloat16"


def test_logits_are_not_rounded_to_bfloat16():
    encoder = Encoder(tiny_config(), dtype="mixed_bfloat16")
    head = MaskedLMHead(encoder.config, encoder.token_embedding, dtype="mixed_bfloat16")
    randomise(encoder)
    logits = to_numpy(head(X, POSITIONS))
    rounded = to_numpy(keras.ops.cast(keras.ops.cast(logits, "bfloat16"), "float32"))
    assert (logits != rounded).mean() > 0.9


def test_a_table_of_another_shape_is_refused():
    encoder, _ = make()
    with pytest.raises(ValueError, match=r"shape \(41, 16\).*Received: shape \(40, 16\)"):
        MaskedLMHead(tiny_config(vocabulary_size=41), encoder.token_embedding)


@pytest.mark.tensorflow
def test_any_batch_length_and_number_of_masks_in_one_graph():
    import tensorflow as tf

    _, head = make()
    run = tf.function(
        head, [tf.TensorSpec([None, None, 16]), tf.TensorSpec([None, None], tf.int32)]
    )
    assert_close(run(X, POSITIONS), head(X, POSITIONS), 1e-6)
    assert run(X[:1, :3], np.array([[2]])).shape == (1, 1, 40)
    assert run(X, np.zeros((2, 0), "int32")).shape == (2, 0, 40)
