"""What is trained on what: splits, labels, a head that begins anew."""

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
    with pytest.raises(ValueError, match="chooses the best checkpoint: give `dev`, or `dev_share`"):
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
    with pytest.raises(ValueError, match="row 1 of the data: the label 'eggs' does not occur"):
        Experiment("classify", preset=preset, train=mail, dev=dev)
    named = ["eggs", "ham", "spam"]
    with pytest.raises(ValueError, match="'eggs' does not occur in the training data: add"):
        Experiment("classify", preset=preset, train=mail, dev=dev, labels=named)
    more = {"train": mail, "dev": mail, "test": dev, "labels": named}
    assert Experiment("classify", preset=preset, **more).labels == named
    with pytest.raises(ValueError, match="'ham' is none of those named"):
        Experiment("classify", preset=preset, train=mail, dev=mail, labels=["eggs", "spam"])
    with pytest.raises(ValueError, match=r"two classes or more. Received: \['a'\] in all 2 rows"):
        one = {"text": ["x", "y"], "label": ["a", "a"]}
        Experiment("classify", preset=preset, train=one, dev=one)
    with pytest.raises(ValueError, match="There is no column 'label'"):
        Experiment("classify", preset=preset, train={"text": ["x"]}, dev=mail)
    tagged = {"words": [["a", "b"]], "labels": [["O", "B-x"]]}
    more = {"words": [["a"], ["b", "c"]], "labels": [["O"], ["B-x", "I-x"]]}
    with pytest.raises(ValueError, match="row 1 of the data: the label 'I-x' does not occur"):
        Experiment("ner", preset=preset, train=tagged, dev=more)
    pair = {"first": ["a"], "second": ["b"]}
    labelled = {**pair, "label": ["entailment"]}
    with pytest.raises(ValueError, match=r"test set of WNLI has 146 rows. Received: 1 answers"):
        Experiment("wnli", preset=preset, train=labelled, dev=labelled, test=pair)
    with pytest.raises(ValueError, match=r"`labels` are of tasks with classes.*TextRegressor"):
        Experiment("regress", preset=preset, train=mail, dev=dev, labels=named)


def split(labels, share, preset):
    data = {"text": [f"the fox {n}" for n in range(len(labels))], "label": labels}
    made = Experiment("classify", preset=preset, train=data, dev_share=share)
    return made.train, made.dev


def test_a_share_is_one_of_each_class(preset):
    rare = ["ham"] * 90 + ["spam"] * 10  # sorted, and drawn by chance it was 1 of 10, or 5
    train, dev = split(rare, 0.3, preset)
    assert (len(train), len(dev)) == (70, 30)
    assert dev["label"].count("spam") == 3
    assert train["text"] == sorted(train["text"], key=lambda text: int(text.split()[-1]))
    # Whatever the share, training keeps a row of each class.
    train, dev = split(["a"] * 8 + ["b", "c"], 0.8, preset)
    assert set(train["label"]) == {"a", "b", "c"}
    assert dev["label"] == ["a"] * 7
    train, dev = split([0.0, 1.0] * 4 + [2.0], 0.5, preset)  # pandas' integers
    assert sorted(set(train["label"])) == ["0", "1", "2"]
    with pytest.raises(ValueError, match=r"row of each class. Received: .*0.5 of 3 rows of 3 cl"):
        split(["a", "b", "c"], 0.5, preset)


def test_rows_without_one_class_are_drawn_together(preset):
    data = {"text": ["the fox"] * 10, "label": [0.5 * n for n in range(10)]}
    made = Experiment("regress", preset=preset, train=data, dev_share=0.3)
    assert (len(made.train), len(made.dev)) == (7, 3)
    data["label"] = [["a"], ["a", "b"]] * 5
    made = Experiment("multilabel", preset=preset, train=data, dev_share=0.3)
    assert (len(made.train), len(made.dev)) == (7, 3)
