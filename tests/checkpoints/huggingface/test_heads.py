"""Heads of Hugging Face's files: which one it is, its labels, and the class that is written."""

import numpy as np
import pytest

from kbert.checkpoints.huggingface.huggingface import export_model, import_model
from tests.harness import tiny_config

LAYER = {"classifier.weight": np.ones((3, 16)), "classifier.bias": np.ones(3)}
POOLER = {"bert.pooler.dense.weight": np.ones((16, 16)), "bert.pooler.dense.bias": np.ones(16)}


def read(arrays, **changes):
    content, _ = export_model(tiny_config(), {})
    return import_model({**content, **changes}, arrays, "there")


def heads(checkpoint):
    return {name.split("/")[0] for name in checkpoint.arrays} - {"encoder"}


@pytest.mark.parametrize(
    ("ending", "head"),
    [
        ("ForSequenceClassification", "classifier"),
        ("ForTokenClassification", "tokens"),
        ("ForMultipleChoice", "choice"),
    ],
)
def test_the_class_that_was_saved_says_what_the_classifier_is(ending, head):
    assert heads(read(LAYER, architectures=[f"Bert{ending}"])) == {head}
    assert heads(read({**LAYER, **POOLER}, architectures=[f"Bert{ending}"])) == {head}


def test_without_a_class_the_pooler_says_it():
    assert heads(read({**LAYER, **POOLER}, architectures=None)) == {"classifier"}
    assert heads(read(LAYER, architectures=None)) == {"tokens"}


def test_labels_in_the_order_of_the_logits():
    classes = {"architectures": ["BertForTokenClassification"]}
    names = {"id2label": {"2": "C", "0": "A", "1": "B"}, "label2id": {"A": 0, "B": 1, "C": 2}}
    assert read(LAYER, **classes, **names).labels == ("A", "B", "C")
    assert read(LAYER, **classes).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read(LAYER, **classes, num_labels=3).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
    assert read({}).labels is None
    with pytest.raises(
        ValueError, match=r"name the classes 0 to 2 .*Received: {'0': 'A'} in there"
    ):
        read(LAYER, **classes, id2label={"0": "A"})


PARTS = ("kernel", "bias")


def arrays(*names):
    return {
        f"{name}/dense/{part}": np.ones((16, 2) if part == "kernel" else 2, "float32")
        for name in names
        for part in PARTS
    }


@pytest.mark.parametrize(
    ("names", "ending"),
    [
        ([], "Model"),
        (["classifier"], "ForSequenceClassification"),
        (["tokens"], "ForTokenClassification"),
        (["span"], "ForQuestionAnswering"),
        (["sentence"], "ForNextSentencePrediction"),
    ],
)
def test_the_class_that_is_written(names, ending):
    content, there = export_model(tiny_config(), arrays(*names))
    assert content["architectures"] == [f"Bert{ending}"]
    assert heads(import_model(content, there, "")) == set(names)


def test_labels_are_written():
    content, there = export_model(tiny_config(), arrays("classifier"), labels=["no", "yes"])
    assert content["label2id"] == {"no": 0, "yes": 1}
    assert import_model(content, there, "").labels == ("no", "yes")
    content, _ = export_model(tiny_config(), arrays("classifier"))
    assert content["id2label"] == {"0": "LABEL_0", "1": "LABEL_1"}
    with pytest.raises(ValueError, match=r"2 classes.*Received: 3 labels"):
        export_model(tiny_config(), arrays("classifier"), labels=["no", "yes", "maybe"])


def test_two_heads_of_one_name_are_refused():
    with pytest.raises(ValueError, match=r"one head for classes. Received: classifier and tokens"):
        export_model(tiny_config(), arrays("tokens", "classifier"))


def test_a_head_without_a_name_there_is_refused():
    config = tiny_config(num_segments=0, pooler_activation="relu")
    with pytest.raises(ValueError, match=r"no counterpart of .* Received: sentence/dense/kernel"):
        export_model(config, arrays("sentence"))


def test_a_sentence_head_of_another_objective_is_refused():
    order = {"kind": "pretrain", "next_sentence": False, "sentence_order": True}
    with pytest.raises(
        ValueError, match=r"BERT must have the objective next_sentence. Received: a hea"
    ):
        export_model(tiny_config(), arrays("sentence"), task=order)
    shared = tiny_config(num_layer_groups=1)
    assert export_model(shared, arrays("sentence"), task=order)
    with pytest.raises(ValueError, match="ALBERT must have the objective sentence_order"):
        export_model(shared, arrays("sentence"), task={"next_sentence": True})


