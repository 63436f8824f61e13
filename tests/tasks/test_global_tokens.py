"""The tokens that are global in each task, on an encoder with such; nobody says them."""

import keras
import numpy as np
import pytest

import kbert
from kbert import tasks
from kbert.models import capturing
from kbert.visualization.attention_reading import read_attention
from tests.distillation import toys
from tests.harness import KINDS, assert_close, to_numpy

pytestmark = pytest.mark.tensorflow
LONG = {**KINDS["global tokens"], "num_layers": 2}


def make_task(name, tokenizer, **sizes):
    return toys.make_task(name, tokenizer, **{**LONG, **sizes})


def first(ids, segments):
    return {0}


def question(ids, segments, sep_id=3):
    return set(range(ids.index(sep_id)))


def choice(ids, segments):
    return {i for i, segment in enumerate(segments) if segment}


def none(ids, segments):
    return set()


EXPECTED = {
    "classes": first,
    "pairs": first,
    "several": first,
    "windows": first,
    "numbers": first,
    "tags": none,
    "answers": question,
    "choices": choice,
    "text": none,
    "text alone": none,
}


@pytest.mark.parametrize("name", EXPECTED)
def test_which_they_are(name, tokenizer):
    assert tokenizer.sep_id == 3
    task = make_task(name, tokenizer)
    batch = toys.make_batch(name, task)
    with capturing(task.encoder) as captured:
        task(batch)
    rows = [x.reshape(-1, x.shape[-1]) for x in (batch["token_ids"], batch["segment_ids"])]
    found = captured.features.get("global_positions")
    if EXPECTED[name] is none:
        assert found is None
        return
    found = to_numpy(found).astype(int).tolist()
    assert len(found) == len(rows[0])
    real = batch["padding_mask"].reshape(rows[0].shape).any(1)
    for row, (ids, segments) in enumerate(zip(*(x.tolist() for x in rows), strict=True)):
        if real[row]:
            assert {i for i in found[row] if i >= 0} == EXPECTED[name](ids, segments)
    # No more places than needed: of [CLS] and the longest question, of the longest choice.
    longest = {first: 1, question: 5, choice: 12}[EXPECTED[name]]
    assert len(found[0]) == longest < len(rows[0][0])


def test_every_kind_of_batch_is_here():
    assert set(EXPECTED) == set(toys.KINDS)


def test_other_encoders_get_none(tokenizer):
    for name in ("classes", "answers", "choices"):
        task = toys.make_task(name, tokenizer)
        batch = toys.make_batch(name, task)
        assert "global_positions" not in batch
        with capturing(task.encoder) as captured:
            task(batch)
        assert "global_positions" not in captured.features


def test_choices_without_places_in_the_batch(tokenizer):
    """As a teacher of another kind of encoder's student gets them."""
    task = make_task("choices", tokenizer)
    batch = toys.make_batch("choices", task)
    want = to_numpy(task(batch)["choice"])
    del batch["global_positions"]
    assert_close(to_numpy(task(batch)["choice"]), want, 1e-5)


def test_a_batch_may_say_others(tokenizer):
    task = make_task("classes", tokenizer)
    batch = toys.make_batch("classes", task)
    inputs = {name: batch[name] for name in ("token_ids", "padding_mask")}
    usual = to_numpy(task.encode(inputs)["pooled"])
    nowhere = {**inputs, "global_positions": np.full((len(usual), 1), -1)}
    other = to_numpy(task.encode(nowhere)["pooled"])
    assert np.abs(usual - other).max() > 1e-3
    assert_close(other, to_numpy(task.encoder(inputs)["pooled"]), 1e-6)


@pytest.mark.parametrize("recompute", [True, pytest.param(False, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", ["classes", "answers", "choices", "text alone"])
def test_training(name, tokenizer, recompute):
    """Projections of global tokens learn where a task has such, and stay elsewhere."""
    task = make_task(name, tokenizer)
    attention = task.encoder.blocks[0].attention
    weights = {"global": attention.global_query.kernel, "local": attention.qkv.kernel}
    before = {name: to_numpy(weight.value) for name, weight in weights.items()}
    task.compile("adamw", recompute=recompute)
    logs = task.train_on_batch(toys.make_batch(name, task), return_dict=True)
    assert np.isfinite([float(x) for x in logs.values()]).all()
    moved = {key: np.abs(to_numpy(w.value) - before[key]).max() > 0 for key, w in weights.items()}
    assert moved == {"global": name != "text alone", "local": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["choices", *(pytest.param(x, marks=pytest.mark.slow) for x in ("classes", "answers"))],
)
def test_exports_have_them(name, tokenizer, tmp_path):
    import tensorflow as tf

    task = make_task(name, tokenizer)
    served = tf.saved_model.load(task.export(tmp_path)).signatures["serving_default"]
    if name == "choices":
        context, choices = "the red fox", ["a pen", "the old man and the king"]
        found = served(context=tf.constant([context]), choices=tf.constant([choices]))
        (answer,) = task.predict([{"context": context, "choices": choices}], verbose=0)
        pair = found["probabilities"][0], answer["probabilities"]
    elif name == "classes":
        found = served(text=tf.constant([toys.LONG]))
        (answer,) = task.predict([toys.LONG], verbose=0)
        pair = found["scores"][0], answer["probabilities"].values()
    else:
        found = served(question=tf.constant(["he?"]), context=tf.constant([toys.LONG]))
        (answer,) = task.predict([("he?", toys.LONG)], verbose=0)
        pair = found["score"], [answer["score"]]
    assert_close(to_numpy(pair[0]), list(pair[1]), 1e-4)


def test_pictures_of_a_task_show_them(tokenizer):
    task = make_task("classes", tokenizer)
    seen = read_attention(task, toys.LONG)["encoder"].values
    assert (seen[0][:, 0] > 0).all()  # of [CLS], to all
    assert (seen[0][:, :, 0] > 0).all()
    bare = read_attention(task.encoder, toys.LONG, tokenizer=tokenizer)["encoder"].values
    assert (bare[0][:, 0] > 0).sum(-1).tolist() == [3] * bare.shape[1]


@pytest.mark.slow
def test_far_words_reach_a_classifier_through_them(tokenizer):
    """With windows of two layers, 4 tokens on either side, a word at the end is out of reach."""
    rng = np.random.default_rng(0)
    middle = ["red", "blue", "green", "big", "small"]
    texts = [
        " ".join([*rng.choice(middle, 24), str(rng.choice(["king", "moon"]))]) for _ in range(256)
    ]
    labels = ["king" if text.endswith("king") else "moon" for text in texts]
    found = {}
    for part in ({"name": "global_tokens"}, None):
        sizes = {"attention_pattern": (4,), "hidden_size": 32}
        fields = {**toys.SIZES, **toys.NO_DROPOUT, **LONG, **sizes, "part": part}
        config = kbert.EncoderConfig(vocabulary_size=tokenizer.vocabulary_size, **fields)
        keras.utils.set_random_seed(0)
        task = tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["king", "moon"])
        task.fit((texts, labels), epochs=6, batch_size=16, learning_rate=3e-3, verbose=0)
        found[part is None] = task.evaluate((texts, labels), verbose=0)["accuracy"]
    assert found[False] > 0.95
    assert found[True] < 0.7
