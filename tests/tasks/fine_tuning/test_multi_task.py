"""Tasks that are trained together: alone as alone, in turn by a plan, resumed exactly."""

import contextlib
import json

import keras
import numpy as np
import pytest

import kbert
from kbert.tasks import (
    MultiTask,
    QuestionAnswerer,
    TextClassifier,
    TextDenoiser,
    TextRegressor,
    TokenClassifier,
)
from kbert.tasks.fine_tuning.multi_task import task_plan
from tests.harness import assert_close, to_numpy

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
RED, BLUE = "the red pen", "the blue pen"
FIT = {"batch_size": 8, "learning_rate": 3e-3, "verbose": 0}


def texts(count, seed=0):
    rng = np.random.default_rng(seed)
    answers = rng.integers(0, 2, count)
    things = rng.choice(["pen", "fox", "book", "house"], count)
    found = [f"the {('red', 'blue')[a]} {x}" for a, x in zip(answers, things, strict=True)]
    return found, answers


def colours(count, seed=0):
    found, answers = texts(count, seed)
    return found, [("red", "blue")[a] for a in answers]


def numbers(count, seed=0):
    found, answers = texts(count, seed)
    return found, [float(a) for a in answers]


def words(count, seed=0):
    found, _ = texts(count, seed)
    sentences = [text.split() for text in found]
    return sentences, [["O", "B-COLOUR", "O"] for _ in sentences]


DATA = {"colour": colours, "number": numbers, "word": words}


def make(config, tokenizer, names=("colour", "number", "word"), dropout=0.0, pal=False, **options):
    keras.utils.set_random_seed(1)
    rates = {"dropout": dropout, "attention_dropout": dropout}
    encoder = kbert.Encoder(config.replace(**rates))
    made = {
        "colour": lambda: TextClassifier(encoder, tokenizer, ["red", "blue"]),
        "number": lambda: TextRegressor(encoder, tokenizer),
        "word": lambda: TokenClassifier(encoder, tokenizer, ["O", "B-COLOUR"]),
    }
    tasks = {name: made[name]() for name in names}
    if pal:
        for name, task in tasks.items():
            kbert.edit.adapters.add(task, "pal", name=name, size=8)
    return MultiTask(tasks, **options)


def weights(multi):
    return [to_numpy(x.value) for x in multi.weights]


