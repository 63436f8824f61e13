"""ELMo's pretraining: the loss against NumPy, the state, devices, and a toy language learned."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert.tasks import BidirectionalLM
from kbert.training.optimization.optimizers import AdamW
from kbert.training.run.checkpoints import Checkpoints
from tests.training.test_strategies import run_workers

WORDS = ("</S>", "<S>", "<UNK>", "the", "red", "fox", "dog", "runs", "sleeps", "far")
ROWS, LENGTH = 4, 5


def make_task(strategy=None, vocabulary_size=10, rows=ROWS, **settings) -> BidirectionalLM:
    keras.utils.set_random_seed(0)
    fields = {"dropout": settings.pop("dropout", 0.0), "vocabulary_size": vocabulary_size}
    config = kbert.ElmoConfig(
        character_size=4,
        filters=((1, 4), (2, 8)),
        num_highway=1,
        max_characters=10,
        lstm_size=16,
        projection_size=8,
        **fields,
    )
    learning_rate = settings.pop("learning_rate", 0.01)
    with (strategy or tf.distribute.get_strategy()).scope():
        task = BidirectionalLM(kbert.Elmo(config), batch_size=rows, **settings)
        task.compile(AdamW(learning_rate, weight_decay=0.0), clip_norm=10.0)
    return task


def stream(steps, rows=ROWS, length=LENGTH, seed=0, begin=0) -> list[dict]:
    """Batches of random words, weights among them 0 and 1, that continue from batch `begin`."""
    rng = np.random.default_rng(seed)
    letters = kbert.tokenizers.character_ids(list(WORDS), 10).numpy()
    runs = rng.integers(0, len(WORDS), (2, rows, (begin + steps) * length + 1))
    batches = []
    for step in range(begin, begin + steps):
        places = slice(step * length, (step + 1) * length)
        behind = slice(places.start + 1, places.stop + 1)
        batch = {
            "begins": np.full(rows, step == 0, "int32"),
            "position": np.tile(np.array([0, 0, step + 1], "int32"), (rows, 1)),
        }
        for run, prefix in zip(runs, ("", "reverse_"), strict=True):
            batch |= {
                f"{prefix}character_ids": letters[run[:, places]],
                f"{prefix}targets": run[:, behind].astype("int32"),
                f"{prefix}weights": (rng.random((rows, length)) < 0.8).astype("float32"),
            }
        batches.append(batch)
    return batches


def dataset(batches) -> tf.data.Dataset:
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches)
    return tf.data.Dataset.from_tensor_slices(stacked)


def state_of(task) -> np.ndarray:
    return ops.convert_to_numpy(task.state)


def weights_of(task) -> list[np.ndarray]:
    return [ops.convert_to_numpy(v.value) for v in task.trainable_variables]


def in_numpy(task, batch, state):
    """Losses of both directions by the formulas, and the state after the batch."""
    elmo = task.elmo
    kernel, bias = (ops.convert_to_numpy(w) for w in (elmo.softmax.kernel, elmo.softmax.bias))
    sums, counts = [], []
    prefixes = ("", "reverse_")
    words = [elmo.words(batch[f"{prefix}character_ids"]) for prefix in prefixes]
    layers, state = elmo.lstm(ops.stack(words), state=state)
    for direction, prefix in enumerate(prefixes):
        x = ops.convert_to_numpy(layers[-1][direction]).astype("float64")  # (B, T, P)
        logits = x @ kernel.T + bias
        log_sums = np.log(np.exp(logits).sum(-1))
        targets = batch[f"{prefix}targets"]
        losses = log_sums - np.take_along_axis(logits, targets[..., None], -1)[..., 0]
        sums.append((losses * batch[f"{prefix}weights"]).sum())
        counts.append(batch[f"{prefix}weights"].sum())
    return np.array(sums), np.array(counts), ops.convert_to_numpy(state)


@pytest.mark.parametrize(
    "negatives",
    [
        pytest.param(len(WORDS), id="whole", marks=pytest.mark.slow),
        pytest.param(4, id="sampled"),
    ],
)
def test_an_evaluation_is_the_whole_softmax_over_a_continuing_text(negatives):
    """Sampled or not in training; the state goes from batch to batch and begins with zeros."""
    task = make_task(negatives=negatives)
    batches = stream(3)
    batches[0]["begins"][:] = 0  # an evaluation begins with zeros all the same
    state, sums, counts = None, 0.0, 0.0
    for batch in batches:
        more, count, state = in_numpy(task, batch, state)
        sums, counts = sums + more, counts + count
    for _ in range(2):
        found = task.evaluate(dataset(batches), verbose=0, return_dict=True)
        forward, backward = sums / counts
        assert found["lm_loss"] == pytest.approx(sums.sum() / counts.sum(), rel=1e-5)
        assert found["loss"] == found["lm_loss"]
        assert found["forward_loss"] == pytest.approx(forward, rel=1e-5)
        assert found["backward_loss"] == pytest.approx(backward, rel=1e-5)
        assert found["forward_perplexity"] == pytest.approx(np.exp(forward), rel=1e-4)
        assert found["backward_perplexity"] == pytest.approx(np.exp(backward), rel=1e-4)
    assert not state_of(task).any()  # training's is another one


def test_the_state_is_that_of_the_words_before_row_by_row():
    task = make_task(learning_rate=0.0)
    batches = stream(3)
    state = None
    for batch in batches:
        _, _, state = in_numpy(task, batch, state)
    task.fit(dataset(batches), verbose=0)
    np.testing.assert_allclose(state_of(task), state, atol=1e-6)
    task.evaluate(dataset(stream(2, seed=5)), verbose=0)
    np.testing.assert_allclose(state_of(task), state, atol=1e-6)
    # Rows that begin forget, the others continue.
    (batch,) = stream(1, seed=6)
    batch["begins"][:] = [1, 0, 0, 1]
    state[:, :, [0, 3]] = 0.0
    _, _, state = in_numpy(task, batch, state)
    task.fit(dataset([batch]), verbose=0)
    np.testing.assert_allclose(state_of(task), state, atol=1e-6)


def test_the_gradient_is_that_of_the_sum_over_a_row_and_the_loss_the_mean():
    """One step of plain descent against central differences of the loss in NumPy."""
    task = make_task()
    task.compile(keras.optimizers.SGD(1.0), clip_norm=None)
    (batch,) = stream(1)
    kernel, at = task.elmo.softmax.kernel, (3, 5)
    value = ops.convert_to_numpy(kernel.value).copy()

    def loss(change):
        moved = value.copy()
        moved[at] += change
        kernel.assign(moved)
        sums, counts, _ = in_numpy(task, batch, None)
        return sums.sum() / counts.sum()

    mean = loss(0.0)
    slope = (loss(1e-2) - loss(-1e-2)) / 2e-2
    kernel.assign(value)
    logs = task.fit(dataset([batch]), verbose=0).history
    assert logs["lm_loss"] == [pytest.approx(mean, rel=1e-5)]
    moved = value[at] - ops.convert_to_numpy(kernel.value)[at]
    assert moved == pytest.approx(LENGTH * slope, rel=1e-2)


def trained(strategy=None, **settings):
    task = make_task(strategy, **settings)
    logs = task.fit(dataset(stream(4)), verbose=0).history
    evaluation = task.evaluate(dataset(stream(2, seed=3)), verbose=0, return_dict=True)
    return task, logs, evaluation


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "negatives", [pytest.param(len(WORDS), id="whole"), pytest.param(4, id="sampled")]
)
def test_two_replicas_train_as_one(mirrored, negatives):
    """Each has its rows' state and draws the same words; what is saved has the rows of both."""
    one, logs, evaluation = trained(negatives=negatives)
    two, logs_2, evaluation_2 = trained(strategy=mirrored, negatives=negatives)
    assert logs_2 == {name: pytest.approx(value, rel=1e-4) for name, value in logs.items()}
    assert evaluation_2 == {n: pytest.approx(value, rel=1e-4) for n, value in evaluation.items()}
    assert np.abs(state_of(one)).max(axis=(0, 1, 3)).min() > 0  # of every row
    np.testing.assert_allclose(state_of(two), state_of(one), atol=1e-4)
    for a, b in zip(weights_of(two), weights_of(one), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_state_that_is_set_is_shared_out_to_the_replicas(mirrored):
    """As a checkpoint sets it: the next batch continues from it, on one device or two."""
    state = np.random.default_rng(0).normal(0, 0.3, (2, 2, ROWS, 24)).astype("float32")
    (batch,) = stream(1)
    batch["begins"][:] = 0
    found = []
    for strategy in (None, mirrored):
        task = make_task(strategy)
        task.state.assign(state)
        found.append((task.fit(dataset([batch]), verbose=0).history["loss"], state_of(task)))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-5)
    np.testing.assert_allclose(found[0][1], found[1][1], atol=1e-5)


