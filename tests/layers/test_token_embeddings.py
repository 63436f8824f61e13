import numpy as np

from kbert.layers import TokenEmbeddings
from tests.harness import assert_close, randomise, run_layer_test, to_numpy

IDS = np.array([[1, 2, 3], [8, 0, 1]])


def test_one_table_is_looked_up_and_gives_logits():
    layer = TokenEmbeddings(9, 4, scale=2.0, name="e")
    run_layer_test(layer, (IDS,), {"e/token": (9, 4)}, (2, 3, 4))
    randomise(layer)
    table = to_numpy(layer.token)
    x = layer(IDS)
    assert_close(to_numpy(x), 2 * table[IDS], 1e-6)
    assert_close(to_numpy(layer.logits(x)), 2 * table[IDS] @ table.T, 1e-5)


def test_logits_are_of_full_precision_under_any_policy():
    layer = TokenEmbeddings(9, 4, dtype="mixed_bfloat16")
    layer.build((None, None))
    x = layer(IDS)
    assert "bfloat16" in str(x.dtype)
    assert "float32" in str(layer.logits(x).dtype)
