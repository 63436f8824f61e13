"""Every task takes data by its type and names; columns of other names are refused, not guessed."""

import numpy as np
import pandas as pd
import pytest

import kbert
from kbert.tokenizers import train_tokenizer
from kbert.word_vectors import train_word_vectors
from tests import libraries

FIRST, SECOND = ["red fox", "the dog"], ["a dog", "fox"]
TASKS = {
    "embed": (kbert.tasks.TextEmbedder, {}, ("first", "second"), {}),
    "classify": (kbert.tasks.TextClassifier, {"labels": ["no", "yes"]}, ("first", "second"),
                 {"label": ["yes", "no"]}),
    "regress": (kbert.tasks.TextRegressor, {}, ("first", "second"), {"label": [0.5, 1.5]}),
    "answer": (kbert.tasks.QuestionAnswerer, {}, ("question", "context"),
               {"answers": [["dog"], ["fox"]], "answer_starts": [[2], [0]]}),
}  # fmt: skip
SOURCES = {
    "datasets": libraries.Dataset,
    "Arrow": libraries.ArrowTable,
    "pandas": pd.DataFrame,
    "dicts": lambda x: [dict(zip(x, row, strict=True)) for row in zip(*x.values(), strict=True)],
}


@pytest.fixture(scope="module")
def encoder(config):
    return kbert.Encoder(config)


def answers(task, data):
    found = task.predict(data, verbose=0)
    return found if isinstance(found, np.ndarray) else [repr(x) for x in found]


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("kind", TASKS)
def test_two_columns_by_name(kind, source, encoder, tokenizer):
    cls, settings, names, labels = TASKS[kind]
    task = cls(encoder, tokenizer, **settings)
    columns = dict(zip(names, (FIRST, SECOND), strict=True))
    expected = answers(task, columns)
    np.testing.assert_array_equal(answers(task, SOURCES[source](columns)), expected)
    np.testing.assert_array_equal(answers(task, list(zip(FIRST, SECOND, strict=True))), expected)
    wrong = SOURCES[source]({"anchor": FIRST, "positive": SECOND, **labels})
    for run in (task.predict, task.evaluate, task.fit):
        with pytest.raises(ValueError, match=r"Received: .*anchor.*positive"):
            run(wrong, verbose=0)
    scores = task.evaluate({**columns, **labels}, verbose=0)
    assert task.evaluate(SOURCES[source]({**columns, **labels}), verbose=0) == scores


@pytest.mark.parametrize("source", SOURCES)
def test_one_column_by_name(source, encoder, tokenizer):
    texts = SOURCES[source]({"text": FIRST})
    for kind in ("embed", "classify", "regress"):
        cls, settings, _, _ = TASKS[kind]
        task = cls(encoder, tokenizer, **settings)
        np.testing.assert_array_equal(answers(task, texts), answers(task, FIRST))
        with pytest.raises(ValueError, match=r"Received: .*sentence"):
            task.predict(SOURCES[source]({"sentence": FIRST}), verbose=0)
    tagger = kbert.tasks.TokenClassifier(encoder, tokenizer, ["O", "B-x"])
    assert answers(tagger, texts) == answers(tagger, FIRST)
    with pytest.raises(ValueError, match=r"Received: tokens"):
        tagger.predict(SOURCES[source]({"tokens": [["red", "fox"]]}), verbose=0)
    words = SOURCES[source]({"words": [["red", "fox"], ["a", "dog"]]})
    assert answers(tagger, words) == answers(tagger, [["red", "fox"], ["a", "dog"]])
    chooser = kbert.tasks.MultipleChoice(encoder, tokenizer)
    with pytest.raises(ValueError, match=r"no column 'context'.*\['question', 'choices'\]"):
        chooser.predict(SOURCES[source]({"question": FIRST, "choices": [SECOND, SECOND]}))


