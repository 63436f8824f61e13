"""What every task declares, and that nothing but its own file knows it by name."""

import inspect
import re
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.core import registry
from kbert.core.options import option
from kbert.distillation import Distiller, OwnLoss
from kbert.edit import adapters
from kbert.edit.adapters.base import weights_of
from kbert.tasks import (
    FineTuningTask,
    MultiTask,
    RowOptions,
    TableTask,
    TextClassifier,
    TextRegressor,
)
from kbert.training import AdamW
from tests.harness import assert_close, randomise
from tests.tasks import toy

ROOT = Path(kbert.__path__[0]).parent
KINDS = sorted(kind for kind in registry.names("task"))
ON_TABLES = [kind for kind in KINDS if issubclass(registry.get("task", kind), TableTask)]


def depth(cls) -> int:
    """The most classes between a class and keras.Model, whichever of its bases one follows."""
    # The step's halves, one shared and one an engine's, are one class cut in two files.
    is_half = cls.__module__.startswith("kbert.training.step.") and cls.__name__ != "TrainStep"
    above = [base for base in cls.__bases__ if base is not keras.Model and base is not object]
    return (not is_half) + max(map(depth, above), default=0)


@pytest.mark.parametrize("kind", KINDS)
def test_at_most_four_classes_stand_between_a_task_and_keras_model(kind):
    assert depth(registry.get("task", kind)) - 1 <= 4


@pytest.mark.parametrize("kind", ON_TABLES)
def test_settings_are_arguments_attributes_and_documented(kind):
    cls = registry.get("task", kind)
    parameters = inspect.signature(cls).parameters
    assert issubclass(cls.options, RowOptions)
    for name in cls.options.names():
        assert name in parameters
        assert "options" not in parameters
        assert isinstance(inspect.getattr_static(cls, name), property)
        if cls.__module__.startswith("kbert."):
            assert re.search(rf"^ +{name}: ", cls.__doc__, re.MULTILINE), name
    assert cls.columns.label in cls.columns.usual


def test_no_name_of_a_task_decides_anything_outside_of_its_file():
    files = [*(ROOT / "kbert").rglob("*.py"), *(ROOT / "pipelines").rglob("*.py")]
    for path in files:
        source = path.read_text(encoding="utf-8")
        assert not re.search(r"type\((task|self)\)\.__name__ *(==|in)", source), path
    tasks = (registry.get("task", kind) for kind in ON_TABLES)
    # The programs that pretrain make their tasks by name.
    classes = "|".join(cls.__name__ for cls in tasks if issubclass(cls, FineTuningTask))
    for folder in ("kbert/experiments", "kbert/training", "pipelines"):
        for path in (ROOT / folder).rglob("*.py"):
            code = re.sub(
                r'""".*?"""|#[^\n]*', "", path.read_text(encoding="utf-8"), flags=re.DOTALL
            )
            assert not re.search(rf"\b({classes})\b", code), path


@pytest.fixture
def encoder(config):
    keras.utils.set_random_seed(2)
    return kbert.Encoder(config)


def test_the_shown_settings_are_arguments_of_the_class_and_not_of_its_objects(encoder, tokenizer):
    """`tf.function(task)` binds by the signature of the object."""
    assert "max_length" in inspect.signature(TextRegressor).parameters
    assert "tokenizer" not in inspect.signature(TextRegressor(encoder, tokenizer)).parameters


def test_an_argument_that_is_none_is_refused(encoder, tokenizer):
    with pytest.raises(TypeError, match=r"TextRegressor has no such argument.*'labels'"):
        TextRegressor(encoder, tokenizer, labels=["a"])


def test_a_setting_is_set_by_way_of_its_checks(encoder, tokenizer):
    task = TextClassifier(encoder, tokenizer, ["a", "b"], multi_label=True, threshold=0.25)
    task.threshold = {"a": 0.5, "b": 0.75}
    assert task.settings["threshold"] == {"a": 0.5, "b": 0.75}
    with pytest.raises(ValueError, match=r"`max_length` must be .*at least 4 .*Received: 3"):
        task.max_length = 3
    assert task.chosen.max_length is None
    longest = encoder.config.max_positions
    with pytest.raises(ValueError, match=rf"between 4 and {longest} .*Received: max_length=1000"):
        task.max_length = 1000
    assert task.chosen.max_length is None