@pytest.mark.usefixtures("eagerly")
def test_one_task_is_trained_as_by_itself(config, tokenizer):
    multi = make(config, tokenizer, ["colour"], dropout=0.1)
    together = multi.fit({"colour": colours(14)}, epochs=2, **FIT)
    alone = make(config, tokenizer, ["colour"], dropout=0.1).tasks["colour"]
    single = alone.fit(*colours(14), epochs=2, **FIT)
    assert together.history["loss"] == single.history["loss"]
    for found, expected in zip(weights(multi.tasks["colour"]), weights(alone), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_each_step_is_a_step_of_one_task(config, tokenizer):
    """The same updates as by hand: the batches of the plan, one optimizer."""
    multi = make(config, tokenizer, ["colour", "number"])
    data = {"colour": colours(40), "number": numbers(20)}
    rows = {
        name: multi.tasks[name].tokenize(kbert.data.as_table(*data[name]), True) for name in data
    }
    plan = task_plan([40, 20], 2, 8, "annealed", 0)
    options = {"batch_size": 8, "seed": 0, "by_length": True}
    batches = list(multi.batches(rows, plan, 8, **options))
    assert [int(x["task"][0]) for x in batches] == plan.tolist()
    ends = [(1 + i) // 8 for i in range(16)], [(1 + i) % 8 for i in range(16)]
    assert [tuple(x["position"][0].numpy()) for x in batches] == [
        (e, b, 0) for e, b in zip(*ends, strict=True)
    ]
    own = {name: iter(multi.tasks[name].batches(rows[name], **options)) for name in data}
    for number, batch in zip(plan, batches, strict=True):
        name = list(data)[number]
        other = next(x for x in data if x != name)
        expected = next(own[name])
        for key, value in expected.items():
            np.testing.assert_array_equal(batch[f"{name}/{key}"], value)
        assert not any(np.any(batch[f"{other}/{key}"]) for key in expected)
        assert batch[f"{other}/token_ids"].shape == (8, 1)
    losses, metrics = multi.loss_terms(batches[0], training=False)
    name = list(data)[plan[0]]
    task = multi.tasks[name]
    alone = {k.removeprefix(f"{name}/"): v for k, v in batches[0].items() if k.startswith(name)}
    for found, expected in zip((losses, metrics), task.loss_terms(alone, False), strict=True):
        for key, pair in expected.items():
            assert_close(to_numpy(found[f"{name}_{key}"]), to_numpy(pair), 1e-5)
        others = [pair for key, pair in found.items() if not key.startswith(f"{name}_")]
        assert not np.any([to_numpy(pair) for pair in others])


def test_the_mean_is_of_metrics(config, tokenizer, monkeypatch):
    multi = make(config, tokenizer)
    assert [x.metric for x in multi.tasks.values()] == ["accuracy", "loss", "f1"]
    held_out = {name: read(32, 1) for name, read in DATA.items()}
    values = multi.evaluate(held_out, verbose=0)
    metrics = [values["colour_accuracy"], values["number_pearson"], values["word_f1"]]
    assert values["number_pearson"] != 0
    assert values["mean"] == pytest.approx(np.mean(metrics))
    # A loss has no place in it, also of a task that does not say what its scores are called.
    monkeypatch.setattr(TextRegressor, "score_names", lambda self, table: None)
    assert multi.evaluate(held_out, verbose=0)["mean"] == pytest.approx(np.mean(metrics[::2]))
    assert "mean" not in multi.evaluate({"number": held_out["number"]}, verbose=0)
    values = multi.evaluate(held_out, verbose=0)  # of equal means the smaller loss is best
    assert values["loss"] == pytest.approx(sum(values[f"{name}_loss"] for name in held_out))


QUESTIONS = {
    "question": ["which pen", "which fox"] * 4,
    "context": ["the red pen"] * 8,
    "answers": [["red"], []] * 4,
    "answer_starts": [[4], []] * 4,
}


@pytest.mark.usefixtures("eagerly")
def test_settings_follow_from_the_data_as_in_a_single_task(config, tokenizer):
    """SQuAD 2.0: a task that was trained on unanswerable questions may answer with nothing."""
    answerer = QuestionAnswerer(kbert.Encoder(config), tokenizer)
    multi = MultiTask({"qa": answerer})
    for refused in ({"epochs": 0}, {"patience": 1}, {"batch_size": 8.5}):
        for fit, data in ((multi.fit, {"qa": QUESTIONS}), (answerer.fit, QUESTIONS)):
            with pytest.raises(ValueError, match="Received"):
                fit(data, **{**FIT, **refused})
            assert answerer.null_threshold is None
    multi.fit({"qa": QUESTIONS}, epochs=1, **FIT)
    assert answerer.null_threshold == 0.0
    answerer.null_threshold = 0.5
    multi.fit({"qa": QUESTIONS}, epochs=1, **FIT)
    assert answerer.null_threshold == 0.5


@pytest.mark.usefixtures("eagerly")
def test_a_run_that_its_folder_refuses_leaves_the_settings(config, tokenizer, tmp_path):
    answerer = QuestionAnswerer(kbert.Encoder(config), tokenizer)
    answered = {name: values[::2] for name, values in QUESTIONS.items()}
    answerer.fit(answered, model_dir=tmp_path, epochs=1, **FIT)
    with pytest.raises(ValueError, match="data_checksum"):
        answerer.fit(QUESTIONS, model_dir=tmp_path, epochs=1, **FIT)
    assert answerer.null_threshold is None


def test_percentages_count_as_shares_in_the_mean(config, tokenizer, monkeypatch):
    encoder = kbert.Encoder(config)
    qa = QuestionAnswerer(encoder, tokenizer)
    multi = MultiTask({"qa": qa, "colour": TextClassifier(encoder, tokenizer, ["red", "blue"])})
    monkeypatch.setattr(qa, "score", lambda table, answers: {"exact": 5.0, "f1": 50.0})
    values = multi.evaluate({"qa": QUESTIONS, "colour": colours(8)}, verbose=0)
    assert values["qa_f1"] == 50
    assert values["mean"] == pytest.approx((0.5 + values["colour_accuracy"]) / 2)


@pytest.mark.usefixtures("eagerly")
def test_data_is_checked_as_that_of_a_single_task(config, tokenizer, caplog):
    encoder = kbert.Encoder(config)
    task = TextClassifier(encoder, tokenizer, ["red", "blue"], max_length=4)
    multi = MultiTask({"colour": task})
    held_out = {"colour": colours(8, 1)}
    multi.fit({"colour": colours(16)}, validation_data=held_out, epochs=3, **FIT)
    assert caplog.text.count("16 of 16 colour examples are longer than 4 tokens") == 1
    assert caplog.text.count("8 of 8 held-out colour examples are longer than 4 tokens") == 1
    assert caplog.text.count("truncated") == 2
    reds = [RED] * 8, ["red"] * 8
    with pytest.raises(ValueError, match=r"a held-out label must occur .* Received: 'blue'"):
        multi.fit({"colour": reds}, validation_data=held_out, epochs=1, **FIT)


@pytest.mark.usefixtures("eagerly")
def test_the_metric_is_checked_before_the_training(config, tokenizer):
    multi = make(config, tokenizer, ["colour", "number"])
    data = {"colour": colours(8), "number": numbers(8)}
    before = weights(multi)
    rule = r"one of mean, loss, colour_loss, colour_accuracy, .*number_pearson.*Received: 'acc'"
    with pytest.raises(ValueError, match=rule):
        multi.fit(data, validation_data=data, metric="acc", epochs=1, **FIT)
    for found, expected in zip(weights(multi), before, strict=True):
        np.testing.assert_array_equal(found, expected)
    fitted = multi.fit(data, validation_data=data, metric="number_loss", epochs=1, **FIT)
    assert fitted.best_value == pytest.approx(fitted.history["val_number_loss"][0])


@pytest.mark.usefixtures("eagerly")
def test_without_a_mean_the_loss_counts(config, tokenizer):
    encoder = kbert.Encoder(config)
    multi = MultiTask({"text": TextDenoiser(encoder, tokenizer, decoder_layers=1)})
    data = {"text": [RED, BLUE] * 4}
    history = multi.fit(data, validation_data=data, epochs=1, **FIT)
    assert history.best_value == pytest.approx(history.history["val_loss"][0])
    with pytest.raises(ValueError, match=r"one of loss, text_loss\. Received: 'mean'"):
        multi.fit(data, validation_data=data, metric="mean", epochs=1, **FIT)


@pytest.mark.slow
def test_all_tasks_are_learned(config, tokenizer, tmp_path):
    multi = make(config, tokenizer, dropout=0.1)
    data = {name: read(96) for name, read in DATA.items()}
    held_out = {name: read(32, 1) for name, read in DATA.items()}
    history = multi.fit(data, validation_data=held_out, epochs=8, **FIT)
    values = multi.evaluate(held_out, verbose=0)
    assert values["colour_accuracy"] > 0.95
    assert values["number_spearman"] > 0.8
    assert values["word_accuracy"] > 0.9
    assert {"colour_cross_entropy", "number_squared_error", "word_accuracy", "val_mean"} <= set(
        history.history
    )
    multi.tasks["colour"].save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert again.predict([RED, BLUE]) == multi.tasks["colour"].predict([RED, BLUE])


@pytest.mark.slow
def test_adapters_of_their_own_with_and_without_the_encoder(config, tokenizer):
    for trained in (False, True):
        multi = make(config, tokenizer, ["colour", "number"], pal=True, train_encoder=trained)
        before = {x.path: to_numpy(x.value) for x in multi.encoder.weights}
        multi.fit({"colour": colours(32), "number": numbers(32)}, epochs=2, **FIT)
        moved = {
            x.path for x in multi.encoder.weights if np.any(to_numpy(x.value) != before[x.path])
        }
        assert {x.split("adapter_")[1].split("/")[0] for x in moved if "adapter_" in x} == {
            "colour", "number",
        }  # fmt: skip
        assert any("adapter_" not in x for x in moved) is trained


@pytest.mark.slow
def test_a_run_resumes_to_the_same_numbers(config, tokenizer, tmp_path):
    def run(folder, stop=None, **options):
        multi = make(config, tokenizer, ["colour", "number"], dropout=0.1)
        callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=stop)] if stop else []
        fit = {**FIT, "model_dir": folder, "callbacks": callbacks, "checkpoint_every": 3, **options}
        with contextlib.suppress(InterruptedError):
            multi.fit({"colour": colours(40), "number": numbers(24)}, epochs=3, **fit)
        return weights(multi)

    def interrupt(epoch, logs):
        if epoch == 1:
            raise InterruptedError

    whole = run(tmp_path / "whole")
    run(tmp_path / "cut", stop=interrupt)
    for found, expected in zip(run(tmp_path / "cut"), whole, strict=True):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="sampling"):
        run(tmp_path / "cut", sampling="uniform")
    with pytest.raises(ValueError, match="steps_per_epoch was 8, is 2"):
        run(tmp_path / "cut", steps_per_epoch=2)


