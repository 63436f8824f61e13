"""Training with `recompute=True` beside the same without: the same numbers, with dropout."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from kbert.layers import fused
from kbert.models import Encoder
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.step.mixin import TrainStep
from tests.harness import tiny_config
from tests.training import toy_task

ON_JAX = keras.backend.backend() == "jax"
ROWS, LENGTH, READ, STEPS = 8, 12, 3, 3
needs_tensorflow = pytest.mark.tensorflow


class Guesses(TrainStep, keras.Model):
    """Guesses the tokens at some places, and a label of the row."""

    def __init__(self, dtype=None, dropout=0.2, **changes):
        super().__init__(dtype=dtype)
        config = tiny_config(dropout=dropout, attention_dropout=dropout, **changes)
        self.encoder = Encoder(config, dtype=dtype)
        self.tokens = keras.layers.Dense(config.vocabulary_size, dtype=dtype, name="tokens")
        self.label = keras.layers.Dense(2, dtype=dtype, name="label")
        for layer in (self.tokens, self.label):
            layer.build((None, config.hidden_size))
        self.built = True

    def loss_terms(self, batch, training):
        inputs = {name: batch[name] for name in ("token_ids", "padding_mask")}
        read = batch["mask_positions"]
        out = self.encoder(inputs, training=training, output_positions=read)
        tokens = toy_task.cross_entropy(batch["mask_ids"], self.tokens(out["sequence"]))
        labels = toy_task.cross_entropy(batch["label"], self.label(out["pooled"]))
        pairs = {"tokens": tokens, "label": labels}
        ones = {name: ops.sum(ops.ones_like(x)) for name, x in pairs.items()}
        return {name: (ops.sum(x), ones[name]) for name, x in pairs.items()}, {}


def dataset(steps=STEPS, start=0):
    found = []
    for step in range(start, start + steps):
        rng = np.random.default_rng(step)
        lengths = rng.integers(4, LENGTH, (ROWS, 1))
        batch = {
            "token_ids": rng.integers(0, 40, (ROWS, LENGTH)),
            "padding_mask": np.arange(LENGTH) < lengths,
            "mask_positions": rng.integers(0, 4, (ROWS, READ)),
            "mask_ids": rng.integers(0, 40, (ROWS, READ)),
            "label": rng.integers(0, 2, ROWS),
        }
        found.append({name: x.astype("int32") for name, x in batch.items()})
    stacked = {name: np.stack([batch[name] for batch in found]) for name in found[0]}
    return tf.data.Dataset.from_tensor_slices(stacked)


def make(recompute, strategy=None, micro_batches=1, jit_compile=False, **options):
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy else contextlib.nullcontext():
        task = Guesses(**options)
        task.compile(
            keras.optimizers.SGD(0.1, momentum=0.9),  # its updates are as exact as the gradients
            micro_batches=micro_batches,
            jit_compile=jit_compile,
            recompute=recompute,
        )
    return task


def trained(recompute, **options):
    """Each step's losses and gradient norm, and all variables at the end."""
    task, steps = make(recompute, **options), []

    def keep(batch, logs):
        steps.append({name: float(value) for name, value in logs.items()})

    callback = keras.callbacks.LambdaCallback(on_train_batch_end=keep)
    task.fit(dataset(), verbose=0, callbacks=[callback])
    weights = {v.path: ops.convert_to_numpy(v.value) for v in task.trainable_variables}
    seeds = [ops.convert_to_numpy(v.value) for v in task.non_trainable_variables]
    return steps, weights, seeds


CASES = {
    "plain": {},
    "micro-batches": {"micro_batches": 2},
    "XLA": {"jit_compile": True},
    "XLA, micro-batches": {"jit_compile": True, "micro_batches": 2},
    "bfloat16": {"dtype": "mixed_bfloat16"},
    "float16": {"dtype": "mixed_float16"},
    "shared": {"num_layer_groups": 1, "num_layers": 3, "embedding_size": 8},
}
SOONER = {
    "fused": ("micro-batches",),
    "plain": tuple(CASES) if ON_JAX else (),
}


def cases():
    for layers in ("fused", "plain"):
        for name in CASES:
            marks = [] if name in SOONER[layers] else [pytest.mark.slow]
            marks += [needs_tensorflow] if layers == "fused" or "XLA" in name else []
            yield pytest.param(layers, CASES[name], id=f"{layers} layers, {name}", marks=marks)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "options"), cases())
def test_the_numbers_are_the_same(monkeypatch, layers, options):
    compare(monkeypatch, layers, options)


@needs_tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("layers", ["fused", "plain"])
def test_on_two_replicas_the_numbers_are_the_same(monkeypatch, mirrored, layers):
    """Each has masks of its own, also in the backward part."""
    compare(monkeypatch, layers, {"strategy": mirrored, "micro_batches": 2})


def compare(monkeypatch, layers, options):
    monkeypatch.setattr(fused, "MIN_WIDTH", 1 if layers == "fused" else 10**9)
    steps, weights, seeds = trained(False, **options)
    steps_again, weights_again, seeds_again = trained(True, **options)
    # Compilers may fuse other operations, and then round at other places.
    rtol = 0.02 if "dtype" in options else 1e-5
    assert len(steps) == STEPS
    for found, expected in zip(steps_again, steps, strict=True):
        assert found == {name: pytest.approx(x, rel=rtol) for name, x in expected.items()}
    for name, value in weights.items():
        np.testing.assert_allclose(weights_again[name], value, atol=rtol, err_msg=name)
    assert len(seeds) >= 3
    np.testing.assert_array_equal(seeds_again, seeds)


def test_dropout_is_on_in_these_tests():
    """Else they would say nothing of masks."""
    batch = next(iter(dataset(1)))
    with_dropout, without = (
        float(make(True, **options).loss_terms(batch, training=True)[0]["tokens"][0])
        for options in ({}, {"dropout": 0.0})
    )
    assert abs(with_dropout - without) > 1e-2


@pytest.mark.slow
def test_a_run_resumes_to_the_same_numbers(tmp_path):
    """Also one that goes on without."""

    def losses(task, steps, start):
        return task.fit(dataset(steps, start), verbose=0).history["loss"]

    whole = make(True)
    losses(whole, 2, 0)
    Checkpoints(tmp_path).save(whole, 2)
    expected = losses(whole, 1, 2)
    for recompute in (True, False):
        again = make(recompute)
        again.prepare(dataset().element_spec)
        Checkpoints(tmp_path).restore(again, 2)
        rtol = 0 if recompute else 1e-6
        assert losses(again, 1, 2) == pytest.approx(expected, rel=rtol, abs=0)


def test_a_model_without_blocks_is_refused():
    task = toy_task.ToyTask()
    task.compile(AdamW(1e-2), recompute=True)
    with pytest.raises(ValueError, match=r"blocks of an encoder.*Received: .*a ToyTask without"):
        task.fit(toy_task.dataset(1), verbose=0)
