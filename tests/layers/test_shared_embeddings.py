import numpy as np
from keras import ops

from kbert.layers import Embeddings, SharedEmbeddings
from tests.harness import assert_close, get_values, randomise, to_numpy

IDS, SEGMENTS = np.array([[1, 2, 8]]), np.array([[0, 1, 1]])


def tables(hidden_size=4):
    layer = Embeddings(
        vocabulary_size=9,
        embedding_size=4,
        hidden_size=hidden_size,
        max_positions=6,
        num_segments=2,
        name="embeddings",
    )
    layer.build((None, None))
    randomise(layer)
    return layer


def test_only_the_projection_is_its_own():
    source = tables(hidden_size=8)
    shared = SharedEmbeddings(source, hidden_size=3, name="shared")
    shared.build((None, None))
    randomise(shared, seed=1)
    w = get_values(shared)
    assert {path: value.shape for path, value in w.items()} == {
        "shared/projection/kernel": (4, 3),
        "shared/projection/bias": (3,),
    }
    assert shared.token is source.token
    normed = to_numpy(source.embed(IDS, SEGMENTS))
    expected = normed @ w["shared/projection/kernel"] + w["shared/projection/bias"]
    assert_close(to_numpy(shared(IDS, SEGMENTS)), expected, 1e-5)


def test_it_follows_the_tables():
    source = tables()
    shared = SharedEmbeddings(source, hidden_size=4)
    np.testing.assert_array_equal(to_numpy(shared(IDS, SEGMENTS)), to_numpy(source(IDS, SEGMENTS)))
    source.token.assign(ops.convert_to_tensor(source.token) * 2)
    np.testing.assert_array_equal(to_numpy(shared(IDS, SEGMENTS)), to_numpy(source(IDS, SEGMENTS)))


def test_its_dropout_is_its_own():
    shared = SharedEmbeddings(tables(), hidden_size=4, dropout=0.5)
    dropped = to_numpy(shared(IDS, SEGMENTS, training=True))
    assert (dropped == 0).any()
    assert not (to_numpy(shared(IDS, SEGMENTS)) == 0).any()
