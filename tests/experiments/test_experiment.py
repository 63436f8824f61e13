"""What is trained on what: splits, labels, a newly initialised head."""

import numpy as np
import pytest

from kbert.experiments import Experiment


def test_a_share_of_the_training_data_is_kept_apart(preset, mail):
    def parts():
        made = Experiment("classify", preset=preset, train=mail, dev_share=0.25)
        return made.train["text"], made.dev["text"], made

    train, dev, experiment = parts()
    assert (len(train), len(dev)) == (48, 16)
    assert sorted(train + dev) == sorted(mail["text"])
    assert (train, dev) == parts()[:2]
    assert experiment.summary() == (
        "classify: TextClassifier of ham, spam; examples: train 48, dev 16"
    )


def test_development_data_must_be_given_in_one_way(preset, mail):
    with pytest.raises(ValueError, match="Exactly one of `dev` and `dev_share`"):
        Experiment("classify", preset=preset, train=mail)
    with pytest.raises(ValueError, match=r"Received: dev_share=0.001 of 64 rows"):
        Experiment("classify", preset=preset, train=mail, dev_share=0.001)


def test_the_identity_is_that_of_task_preset_and_data(preset, mail):
    plain = Experiment("classify", preset=preset, train=mail, dev=mail).identity()
    assert plain == Experiment("classify", preset=preset, train=dict(mail), dev=mail).identity()
    other = {**mail, "text": [*mail["text"][:-1], "another"]}
    changed = Experiment("classify", preset=preset, train=other, dev=mail).identity()
    assert changed["data"]["train"] != plain["data"]["train"]
    assert changed["data"]["dev"] == plain["data"]["dev"]


def test_the_seed_is_that_of_the_head(preset, mail):
    experiment = Experiment("classify", preset=preset, train=mail, dev=mail)

    def head(seed):
        task = experiment.make_task(experiment.settings(seed=seed, max_length=16))
        assert task.labels == ["ham", "spam"]
        assert task.max_length == 16
        return task.classifier.weights[0].numpy()

    np.testing.assert_array_equal(head(3), head(3))
    assert (head(3) != head(4)).any()


def test_a_label_that_is_never_seen_is_told_before_the_work(preset, mail):
    dev = {"text": ["a", "b"], "label": ["ham", "eggs"]}
    with pytest.raises(ValueError, match="row 1 of the data: the label 'eggs' must occur"):
        Experiment("classify", preset=preset, train=mail, dev=dev)
    named = ["eggs", "ham", "spam"]
    with pytest.raises(ValueError, match="'eggs' must occur in the training data: add"):
        Experiment("classify", preset=preset, train=mail, dev=dev, labels=named)
    more = {"train": mail, "dev": mail, "test": dev, "labels": named}
    assert Experiment("classify", preset=preset, **more).labels == named
    with pytest.raises(ValueError, match="'ham' must be one of the given"):
        Experiment("classify", preset=preset, train=mail, dev=mail, labels=["eggs", "spam"])
    one = {"text": ["x", "y"], "label": ["a", "a"]}
    with pytest.raises(ValueError, match=r"at least two classes. Received: \['a'\] in all 2 rows"):
        Experiment("classify", preset=preset, train=one, dev=one)
    with pytest.raises(ValueError, match="There is no column 'label'"):
        Experiment("classify", preset=preset, train={"text": ["x"]}, dev=mail)
    tagged = {"words": [["a", "b"]], "labels": [["O", "B-x"]]}
    more = {"words": [["a"], ["b", "c"]], "labels": [["O"], ["B-x", "I-x"]]}
    with pytest.raises(ValueError, match="row 1 of the data: the label 'I-x' must occur"):
        Experiment("ner", preset=preset, train=tagged, dev=more)
    pair = {"first": ["a"], "second": ["b"]}
    labelled = {**pair, "label": ["entailment"]}
    with pytest.raises(ValueError, match=r"test set of WNLI has 146 rows. Received: 1 answers"):
        Experiment("wnli", preset=preset, train=labelled, dev=labelled, test=pair)
    with pytest.raises(
        ValueError, match=r"`labels` is supported by tasks with classes.*TextRegressor"
    ):
        Experiment("regress", preset=preset, train=mail, dev=dev, labels=named)


def split(labels, share, preset):
    data = {"text": [f"the fox {n}" for n in range(len(labels))], "label": labels}
    made = Experiment("classify", preset=preset, train=data, dev_share=share)
    return made.train, made.dev


@pytest.mark.parametrize(
    ("labels", "share", "in_dev"),
    [
        (["ham", "spam", "spam"] * 4, 0.25, 3),
        (["a"] * 8 + ["b", "c"], 0.8, 7),  # all that leaves a row of each class
        (["a"] * 6 + ["b"] * 3, 0.6, 5),
        ([0.0, 1.0] * 4 + [2.0], 0.9, 6),  # integers, as pandas has them
    ],
)
def test_training_keeps_a_row_of_each_class(preset, labels, share, in_dev):
    """By chance one class alone may be left, and no two to be learned."""
    for start in range(len(labels)):  # each row is drawn in one of these orders
        train, dev = split([*labels[start:], *labels[:start]], share, preset)
        assert set(train["label"]) == {f"{x:g}" if isinstance(x, float) else x for x in labels}
        assert len(train) + len(dev) == len(labels)
        assert len(dev) == in_dev
        numbers = [int(text.split()[-1]) for text in train["text"]]
        assert numbers == sorted(numbers)


def test_a_share_without_a_row_that_can_be_spared(preset):
    with pytest.raises(ValueError, match=r"row of each class.*dev_share=0.5 of 4 rows of 4 cl"):
        split(["a", "b", "c", "d"], 0.5, preset)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_training_keeps_a_row_of_each_label_of_lists(preset, share):
    for start in range(20):  # each row is drawn in one of these orders
        order = [*range(start, 20), *range(start)]
        labels = [["a", "rare"] if n == 0 else ["a"] if n % 2 else [] for n in order]
        data = {"text": ["the fox"] * 20, "label": labels}
        made = Experiment("multilabel", preset=preset, train=data, dev_share=share)
        assert made.labels == ["a", "rare"]
        assert len(made.train) + len(made.dev) == 20
        assert abs(len(made.dev) - 20 * share) <= 2
        tags = [["B-x" if n == 0 else "O"] for n in order]
        tagged = {"words": [["fox"]] * 20, "labels": tags}
        assert ["B-x"] in Experiment("ner", preset=preset, train=tagged, dev_share=share).train[
            "labels"
        ]


def test_rows_without_one_class_are_drawn_together(preset):
    data = {"text": ["the fox"] * 10, "label": [0.5 * n for n in range(10)]}
    made = Experiment("regress", preset=preset, train=data, dev_share=0.3)
    assert (len(made.train), len(made.dev)) == (7, 3)
    data["label"] = [["a"], ["a", "b"]] * 5
    made = Experiment("multilabel", preset=preset, train=data, dev_share=0.3)
    assert (len(made.train), len(made.dev)) == (7, 3)
