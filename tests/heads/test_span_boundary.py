import keras
import numpy as np
import pytest

from kbert.heads import SpanBoundaryHead
from kbert.heads.span_boundary import MAX_TARGETS, PLACE_WIDTH
from kbert.layers import get_activation
from kbert.models import Encoder
from kbert.models.weights import named_weights
from tests.harness import assert_close, numpy_norm, randomise, tiny_config, to_numpy

X = np.random.default_rng(0).normal(size=(2, 8, 16)).astype("float32")
# Row 0: the span 2..4, and the single token 6. Row 1: the span 1..2, and an unused slot.
POSITIONS = np.array([[2, 3, 4, 6], [1, 2, 0, 0]])
STARTS = np.array([[2, 2, 2, 6], [1, 1, 0, 0]])
ENDS = np.array([[4, 4, 4, 6], [2, 2, 0, 0]])


def make(**changes):
    encoder = Encoder(tiny_config(**changes))
    head = SpanBoundaryHead(encoder.config, encoder.token_embedding, dtype=encoder.dtype_policy)
    randomise(encoder)
    randomise(head, seed=1)
    return encoder, head


@pytest.mark.jax_slow
@pytest.mark.parametrize("embedding_size", [None, 4])
def test_it_reads_both_ends_and_the_place_alone(embedding_size):
    """SpanBERT, section 3.2: f(x_{s-1}, x_{e+1}, p_{i-s+1}) of two layers."""
    encoder, head = make(embedding_size=embedding_size)
    w = {n.split("/", 1)[1]: to_numpy(v.value) for n, v in named_weights(head, "sbo").items()}
    width = embedding_size or 16
    assert {name: value.shape for name, value in w.items()} == {
        "places": (MAX_TARGETS, PLACE_WIDTH),
        "bias": (40,),
        "first/kernel": (32 + PLACE_WIDTH, 16),
        "first/bias": (16,),
        "first_norm/gamma": (16,),
        "first_norm/beta": (16,),
        "second/kernel": (16, width),
        "second/bias": (width,),
        "second_norm/gamma": (width,),
        "second_norm/beta": (width,),
    }
    rows = np.arange(2)[:, None]
    left, right = X[rows, np.maximum(STARTS - 1, 0)], X[rows, np.minimum(ENDS + 1, 7)]
    x = np.concatenate([left, right, w["places"][POSITIONS - STARTS]], -1)
    for name in ("first", "second"):
        x = x @ w[f"{name}/kernel"] + w[f"{name}/bias"]
        x = to_numpy(get_activation("gelu_tanh")(x.astype("float32")))
        x = numpy_norm(x, 1e-12) * w[f"{name}_norm/gamma"] + w[f"{name}_norm/beta"]
    expected = x @ to_numpy(encoder.token_embedding.value).T + w["bias"]
    assert_close(to_numpy(head(X, POSITIONS, STARTS, ENDS)), expected, 1e-5)


def test_what_stands_inside_a_span_does_not_matter():
    _, head = make()
    changed = X.copy()
    changed[0, 2:5] += 1
    before, after = (to_numpy(head(x, POSITIONS, STARTS, ENDS)) for x in (X, changed))
    np.testing.assert_array_equal(before[0, :3], after[0, :3])


@pytest.mark.jax_slow
def test_a_long_span_and_the_last_column_stay_within_the_tables():
    _, head = make()
    long = np.tile(X, (1, 4, 1))[:1]
    positions, starts, ends = np.array([[[31]], [[31 - MAX_TARGETS]], [[31]]])
    assert np.isfinite(to_numpy(head(long, positions, starts, ends))).all()


@pytest.mark.jax_slow
def test_logits_are_float32_under_bfloat16():
    encoder = Encoder(tiny_config(), dtype="mixed_bfloat16")
    head = SpanBoundaryHead(encoder.config, encoder.token_embedding, dtype="mixed_bfloat16")
    logits = head(keras.ops.cast(X, "bfloat16"), POSITIONS, STARTS, ENDS)
    assert keras.backend.standardize_dtype(logits.dtype) == "float32"