@pytest.mark.slow
def test_replicas_and_micro_batches_train_as_one(config, tokenizer, mirrored):
    def trained(scope=None, **options):
        with scope or contextlib.nullcontext():
            multi = make(config, tokenizer, ["colour", "number"])
        data = {"colour": colours(20), "number": numbers(20)}
        history = multi.fit(data, epochs=2, **{**FIT, "learning_rate": 1e-3}, **options)
        return history.history["loss"], weights(multi)

    one = trained()
    for other in (trained(mirrored.scope()), trained(micro_batches=4)):
        np.testing.assert_allclose(other[0], one[0], rtol=1e-4)
        for found, expected in zip(other[1], one[1], strict=True):
            assert_close(found, expected, 1e-4)


@pytest.mark.parametrize(
    ("sampling", "shares"),
    [
        ("proportional", (0.9, 0.9)),
        ("sqrt", (0.75, 0.75)),
        ("uniform", (0.5, 0.5)),
        ("annealed", (0.9, 1 / (1 + 9**-0.2))),
    ],
)
def test_how_often_a_task_is_drawn(sampling, shares):
    plan = task_plan([900, 100], 2, 4000, sampling, 3)
    for found, share in zip(plan.reshape(2, -1), shares, strict=True):
        error = abs(np.mean(found == 0) - share)
        assert error < 4 * (share * (1 - share) / 4000) ** 0.5
    assert np.array_equal(plan, task_plan([900, 100], 2, 4000, sampling, 3))
    assert not np.array_equal(plan, task_plan([900, 100], 2, 4000, sampling, 4))