@pytest.mark.parametrize("source", SOURCES)
def test_texts_alone_are_never_names_of_columns(source, encoder, tokenizer):
    make = SOURCES[source]
    texts, pairs = make({"label": [0, 1], "text": FIRST}), {"first": FIRST, "second": SECOND}
    task = kbert.tasks.Pretraining(encoder, tokenizer)
    assert task.predict(texts, batch_size=2) == task.predict(FIRST, batch_size=2)
    expected = task.predict_next_sentence(list(zip(FIRST, SECOND, strict=True)))
    np.testing.assert_array_equal(task.predict_next_sentence(make(pairs)), expected)
    found = kbert.features(encoder, tokenizer, make(pairs), verbose=0)
    assert found.shape == (2, encoder.config.hidden_size)
    np.testing.assert_array_equal(
        kbert.features(encoder, tokenizer, texts, verbose=0),
        kbert.features(encoder, tokenizer, FIRST, verbose=0),
    )
    for run in (
        lambda data: task.predict(data),
        lambda data: task.predict_next_sentence(data),
        lambda data: kbert.features(encoder, tokenizer, data, verbose=0),
        lambda data: train_tokenizer(data, vocabulary_size=30),
        lambda data: train_word_vectors(data),
    ):
        with pytest.raises(ValueError, match=r"Received: the columns anchor, positive"):
            run(make({"anchor": FIRST, "positive": SECOND}))


def test_lists_of_words_are_no_pairs(encoder, tokenizer):
    with pytest.raises(ValueError, match=r"pairs of strings \(tuples; .* require words=True"):
        kbert.features(encoder, tokenizer, [["red", "fox"]], verbose=0)


def test_answers_as_datasets_has_those_of_squad():
    data = {
        "question": FIRST,
        "context": SECOND,
        "answers": [{"text": ["dog"], "answer_start": [2]}, {"text": [], "answer_start": []}],
    }
    table = kbert.data.as_table(libraries.Dataset(data))
    assert table["answers"] == [["dog"], []]
    assert table["answer_starts"] == [[2], []]
    assert kbert.data.as_table(pd.DataFrame(data)).columns == table.columns


def test_pretraining_takes_batches_and_no_frames(encoder, tokenizer):
    task = kbert.tasks.Pretraining(encoder, tokenizer)
    with pytest.raises(ValueError, match=r"trained on batches.*Received: a pandas DataFrame"):
        task.fit(pd.DataFrame({"text": FIRST}), verbose=0)


def test_classes_of_datasets_know_their_numbers(encoder, tokenizer):
    names = libraries.ClassLabel(["ham", "spam"])
    label = {"label": names}
    data = libraries.Dataset({"text": FIRST, "label": [1, 0]}, **label)
    pairs = libraries.Dataset({"first": FIRST, "second": SECOND, "label": [1, 0]}, **label)
    choices = libraries.Dataset(
        {"context": FIRST, "choices": [SECOND] * 2, "label": [1, 0]}, **label
    )
    words = libraries.Dataset(
        {"words": [["a"], ["b", "c"]], "labels": [[1], [0, 1]]}, labels=libraries.Sequence(names)
    )
    for made, given, wanted in (
        (kbert.tasks.TextClassifier(encoder, tokenizer, 2), data, [1, 0]),
        (kbert.tasks.TextClassifier(encoder, tokenizer, ["spam", "ham"]), data, [0, 1]),
        (kbert.tasks.TextRegressor(encoder, tokenizer), data, [1.0, 0.0]),
        (kbert.tasks.TextEmbedder(encoder, tokenizer), pairs, [1.0, 0.0]),
        (kbert.tasks.MultipleChoice(encoder, tokenizer), choices, [1, 0]),
    ):
        table = made.as_table(given)[:2]
        assert made.tokenize(table, labelled=True).dense["labels"].tolist() == wanted
        made.evaluate(given, verbose=0)
    tagger = kbert.tasks.TokenClassifier(encoder, tokenizer, 2)
    assert tagger._named(tagger.as_table(words)) == [["LABEL_1"], ["LABEL_0", "LABEL_1"]]
    several = kbert.tasks.TextClassifier(encoder, tokenizer, 2, multi_label=True)
    lists = libraries.Dataset({"text": FIRST, "label": [[1], []]}, label=libraries.Sequence(names))
    assert several.targets(several.as_table(lists)).tolist() == [[0, 1], [0, 0]]
    other = kbert.tasks.TextClassifier(encoder, tokenizer, ["negative", "positive"])
    with pytest.raises(ValueError, match=r"'negative', 'positive'.*Received: 'spam'"):
        other.evaluate(data, verbose=0)
