"""What someone who knows Keras tries first: it works, or the error says what does."""

import logging

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import kbert
from kbert import tasks, visualization

pytestmark = pytest.mark.tensorflow
TEXTS = ["the fox", "a dog", "the king", "a quick fox"]
QUICK = {"epochs": 2, "batch_size": 2, "verbose": 0}


@pytest.fixture
def encoder(config):
    return kbert.Encoder(config)


def trained_labels(task, labels):
    """The classes or numbers that a fit reads."""
    rows = task.tokenize(task.as_table(TEXTS, labels), labelled=True)
    return rows.dense["labels"].tolist()


@pytest.mark.parametrize(
    "labels",
    [["0", "1", "2", "0"], [0, 1, 2, 0], np.array([[0], [1], [2], [0]]), [0.0, 1.0, 2.0, 0.0]],
    ids=["digits of a CSV", "integers", "(N, 1)", "floats"],
)
def test_class_ids_in_any_form(encoder, tokenizer, labels):
    assert trained_labels(tasks.TextClassifier(encoder, tokenizer, 3), labels) == [0, 1, 2, 0]


def test_digits_that_are_names_stay_names(encoder, tokenizer):
    task = tasks.TextClassifier(encoder, tokenizer, ["1", "0", "5"])
    assert trained_labels(task, ["0", "1", "5", "0"]) == [1, 0, 2, 1]
    with pytest.raises(ValueError, match=r"row 1 .* one of the task's 3 classes.*Received: '2'"):
        trained_labels(task, ["0", "2", "5", "0"])


def test_one_hot_labels_are_refused_with_what_to_give(encoder, tokenizer):
    task = tasks.TextClassifier(encoder, tokenizer, ["ham", "spam"])
    with pytest.raises(ValueError, match=r"row 0 .*not one-hot vectors: pass labels.argmax\(1\)"):
        task.fit(TEXTS, np.eye(2)[[0, 1, 0, 1]], **QUICK)


def test_numbers_of_a_csv_file(encoder, tokenizer, tmp_path):
    path = tmp_path / "grades.csv"
    path.write_text("text,label\nthe fox,0.5\na dog,-1\n", encoding="utf-8")
    task = tasks.TextRegressor(encoder, tokenizer)
    table = kbert.data.read_table(path)
    assert task.tokenize(table, labelled=True).dense["labels"].tolist() == [0.5, -1.0]
    assert table.head(1)["text"] == ["the fox"]


def test_texts_with_a_tag_for_each_word(encoder, tokenizer):
    task = tasks.TokenClassifier(encoder, tokenizer, ["O", "B-PER", "I-PER"])
    data = (["Ada Lovelace", "a dog"], [["B-PER", "I-PER"], ["O", "O"]])
    history = task.fit(*data, validation_data=data, **QUICK)
    assert "val_f1" in history.history
    assert set(task.evaluate(*data, verbose=0)) >= {"f1", "accuracy"}
    with pytest.raises(ValueError, match=r"one label per word. Received: 2 words and 1 labels"):
        task.fit(["Ada Lovelace"], [["B-PER"]], **QUICK)
    with pytest.raises(ValueError, match="column 'labels' already"):
        task.fit({"text": ["a"], "labels": [["O"]]}, [["O"]], **QUICK)
    with pytest.raises(ValueError, match="separate labels"):
        task.fit(data, data[1], **QUICK)


@pytest.mark.parametrize("name", ["mail.csv", "mail.jsonl", "mail.parquet"])
def test_the_path_of_a_file_is_data(encoder, tokenizer, tmp_path, name):
    path = tmp_path / name
    frame = pd.DataFrame({"text": TEXTS, "label": ["ham", "spam"] * 2})
    if name.endswith("csv"):
        frame.to_csv(path, index=False)
    elif name.endswith("jsonl"):
        frame.to_json(path, orient="records", lines=True)
    else:
        frame.to_parquet(path)
    task = tasks.TextClassifier(encoder, tokenizer, ["ham", "spam"])
    wanted = task.evaluate(frame, verbose=0)
    assert task.evaluate(str(path), verbose=0) == task.evaluate(path, verbose=0) == wanted
    assert task.predict(path, verbose=0) == task.predict(TEXTS, verbose=0)
    assert task.predict(str(path), verbose=0) == task.predict([str(path)], verbose=0)  # a text
    assert "val_accuracy" in task.fit(str(path), validation_data=path, **QUICK).history
    with pytest.raises(FileNotFoundError, match=r"No file matches. Received: .*none.csv"):
        task.fit("none.csv")