@pytest.mark.usefixtures("eagerly")
def test_a_task_that_is_never_drawn_is_told_of(config, tokenizer, caplog):
    multi = make(config, tokenizer, ["colour", "number"])
    multi.fit({"colour": colours(8), "number": numbers(8)}, epochs=1, steps_per_epoch=1, **FIT)
    assert "has no steps in epoch 1" in caplog.text


@pytest.mark.usefixtures("eagerly")
def test_what_cannot_be_trained_together(config, tokenizer):
    multi = make(config, tokenizer, ["colour", "number"])
    data = {"colour": colours(8), "number": numbers(8)}
    other = make(config, tokenizer, ["colour"]).tasks["colour"]
    with pytest.raises(ValueError, match="2 tasks on 2 encoders"):
        MultiTask({"a": multi.tasks["colour"], "b": other})
    for name in ("a b", "val_a", 1):
        with pytest.raises(ValueError, match=rf"letters, digits and und.*val_, .*{name!r}"):
            MultiTask({name: other})
    for bare in (other, [other]):
        with pytest.raises(TypeError, match="tasks must be a dict"):
            MultiTask(bare)
    with pytest.raises(ValueError, match="2 names, one task twice"):
        MultiTask({"a": other, "b": other})
    with pytest.raises(ValueError, match=r"train_encoder=False trains named edits.*tasks without"):
        MultiTask({"a": other}, train_encoder=False)
    with pytest.raises(ValueError, match="Received: no task"):
        MultiTask({})
    with pytest.raises(TypeError, match="a Pretraining as a"):
        MultiTask({"a": kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer)})
    compiled = make(config, tokenizer, ["colour"])
    compiled.compile("sgd")
    with pytest.raises(ValueError, match=r"compiled with its own optimizer.*learning_rate"):
        compiled.fit({"colour": data["colour"]}, **FIT)
    task = compiled.tasks["colour"]
    task.compile("sgd")
    task.fit(*data["colour"], epochs=1, batch_size=8, verbose=0)
    with pytest.raises(ValueError, match=r"then compile the task.*a compiled TextClassifier"):
        kbert.edit.adapters.add(task, "lora")
    kbert.edit.adapters.add(multi.tasks["colour"], "lora")
    multi.tasks["number"].variant = "lora"
    with pytest.raises(ValueError, match=r"its own named edit, or none"):
        MultiTask(multi.tasks)
    with pytest.raises(ValueError, match=r"tasks' names, colour, number. Received: colour"):
        multi.fit({"colour": data["colour"]}, **FIT)
    for call in (multi.fit, multi.evaluate):
        with pytest.raises(ValueError, match=r"tasks' names .* number. Received: tuple"):
            call(data["colour"], verbose=0)
    for steps in (0, -1, 2.5):
        with pytest.raises(ValueError, match=rf"`steps_per_epoch` must be.*Received: {steps}"):
            multi.fit(data, steps_per_epoch=steps, **FIT)
    with pytest.raises(ValueError, match="Received: colour without any"):
        multi.fit(data, validation_data={"colour": ([], [])}, **FIT)
    with pytest.raises(ValueError, match=r"one of annealed, .*'often'"):
        multi.fit(data, sampling="often", **FIT)
    with pytest.raises(ValueError, match=r"single tasks.*Received: freeze"):
        multi.fit(data, freeze="encoder/*", **FIT)
    with pytest.raises(NotImplementedError, match="Only single tasks can be called"):
        multi({})


