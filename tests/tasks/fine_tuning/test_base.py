"""What all fine-tuned tasks share: one trace, seeds, resuming, freezing, settings that clash."""

import dataclasses
import inspect
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import logging

import kbert
from kbert import tasks
from kbert.data import as_table
from kbert.layers import fused
from kbert.models.weights import get_arrays
from kbert.tasks import TextClassifier
from kbert.tasks.fine_tuning.settings import FitSettings
from kbert.training import AdamW, Checkpoints, NonFiniteLoss
from kbert.training.optimization.schedules import fine_tuning_schedule
from tests.harness import assert_close
from tests.processes import run_alone

pytestmark = pytest.mark.tensorflow


def make(config, tokenizer, **options):
    keras.utils.set_random_seed(1)
    return TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"], **options)


def data(count, seed=0):
    rng = np.random.default_rng(seed)
    texts = ["fox " * rng.integers(1, 30) for _ in range(count)]
    return texts, rng.integers(0, 2, count).tolist()


@pytest.mark.parametrize(("least", "calls"), [(None, 0), (0.0, 1)])
def test_a_short_run_compiles_nothing_for_each_width(config, tokenizer, monkeypatch, least, calls):
    monkeypatch.setattr(fused, "MIN_WIDTH", 1)
    if least is not None:
        monkeypatch.setattr(fused, "MIN_WORK", least)
    found = []

    def add_and_norm(*args, original=fused.dropout_add_norm, **options):
        found.append(args)
        return original(*args, **options)

    monkeypatch.setattr(fused, "dropout_add_norm", add_and_norm)
    task = make(config, tokenizer)
    task.fit(*data(8), epochs=1, batch_size=4, verbose=0)
    assert bool(found) is bool(calls)
    assert task.step_state.fused is bool(calls)


def test_work_grows_with_epochs_tokens_and_widths(config, tokenizer):
    """Rows of 4, 8 and 12 tokens are batches of three widths."""
    task = make(config, tokenizer)
    texts = ["fox " * count for count in (2, 6, 10)]
    objective = task.make_objective(texts, [0, 1, 0], epochs=1)
    tokens = np.array([4, 8, 12])  # with [CLS] and [SEP]
    work = fused.work(tokens, config.num_layers, config.hidden_size, config.num_heads)
    scores = config.num_heads * (tokens**2).sum()
    assert work == config.num_layers * (8 * config.hidden_size * tokens.sum() + scores)
    most = int(fused.MIN_WORK * 3 / work)
    for epochs, pays in ((most - 1, False), (most + 1, True)):
        objective.options = objective.options.replace(epochs=epochs)
        assert objective.is_fused is pays


@pytest.mark.graphs
def test_batches_of_every_width_take_one_trace(config, tokenizer):
    task = make(config, tokenizer)
    widths, traces = set(), []

    def call(batch, training=False, original=task.call):
        if not tf.executing_eagerly():  # else it is the check of the weights that `fit` ends with
            traces.append(batch["token_ids"].shape[1])
        return original(batch, training)

    task.call = call
    assemble = task.assemble

    def assembled(columns):
        features = assemble(columns)
        tf.py_function(lambda n: widths.add(int(n)), [tf.shape(features["token_ids"])[1]], [])
        return features

    task.assemble = assembled
    task.fit(*data(60), epochs=1, batch_size=4, verbose=0)
    once = len(traces)
    assert len(widths) > 3
    assert set(traces) == {None}
    task.fit(*data(100, seed=1), epochs=2, batch_size=4, verbose=0)
    assert len(traces) == 2 * once  # a second `fit` compiles anew: once, however many batches

    asked = len(traces)
    task.predict(data(60)[0], batch_size=4)
    assert len(traces) == asked + 1
    task.predict(data(200, seed=2)[0], batch_size=8)
    assert len(traces) == asked + 1


