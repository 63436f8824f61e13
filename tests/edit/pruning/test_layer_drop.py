"""Layers that are left out in training: the right ones, as often as said, in every step again."""

import keras
import numpy as np
import pytest

from kbert.edit.pruning import LayerDrop
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from kbert.tasks import TextClassifier
from kbert.training import AdamW
from tests.edit.pruning.test_layers import skipping
from tests.harness import KINDS, assert_close, randomise, tiny_config, tiny_inputs, to_numpy

TEXTS = ["the red fox", "a dog", "the old man and the king", "moon"]
LABELS = ["no", "yes", "no", "yes"]
HOW = {"batch_size": 2, "verbose": 0, "seed": 3, "learning_rate": 1e-2}


def made(tokenizer, **changes):
    fields = {"vocabulary_size": tokenizer.vocabulary_size, "num_layers": 3, **changes}
    task = TextClassifier(Encoder(tiny_config(**fields)), tokenizer, ["no", "yes"], max_length=12)
    randomise(task, sigma=0.3)
    return task


@pytest.mark.parametrize("kind", ["bert", "modern"])
def test_a_step_is_that_of_the_layers_that_are_left(kind, tokenizer):
    task = made(tokenizer, **KINDS.get(kind, {}))
    encoder, drop = task.encoder, LayerDrop(0.5, seed=1)
    inputs = tiny_inputs(encoder.config)
    task.compile(AdamW(1e-3))
    task.optimizer.build(task.trainable_variables)
    drop.set_model(task)
    drop.on_train_begin()
    places = np.array([[2, 0]] * 3)
    for step in range(4):
        task.optimizer.iterations.assign(step)
        gone = drop.left_out(step, 3)
        found = to_numpy(encoder(inputs, training=True))
        of_places = to_numpy(encoder(inputs, training=True, output_positions=places))
        wanted = skipping(encoder, [layer for layer in range(3) if layer not in gone])
        for name in wanted:
            assert_close(found[name], wanted[name], 1e-5, name)
        assert_close(of_places["sequence"], wanted["sequence"][:, [2, 0]], 1e-5)
    assert len({tuple(drop.left_out(step, 3)) for step in range(4)}) > 1
    whole = skipping(encoder, range(3))  # evaluations run them all
    assert_close(to_numpy(encoder(inputs))["sequence"], whole["sequence"], 1e-6)
    drop.on_train_end()
    assert_close(to_numpy(encoder(inputs, training=True))["sequence"], whole["sequence"], 1e-6)


def test_layers_are_left_out_as_often_as_said_and_independently():
    drop = LayerDrop(0.2, seed=5)
    gone = np.array([np.isin(range(4), drop.left_out(step, 4)) for step in range(1500)])
    # Five sigma of 1,500 draws.
    np.testing.assert_allclose(gone.mean(0), 0.2, atol=5 * np.sqrt(0.16 / 1500))
    correlations = np.corrcoef(np.concatenate([gone[:-1], gone[1:]], axis=1).T)
    np.fill_diagonal(correlations, 0)
    assert np.abs(correlations).max() < 5 / np.sqrt(1500)
    assert drop.left_out(7, 4) == LayerDrop(0.2, seed=5).left_out(7, 4)
    other = LayerDrop(0.2, seed=6)
    assert any(other.left_out(step, 4) != drop.left_out(step, 4) for step in range(50))


@pytest.mark.graphs
@pytest.mark.slow
def test_weights_of_layers_that_are_left_out_do_not_move(tokenizer):
    task, drop = made(tokenizer), LayerDrop(0.5)
    step = next(s for s in range(50) if drop.left_out(s, 3) == [1])
    task.compile(keras.optimizers.SGD(0.1))
    task.fit(TEXTS, LABELS, epochs=1, batch_size=4, verbose=0)  # traced without
    task.optimizer.iterations.assign(step)
    before = get_arrays(task.encoder, "encoder")
    task.fit(TEXTS, LABELS, epochs=1, batch_size=4, verbose=0, callbacks=[drop])
    after = get_arrays(task.encoder, "encoder")
    moved = {name.split("/")[2] for name in before if not np.array_equal(before[name], after[name])}
    assert {"0", "2"} < moved
    assert "1" not in moved


@pytest.mark.slow
def test_it_runs_on_devices_in_parts_and_recomputed(tokenizer, mirrored):
    def run(**how):
        task = made(tokenizer, num_layers=2)
        task.fit(TEXTS, LABELS, epochs=1, callbacks=[LayerDrop(0.5)], **{**HOW, **how})
        return get_arrays(task, "task")

    wanted = run()
    in_parts = run(micro_batches=2, recompute=True)
    with mirrored.scope():
        on_two = run()
    for found in (in_parts, on_two):
        for name, array in found.items():
            np.testing.assert_allclose(array, wanted[name], atol=2e-5, err_msg=name)


class Interrupt(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_a_fit_that_fails_leaves_no_layer_out_afterwards(tokenizer):
    task = made(tokenizer)
    task.compile(AdamW(1e-3))
    with pytest.raises(KeyboardInterrupt):
        task.fit(TEXTS, LABELS, callbacks=[LayerDrop(0.9), Interrupt()], batch_size=2, verbose=0)
    assert [block.is_left_out for block in task.encoder.blocks] == [None] * 3
    assert task.train_function is None  # traced anew


def test_what_it_cannot_do_is_refused(tokenizer):
    for rate in (0, 1.0, -0.1):
        with pytest.raises(ValueError, match="above 0 and less than 1"):
            LayerDrop(rate)
    for changes, message in (
        ({"num_layer_groups": 1}, r"do not share weights.*num_layer_groups=1"),
        (KINDS["disentangled"], "without a `part`"),
    ):
        with pytest.raises(ValueError, match=message):
            made(tokenizer, **changes).fit(TEXTS, LABELS, callbacks=[LayerDrop(0.2)], **HOW)
