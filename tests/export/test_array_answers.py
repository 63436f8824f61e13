"""Answers in NumPy are those of the task with the same runtime in the place of its layers."""

import logging

import keras
import numpy as np
import pytest

import kbert
from kbert import tasks
from kbert.export import load_exported
from kbert.export.array_answers import array_answers
from kbert.export.runtime_task import RuntimeTask
from kbert.export.task import row_function
from tests.harness import randomise, tiny_config

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
TEXTS = ["the red fox", "", "a big dog jumps over the lazy cat in the house", "you are not " * 9]
PAIRS = list(zip(TEXTS, TEXTS[::-1], strict=True))
MAKE = {
    "classes": lambda *x, **more: tasks.TextClassifier(*x, ["a", "b", "c"], **more),
    "several": lambda *x, **more: tasks.TextClassifier(
        *x, ["a", "b"], multi_label=True, threshold={"a": 0.4, "b": 0.6}, **more
    ),
    "numbers": lambda *x, **more: tasks.TextRegressor(*x, **more),
    "vectors": lambda *x, **more: tasks.TextEmbedder(
        *x, query_prompt="big ", document_prompt="red ", **more
    ),
}


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


def exported(task, folder):
    """`export.json` of a task, and its own layers as the runtime."""
    rows, record = row_function(task), dict(task.record)
    task.tokenizer.save(folder)
    description = {
        "inputs": dict(rows.inputs),
        "outputs": dict(rows.outputs),
        "task": record,
        task.model.config.kind: task.model.config.to_dict(),
        "labels": record.pop("labels", None),
        "max_length": task.row_length,
    }

    def run(arrays):
        found = rows.function({name: keras.ops.convert_to_tensor(x) for name, x in arrays.items()})
        return {name: np.asarray(x) for name, x in found.items()}

    return description, run


def assert_alike(found, wanted):
    if isinstance(wanted, np.ndarray):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        np.testing.assert_allclose(found, wanted, atol=1e-6)
        return
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert one.pop("probabilities") == pytest.approx(other.pop("probabilities"), abs=1e-6)
        assert one.pop("probability", 0) == pytest.approx(other.pop("probability", 0), abs=1e-6)
        assert one == other


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("name", MAKE)
def test_they_are_the_tasks(name, tokenizer, tiny_vocabulary, tmp_path, caplog):
    """Of texts, of pairs, and of none."""
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    task = MAKE[name](kbert.Encoder(config), tokenizer, max_length=16)
    randomise(task)
    description, run = exported(task, tmp_path)
    answers = array_answers(tmp_path, description, run)
    by_task = RuntimeTask(tmp_path, description, run).task
    for data in (TEXTS, PAIRS, {"text": []}):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            found = answers.predict(answers.as_table(data), batch_size=3, verbose=0)
            said = list(caplog.messages)
            caplog.clear()
            wanted = by_task.predict(data, batch_size=3, verbose=0)
        assert said == caplog.messages
        assert_alike(found, wanted)


def test_what_needs_the_task_is_left_to_it(tokenizer, tiny_vocabulary, tmp_path):
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    encoder = kbert.Encoder(config)
    for task in (
        MAKE["classes"](encoder, tokenizer, max_length=16, doc_stride=4),
        tasks.TokenClassifier(encoder, tokenizer, ["O", "B-x"]),
    ):
        assert array_answers(tmp_path, *exported(task, tmp_path)) is None
    added = kbert.WordPieceTokenizer([*tiny_vocabulary, "<url>"], added_tokens=["<url>"])
    larger = kbert.Encoder(config.replace(vocabulary_size=len(tiny_vocabulary) + 1))
    task = MAKE["classes"](larger, added)
    assert array_answers(tmp_path, *exported(task, tmp_path)) is None
    task = MAKE["vectors"](encoder, tokenizer)
    answers = array_answers(tmp_path, *exported(task, tmp_path))
    triplets = [("a", "the fox", "a dog")]
    assert not answers.takes(answers.as_table(triplets))
    assert answers.takes(answers.as_table(PAIRS))


@pytest.mark.usefixtures("eagerly")
def test_data_is_read_once(tokenizer, tiny_vocabulary, tmp_path, monkeypatch):
    """The table decides who answers; a generator has no rows for the task after that."""
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    task = MAKE["vectors"](kbert.Encoder(config), tokenizer, max_length=16)
    description, run = exported(task, tmp_path)
    monkeypatch.setattr("kbert.export.exported.read_description", lambda folder: description)
    monkeypatch.setattr("kbert.export.exported.open_runtime", lambda folder, threads: run)
    loaded = load_exported(tmp_path)
    file = tmp_path / "texts.tsv"
    file.write_text("text\nthe red fox\nquick\n")
    triplets = [("the red fox", "a dog", "quick"), ("the king", "a river", "the moon")]
    for data, rows, shape in (
        (TEXTS, iter(TEXTS), (4, 16)),
        (triplets, iter(triplets), (2, 3, 16)),
        (file, file, (2, 16)),
    ):
        found = loaded.predict(rows, verbose=0)
        assert found.shape == shape
        assert_alike(found, task.predict(data, verbose=0))


def test_answers_that_are_not_finite_are_refused(tokenizer, tiny_vocabulary, tmp_path):
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    description, run = exported(MAKE["numbers"](kbert.Encoder(config), tokenizer), tmp_path)
    bad = lambda arrays: {k: x * np.nan for k, x in run(arrays).items()}  # noqa: E731
    answers = array_answers(tmp_path, description, bad)
    with pytest.raises(ValueError, match=r"must be finite numbers"):
        answers.predict(answers.as_table(TEXTS), verbose=0)