def test_the_seed_decides_all_numbers(config, tokenizer):
    def losses(seed, **options):
        task = make(config, tokenizer)  # with dropout
        np.random.seed(len(options))
        history = task.fit(*data(16), epochs=1, batch_size=8, seed=seed, verbose=0, **options)
        return history.history["loss"]

    assert losses(3) == losses(3) != losses(4)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_numbers(config, tokenizer, tmp_path):
    options = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "verbose": 0}
    whole = make(config, tokenizer)
    whole.fit(*data(30), **options)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 6:
                raise KeyboardInterrupt  # in the middle of the second epoch

    options |= {"model_dir": tmp_path, "checkpoint_every": 2}
    with pytest.raises(KeyboardInterrupt):
        make(config, tokenizer).fit(*data(30), callbacks=[Stop()], **options)
    again = make(config, tokenizer)
    again.fit(*data(30), **options)
    for found, wanted in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)


def state(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def test_a_finished_run_takes_no_other_data(config, tokenizer, tmp_path):
    """It would train nothing, and answer as if it had: the head inverted, the new labels unread."""
    folder = tmp_path / "run"
    options = {"epochs": 1, "batch_size": 8, "verbose": 0, "model_dir": folder}
    texts, labels = data(16)
    first = make(config, tokenizer)
    first.fit(texts, labels, **options)
    written = state(folder)
    inverted = TextClassifier(kbert.Encoder(config), tokenizer, ["yes", "no"])
    with pytest.raises(ValueError, match=r"task.labels was \['no', 'yes'\], is \['yes', 'no'\]"):
        inverted.fit(texts, labels, **options)
    with pytest.raises(ValueError, match=r"Received: data_checksum was .*, is "):
        make(config, tokenizer).fit(texts, [1 - x for x in labels], **options)
    with pytest.raises(ValueError, match=r"Received: held_out_checksum was None, is "):
        make(config, tokenizer).fit(texts, labels, validation_data=data(8), **options)
    with pytest.raises(ValueError, match=r"resume=.changed.*Received: learning_rate was 5e-05, is"):
        make(config, tokenizer).fit(texts, labels, **options, learning_rate=1e-3)
    assert state(folder) == written

    moved = folder.rename(tmp_path / "moved")
    options |= {"model_dir": moved, "checkpoint_every": 1, "verbose": 2}
    again = make(config, tokenizer)
    again.fit(texts, labels, **options)  # which are no changes
    for found, wanted in zip(again.get_weights(), first.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    longer = {**options, "epochs": 2}
    history = make(config, tokenizer).fit(texts, labels, **longer, resume=["epochs"])
    assert (history.step, history.epoch) == (4, [0, 1])


def test_what_the_user_compiled_holds(config, tokenizer, caplog):
    task = make(config, tokenizer)
    sgd = keras.optimizers.SGD(0.25)
    task.compile(sgd, micro_batches=2, jit_compile=False)
    texts, labels = data(16)
    with pytest.raises(ValueError, match=r"compiled .* Received: learning_rate=0.1, layer_decay=0"):
        task.fit(texts, labels, epochs=1, batch_size=8, learning_rate=0.1, layer_decay=0.5)
    logging.set_verbosity(logging.INFO)
    with caplog.at_level("INFO", logger="absl"):
        history = task.fit(texts, labels, epochs=1, batch_size=8, verbose=0)
    assert task.optimizer is sgd
    assert int(sgd.iterations) == 2
    assert history.history["learning_rate"] == [0.25]
    assert "these settings are ignored: learning_rate, warmup_share" in caplog.text

    other = make(config, tokenizer)
    for rate in (1e-3, 1e-4):  # what `fit` compiled itself is no choice of the user's
        history = other.fit(texts, labels, epochs=1, batch_size=8, learning_rate=rate, verbose=0)
        assert history.history["learning_rate"][0] < rate
    assert "compile() was not called: training with AdamW at 0.0001" in caplog.text


@pytest.mark.slow
@pytest.mark.graphs
def test_layers_that_are_computed_again_change_no_number_and_no_preset(config, tokenizer, tmp_path):
    """With dropout, on rows of several widths; a run may go on with it or without."""
    texts, labels = data(24)
    options = {"epochs": 2, "batch_size": 8, "verbose": 0}
    made = []
    for recompute in (False, True):
        task = make(config, tokenizer)
        history = task.fit(texts, labels, recompute=recompute, **options)
        task.save_to_preset(tmp_path / str(recompute))
        made.append((task, history.history["loss"]))
    (plain, losses), (again, losses_again) = made
    assert again.recompute
    assert not plain.recompute
    assert losses_again == pytest.approx(losses, rel=1e-5)
    for found, wanted in zip(again.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-4)
    settings = [
        {path.name: path.read_text() for path in (tmp_path / folder).glob("*.json")}
        for folder in ("False", "True")
    ]
    assert settings[0] == settings[1] != {}

    run = {"model_dir": tmp_path / "run", **options}
    make(config, tokenizer).fit(texts, labels, recompute=True, **run)
    make(config, tokenizer).fit(texts, labels, **run)
    task.compile(keras.optimizers.SGD(0.25))
    with pytest.raises(ValueError, match=r"compiled .* Received: recompute=True"):
        task.fit(texts, labels, recompute=True, **options)


class Batches(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.seen = []

    def on_train_batch_end(self, batch, logs=None):
        self.seen.append((batch, float(logs["loss"])))


def test_callbacks_of_keras(config, tokenizer, tmp_path):
    batches = Batches()
    callbacks = [
        batches,
        keras.callbacks.ModelCheckpoint(tmp_path / "{epoch}.weights.h5", save_weights_only=True),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.01 / (epoch + 1)),
        keras.callbacks.EarlyStopping("val_loss", patience=1, min_delta=1e9),
    ]
    task = make(config, tokenizer)
    options = {"epochs": 5, "batch_size": 8, "learning_rate": 0.01, "verbose": 0}
    history = task.fit(*data(16), validation_data=data(8), callbacks=callbacks, **options)
    assert history.ended_by == "a callback"
    assert history.epoch == [0, 1]
    assert [batch for batch, _ in batches.seen] == [0, 1, 0, 1]
    assert {path.name for path in tmp_path.iterdir()} == {"1.weights.h5", "2.weights.h5"}
    assert history.history["learning_rate"] == pytest.approx([0.01, 0.005])


def test_tensorboard(config, tokenizer, tmp_path):
    pytest.importorskip("tensorboard")
    task = make(config, tokenizer)
    board = keras.callbacks.TensorBoard(tmp_path)
    task.fit(*data(16), epochs=1, batch_size=8, verbose=0, callbacks=[board])
    assert list(tmp_path.rglob("events.*"))


@pytest.mark.parametrize(
    "number", [pytest.param(signal.SIGINT, marks=pytest.mark.slow), signal.SIGTERM]
)
def test_a_signal_is_no_end_of_the_script_as_if_it_were_done(
    config, tokenizer, tmp_path, number, request
):
    """The next line would export a model that is half trained."""
    if number == signal.SIGINT and "PYTEST_XDIST_WORKER" in os.environ:
        run_alone(request.node.nodeid)  # Ctrl-C has ended old workers of xdist
        return

    class Signal(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 1:
                signal.raise_signal(number)

    options = {"epochs": 1, "batch_size": 4, "verbose": 0, "model_dir": tmp_path}
    raised = KeyboardInterrupt if number == signal.SIGINT else SystemExit
    before = signal.signal(number, signal.default_int_handler)
    try:
        with pytest.raises(raised) as stopped:
            make(config, tokenizer).fit(*data(16), callbacks=[Signal()], **options)
    finally:
        signal.signal(number, before)
    assert (stopped.value.signal, stopped.value.step) == (number, 3)
    assert Checkpoints(tmp_path / "checkpoints").steps() == [3]
    assert make(config, tokenizer).fit(*data(16), **options).step == 4


def test_weights_that_are_not_finite_are_not_written(config, tokenizer, tmp_path):
    task = make(config, tokenizer)
    folder = tmp_path / "preset"
    task.save_to_preset(folder)
    whole = state(folder)
    kernel = task.encoder.blocks[0].weights[0]
    kernel.assign(kernel * np.nan)
    for write in (task.save_to_preset, task.export, task.encoder.save_to_preset):
        with pytest.raises(ValueError, match=r"must be finite.*NaN or infinity in encoder/"):
            write(folder)
    assert state(folder) == whole


def huge(task):
    """Weights as after one step at a mad rate: finite, and the products of two are not."""
    for variable in task.trainable_variables:
        signs = np.where(np.arange(np.prod(variable.shape)) % 3, 1.0, -1.0)
        variable.assign(1e38 * signs.reshape(variable.shape))


def test_answers_that_are_not_finite_are_not_given_or_written(config, tokenizer, tmp_path):
    task = make(config, tokenizer)
    folder = tmp_path / "preset"
    task.save_to_preset(folder)
    whole = state(folder)
    huge(task)
    assert all(np.isfinite(x).all() for x in task.get_weights())
    for write in (task.save_to_preset, task.export):
        with pytest.raises(ValueError, match=rf"^Answers must be .*'classifier' of {folder}$"):
            write(folder)
    with pytest.raises(ValueError, match=rf"^Answers must be .*'pooled', 'sequence' of {folder}$"):
        task.encoder.save_to_preset(folder)
    assert state(folder) == whole
    with pytest.raises(ValueError, match=r"infinity in 'probabilities' of the model's answers$"):
        task.predict(["fox"])


def test_fit_checks_the_weights_that_it_ends_with(config, tokenizer, tmp_path):
    """One step: its loss was finite, and no other is computed."""
    options = {"epochs": 1, "batch_size": 8, "warmup_share": 0, "verbose": 0}
    with pytest.raises(ValueError, match=r"'classifier' of the weights that training ended with$"):
        make(config, tokenizer).fit(*data(8), learning_rate=1e38, **options)


class Marked(TextClassifier):
    """A task of one's own: its texts have a mark."""

    def tokenize(self, table, labelled):
        for row, text in enumerate(table["text"]):
            if "fox" not in text:
                raise ValueError(f"{table.place(row)}: a text has a fox. Received: {text!r}")
        return super().tokenize(table, labelled)


def test_a_task_that_refuses_other_texts_is_trained_saved_and_exported(config, tokenizer, tmp_path):
    task = Marked(kbert.Encoder(config), tokenizer, ["no", "yes"])
    options = {"epochs": 1, "batch_size": 8, "warmup_share": 0, "verbose": 0}
    task.fit(*data(8), **options)
    answer = task.predict(["fox"])
    task.save_to_preset(tmp_path / "preset")
    assert Marked.from_preset(tmp_path / "preset").predict(["fox"]) == answer
    task.export(tmp_path / "served")
    with pytest.raises(ValueError, match=r"'classifier' of the weights that training ended with$"):
        task.fit(*data(8), learning_rate=1e38, **options)


def test_a_loss_that_is_not_finite_leaves_finite_weights(config, tokenizer, tmp_path):
    task = make(config, tokenizer)
    tokenize = task.tokenize

    def spoiled(table, labelled):
        found = tokenize(table, labelled)
        return dataclasses.replace(
            found, dense={**found.dense, "label_weights": np.full(len(found), np.nan, "float32")}
        )

    before = task.get_weights()
    task.tokenize = spoiled
    with pytest.raises(NonFiniteLoss, match=r"at step 1. That step updated no weight"):
        task.fit(*data(8), epochs=1, batch_size=4, verbose=0)
    for found, wanted in zip(task.get_weights(), before, strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_frozen_weights_stay_and_move_again_in_the_next_fit(config, tokenizer):
    task = make(config, tokenizer)
    before = get_arrays(task.encoder, "encoder")
    options = {"epochs": 1, "learning_rate": 1e-2, "verbose": 0}
    task.fit(*data(16), freeze="encoder/*", **options)
    for name, array in get_arrays(task.encoder, "encoder").items():
        np.testing.assert_array_equal(array, before[name], name)
    task.fit(*data(16), layer_decay=0.8, **options)
    after = get_arrays(task.encoder, "encoder")
    assert np.abs(after["encoder/embeddings/token"] - before["encoder/embeddings/token"]).max() > 0


class Unfrozen(keras.callbacks.Callback):
    """Notes after each step which parts of the encoder differ from their first values by a bit."""

    def __init__(self, task, stop_after=None):
        super().__init__()
        self.encoder, self.stop_after, self.parts = task.encoder, stop_after, []
        self.first = get_arrays(task.encoder, "encoder")

    def on_train_batch_end(self, batch, logs=None):
        now = get_arrays(self.encoder, "encoder")
        moved = [name for name in now if (now[name] != self.first[name]).any()]
        self.parts.append({name.split("/")[1] for name in moved})
        if len(self.parts) == self.stop_after:
            raise KeyboardInterrupt


UNFREEZING = {"learning_rate": 1e-2, "unfreeze_every": 0.5, "batch_size": 4, "verbose": 0}
UNFREEZING |= {"layer_decay": 1 / 2.6, "decay": "slanted_triangular", "epochs": 2}


def test_layers_are_unfrozen_one_after_another_and_resume_so(config, tokenizer, tmp_path):
    """Of 8 steps the head alone has 2, then the layer is trained too, from the fifth on all."""
    whole = make(config, tokenizer)
    noted = Unfrozen(whole)
    history = whole.fit(*data(16), callbacks=[noted], **UNFREEZING)
    top, layer = {"pooler"}, {"pooler", "layers"}
    assert noted.parts == [top, top, layer, layer, *4 * [{*layer, "embeddings"}]]
    schedule = fine_tuning_schedule(1e-2, 8, 0.1, "slanted_triangular")
    mean = np.mean([float(schedule(step)) for step in range(4, 8)])
    assert history.history["learning_rate"][-1] == pytest.approx(mean)

    options = {**UNFREEZING, "model_dir": tmp_path, "checkpoint_every": 1}
    stopped = make(config, tokenizer)
    with pytest.raises(KeyboardInterrupt):
        stopped.fit(*data(16), callbacks=[Unfrozen(stopped, stop_after=3)], **options)
    again = make(config, tokenizer)
    again.fit(*data(16), **options)
    for found, wanted in zip(again.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match=r"unfreeze_every was 0.5, is None"):
        make(config, tokenizer).fit(*data(16), **{**options, "unfreeze_every": None})


def test_frozen_weights_are_not_unfrozen(config, tokenizer, caplog):
    task = make(config, tokenizer)
    noted = Unfrozen(task)
    task.fit(*data(16), freeze="encoder/embeddings/*", callbacks=[noted], **UNFREEZING)
    assert noted.parts[-1] == {"pooler", "layers"}
    with pytest.raises(ValueError, match=r"encoder with trainable weights.*a Encoder without any"):
        task.fit(*data(16), freeze="encoder/*", **UNFREEZING)
    with caplog.at_level("WARNING", logger="absl"):
        task.fit(*data(16), **{**UNFREEZING, "unfreeze_every": 2})
    assert "unfreeze_every=2: 17 of the encoder's 19 weights stay frozen to the end" in caplog.text
    task.compile(AdamW(1e-3))
    with pytest.raises(ValueError, match=r"compiled .* Received: unfreeze_every=1.0"):
        task.fit(*data(16), unfreeze_every=1.0)


@pytest.mark.slow
def test_two_replicas_unfreeze_as_one(config, tokenizer, mirrored):
    config = config.replace(dropout=0.0, attention_dropout=0.0)
    tasks = [make(config, tokenizer)]
    with mirrored.scope():
        tasks.append(make(config, tokenizer))
    tasks[1].set_weights(tasks[0].get_weights())
    noted = [Unfrozen(task) for task in tasks]
    for task, callback in zip(tasks, noted, strict=True):
        task.fit(*data(16), callbacks=[callback], **UNFREEZING)
    assert noted[0].parts == noted[1].parts
    for found, wanted in zip(tasks[1].get_weights(), tasks[0].get_weights(), strict=True):
        assert_close(found, wanted, 1e-4)


def test_chunks_and_batches_change_no_answer(config, tokenizer, monkeypatch):
    task = make(config, tokenizer)
    texts, labels = data(20)
    whole, scores = task.predict(texts), task.evaluate(texts, labels)
    monkeypatch.setattr("kbert.inference.texts.CHUNK", 6)
    for found, wanted in zip(task.predict(texts, batch_size=3), whole, strict=True):
        assert found["label"] == wanted["label"]
        assert_close(found["probability"], wanted["probability"], 1e-5)
    assert task.evaluate(texts, labels) == pytest.approx(scores, rel=1e-5)


def test_a_bar_shows_how_many_examples_are_done(config, tokenizer, monkeypatch, capsys):
    task = make(config, tokenizer)
    task.predict(data(9)[0], verbose=1)
    assert "9/9" in capsys.readouterr().err
    task.predict(data(9)[0])  # over in a moment
    task.predict(data(9)[0], verbose=0)
    assert "/9" not in capsys.readouterr().err
    monkeypatch.setattr("kbert.io.progress.SECONDS_BEFORE_A_BAR", 0.0)
    task.predict(data(9)[0])
    assert "9/9" in capsys.readouterr().err


def test_a_split_keeps_the_last_rows_apart(config, tokenizer):
    texts, labels = data(16)
    options = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-3, "verbose": 0}
    split, given = make(config, tokenizer), make(config, tokenizer)
    found = split.fit(texts, labels, validation_split=0.3, **options)
    held_out = (texts[11:], labels[11:])  # floor(16 * 0.7), as Keras splits
    wanted = given.fit(texts[:11], labels[:11], validation_data=held_out, **options)
    assert "val_loss" in found.history
    assert found.history == wanted.history


TEXTS, WORDS = ["the red fox", "a dog"], [["the", "fox"], ["a", "dog"]]


def questions(first, second):
    """Answers to two questions, a list each."""
    contexts = ["the king", "a house"]
    answers = [first, second]
    starts = [[text.index(x) for x in xs] for text, xs in zip(contexts, answers, strict=True)]
    asked = {"question": ["he?", "in?"], "context": contexts}
    return {**asked, "answers": answers, "answer_starts": starts}


# Kind, arguments, labelled data: all scores that there are.
SCORED = {
    "two classes": (tasks.TextClassifier, {"labels": ["a", "b"]}, {"text": TEXTS, "label": [0, 1]}),
    "three": (tasks.TextClassifier, {"labels": list("abc")}, {"text": TEXTS, "label": [0, 1]}),
    "several": (
        tasks.TextClassifier,
        {"labels": ["a", "b"], "multi_label": True},
        {"text": TEXTS, "label": [["a"], []]},
    ),
    "numbers": (tasks.TextRegressor, {}, {"text": TEXTS, "label": [0.5, 1.5]}),
    "entities": (
        tasks.TokenClassifier,
        {"labels": ["O", "B-x", "B-y"]},
        {"words": WORDS, "labels": [["O", "B-x"], ["O", "B-y"]]},
    ),
    "tags": (
        tasks.TokenClassifier,
        {"labels": ["D", "N"]},
        {"words": WORDS, "labels": [[0, 1]] * 2},
    ),
    "answers": (tasks.QuestionAnswerer, {}, questions(["king"], [])),
    "always answered": (tasks.QuestionAnswerer, {}, questions(["king"], ["house"])),
    "never answered": (tasks.QuestionAnswerer, {}, questions([], [])),
    "choices": (
        tasks.MultipleChoice,
        {},
        {"context": TEXTS, "choices": [["a", "b"]] * 2, "label": [0, 1]},
    ),
}


@pytest.mark.parametrize("case", SCORED)
def test_the_names_of_scores_are_known_before_the_work(config, tokenizer, case):
    kind, arguments, data = SCORED[case]
    task = kind(kbert.Encoder(config), tokenizer, **arguments)
    found = task.evaluate(data, verbose=0)
    assert sorted(["loss", *task.score_names(as_table(data))]) == sorted(found)
    assert task.metric in found

    task.check_labels(as_table(data))
    unlabelled = {k: x for k, x in data.items() if k not in ("label", "labels", "answers")}
    with pytest.raises(
        ValueError, match=r"There is no column '(label|labels|answers)' in the data"
    ):
        task.check_labels(as_table(unlabelled))


def test_a_metric_that_is_none_is_told_before_training(config, tokenizer, tmp_path):
    task = make(config, tokenizer)
    options = {"validation_data": data(8), "model_dir": tmp_path / "run", "verbose": 0}
    known = "loss, accuracy, macro_f1, matthews, f1"
    with pytest.raises(ValueError, match=f"evaluation, {known}. Received: metric='acuracy'"):
        task.fit(*data(8), metric="acuracy", **options)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda task: task.fit([], []), "Training needs examples. Received: a table without rows"),
        (lambda task: task.evaluate([], []), "An evaluation needs examples"),
        (lambda task: task.predict(["a"], batch_size=0), "batch_size must be a whole number"),
        (lambda task: task.fit(["a"], [1], batch_size=8, micro_batches=3), "be divisible by"),
        (
            lambda task: task.fit(["a"], [1], micro_batches=0),
            "`micro_batches` must be .* Received: 0",
        ),
        (
            lambda task: task.fit(["a"], [1], epochs=1.5),
            "`epochs` must be .* Received: 1.5",
        ),
        (lambda task: task.fit(["a"], [1], seed=-1), "`seed` must be a .* Received: -1"),
        (
            lambda task: task.fit(["a"], [1], validation_data=([], [])),
            "validation_data needs examples. Received: a table without rows",
        ),
        (lambda task: task.fit(["a"], [1, 0]), "all columns must have the same number of rows"),
        (lambda task: task.fit({"a", "b"}, [1, 0]), "The data must have an order.*a set, which"),
        (
            lambda task: task.fit(["a"] * 9, [1] * 9, validation_split=0.1, validation_data=[]),
            "excludes validation_data. Received: .*=0.1 and validation_data, 9 rows",
        ),
        (lambda task: task.fit(["a"], [1], validation_split=0.5), "both sides, .*=0.5, 1 rows"),
        (lambda task: task.fit(["a", "b"], [1, 0], validation_split=2), "Received: .*=2, 2 rows"),
        (
            lambda task: task.fit(
                tf.data.Dataset.from_tensor_slices((["a", "b"], [0, 1])).batch(2)
            ),
            r"column `text`.*for a batched tf.data.Dataset pass dataset.unbatch\(\)",
        ),
        (lambda task: task.predict([3]), "row 0 .*'text' must be a string. Received: 3"),
        (lambda task: task.fit(["a"], [1], freeze="encoder/layer_9/*"), "A pattern must match"),
    ],
)
def test_what_does_not_fit(config, tokenizer, call, message):
    with pytest.raises(ValueError, match=message):
        call(make(config, tokenizer))


def test_the_settings_of_fit_are_shown_and_known(config, tokenizer):
    parameters = inspect.signature(tasks.TextClassifier.fit).parameters
    assert set(FitSettings.names()) < set(parameters)
    assert (parameters["epochs"].default, parameters["freeze"].default) == (3, ())
    assert "settings" not in parameters  # each is shown by its own name
    for name in FitSettings.names():
        assert f"\n                {name}: " in tasks.TextClassifier.fit.__doc__
    with pytest.raises(TypeError, match=r"fit has no such argument. Did you mean: epochs\?"):
        make(config, tokenizer).fit(*data(8), epohs=2)
