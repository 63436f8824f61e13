import numpy as np
import pytest
import tensorflow as tf

from kbert.core.late import optional
from kbert.signatures.rows import RowFunction, differences

pytestmark = pytest.mark.tensorflow
NEVER = -1e9


@pytest.fixture
def rows():
    """Of each row the sum, of each token its id, of each mask the token there, and a constant."""

    def function(features):
        ids = tf.cast(features["token_ids"], tf.float32)
        masked = tf.gather(ids, features["mask_positions"], batch_dims=1)
        real = tf.cast(features["padding_mask"], tf.float32)
        never = tf.where(features["padding_mask"] > 0, ids, NEVER)
        pair = tf.tile(tf.reduce_sum(ids * real, 1)[:, None], [1, 2])
        return {"pair": pair, "masked": masked, "start": never}

    length = ("batch", "length")
    inputs = {"token_ids": length, "padding_mask": length, "mask_positions": ("batch", "masks")}
    return RowFunction(function, inputs)


def batch(lengths=(3, 2)):
    mask = np.arange(max(lengths)) < np.array(lengths)[:, None]
    ids = np.arange(mask.size).reshape(mask.shape) + 1
    return {"token_ids": ids, "padding_mask": mask, "mask_positions": np.zeros((len(mask), 1))}


def test_axes_of_outputs_are_named(rows):
    assert rows.outputs == {
        "pair": ("batch", 2),
        "masked": ("batch", "masks"),
        "start": ("batch", "length"),
    }


def test_a_signature_is_of_given_sizes(rows):
    inputs = rows.signature({"batch": 1, "length": 8, "masks": 4}).inputs
    assert [(spec.name, spec.shape.as_list()) for spec in inputs] == [
        ("token_ids", [1, 8]),
        ("padding_mask", [1, 8]),
        ("mask_positions", [1, 4]),
    ]
    assert rows.signature().inputs[0].shape.as_list() == [None, None]


def test_no_difference_to_itself(rows):
    found = differences(rows, [batch(), batch((5,))], rows.run)
    assert found == {"pair": 0.0, "masked": 0.0, "start": 0.0}


def test_differences_are_in_units_of_the_largest_number(rows):
    def run(features):
        return {name: x + 0.5 for name, x in rows.run(features).items()}

    found = differences(rows, [batch()], run)
    assert found["pair"] == pytest.approx(0.5 / 9)  # 4 + 5 of the second row
    assert found["masked"] == pytest.approx(0.5 / 4)


def test_padding_counts_nothing(rows):
    def run(features):
        found = rows.run(features)
        found["start"][1, 2] = 7.0
        return found

    assert differences(rows, [batch()], run)["start"] == 0.0


def test_a_token_that_is_never_chosen_must_never_be(rows):
    def run(features):
        found = rows.run(features)
        found["start"][0, 0] = NEVER
        return found

    assert differences(rows, [batch()], run)["start"] > 1e6


def test_an_absent_package_names_its_extra():
    with pytest.raises(ImportError, match=r"needs the extra: pip install 'kbert\[onnx\]'.*no_such"):
        optional("no_such_package", "onnx")


def test_whole_numbers_are_equal_or_not():
    def function(features):
        return {"ids": features["token_ids"][:, :2], "sum": features["token_ids"][:, 0] / 2}

    rows = RowFunction(function, {"token_ids": ("batch", "length")})
    assert rows.whole == {"ids"}
    batch = {"token_ids": np.array([[10, 20, 30], [40, 50, 60]], "int32")}

    def run(features):
        found = rows.run(features)
        return {**found, "ids": found["ids"] + np.array([[0, 0], [0, 1]])}

    assert differences(rows, [batch], run) == {"ids": 0.5, "sum": 0.0}
