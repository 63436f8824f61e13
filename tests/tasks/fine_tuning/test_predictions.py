"""What tasks predict of a batch, for others to compare, and what is read along with it."""

import numpy as np
import pytest
import tensorflow as tf

from kbert.models.captured_outputs import captured_of, capturing
from tests.distillation import toys
from tests.harness import to_numpy

pytestmark = pytest.mark.tensorflow

# Task -> head -> how it is compared.
PREDICTED = {
    "classes": {"classifier": "classes"},
    "pairs": {"classifier": "classes"},
    "several": {"classifier": "labels"},
    "windows": {"classifier": "classes"},
    "numbers": {"classifier": "number"},
    "tags": {"tokens": "classes"},
    "answers": {"start": "classes", "end": "classes"},
    "choices": {"choice": "classes"},
    "text": {"masked_lm": "classes", "sentence": "classes"},
    "text alone": {"masked_lm": "classes"},
}


@pytest.fixture(scope="module")
def made(tokenizer):
    """name -> task and batch, made once."""
    found = {}

    def make(name):
        if name not in found:
            task = toys.make_task(name, tokenizer)
            found[name] = task, toys.make_batch(name, task)
        return found[name]

    return make


def test_every_kind_is_here():
    assert set(PREDICTED) == set(toys.KINDS)


@pytest.mark.parametrize("name", toys.KINDS)
def test_predictions_are_logits_and_their_weights(made, name):
    task, batch = made(name)
    logits = task(batch)
    found = task.predictions(logits, batch)
    assert {head: prediction.kind for head, prediction in found.items()} == PREDICTED[name]
    for head, (kind, values, weights) in found.items():
        values, weights = to_numpy(values), to_numpy(weights)
        wanted = to_numpy(logits[head])
        np.testing.assert_array_equal(values, wanted[:, 0] if kind == "number" else wanted)
        classes = kind == "classes"
        assert weights.shape == (values.shape[:-1] if classes else values.shape)
        if "label_weights" in batch:
            counts = batch["label_weights"]
            several = kind == "labels"
            np.testing.assert_array_equal(
                weights, counts[:, None] + 0 * values if several else counts
            )
        elif head == "masked_lm":
            np.testing.assert_array_equal(weights, batch["mask_weights"])
        else:
            np.testing.assert_array_equal(weights, batch["padding_mask"][:, 0])
        assert 0 < weights.sum() < weights.size  # what only fills up counts nothing


@pytest.mark.parametrize(
    ("name", "training"),
    [
        *((name, True) for name in toys.KINDS),
        *((name, False) for name in ("classes", "choices")),
        *(
            pytest.param(name, False, marks=pytest.mark.slow)
            for name in toys.KINDS
            if name not in ("classes", "choices")
        ),
    ],
)
def test_captured_outputs_are_the_encoders(made, name, training):
    task, batch = made(name)
    wanted = to_numpy(task(batch, training=training))
    with capturing(task.encoder, return_hidden_states=True, return_internals=True) as captured:
        logits = task(batch, training=training)
    for head, values in to_numpy(logits).items():
        np.testing.assert_allclose(values, wanted[head], rtol=1e-4, atol=1e-4)
    inputs = toys.encoder_inputs(batch, task.encoder)
    assert captured.features.keys() == inputs.keys()
    for feature, value in inputs.items():
        np.testing.assert_array_equal(captured.features[feature], value)
    expected = toys.read_encoder(task, batch)
    found = to_numpy(captured.outputs)
    tf.nest.assert_same_structure(found, expected)
    real = inputs["padding_mask"] > 0
    states = zip(found["hidden_states"], expected["hidden_states"], strict=True)
    for ours, theirs in states:
        np.testing.assert_allclose(ours[real], theirs[real], atol=1e-4)


def test_nothing_is_kept_behind_the_block(made):
    task, batch = made("classes")
    with capturing(task.encoder) as outer:
        task(batch)
        with capturing(task.encoder, return_hidden_states=True) as inner:
            task(batch)
        assert "hidden_states" in inner.outputs
        assert "hidden_states" not in outer.outputs
        before = outer.outputs
        with pytest.raises(RuntimeError), capturing(task.encoder):
            raise RuntimeError
        task(batch)
        assert outer.outputs is not before
    last = outer.outputs
    task(batch)
    assert outer.outputs is last
    assert captured_of(task.encoder) is None


def test_a_masked_lm_head_predicts_every_token(made):
    task, batch = made("text")
    real = batch["padding_mask"]
    sequence = task.encode(batch)["sequence"]
    kind, values, weights = task.predictions_everywhere(sequence, real)
    assert kind == "classes"
    assert values.shape == (*real.shape, task.tokenizer.vocabulary_size)
    np.testing.assert_array_equal(weights, real)
    found = to_numpy(values)
    rows = np.arange(len(real))[:, None]
    masked = to_numpy(task(batch)["masked_lm"])
    np.testing.assert_allclose(found[rows, batch["mask_positions"]], masked, atol=1e-4)