def test_a_setting_that_does_not_fit_is_refused_as_by_the_constructor(encoder, tokenizer):
    """A preset with such a setting would not load."""

    def classifier(**settings):
        return TextClassifier(encoder, tokenizer, ["a", "b"], multi_label=True, **settings)

    for make, name, value in (
        (classifier, "threshold", 2.0),
        (classifier, "threshold", {"c": 0.1}),
        (classifier, "max_length", 1000),
        (partial(kbert.TextEmbedder, encoder, tokenizer), "matryoshka", (99,)),
        (partial(kbert.QuestionAnswerer, encoder, tokenizer), "max_length", 1000),
    ):
        with pytest.raises(ValueError, match="Received") as at_first:
            make(**{name: value})
        task = make()
        before = task.settings
        with pytest.raises(ValueError, match="Received") as later:
            setattr(task, name, value)
        assert task.settings == before
        assert str(later.value) == str(at_first.value)


def test_a_setting_of_none_is_resolved_as_by_the_constructor(encoder, tokenizer):
    task = kbert.QuestionAnswerer(encoder, tokenizer)
    before = task.settings
    task.max_length = before["max_length"] - 1
    task.max_length = None
    assert task.settings == before
    with pytest.raises(ValueError, match="max_length must be enough for max_question_length"):
        task.max_length = 5
    assert task.settings == before
    assert task.predict([("who", "the fox")], verbose=0)


def test_after_any_error_a_setting_is_as_before(encoder, tokenizer, monkeypatch):
    task = kbert.TextRegressor(encoder, tokenizer)

    def fail():
        raise TypeError

    monkeypatch.setattr(task, "_settings_changed", fail)
    with pytest.raises(TypeError):
        task.max_length = 8
    assert task.max_length is None


@pytest.mark.parametrize(
    ("name", "value"),
    [("pooling", "max"), ("doc_stride", 4), ("multi_label", True), ("head", "bilstm")],
)
def test_a_setting_that_layers_follow_from_stays(encoder, tokenizer, name, value):
    task = TextClassifier(encoder, tokenizer, ["a", "b"])
    setattr(task, name, getattr(task, name))  # as it is
    with pytest.raises(AttributeError, match=rf"`{name}` cannot be changed.*Received: {name}="):
        setattr(task, name, value)


@pytest.mark.graphs
def test_after_a_setting_changed_a_task_is_as_one_made_with_it(encoder, tokenizer):
    """Though its graphs were traced with the value before."""
    texts = ["the fox jumps over the dog", "a king"]
    questions = [("the king", "the fox jumps over the king and the queen")]
    for make, name, value, data in (
        (kbert.TextEmbedder, "max_length", 4, texts),
        (kbert.TextEmbedder, "token_pooling", "max", texts),
        (kbert.QuestionAnswerer, "max_answer_length", 1, questions),
        (kbert.QuestionAnswerer, "n_best", 2, questions),
    ):
        task = make(encoder, tokenizer)
        before = task.predict(data, verbose=0), task.predict(data, verbose=0)
        setattr(task, name, value)
        other = make(encoder, tokenizer, **{name: value})
        for layer, own in zip(other.parts.values(), task.parts.values(), strict=True):
            layer.set_weights(own.get_weights())
        found, wanted = (x.predict(data, verbose=0) for x in (task, other))
        if make is kbert.TextEmbedder:
            assert_close(found, wanted, 1e-6)
            assert not np.allclose(before[1], found, atol=1e-3), name
        else:
            assert str(found) == str(wanted)
            assert str(before[1]) != str(found), name