def test_keras_other_methods_are_of_one_task_or_refused(config, tokenizer, tmp_path):
    multi = make(config, tokenizer)
    path = tmp_path / "model.keras"
    path.write_bytes(b"what was here")
    of_one = r"multi\.tasks\[name\]\.{}\(.*Received: a MultiTask of colour, number, word"
    for call, way in (
        (lambda: multi.save(path), "save_to_preset"),
        (lambda: multi.to_json(), "save_to_preset"),
        (lambda: multi.predict([RED]), "predict"),
    ):
        with pytest.raises(NotImplementedError, match=of_one.format(way)):
            call()
    assert path.read_bytes() == b"what was here"
    with pytest.raises(ValueError, match=r"precision=\"int8\".*for a MultiTask"):
        multi.quantize("int8")
    data = {name: make_data(4) for name, make_data in DATA.items()}
    with pytest.raises(TypeError, match=r"evaluate\(\) does not support `steps`"):
        multi.evaluate(data, steps=1)
    with pytest.raises(ValueError, match=r"single tasks.*Received: sample_weight"):
        multi.fit(data, sample_weight=np.ones(4), **FIT)


def test_the_preset_has_a_folder_for_each_task(config, tokenizer, tmp_path):
    multi = make(config, tokenizer, ["colour", "number"])
    folder = tmp_path / "preset"
    multi.save_to_preset(folder)
    multi.save_to_preset(folder)  # may be written again
    assert json.loads((folder / "multi_task.json").read_text())["members"] == ["colour", "number"]
    loaded = kbert.tasks.Task.from_preset(folder / "colour")
    expected = multi.tasks["colour"].predict([RED, BLUE])
    for got, want in zip(loaded.predict([RED, BLUE]), expected, strict=True):
        assert got["probabilities"] == pytest.approx(want["probabilities"], abs=1e-5)
    with pytest.raises(ValueError, match=r"several tasks .*preset.colour, .*preset.number\. Rec"):
        kbert.tasks.Task.from_preset(folder)
    with pytest.raises(ValueError, match="several tasks on one encoder: load one of them"):
        kbert.Encoder.from_preset(folder)
    with pytest.raises(ValueError, match="contains tasks that were trained together"):
        loaded.save_to_preset(folder)
    with pytest.raises(ValueError, match="contains a preset"):
        multi.save_to_preset(folder / "colour")
    # A second stage: the encoder of all tasks with a new head.
    new = TextClassifier.from_preset(folder, new_head=True, labels=["no", "yes"])
    for got, want in zip(new.encoder.weights, multi.encoder.weights, strict=True):
        assert np.array_equal(to_numpy(got.value), to_numpy(want.value))


