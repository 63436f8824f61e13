"""Runs on every backend; under KERAS_BACKEND=jax it is `Task.export` itself."""

import numpy as np
import pytest

from kbert.export import tensorflow_copy
from tests.export import session


@pytest.mark.slow
def test_the_copy_gives_the_task_s_answers(task, tmp_path):
    path = tensorflow_copy.export_copy(task, tmp_path / "served", {"top_k": 3})
    assert path == str(tmp_path / "served" / "1")
    (served,) = session.ask(path, ("fill_mask", {"text": ["the [MASK] fox"]}))
    (answer,) = task.predict("the [MASK] fox", top_k=3)
    assert [token.decode() for token in served["tokens"][0, 0]] == answer["tokens"][0]
    np.testing.assert_allclose(served["probabilities"][0, 0], answer["probabilities"][0], atol=1e-5)


def test_a_failure_says_why(task, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorflow_copy, "PROGRAM", "import sys; sys.exit('disk full')")
    with pytest.raises(RuntimeError, match=r"under TensorFlow, failed. Received: disk full"):
        tensorflow_copy.export_copy(task, tmp_path, {})
