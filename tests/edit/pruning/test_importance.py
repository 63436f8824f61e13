"""Importance by gradients: against differences of the loss, whatever the batches."""

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.tables.table import as_table
from kbert.edit import adapters
from kbert.edit.pruning import (
    head_importance,
    least_important,
    neuron_importance,
    prune_heads,
    prune_neurons,
)
from kbert.models import Encoder
from kbert.tasks import Pretraining
from tests.distillation.toys import TABLES, make_task
from tests.harness import KINDS, assert_close, randomise, tiny_config
from tests.tasks import toy

TEXTS = ["the red fox", "a dog", "the old man and the king", "moon", "by the river"]
LABELS = ["no", "yes", "no", "yes", "yes"]


def loss_of(task, features):
    """The sum of the losses of one example."""
    losses, _ = task.loss_terms(features, training=False)
    return sum(float(total) / float(weight) for total, weight in losses.values())


def examples(task, texts, labels):
    """Features of one example each."""
    rows = [
        task.tokenize(as_table([x], [y]), labelled=True) for x, y in zip(texts, labels, strict=True)
    ]
    return [features for one in rows for _, features in task.predictor.padded_batches(one, 1)]


def by_differences(task, features, part, number, width, step=0.02):
    """(layers, number): the mean over examples of |∂ loss / ∂ mask|, by differences.

    A mask on what a dense layer reads is a factor of its kernel's rows.
    """
    found = np.zeros((len(task.encoder.blocks), number))
    for layer, block in enumerate(task.encoder.blocks):
        kernel = getattr(block, part).output_dense.kernel
        before = kernel.numpy()
        for i in range(number):
            losses = []
            for factor in (1 + step, 1 - step):
                changed = before.copy()
                changed[i * width : (i + 1) * width] *= factor
                kernel.assign(changed)
                losses.append([loss_of(task, one) for one in features])
            kernel.assign(before)
            found[layer, i] = np.abs(np.subtract(*losses)).mean() / (2 * step)
    return found


@pytest.mark.graphs
def test_it_is_the_derivative_of_each_examples_loss(task):
    data = examples(task, TEXTS[:2], LABELS[:2])
    found = head_importance(task, TEXTS[:2], LABELS[:2], normalize=False)
    wanted = by_differences(task, data, "attention", 4, 4)
    assert wanted.min() > 1e-3
    np.testing.assert_allclose(found, wanted, rtol=0.02, atol=1e-4)


def test_of_neurons_too(task):
    data = examples(task, TEXTS[:2], LABELS[:2])
    found = neuron_importance(task, TEXTS[:2], LABELS[:2], normalize=False)
    wanted = by_differences(task, data, "feed_forward", 3, 1)
    assert found[0].shape == (32,)
    np.testing.assert_allclose([x[:3] for x in found], wanted, rtol=0.02, atol=1e-4)


@pytest.mark.parametrize(
    "name",
    ["answers", *(pytest.param(x, marks=pytest.mark.slow) for x in ("windows", "tags", "choices"))],
)
def test_every_task_and_any_batches(name, tokenizer):
    """Also where an example is several sequences, or a loss is of several words."""
    task, data = make_task(name, tokenizer, num_layers=2), TABLES[name][2]
    data = data if isinstance(data, tuple) else (data,)
    whole, in_parts = (head_importance(task, *data, batch_size=size) for size in (8, 2))
    for all_at_once, one_by_one in zip(whole, in_parts, strict=True):
        assert_close(one_by_one, all_at_once, 1e-5)
        assert_close((all_at_once**2).sum(), 1.0, 1e-6)


def test_of_pretraining_it_takes_batches(tokenizer):
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    task = Pretraining(Encoder(config), tokenizer)
    randomise(task, sigma=0.5)
    batches = toy.batches(tokenizer, batch_size=4)
    found = head_importance(task, batches.take(2), normalize=False)
    again = head_importance(task, batches.take(2).unbatch().batch(8), normalize=False)
    for one, other in zip(found, again, strict=True):
        assert one.min() > 0
        assert_close(one, other, 1e-5)


@pytest.mark.parametrize(
    "kind",
    [
        "shared",
        *(pytest.param(x, marks=pytest.mark.slow) for x in ("modern", "windows in the last layer")),
    ],
)
def test_other_encoders(kind, tokenizer):
    changes = {"vocabulary_size": tokenizer.vocabulary_size, **KINDS[kind]}
    encoder = Encoder(tiny_config(**changes))
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"], max_length=12)
    randomise(task, sigma=0.5)
    found = head_importance(task, TEXTS[:1], LABELS[:1], normalize=False)
    wanted = by_differences(task, examples(task, TEXTS[:1], LABELS[:1]), "attention", 4, 4)
    np.testing.assert_allclose(found, wanted, rtol=0.02, atol=2e-4)


@pytest.mark.graphs
def test_nothing_of_it_stays_in_the_model(task):
    before = [weight.path for weight in task.weights]
    answers = task.predict(TEXTS)
    head_importance(task, TEXTS, LABELS)
    assert [weight.path for weight in task.weights] == before
    assert task.predict(TEXTS) == answers
    layers = [type(layer).__name__ for layer in task._flatten_layers()]
    assert "_Mask" not in layers
    adapters.add(task, "lora")  # the slots are free
    with pytest.raises(ValueError, match="Configs do not include adapters"):
        head_importance(task, TEXTS, LABELS)


def test_a_head_that_does_nothing_goes_first_and_pruning_goes_on(task):
    kernel = task.encoder.blocks[1].attention.output_dense.kernel
    kernel.assign(np.where(np.arange(16)[:, None] // 4 == 2, 0.0, kernel.numpy()))
    importance = head_importance(task, TEXTS, LABELS)
    assert importance[1][2] == 0
    chosen = least_important(importance, 1 / 8)
    assert chosen == {1: [2]}
    small = prune_heads(task, chosen)
    again = head_importance(small, TEXTS, LABELS)
    assert [len(x) for x in again] == [4, 3]
    assert_close(again[1], np.delete(importance[1], 2), 1e-5)
    neurons = neuron_importance(small, TEXTS, LABELS)
    assert prune_neurons(small, least_important(neurons, 0.5)).count_params() < task.count_params()


def test_what_it_cannot_read_is_refused(task, tokenizer):
    endless = toy.batches(tokenizer).repeat()
    with pytest.raises(ValueError, match="must be finite"):
        head_importance(task, tf.data.Dataset.from_tensors({"token_ids": [[1]]}).repeat())
    with pytest.raises(ValueError, match="`labels` must be left out with a dataset"):
        head_importance(task, endless, LABELS)
    with pytest.raises(ValueError, match=r"requires labelled examples. Received: none"):
        head_importance(task, tf.data.Dataset.from_tensors({"token_ids": [[1]]}).take(0))
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size)
    with pytest.raises(ValueError, match=r"a tf.data.Dataset of batches. Received: a list"):
        head_importance(Pretraining(Encoder(config), tokenizer), TEXTS)
    with pytest.raises(TypeError, match="a task on an encoder"):
        head_importance(task.encoder, TEXTS, LABELS)
    with pytest.raises(ValueError, match="batch_size must be"):
        head_importance(task, TEXTS, LABELS, batch_size=0)