def test_checkpoints_hold_the_state_and_the_draws_and_nothing_of_evaluations(tmp_path):
    """Stopped after two batches of four and gone on in another task: the same numbers."""
    batches = stream(4)
    whole = make_task(dropout=0.3, negatives=4)
    whole.fit(dataset(batches), verbose=0)

    checkpoints = Checkpoints(tmp_path)
    first, then = (make_task(dropout=0.3, negatives=4) for _ in range(2))
    first.fit(dataset(batches[:2]), verbose=0)
    first.evaluate(dataset(stream(1)), verbose=0)
    checkpoints.save(first, 2)
    names = checkpoints.read(2)
    assert names["weights/state/state"].shape == (2, 2, ROWS, 24)
    assert not any("evaluation" in name for name in names)

    then.prepare(dataset(batches).element_spec)
    checkpoints.restore(then, 2)
    then.fit(dataset(batches[2:]), verbose=0)
    np.testing.assert_array_equal(state_of(then), state_of(whole))
    for a, b in zip(weights_of(then), weights_of(whole), strict=True):
        np.testing.assert_array_equal(a, b)


SENTENCES = [
    f"{which} {animal} {does}"
    for which in ("the", "the red")
    for animal, does in (("fox", "runs far"), ("dog", "sleeps"))
]


