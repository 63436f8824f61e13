"""Packed rows give the losses and gradients of their examples, each in a row of its own."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.pretraining.packing import pack_features
from kbert.distillation import (
    AttentionRelations,
    AttentionScores,
    Distiller,
    HiddenStates,
    LastHiddenCosine,
    OwnLoss,
    SoftTargets,
)
from tests.harness import assert_gradients_close, randomise, to_numpy
from tests.tasks import toy

PLACE = [0, 1, 2, 4, 8, 9, 10]  # rows of three, one and three examples, of at most four


@pytest.fixture(params=["pairs", "halves", "spans"])
def batches(request, tokenizer):
    """A batch of seven rows, of 9 tokens among 32, and the same packed into three."""
    batch = next(iter(toy.batches(tokenizer, batch_size=len(PLACE), length=32, places=12)))
    if request.param == "halves":
        batch["sentence_order_labels"] = batch.pop("next_sentence_labels")
    if request.param == "spans":
        batch["span_starts"] = batch["span_ends"] = batch["mask_positions"]
    position = batch.pop("position")
    packed = pack_features(
        batch, tf.constant(PLACE, tf.int64), 3, max_examples=4, pad_id=tokenizer.pad_id
    )
    return batch | {"position": position}, packed | {"position": position[:3]}


def make_task(config, tokenizer, batch):
    task = kbert.tasks.Pretraining(
        kbert.Encoder(config),
        tokenizer,
        sentence_order="sentence_order_labels" in batch,
        span_boundary="span_starts" in batch,
    )
    randomise(task)
    return task


def terms_and_gradients(model, batch):
    with tf.GradientTape() as tape:
        losses, metrics = model.loss_terms(batch, training=False)
        loss = sum(total / count for total, count in losses.values())
    gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
    gradients = {
        v.path: to_numpy(tf.convert_to_tensor(g))
        for v, g in zip(model.trainable_variables, gradients, strict=True)
        if g is not None
    }
    return {**losses, **metrics}, gradients


def assert_equal(model, alone, packed):
    (terms, gradients), (expected, slopes) = (
        terms_and_gradients(model, batch) for batch in (packed, alone)
    )
    assert terms.keys() == expected.keys()
    for name, pair in expected.items():
        np.testing.assert_allclose(to_numpy(terms[name]), to_numpy(pair), rtol=1e-5, err_msg=name)
    assert_gradients_close(gradients, slopes)


def test_losses_and_gradients(config, tokenizer, batches):
    alone, packed = batches
    assert packed["token_ids"].shape == (3, 32)
    assert_equal(make_task(config, tokenizer, alone), alone, packed)


@pytest.mark.parametrize(
    "batches",
    ["spans", *(pytest.param(x, marks=pytest.mark.slow) for x in ("pairs", "halves"))],
    indirect=True,
)
def test_distilled(config, tokenizer, batches):
    alone, packed = batches
    teacher = make_task(config.replace(num_layers=2), tokenizer, alone)
    student = kbert.student(teacher, num_layers=1)
    randomise(student, seed=1)
    terms = [
        *(OwnLoss(), SoftTargets(), HiddenStates(), LastHiddenCosine()),
        *(AttentionScores(), AttentionRelations(relations=("query", "attention"))),
    ]
    assert_equal(Distiller(student, teacher, terms), alone, packed)


@pytest.mark.parametrize(
    "batches",
    ["pairs", *(pytest.param(x, marks=pytest.mark.slow) for x in ("halves", "spans"))],
    indirect=True,
)
def test_replaced_tokens_are_found_in_packed_rows(config, tokenizer, batches):
    alone, packed = batches
    task = kbert.tasks.ReplacedTokenDetection(
        kbert.Encoder(config), tokenizer, generator=config.replace(embedding_size=16, hidden_size=8)
    )
    randomise(task)
    found = task(packed)
    padding = packed["padding_mask"].numpy() == 0
    assert not to_numpy(found["replaced"])[padding].any()
    assert not to_numpy(found["token_ids"])[padding].any()
    # What is drawn depends on the row; what the generator predicts there does not.
    expected = to_numpy(task(alone)["masked_lm"])[:, 0]
    predicted = to_numpy(found["masked_lm"])[packed["mask_weights"].numpy() > 0]
    np.testing.assert_allclose(predicted, expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.graphs
def test_a_task_learns_from_packed_rows(config, tokenizer, batches):
    _, packed = batches
    task = make_task(config, tokenizer, packed)
    task.compile(kbert.training.AdamW(3e-3), jit_compile=True)
    data = tf.data.Dataset.from_tensors(packed).repeat(30)
    history = task.fit(data, epochs=2, steps_per_epoch=15, verbose=0)
    assert history.history["mlm_loss"][-1] < history.history["mlm_loss"][0]
    assert all(np.isfinite(values).all() for values in history.history.values())


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_replicas_and_micro_batches_train_as_one(config, tokenizer, mirrored):
    """One has rows of three examples and one, the other of two and one."""
    batch = next(iter(toy.batches(tokenizer, batch_size=7, length=32, places=12)))
    position = batch.pop("position")[:4]
    place = tf.constant([0, 1, 2, 4, 8, 9, 12], tf.int64)
    packed = pack_features(batch, place, 4, max_examples=4, pad_id=tokenizer.pad_id)
    data = tf.data.Dataset.from_tensors(packed | {"position": position}).repeat()

    def trained(scope=None, micro_batches=1):
        with scope or contextlib.nullcontext():
            task = make_task(config.replace(dropout=0.0, attention_dropout=0.0), tokenizer, packed)
            task.compile(kbert.training.AdamW(3e-3), micro_batches=micro_batches, clip_norm=0.5)
        history = task.fit(data, epochs=2, steps_per_epoch=2, verbose=0).history
        return history, [to_numpy(w) for w in task.trainable_variables]

    history, weights = trained()
    for others, moved in (trained(mirrored.scope()), trained(micro_batches=4)):
        for name, values in history.items():
            np.testing.assert_allclose(others[name], values, rtol=1e-4, err_msg=name)
        for found, expected in zip(moved, weights, strict=True):
            np.testing.assert_allclose(found, expected, atol=1e-5)
