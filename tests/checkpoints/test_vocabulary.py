import numpy as np
import pytest

from kbert.checkpoints import extend_vocabulary
from kbert.models import Encoder
from kbert.models.weights import get_arrays, set_arrays
from tests.harness import tiny_config, to_numpy


def arrays():
    rng = np.random.default_rng(0)
    return {
        "encoder/embeddings/token": rng.normal(1, 0.15, (40, 16)).astype("float32"),
        "masked_lm/bias": np.arange(40, dtype="float32"),
        "encoder/pooler/bias": np.ones(16, "float32"),
    }


def test_old_rows_stay_and_new_ones_lie_near_the_mean_or_come_from_pieces():
    old = arrays()
    config, new = extend_vocabulary(tiny_config(), old, 43, pieces={41: [3, 5, 7]})
    assert config == tiny_config(vocabulary_size=43)
    table = new["encoder/embeddings/token"]
    assert table.shape == (43, 16)
    assert table.dtype == np.float32
    np.testing.assert_array_equal(table[:40], old["encoder/embeddings/token"])
    np.testing.assert_allclose(table[41], table[[3, 5, 7]].mean(0), rtol=1e-6)
    near = table[[40, 42]] - table[:40].mean(0)
    assert 0.01 < near.std() < 0.03  # initializer_range
    np.testing.assert_array_equal(new["masked_lm/bias"], [*range(40), 19.5, 19.5, 19.5])
    assert new["encoder/pooler/bias"] is old["encoder/pooler/bias"]
    assert old["encoder/embeddings/token"].shape == (40, 16)


def test_a_table_of_the_head_s_own_grows_too():
    table = np.random.default_rng(1).normal(2, 0.15, (40, 16)).astype("float32")
    old = {**arrays(), "masked_lm/table": table}
    _, new = extend_vocabulary(tiny_config(output="untied"), old, 42, pieces={41: [3, 5]})
    grown = new["masked_lm/table"]
    np.testing.assert_array_equal(grown[:40], table)
    np.testing.assert_allclose(grown[41], table[[3, 5]].mean(0), rtol=1e-6)
    assert abs(grown[40] - 2).max() < 0.2
    np.testing.assert_array_equal(
        new["encoder/embeddings/token"],
        extend_vocabulary(tiny_config(), arrays(), 42, pieces={41: [3, 5]})[1][
            "encoder/embeddings/token"
        ],
    )


def test_rows_that_padded_the_table_begin_like_added_ones():
    old = arrays()
    config, new = extend_vocabulary(tiny_config(), old, 37, pieces={36: [3, 5]}, known=35)
    table = new["encoder/embeddings/token"]
    assert config == tiny_config()
    assert table.shape == (40, 16)
    kept = [*range(35), 37, 38, 39]
    np.testing.assert_array_equal(table[kept], old["encoder/embeddings/token"][kept])
    np.testing.assert_allclose(table[36], table[[3, 5]].mean(0), rtol=1e-6)
    assert 0.005 < (table[35] - table[:35].mean(0)).std() < 0.04
    np.testing.assert_array_equal(new["masked_lm/bias"], [*range(35), 17, 17, 37, 38, 39])


def test_rows_beyond_the_padding_are_added():
    config, new = extend_vocabulary(tiny_config(), arrays(), 42, known=39)
    assert config.vocabulary_size == 42
    np.testing.assert_array_equal(new["masked_lm/bias"], [*range(39), 19, 19, 19])


def test_a_table_without_a_row_for_each_known_entry_is_refused():
    with pytest.raises(ValueError, match=r"for each of the `known` .*Received: 40 rows, known=41"):
        extend_vocabulary(tiny_config(), arrays(), 42, known=41)


def test_the_seed_decides_the_new_rows():
    def row(seed):
        _, new = extend_vocabulary(tiny_config(), arrays(), 41, seed=seed)
        return new["encoder/embeddings/token"][40]

    np.testing.assert_array_equal(row(1), row(1))
    assert (row(1) != row(2)).any()


def test_the_larger_model_is_the_same_on_old_words():
    small = Encoder(tiny_config())
    config, new = extend_vocabulary(tiny_config(), get_arrays(small, "encoder"), 50)
    large = Encoder(config)
    set_arrays(large, "encoder", new, "the small one")
    ids = np.array([[1, 39, 20]])
    np.testing.assert_array_equal(
        to_numpy(large(ids)["sequence"]), to_numpy(small(ids)["sequence"])
    )


@pytest.mark.parametrize(
    ("size", "pieces", "message"),
    [
        (39, None, "at least 40, as .* can only grow. Received: vocabulary_size=39"),
        (41, {41: [1]}, r"`pieces` must map new ids, 40 to 40.*Received: 41: \[1\]"),
        (41, {40: []}, r"to one or more old ids.*Received: 40: \[\]"),
        (41, {40: [40]}, r"below 40. Received: 40: \[40\]"),
    ],
)
def test_what_does_not_fit_is_refused(size, pieces, message):
    with pytest.raises(ValueError, match=message):
        extend_vocabulary(tiny_config(), arrays(), size, pieces=pieces)