@pytest.mark.slow
@pytest.mark.graphs
def test_a_toy_language_is_learned(tmp_path):
    """Which verb follows tells which animal came before: no count of single words knows that."""
    text = tmp_path / "text.txt"
    sentences = np.random.default_rng(0).choice(SENTENCES, 600)
    documents = ["\n".join(sentences[i : i + 10]) for i in range(0, 600, 10)]
    text.write_text("\n\n".join(documents))
    tokenizer = kbert.WordTokenizer(WORDS)
    shards = tmp_path / "shards"
    kbert.data.prepare_corpus(str(text), shards, tokenizer, held_out_share=0.2)
    settings = {"sequence_length": LENGTH, "batch_size": ROWS, "max_characters": 10}
    data = kbert.data.language_model_dataset(shards, tokenizer, **settings)
    held_out = kbert.data.language_model_dataset(
        shards, tokenizer, split="held_out", epochs=1, **settings
    )
    task = make_task(learning_rate=0.02)
    task.fit(data, steps_per_epoch=120, verbose=0)
    found = task.evaluate(held_out, verbose=0, return_dict=True)
    for direction, prefix in (("forward", ""), ("backward", "reverse_")):
        rows = list(held_out.as_numpy_iterator())
        targets = [row[f"{prefix}targets"][row[f"{prefix}weights"] > 0] for row in rows]
        shares = np.bincount(np.concatenate(targets)) / sum(map(len, targets))
        unigram = np.exp(-np.sum(shares * np.log(np.maximum(shares, 1e-9))))
        # A sentence is one of four: two choices of two in five or six words.
        assert found[f"{direction}_perplexity"] < 1.8 < unigram / 3


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rows": 0}, "`batch_size` must be at least 1. Received: 0"),
        ({"negatives": 0}, "`negatives` must be at least 1. Received: 0"),
        ({"vocabulary_size": None}, "requires a softmax.*: an Elmo with vocabulary_size=None"),
    ],
    ids=["rows", "negatives", "softmax"],
)
def test_what_cannot_be_trained_is_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        make_task(**settings)


