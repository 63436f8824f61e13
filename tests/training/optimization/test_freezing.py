import keras
import numpy as np
import pytest
from keras import ops

from kbert.training.optimization.freezing import freeze, thaw
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.checkpoints import named_state
from tests.training import toy_task


def values(model) -> dict[str, np.ndarray]:
    return {v.path.removeprefix(f"{model.name}/"): np.array(v.value) for v in model.weights}


def trained(patterns, rate=0.1) -> tuple[toy_task.ToyTask, list[str]]:
    keras.utils.set_random_seed(1)
    task = toy_task.ToyTask()
    frozen = freeze(task, patterns)
    task.compile(AdamW(rate, weight_decay=0.5))
    task.fit(toy_task.dataset(2), verbose=0)
    return task, frozen


def test_frozen_weights_neither_move_nor_decay_nor_have_slots():
    task, frozen = trained(["embedding/*", "tok*/kernel"])
    assert frozen == ["embedding/embeddings", "tokens/kernel"]
    keras.utils.set_random_seed(1)
    before, after = values(toy_task.ToyTask()), values(task)
    for name in before:
        assert np.array_equal(before[name], after[name]) == (name in frozen), name
    slots = [name for name in named_state(task) if name.startswith("optimizer/")]
    assert any("label" in name for name in slots)
    assert not any("embedding" in name or "tokens_kernel" in name for name in slots)


def test_the_others_move_as_by_hand():
    """One step of a trained bias in NumPy: the rest of the network being frozen."""
    task, _ = trained(["[!l]*", "label/kernel"], rate=0.0)
    assert [v.path for v in task.trainable_weights] == ["label/bias"]
    task.compile(AdamW(0.1), clip_norm=None)
    batch = toy_task.batches(1, seed=3)[0]
    weights = values(task)
    x = weights["embedding/embeddings"][batch["token_ids"]]
    x = x + x.mean(1, keepdims=True)
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-3)
    logits = x[:, 0] @ weights["label/kernel"] + weights["label/bias"]
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    gradient = (probabilities - np.eye(2)[batch["label"]]).mean(0)
    m, v = 0.1 * gradient, 0.001 * gradient**2
    expected = weights["label/bias"] - 0.1 * m / (np.sqrt(v) + 1e-6)

    task.fit(toy_task.dataset(1, seed=3), verbose=0)
    np.testing.assert_allclose(ops.convert_to_numpy(task.label.bias), expected, atol=1e-5)


def test_thawed_weights_are_trained_again():
    task = toy_task.ToyTask()
    every = [v.path for v in task.trainable_weights]
    assert freeze(task, "label/bias") == ["label/bias"]
    assert len(freeze(task, "*")) == len(every) - 1  # that one was frozen before
    assert not task.trainable_weights
    assert thaw(task, "label/*") == ["label/kernel", "label/bias"]
    thaw(task)
    assert [v.path for v in task.trainable_weights] == every


def test_a_pattern_that_matches_nothing_is_an_error():
    task = toy_task.ToyTask()
    with pytest.raises(ValueError, match="'label/kernels'; close names: label/kernel, "):
        freeze(task, ["embedding/*", "label/kernels"])
    assert all(v.trainable for v in task.weights)