@pytest.mark.slow
def test_an_export_of_all_is_one_of_each(config, tokenizer, tmp_path):
    multi = make(config, tokenizer, ["colour", "number"])
    written = multi.export(tmp_path)
    assert written == {name: str(tmp_path / name / "1") for name in ("colour", "number")}


def test_the_metrics_of_the_mean_may_be_chosen(config, tokenizer):
    data = {"colour": colours(8), "number": numbers(8)}
    multi = make(config, tokenizer, data)
    chosen = {"colour": "matthews", "number": "spearman"}
    multi = MultiTask(multi.tasks, metrics=chosen)
    scores = multi.evaluate(data, verbose=0)
    values = [scores["colour_matthews"], scores["number_spearman"]]
    assert scores["mean"] == pytest.approx(sum(values) / 2)
    wrong = MultiTask(multi.tasks, metrics={"colour": "pearson"})
    with pytest.raises(ValueError, match=r"metric of colour .*accuracy.*Received: 'pearson'"):
        wrong.fit(data, validation_data=data, **FIT)
    # The loss does not count in a mean of scores.
    for metric in ("pearson", "loss"):
        wrong = MultiTask(multi.tasks, metrics={"number": "accuracy", "colour": metric})
        with pytest.raises(ValueError, match=rf"metric of colour .*Received: '{metric}'"):
            wrong.evaluate({"colour": data["colour"]}, verbose=0)
    with pytest.raises(ValueError, match=r"names, colour, number\. Received: word"):
        MultiTask(multi.tasks, metrics={"word": "f1"})


def test_lora_is_one_that_all_tasks_share(config, tokenizer):
    multi = make(config, tokenizer, ["colour", "number"])
    before = {x.path: to_numpy(x.value) for x in multi.encoder.weights}
    assert multi.enable_lora(2) is multi
    multi.fit({"colour": colours(16), "number": numbers(16)}, epochs=1, **FIT)
    after = {x.path: to_numpy(x.value) for x in multi.encoder.weights}
    moved = {path for path, x in after.items() if not np.array_equal(x, before.get(path))}
    assert moved
    assert all("adapter_lora" in path for path in moved)
    with pytest.raises(ValueError, match="no task may have its own named edit"):
        make(config, tokenizer, pal=True).enable_lora(2)


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_a_task_with_windows_adds_nothing_to_the_steps_of_another(config, tokenizer, pooling):
    encoder = kbert.Encoder(config)
    windows = {"max_length": 8, "doc_stride": 3, "pooling": pooling}
    multi = MultiTask({
        "colour": TextClassifier(encoder, tokenizer, ["red", "blue"], **windows),
        "number": TextRegressor(encoder, tokenizer),
    })  # fmt: skip
    data = {"colour": colours(16), "number": numbers(16)}
    history = multi.fit(data, epochs=1, **FIT).history
    assert np.isfinite(history["loss"]).all()
    assert np.isfinite(history["gradient_norm"]).all()


def test_a_run_with_other_held_out_data_is_refused(config, tokenizer, tmp_path):
    data = {name: DATA[name](16) for name in ("colour", "number")}
    options = {"epochs": 1, "model_dir": tmp_path / "run", **FIT}
    names = ("colour", "number")
    make(config, tokenizer, names).fit(data, validation_data={"colour": colours(8)}, **options)
    with pytest.raises(ValueError, match=r"held_out_checksums.colour was .*, is "):
        make(config, tokenizer, names).fit(
            data, validation_data={"colour": colours(8, 1)}, **options
        )