def test_a_batch_of_other_rows_is_refused():
    with pytest.raises(ValueError, match=r"Received: batch_size=4 of the state, .* and 2 rows"):
        make_task().fit(dataset(stream(1, rows=2)), verbose=0)


def test_micro_batches_are_refused():
    with pytest.raises(ValueError, match=r"with a memory.*Received: micro_batches=2"):
        make_task().compile(AdamW(), micro_batches=2)


HOST = """
import json, sys
from kbert.training.strategies import make_strategy
strategy = make_strategy("multi_worker")  # before anything else touches a device
from tests.training.run.of_functions import train
from kbert.training.run.phases import parse_phases
from tests.tasks.pretraining.test_bidirectional_lm import ROWS, dataset, make_task, stream

rows = ROWS // strategy.num_hosts
own = slice(rows * strategy.host_index, rows * (strategy.host_index + 1))

def mine(steps, skip=0, **settings):
    return dataset(stream(steps, **settings)).skip(skip).map(
        lambda batch: {name: x[own] for name, x in batch.items()})

history = train(
    make_task(strategy.engine), lambda phase, start: mine(12, skip=int(start[2])), sys.argv[1],
    parse_phases("5:1", int(sys.argv[2]), ROWS), strategy=strategy, checkpoint_every=3,
    make_evaluation_dataset=lambda phase: mine(2, seed=3))
print(json.dumps({"steps": history.steps, "evaluations": history.evaluations}))
"""


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_hosts_train_as_one_and_resume_with_the_rows_of_both(tmp_path):
    (alone,) = run_workers(1, tmp_path / "alone", 6, code=HOST)
    run_workers(2, tmp_path / "hosts", 4, code=HOST)
    hosts = run_workers(2, tmp_path / "hosts", 6, code=HOST)[0]
    for one, two in zip(alone["steps"], hosts["steps"], strict=True):
        assert two == {name: pytest.approx(value, rel=1e-4) for name, value in one.items()}
    last = alone["evaluations"][-1]
    assert hosts["evaluations"][-1] == {k: pytest.approx(v, rel=1e-4) for k, v in last.items()}


def test_it_is_a_task_that_is_kept_and_asked(tmp_path):
    elmo = make_task().elmo
    elmo.tokenizer = kbert.WordTokenizer(list(WORDS))
    task = BidirectionalLM(elmo, batch_size=2, negatives=6, seed=3)
    (answer,) = task.predict("the red", top_k=3)
    assert answer == elmo.predict_next("the red", top_k=3)
    assert task.predict(["the red", ["the", "dog"]])[1] == elmo.predict_next(["the", "dog"])
    task.save_to_preset(tmp_path / "task")
    again = kbert.tasks.Task.from_preset(tmp_path / "task")
    assert type(again) is BidirectionalLM
    assert again.settings == {"batch_size": 2, "negatives": 6, "seed": 3}
    assert again.predict("the red", top_k=3) == [answer]
    assert kbert.Elmo.from_preset(tmp_path / "task").predict_next("the red", top_k=3) == answer
    elmo.save_to_preset(tmp_path / "elmo")
    other = BidirectionalLM.from_preset(tmp_path / "elmo", batch_size=4)
    assert (other.batch_size, other.predict("the red", top_k=3)) == (4, [answer])
    task.save_to_preset(tmp_path / "theirs", "bilm")
    assert kbert.Elmo.from_preset(tmp_path / "theirs").softmax is None


def test_fit_compiles_as_the_original_where_nothing_was_compiled():
    compiled = make_task()
    task = BidirectionalLM(compiled.elmo, batch_size=ROWS)
    task.fit(dataset(stream(1)), verbose=0)
    assert isinstance(task.optimizer, keras.optimizers.Adagrad)
    assert task.clip_norm == 10.0
    optimizer = compiled.optimizer
    compiled.fit(dataset(stream(1)), verbose=0)
    assert compiled.optimizer is optimizer