def test_pretraining_heads_say_the_task():
    masked = {"masked_lm/bias": np.zeros(40, "float32")}
    assert task(masked) == {"kind": "pretrain", "next_sentence": False}
    assert task({**masked, **arrays("sentence")}) == {"kind": "pretrain", "next_sentence": True}
    shared = {"num_layer_groups": 1}
    expected = {"kind": "pretrain", "next_sentence": False, "sentence_order": True}
    assert task({**masked, **arrays("sentence")}, **shared) == expected
    found = {"discriminator/output/kernel": np.zeros((16, 1), "float32")}
    assert task(found, pooler_activation=None) == {"kind": "detect_replaced"}
    assert task({}) is None


@pytest.mark.parametrize(
    ("head", "said", "expected"),
    [
        ("classifier", {}, {"kind": "classify"}),
        (
            "classifier",
            {"problem_type": "multi_label_classification"},
            {"kind": "classify", "multi_label": True},
        ),
        ("tokens", {}, {"kind": "tag"}),
        # The library writes the key into configs of every kind.
        ("tokens", {"problem_type": "single_label_classification"}, {"kind": "tag"}),
        ("span", {}, {"kind": "answer"}),
        ("choice", {}, {"kind": "choose"}),
    ],
)
def test_heads_of_fine_tuned_models_say_the_task(head, said, expected):
    content, there = export_model(tiny_config(), arrays(head))
    found = import_model({**content, **said}, there, "")
    assert found.task == expected
    has_labels = expected["kind"] in ("classify", "tag")
    assert found.labels == (("LABEL_0", "LABEL_1") if has_labels else None)
    if head == "classifier":
        again, _ = export_model(tiny_config(), arrays(head), task=found.task)
        assert again["problem_type"] == said.get("problem_type", "single_label_classification")


def test_one_output_is_a_number():
    one = {f"classifier/dense/{x}": np.ones((16, 1)[i:], "float32") for i, x in enumerate(PARTS)}
    assert task(one) == {"kind": "regress"}
    content, there = export_model(tiny_config(), one)
    found = import_model({**content, "problem_type": "regression"}, there, "")
    assert (found.task, found.foreign_head) == ({"kind": "regress"}, None)
    again, _ = export_model(tiny_config(), one, task=found.task)
    assert again["problem_type"] == "regression"


SIGMOID = "torch.nn.modules.activation.Sigmoid"


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"sentence_transformers": {"activation_fn": SIGMOID, "version": "4.0.1"}}, True),
        ({"sbert_ce_default_activation_function": SIGMOID}, True),
        ({"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"}, False),
        ({"sentence_transformers": {"version": "4.0.1"}}, False),
        ({}, False),
    ],
)
def test_a_cross_encoder_s_activation_is_told_of(said, told, caplog):
    one = {f"classifier/dense/{x}": np.ones((16, 1)[i:], "float32") for i, x in enumerate(PARTS)}
    content, there = export_model(tiny_config(), one)
    found = import_model({**content, **said}, there, "a folder")
    assert found.task == {"kind": "regress"}
    expected = "are logits: sentence-transformers applies sigmoid to them, according to a folder"
    assert caplog.text.count(expected) == len(caplog.records) == int(told)


def test_a_regression_of_two_numbers_has_no_task():
    content, there = export_model(tiny_config(), arrays("classifier"))
    found = import_model({**content, "problem_type": "regression"}, there, "")
    assert (found.task, found.labels) == (None, None)
    assert found.foreign_head.startswith("a regression of 2 numbers for each text")


def test_next_sentences_alone_say_the_task():
    found = task(arrays("sentence"))
    assert found == {"kind": "pretrain", "next_sentence": True, "masked_lm": False}


def task(found, **changes):
    return import_model(*export_model(tiny_config(**changes), found), "").task


@pytest.mark.parametrize("head", ["classifier", "tokens", "choice"])
@pytest.mark.parametrize("part", ["weight", "bias"])
def test_half_a_head_is_named(head, part):
    content, there = export_model(tiny_config(), arrays(head))
    there = {name: x for name, x in there.items() if name.endswith(part)}
    found = import_model(content, there, "")
    (ending,) = content["architectures"]
    assert (found.task, found.labels) == (None, None)
    said = f"a head of {ending} that kbert has no task for (classifier.{part})"
    assert found.foreign_head == said


def test_a_head_that_kbert_does_not_know_is_left_alone():
    found = read({**POOLER, "classifier.layers.0.weight": np.ones(3)}).arrays
    assert "classifier.layers.0.weight" in found
