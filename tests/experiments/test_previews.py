"""The look before the work: examples of every kind of task as tokens with their labels."""

import pytest

from kbert.experiments import Experiment, describe_examples, preview, previews
from tests.models.generators.tiny import tiny_decoder

TAGGED = {"words": [["the", "fox", "jumping"]], "labels": [["O", "B-animal", "O"]]}
QUESTIONS = {
    "question": ["who?"],
    "context": ["the red fox jumps."],
    "answers": [["red fox"]],
    "answer_starts": [[4]],
}
CHOICES = {"context": ["the fox"], "choices": [["jumps", "moon"]], "label": [1]}
SHOWN = {
    "classify": (
        {"text": ["red fox"], "label": ["spam"]},
        "row 0 of the data: spam\n  [CLS] red fox [SEP]",
    ),
    "multilabel": (
        {"first": ["red"], "second": ["fox"], "label": [["x", "y"]]},
        "row 0 of the data: x, y\n  [CLS] red [SEP] fox [SEP]",
    ),
    "regress": (
        {"text": ["red fox"], "label": [2.5]},
        "row 0 of the data: 2.5\n  [CLS] red fox [SEP]",
    ),
    "tag": (
        TAGGED,
        "row 0 of the data: 3 words\n  [CLS] the/O fox/B-animal j/O ##u ##m ##p ##ing [SEP]",
    ),
    "answer": (
        QUESTIONS,
        "row 0 of the data: answer 'red fox'\n"
        "  [CLS] w ##h ##o ? [SEP] the red* fox* jumps . [SEP]",
    ),
    "choose": (
        CHOICES,
        "row 0 of the data: choice 1\n"
        "  [CLS] the fox [SEP] jumps [SEP]\n  [CLS] the fox [SEP] moon [SEP]",
    ),
}


@pytest.mark.parametrize("name", SHOWN)
def test_examples_as_the_model_reads_them(preset, name):
    data, expected = SHOWN[name]
    labels = ["ham", "spam"] if name == "classify" else None
    experiment = Experiment(name, preset=preset, train=data, dev=data, labels=labels)
    task = experiment.make_task(experiment.settings())
    assert describe_examples(task, experiment.train) == expected


def test_a_decoder_s_tokens_have_names_and_each_order_is_a_row(tokenizer, tmp_path):
    tiny_decoder(vocabulary_size=tokenizer.vocabulary_size).save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    data = {"first": ["red"], "second": ["the fox"], "label": [2.5]}
    experiment = Experiment("regress", preset=tmp_path, train=data, dev=data)
    task = experiment.make_task(experiment.settings(auxiliary_lm_weight=0.25))
    assert task.auxiliary_lm_weight == 0.25
    assert describe_examples(task, experiment.train) == (
        "row 0 of the data: 2.5\n"
        "  [start] red [delimiter] the fox [extract]\n  [start] the fox [delimiter] red [extract]"
    )


def test_windows_are_rows_of_their_own(preset):
    data = {"text": ["red fox " * 10], "label": ["spam"]}
    labels = ["ham", "spam"]
    experiment = Experiment("classify", preset=preset, train=data, dev=data, labels=labels)
    task = experiment.make_task(experiment.settings(max_length=12, doc_stride=8))
    shown = describe_examples(task, experiment.train).splitlines()
    assert shown[1] == "  [CLS]" + " red fox" * 5 + " [SEP]"
    assert len(shown) == 4


def test_estimates_of_data_and_time(preset, mail, monkeypatch):
    monkeypatch.setattr(previews, "_WARM", 1)
    monkeypatch.setattr(previews, "_TIMED", 2)
    experiment = Experiment("classify", preset=preset, train=mail, dev_share=0.25)
    text = preview(experiment, examples=1, batch_size=4, epochs=2, patience=1)
    assert text.count("[CLS]") == 1
    for expected in (
        "examples  48, 48 sequences",
        "cut       0 examples longer than 32 tokens",
        "steps     12 per epoch, 24 in total",
        "s per step",
    ):
        assert expected in text


def test_texts_that_are_read_apart_are_shown_apart(preset):
    data = {"first": ["red fox", "the"], "second": ["the moon is red", "fox"]}
    data["negatives"] = [["a tree", "moon"], []]
    experiment = Experiment("embed", preset=preset, train=data, dev=data)
    task = experiment.make_task(experiment.settings())
    lines = describe_examples(task, experiment.train).splitlines()
    assert lines[:5] == [
        "row 0 of the data: near 'the moon is red', not ['a tree', 'moon']",
        "  [CLS] red fox [SEP]",
        "  [CLS] the moon is red [SEP]",
        "  [CLS] a tree [SEP]",
        "  [CLS] moon [SEP]",
    ]
    assert lines[6:8] == ["  [CLS] the [SEP]", "  [CLS] fox [SEP]"]
