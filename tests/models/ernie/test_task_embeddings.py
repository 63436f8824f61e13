"""ERNIE's vector of the task; `tests/models/test_reference_family.py` has equality with ERNIE."""

import numpy as np
import pytest

from kbert.checkpoints.huggingface.huggingface import export_model
from kbert.models import Encoder, describe
from kbert.models.ernie.task_embeddings import TaskEmbeddings
from kbert.models.weights import get_arrays, set_arrays
from tests.harness import assert_close, randomise, tiny_config, tiny_inputs, to_numpy


def make(**options):
    encoder = Encoder(tiny_config(part={"name": "task_embeddings", **options}))
    randomise(encoder)
    return encoder


def test_the_row_of_the_task_is_added_to_every_token():
    """As segments that have it in them do."""
    inputs = tiny_inputs(tiny_config())
    for task in (0, 2):
        encoder = make(num_tasks=4, task=task)
        arrays = get_arrays(encoder, "encoder")
        table = arrays.pop("encoder/embeddings/task")
        assert table.shape == (4, 16)
        arrays["encoder/embeddings/segment"] = arrays["encoder/embeddings/segment"] + table[task]
        plain = Encoder(tiny_config())
        set_arrays(plain, "encoder", arrays, "the test")
        found, expected = to_numpy(encoder(inputs)), to_numpy(plain(inputs))
        assert_close(found["sequence"], expected["sequence"], 1e-5)
        assert_close(found["pooled"], expected["pooled"], 1e-5)


def test_saved_and_counted(tmp_path):
    encoder = make()
    assert encoder.count_params() == describe(encoder.config).parameters
    assert TaskEmbeddings().num_tasks == 3
    encoder.save_to_preset(tmp_path)
    again = Encoder.from_preset(tmp_path)
    assert again.config == encoder.config
    inputs = tiny_inputs(encoder.config)
    np.testing.assert_array_equal(
        to_numpy(again(inputs)["sequence"]), to_numpy(encoder(inputs)["sequence"])
    )


def test_what_it_may_be():
    with pytest.raises(ValueError, match=r"less than `num_tasks`.*task=3, num_tasks=3"):
        tiny_config(part={"name": "task_embeddings", "task": 3})
    config = tiny_config(part={"name": "task_embeddings", "task": 1})
    with pytest.raises(ValueError, match="its default task is the first"):
        export_model(config, {}, architecture="ernie")
    other = tiny_config(part={"name": "disentangled"}, positions="none", num_segments=0)
    with pytest.raises(ValueError, match="its part is 'task_embeddings'"):
        export_model(other, {}, architecture="ernie")
