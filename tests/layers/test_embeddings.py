import numpy as np
import pytest

from kbert.layers import (
    Embeddings,
)
from tests.harness import assert_close, get_values, numpy_norm, randomise, run_layer_test, to_numpy


def embeddings(**changes):
    settings = {
        "vocabulary_size": 9,
        "embedding_size": 4,
        "hidden_size": 4,
        "max_positions": 6,
        "num_segments": 3,
        "name": "embeddings",
    }
    return Embeddings(**{**settings, **changes})


def test_embeddings():
    ids, segments = np.array([[1, 2, 8]]), np.array([[0, 2, 1]])
    layer = embeddings()
    weights = {
        "embeddings/token": (9, 4),
        "embeddings/position": (6, 4),
        "embeddings/segment": (3, 4),
        "embeddings/norm/gamma": (4,),
        "embeddings/norm/beta": (4,),
    }
    run_layer_test(layer, (ids, segments), weights, (1, 3, 4))
    randomise(layer)
    w = {path.removeprefix("embeddings/"): value for path, value in get_values(layer).items()}
    summed = w["token"][ids] + w["position"][:3] + w["segment"][segments]
    expected = numpy_norm(summed, 1e-12) * w["norm/gamma"] + w["norm/beta"]
    assert_close(to_numpy(layer(ids, segments)), expected, 1e-5)
    # No segment ids: all belong to the first segment.
    without = to_numpy(layer(ids))
    np.testing.assert_array_equal(without, to_numpy(layer(ids, np.zeros_like(ids))))


def test_factorised_embeddings_are_widened_after_the_norm():
    layer = embeddings(hidden_size=10, num_segments=0)
    weights = {
        "embeddings/token": (9, 4),
        "embeddings/position": (6, 4),
        "embeddings/norm/gamma": (4,),
        "embeddings/norm/beta": (4,),
        "embeddings/projection/kernel": (4, 10),
        "embeddings/projection/bias": (10,),
    }
    run_layer_test(layer, (np.array([[1, 2, 8]]),), weights, (1, 3, 10))


def test_segments_for_a_model_without_are_refused():
    with pytest.raises(
        ValueError, match=r"without segments does not support `segment_ids`.*\(1, 2\)"
    ):
        embeddings(num_segments=0)(np.array([[1, 2]]), np.array([[0, 1]]))


def test_too_long_a_sequence_is_refused():
    with pytest.raises(ValueError, match=r"not be longer than max_positions=6. Received: 7 tokens"):
        embeddings()(np.ones((1, 7), "int32"))