def test_class_weights_by_index_are_those_by_name(encoder, tokenizer):
    task = tasks.TextClassifier(encoder, tokenizer, ["ham", "spam"])
    rows = task.tokenize(task.as_table(TEXTS, [0, 1, 0, 1]), labelled=True)
    weights = [
        task.weigh_classes(rows, given).dense["label_weights"].tolist()
        for given in ({1: 3.0}, {"spam": 3.0})
    ]
    assert weights[0] == weights[1] == [1.0, 3.0, 1.0, 3.0]
    for wrong in ({2: 3.0}, {"spam": 3.0, 0: 1.0}):
        with pytest.raises(ValueError, match="must name the task's classes"):
            task.weigh_classes(rows, wrong)


def test_pictures_of_what_fit_and_report_return(encoder, tokenizer):
    task = tasks.TextClassifier(encoder, tokenizer, ["ham", "spam"])
    labels = ["ham", "spam"] * 2
    history = task.fit(TEXTS, labels, validation_data=(TEXTS, labels), **QUICK)
    figure = visualization.learning_curve(history, ["loss", "val_loss"])
    assert [axes.get_ylabel() for axes in figure.axes] == ["loss", "val loss"]
    assert figure.axes[-1].get_xlabel() == "epoch"
    figure = visualization.confusion_matrix(task.report(TEXTS, labels))
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["ham", "spam"]
    with pytest.raises(ValueError, match=r"at least two epochs.*1 epochs"):
        visualization.learning_curve(task.fit(TEXTS, labels, **{**QUICK, "epochs": 1}))


def test_texts_without_a_mask_are_counted(encoder, tokenizer, caplog):
    task = tasks.Pretraining(encoder, tokenizer)
    with caplog.at_level(logging.WARNING, "absl"):
        assert task.predict(["the [MASK]", "the fox"])[1]["tokens"] == []
    assert "1 of 2 texts have no [MASK], so nothing is predicted for them" in caplog.text


def test_an_index_is_asked_by_vectors():
    index = kbert.search.Index(np.eye(4, dtype="float32"))
    with pytest.raises(ValueError, match=r"index\.search\(embedder.predict\(texts\)\)"):
        index.search(["a text"])


def test_classes_of_labelled_data(encoder, tokenizer):
    labels = ["spam", "ham", "spam", "ham"]
    task = tasks.TextClassifier(encoder, tokenizer, kbert.class_names(labels))
    assert task.labels == ["ham", "spam"]
    assert kbert.class_names(np.array([10, 9, 10])) == ["9", "10"]
    assert kbert.class_names([["B-PER", "I-PER"], ["O"]]) == ["O", "B-PER", "I-PER"]
    for missing in (tasks.TextClassifier, tasks.TokenClassifier):
        with pytest.raises(ValueError, match=r"kbert\.class_names\(labels\).*labels=None"):
            missing(encoder, tokenizer)
    with pytest.raises(ValueError, match=r"use a TextRegressor.*Received: 0.5"):
        kbert.class_names([0.5, 1.0])
    with pytest.raises(ValueError, match=r"not one-hot vectors: pass labels.argmax\(1\)"):
        kbert.class_names(np.eye(3))
    with pytest.raises(ValueError, match=r"class_names requires labels. Received: none"):
        kbert.class_names([])


def test_a_schedule_goes_to_compile(encoder, tokenizer):
    task = tasks.TextClassifier(encoder, tokenizer, 2)
    schedule = keras.optimizers.schedules.CosineDecay(1e-3, 10)
    with pytest.raises(TypeError, match=r"compile\(keras.optimizers.AdamW\(schedule\)\)"):
        task.fit(TEXTS, [0, 1, 0, 1], learning_rate=schedule, **QUICK)
    task.compile(keras.optimizers.AdamW(schedule))
    rates = task.fit(TEXTS, [0, 1, 0, 1], **QUICK).history["learning_rate"]
    assert rates[1] < rates[0] < 1e-3


def test_batches_of_ids_are_for_a_model_of_ones_own(encoder, tokenizer):
    task = tasks.TextClassifier(encoder, tokenizer, 2)
    data = tf.data.Dataset.from_tensor_slices((dict(tokenizer(TEXTS, padding=True)), [0, 1, 0, 1]))
    with pytest.raises(ValueError, match=r"keras.Model on kbert.Encoder \(docs/keras.md\)"):
        task.fit(data, **QUICK)


def test_features_of_an_elmo_are_its_own():
    config = kbert.ElmoConfig(
        filters=((1, 4),), num_highway=1, projection_size=4, num_layers=1, lstm_size=8
    )
    with pytest.raises(TypeError, match=r"elmo\.embed\(texts\)"):
        kbert.features(kbert.Elmo(config), kbert.CharacterTokenizer(), ["a text"])
