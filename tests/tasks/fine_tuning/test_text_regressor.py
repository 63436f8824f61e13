"""Regression: against transformers, in the data's units, kept in presets."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.data.tables.table import Table
from kbert.models.weights import named_weights
from kbert.tasks import TextRegressor
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import ARCHITECTURES, as_tensors, gradients, randomised

pytestmark = pytest.mark.tensorflow

PAIRS = [("the red pen", "it is day"), ("fox", "the moon is big and old"), ("", "a"), ("dog", "")]
SCORES = [4.5, 0, 2.25, -1]


@pytest.fixture(scope="module")
def task(config, tokenizer):
    keras.utils.set_random_seed(1)
    config = config.replace(dropout=0.0, attention_dropout=0.0)
    return TextRegressor(kbert.Encoder(config), tokenizer)


def test_loss_gradients_and_answers_are_those_of_transformers(tokenizer, tmp_path):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        **ARCHITECTURES["bert"][1],
        vocab_size=tokenizer.vocabulary_size,
        pad_token_id=tokenizer.pad_id,
        num_labels=1,
        problem_type="regression",
        attn_implementation="eager",
    )
    model = randomised(transformers.BertForSequenceClassification(config).eval())
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    task = TextRegressor.from_preset(tmp_path, max_length=24)
    first, second = ([*texts] for texts in zip(*PAIRS, strict=True))
    table = Table({"first": first, "second": second, "label": SCORES})
    rows = task.tokenize(table, labelled=True)
    batch = task.assemble(rows.gather(np.arange(4))) | {"label_weights": tf.ones(4)}
    names = ("token_ids", "segment_ids", "padding_mask")
    inputs = as_tensors({name: batch[name].numpy() for name in names})
    out = model(**inputs, labels=torch.tensor(SCORES))
    out.loss.backward()

    def loss():
        ((total, count),) = task.loss_terms(batch, training=False)[0].values()
        return total / count

    assert float(loss()) == pytest.approx(out.loss.item(), rel=1e-4)
    wanted = {name: p.grad.numpy() for name, p in model.named_parameters()}
    wanted = import_model(model.config.to_dict(), wanted, "theirs").arrays
    weights = named_weights(task.encoder, "encoder") | named_weights(task.classifier, "classifier")
    assert_gradients_close(gradients(loss, weights), wanted)
    assert_close(task.predict(PAIRS), out.logits[:, 0].detach().numpy(), 1e-4)


@pytest.mark.slow
def test_it_learns_in_the_units_of_the_data(task, tmp_path):
    rng = np.random.default_rng(0)
    counts = rng.integers(0, 6, 300)
    texts = ["fox " * n + "dog " * (8 - n) for n in counts]
    history = task.fit(
        texts,
        counts.tolist(),
        validation_data=(texts[:40], counts[:40].tolist()),
        epochs=12,
        batch_size=8,
        learning_rate=3e-3,
        verbose=0,
    )
    assert "val_spearman" in history.history
    found = task.predict(texts)
    assert found.shape == (300,)
    assert found.dtype == np.float32
    assert np.abs(found - counts).mean() < 0.5
    scores = task.evaluate(texts, counts.tolist())
    assert scores["pearson"] > 0.95
    assert scores["spearman"] > 0.9
    assert scores["loss"] == pytest.approx(np.square(found - counts).mean(), rel=1e-3)

    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert isinstance(again, TextRegressor)
    assert again.settings == task.settings
    # A task computes its first answers eagerly, later ones in a graph, which rounds otherwise.
    found = again.predict(texts[:9])
    np.testing.assert_allclose(found, task.predict(texts[:9]), rtol=1e-5, atol=1e-5)
    assert task.predict([]).shape == (0,)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda t: t.fit(["a"], ["high"]), "row 0 .*a regression must be a number. .*'high'"),
        (
            lambda t: t.fit(["a"], [[0.5, 2.0]]),
            r"row 0 .*must be numbers, class ids or names, one per row. Received: \[0.5, 2.0\]",
        ),
        (lambda t: t.fit(["a"], ["nan"]), "row 0 .*a regression must be a number. Received: nan"),
        (lambda t: t.fit(["a"], [1.0], class_weights="balanced"), "for tasks with classes only"),
        (lambda t: t.evaluate(["a"]), "no column 'label'"),
        (lambda t: t.predict({"label": [1]}), "must have the column `text`.*Received: label"),
    ],
)
def test_what_does_not_fit(task, call, message):
    with pytest.raises(ValueError, match=message):
        call(task)


@pytest.mark.parametrize("label", [1e300, -1e300, 1e20, 10**400])
def test_a_label_whose_square_float32_cannot_hold_is_told_by_its_row(task, label):
    with pytest.raises(
        ValueError, match=r"row 1 .*at most 1e.15.*divide the labels .* Received: -?1"
    ):
        task.fit(["fox", "dog"], [1, label], epochs=1, verbose=0)


def test_the_largest_label_is_trained_on(config, tokenizer):
    task = TextRegressor(kbert.Encoder(config), tokenizer)
    history = task.fit(["fox", "dog"] * 8, [1e15, -1e15] * 8, epochs=1, batch_size=16, verbose=0)
    assert history.history["loss"][0] == pytest.approx(1e30, rel=1e-3)
