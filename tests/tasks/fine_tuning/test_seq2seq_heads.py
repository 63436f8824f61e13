"""Hugging Face's BART with heads of classes and answers: equal to kbert's, there and back."""

import json

import numpy as np
import pytest

from kbert import tasks
from kbert.io.arrays import read_safetensors
from kbert.models.weights import named_weights
from tests.harness import assert_close, assert_gradients_close, to_numpy
from tests.models.references import gradients
from tests.tasks import bart

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.tensorflow

TEXTS = ["the red pen", "", "one two three big house no"]
PAIRS = [("the red pen", "is red"), ("a", ""), ("no one is big", "This example is a fox.")]


@pytest.fixture(scope="module")
def tokenizer():
    return bart.make_tokenizer()


def read(task, data):
    """The features of a batch of all rows."""
    rows = task.tokenize(task.as_table(data), labelled=False)
    columns = rows.gather(np.arange(len(rows)))
    return {name: x.numpy() for name, x in task.assemble(columns).items()}


def their_outputs(model, features):
    batch = {
        "input_ids": torch.tensor(features["token_ids"]).long(),
        "attention_mask": torch.tensor(features["padding_mask"]).long(),
    }
    return model(**batch)


@pytest.mark.parametrize("data", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_rows_are_those_of_bart_s_tokenizer(tmp_path, tokenizer, data):
    bart.saved(tmp_path, tokenizer)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    features = read(tasks.Task.from_preset(tmp_path), data)
    columns = [*zip(*data, strict=True)] if data is PAIRS else [data]
    wanted = theirs(*map(list, columns), padding=True, return_tensors="np")
    width = wanted["input_ids"].shape[1]
    np.testing.assert_array_equal(features["token_ids"][:, :width], wanted["input_ids"])
    np.testing.assert_array_equal(features["padding_mask"][:, :width], wanted["attention_mask"])


@pytest.mark.parametrize(
    ("labels", "problem_type", "kind"),
    [
        (bart.NAMES, None, "classify"),
        (["LABEL_0"], None, "regress"),
        (bart.NAMES, "multi_label_classification", "classify"),
    ],
    ids=["classes", "number", "several"],
)
def test_classes_are_those_of_transformers_there_and_back(
    tmp_path, tokenizer, labels, problem_type, kind
):
    options = {"labels": labels, "problem_type": problem_type, "classifier_dropout": 0.3}
    model = bart.saved(tmp_path / "theirs", tokenizer, **options)
    task = tasks.Task.from_preset(tmp_path / "theirs")
    assert task.kind == kind
    assert getattr(task, "labels", ["LABEL_0"]) == labels
    assert task.dropout == 0.3
    assert getattr(task, "multi_label", False) is (problem_type is not None)
    for data in (TEXTS, PAIRS):
        features = read(task, data)
        with torch.no_grad():
            wanted = their_outputs(model, features).logits.numpy()
        assert np.ptp(wanted) > 0.1
        assert_close(to_numpy(task(features)["classifier"]), wanted, 1e-4)
    back(task, model, tmp_path)


def test_answers_are_those_of_transformers_there_and_back(tmp_path, tokenizer):
    model = bart.saved(tmp_path / "theirs", tokenizer, "ForQuestionAnswering")
    task = tasks.Task.from_preset(tmp_path / "theirs")
    assert type(task) is tasks.QuestionAnswerer
    assert task.encoder.pooler is None
    features = read(task, PAIRS)
    real = features["padding_mask"] > 0
    with torch.no_grad():
        theirs = their_outputs(model, features)
    for name, found in task(features).items():
        wanted = getattr(theirs, f"{name}_logits").numpy()
        assert_close(to_numpy(found)[real], wanted[real], 1e-4)
    back(task, model, tmp_path)


def back(task, model, tmp_path):
    """Writes the task as theirs: the same file, and what transformers reads is complete."""
    task.save_to_preset(tmp_path / "ours", "huggingface")
    found, wanted = (
        read_safetensors(tmp_path / x / "model.safetensors") for x in ("ours", "theirs")
    )
    assert found.keys() == wanted.keys()
    for name, array in wanted.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    contents = [json.loads((tmp_path / x / "config.json").read_text()) for x in ("ours", "theirs")]
    for key in contents[0].keys() & contents[1].keys() - {"transformers_version", "problem_type"}:
        assert contents[0][key] == contents[1][key], key
    _, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    tasks.Task.from_preset(tmp_path / "ours")


def test_gradients_are_those_of_transformers(tmp_path, tokenizer):
    model = bart.saved(tmp_path, tokenizer)
    task = tasks.Task.from_preset(tmp_path)
    features, target = read(task, PAIRS), np.array([2, 0, 1])
    loss = torch.nn.functional.cross_entropy(
        their_outputs(model, features).logits, torch.tensor(target)
    )
    loss.backward()
    from keras import ops

    def our_loss():
        logits = task(features)["classifier"]
        return ops.mean(ops.sparse_categorical_crossentropy(target, logits, from_logits=True))

    weights = {k: w for p, x in task.parts.items() for k, w in named_weights(x, p).items()}
    from kbert.checkpoints.huggingface.huggingface import import_model

    theirs = {k: w.grad.numpy() for k, w in model.named_parameters()}
    expected = import_model(json.loads((tmp_path / "config.json").read_text()), theirs, "x").arrays
    assert_gradients_close(gradients(our_loss, weights), expected)