@pytest.mark.graphs
def test_a_callback_may_change_a_setting(encoder, tokenizer):
    class Hotter(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            task.cosine_scale = (20.0, 1.0)[epoch]

    task = kbert.TextEmbedder(encoder, tokenizer)
    pairs = [("the fox", "a dog"), ("the king", "the queen")]
    options = {"epochs": 2, "learning_rate": 1e-9, "verbose": 0}
    first, second = task.fit(pairs, callbacks=[Hotter()], **options).history["loss"]
    other = kbert.TextEmbedder(encoder, tokenizer, cosine_scale=1.0)
    assert second == pytest.approx(other.fit(pairs, **options).history["loss"][1], abs=0.05)
    assert abs(first - second) > 0.1


PAIRS = [("the fox", "a dog"), ("the king", "the queen")]


@pytest.mark.graphs
def test_the_graphs_of_a_compiled_task_have_the_active_adapter(encoder, tokenizer):
    task = kbert.TextRegressor(encoder, tokenizer)
    for name in ("first", "second"):
        adapters.add(task, "lora", name=name, rank=2, alpha=32.0)
    adapters.activate(task, "first")
    task.compile(AdamW(1e-2))
    task.fit(["the fox", "a dog"], [0.0, 1.0], verbose=0)
    before = [ops.convert_to_numpy(x) for x in weights_of(encoder, "first")]
    adapters.activate(task, "second")
    with pytest.raises(ValueError, match="call `compile` again"):
        task.fit(["the fox", "a dog"], [0.0, 1.0], verbose=0)
    task.compile(AdamW(1e-2))
    task.fit(["the fox", "a dog"], [0.0, 1.0], verbose=0)
    for old, weight in zip(before, weights_of(encoder, "first"), strict=True):
        np.testing.assert_array_equal(ops.convert_to_numpy(weight), old)


@pytest.mark.graphs
def test_an_evaluation_has_the_active_adapter(encoder, tokenizer):
    task = kbert.tasks.Pretraining(encoder, tokenizer)
    batches = toy.batches(tokenizer).take(2)
    adapters.add(task, "lora", name="one", rank=2)
    randomise(task)
    task.compile(AdamW(1e-2))
    losses = [task.evaluate(batches, verbose=0, return_dict=True)["mlm_loss"]]
    adapters.activate(encoder, None)
    adapters.activate(task, None)
    losses.append(task.evaluate(batches, verbose=0, return_dict=True)["mlm_loss"])
    assert abs(losses[0] - losses[1]) > 1e-4  # 0 if the graph is the same


def several(task):
    return MultiTask({"alike": task}), {"alike": PAIRS}


def student(task):
    teacher = kbert.TextEmbedder(task.encoder, task.tokenizer)
    return Distiller(task, teacher, [OwnLoss()]), PAIRS


@pytest.mark.graphs
@pytest.mark.parametrize("trained_by", [several, student])
def test_a_setting_reaches_what_else_trains_the_task(trained_by, encoder, tokenizer):
    task = kbert.TextEmbedder(encoder, tokenizer)
    trainer, data = trained_by(task)
    trainer.compile(AdamW(1e-9))
    losses = []
    for scale in (20.0, 1.0, 1.0):
        task.cosine_scale = scale
        losses += trainer.fit(data, epochs=1, verbose=0).history["loss"]
    assert losses[1] == pytest.approx(losses[2], abs=0.05)
    assert abs(losses[0] - losses[1]) > 0.1


@pytest.mark.graphs
def test_an_evaluation_in_between_changes_no_later_loss(encoder, tokenizer):
    pairs, scores = [("the fox", "a dog"), ("the king", "the queen")], [0.1, 0.9]
    losses = []
    for evaluates in (False, True):
        task = kbert.TextEmbedder(encoder, tokenizer)
        if evaluates:
            task.evaluate(pairs, scores, verbose=0)
        history = task.fit(
            *(pairs, scores), loss="cosine", validation_data=(pairs, scores), epochs=1,
            learning_rate=1e-9, verbose=0,
        )  # fmt: skip
        losses += history.history["val_loss"]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_a_setting_may_not_hide_what_keras_has():
    class Options(RowOptions):
        trainable: bool = option(True, help="Taken.")

    with pytest.raises(TypeError, match=r"of keras.Model. Received: 'trainable' of Hidden"):

        class Hidden(FineTuningTask):
            options = Options
