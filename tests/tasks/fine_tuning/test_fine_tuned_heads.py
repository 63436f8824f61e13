"""Folders of fine-tuned models, Hugging Face's and kbert's, as the tasks that they are."""

import itertools
import json

import numpy as np
import pytest

import kbert
from kbert import tasks
from kbert.conversion import convert
from tests.harness import assert_close, to_numpy
from tests.models.references import ARCHITECTURES, CLASSES, LABELS, as_tensors, make_reference

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.tensorflow

# Class -> end of the name of transformers' class.
ENDINGS = {
    tasks.TextClassifier: "ForSequenceClassification",
    tasks.TokenClassifier: "ForTokenClassification",
    tasks.QuestionAnswerer: "ForQuestionAnswering",
    tasks.MultipleChoice: "ForMultipleChoice",
}
AGAIN = ("xlm-roberta", "camembert")  # RoBERTa's, once more
MODEL_TYPES = [name for name in ARCHITECTURES if name not in AGAIN]
# In the quick tests each kind once, and the types that differ most in the names of their heads.
DIFFERENT = ("roberta", "distilbert", "electra", "deberta-v2", "xlnet", "modernbert")
QUICK = [("bert", kind) for kind in ENDINGS] + [(name, tasks.TextClassifier) for name in DIFFERENT]
QUICK += [("electra", tasks.MultipleChoice), ("modernbert", tasks.QuestionAnswerer)]
# Global tokens are others in each, see tests/tasks/test_global_tokens.py too.
QUICK += [("longformer", tasks.QuestionAnswerer)]
# Of XLNet's answers and choices see test_xlnet_tasks.py: padding before a text is none of kbert's.
CASES = [
    (name, kind)
    for name, (kind, ending) in itertools.product(MODEL_TYPES, ENDINGS.items())
    if ending in CLASSES[name] and (name, kind) != ("xlnet", tasks.MultipleChoice)
]


def saved(folder, tokenizer, model_type, ending, **values):
    """A model of transformers that lies in the folder."""
    values = {"vocab_size": tokenizer.vocabulary_size, "pad_token_id": tokenizer.pad_id, **values}
    values |= {"sep_token_id": tokenizer.sep_id} if model_type == "longformer" else {}
    model = make_reference(model_type, ending, **values)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def batch(tokenizer, model_type, alternatives, left=False) -> dict[str, np.ndarray]:
    """Three rows of random ids, two of them padded; (B, T), or (B, A, T) of alternatives."""
    rng = np.random.default_rng(0)
    shape = (3, alternatives, 12) if alternatives else (3, 12)
    lengths = np.array([12, 7, 9]).reshape(3, *[1] * (len(shape) - 1))
    mask = np.broadcast_to(np.arange(12) < lengths, shape)
    if left:
        mask = mask[..., ::-1]
    ids = np.where(mask, rng.integers(5, tokenizer.vocabulary_size, shape), tokenizer.pad_id)
    segments = np.broadcast_to(np.arange(12) >= 5, shape)
    if model_type in ("roberta", "distilbert"):
        segments = np.zeros(shape)
    if model_type == "longformer":  # pairs, which transformers takes apart by their separators
        ends = np.broadcast_to(lengths - 1, shape)
        columns = np.broadcast_to(np.arange(12), shape)
        ids = np.where((columns == 3) | (columns == 4) | (columns == ends), tokenizer.sep_id, ids)
        segments = segments & mask
    features = {"token_ids": ids, "padding_mask": mask, "segment_ids": segments}
    return {name: np.ascontiguousarray(x, "int32") for name, x in features.items()}


def their_logits(model, features) -> list[np.ndarray]:
    inputs = as_tensors(features)
    without = ("distilbert", "longformer")
    if "token_type_ids" in inputs and model.config.model_type in without:
        del inputs["token_type_ids"]
    with torch.no_grad():
        out = model(**inputs)
    names = ("start_logits", "end_logits") if "start_logits" in out else ("logits",)
    return [out[name].numpy() for name in names]


def assert_same_logits(task, model, features):
    ours = [to_numpy(x) for x in task(features).values()]
    theirs = their_logits(model, features)
    if isinstance(task, tasks.TokenClassifier | tasks.QuestionAnswerer):  # padding has none
        real = features["padding_mask"] > 0
        ours, theirs = ([x[real] for x in both] for both in (ours, theirs))
    for found, wanted in zip(ours, theirs, strict=True):
        assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize(
    ("model_type", "kind"),
    [
        pytest.param(
            *case,
            id=f"{case[0]}-{case[1].__name__}",
            marks=() if case in QUICK else pytest.mark.slow,
        )
        for case in CASES
    ],
)
def test_logits_are_those_of_transformers_there_and_back(tmp_path, tokenizer, model_type, kind):
    if model_type == "mpnet":  # whose padding has another id
        vocabulary = ["<s>", "<pad>", "</s>", *tokenizer.vocabulary, "<mask>"]
        tokenizer = kbert.WordPieceTokenizer(vocabulary)
    model = saved(tmp_path / "theirs", tokenizer, model_type, ENDINGS[kind])
    task = tasks.Task.from_preset(tmp_path / "theirs")
    assert type(task) is kind
    alternatives = 3 if kind is tasks.MultipleChoice else None
    # Of a text transformers' XLNet reads the last token, which padding may be.
    features = batch(tokenizer, model_type, alternatives, left=model_type == "xlnet")
    assert_same_logits(task, model, features)

    architecture = None if model_type == "albert" else model_type
    task.save_to_preset(tmp_path / "ours", "huggingface", architecture=architecture)
    again, report = type(model).from_pretrained(tmp_path / "ours", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_logits(task, again, features)
    if hasattr(task, "labels"):
        assert task.labels == LABELS
        assert again.config.id2label == dict(enumerate(LABELS))


@pytest.mark.parametrize(
    ("problem_type", "outputs", "kind", "multi_label"),
    [
        pytest.param(None, 2, tasks.TextClassifier, False, marks=pytest.mark.slow),
        (None, 1, tasks.TextRegressor, None),  # a cross-encoder
        ("regression", 1, tasks.TextRegressor, None),
        ("single_label_classification", 2, tasks.TextClassifier, False),
        ("multi_label_classification", 3, tasks.TextClassifier, True),
    ],
)
def test_what_a_classifier_is_for(tmp_path, tokenizer, problem_type, outputs, kind, multi_label):
    names = {i: f"name {i}" for i in range(outputs)}
    model = saved(
        *(tmp_path / "theirs", tokenizer, "bert", "ForSequenceClassification"),
        **{"problem_type": problem_type, "num_labels": outputs, "id2label": names},
    )
    task = tasks.Task.from_preset(tmp_path / "theirs")
    assert type(task) is kind
    assert getattr(task, "multi_label", None) is multi_label
    features = batch(tokenizer, "bert", None)
    assert_close(
        to_numpy(task(features)["classifier"]).reshape(3, -1),
        their_logits(model, features)[0],
        1e-4,
    )

    task.save_to_preset(tmp_path / "ours", "huggingface")
    usual = "regression" if kind is tasks.TextRegressor else "single_label_classification"
    config = transformers.AutoConfig.from_pretrained(tmp_path / "ours")
    assert config.problem_type == (problem_type or usual)
    assert config.num_labels == outputs
    again = tasks.Task.from_preset(tmp_path / "ours")
    assert type(again) is kind
    assert again.settings == task.settings


def test_a_regression_of_several_numbers_is_told(tmp_path, tokenizer):
    saved(
        *(tmp_path, tokenizer, "bert", "ForSequenceClassification"),
        **{"problem_type": "regression", "num_labels": 2, "id2label": {0: "a", 1: "b"}},
    )
    for kind in (tasks.Task, tasks.TextRegressor, tasks.TextClassifier):
        with pytest.raises(ValueError, match=r"Received: a regression of 2 numbers for each text"):
            kind.from_preset(tmp_path)
    assert kbert.Encoder.from_preset(tmp_path).pooler is not None


def test_a_problem_that_transformers_does_not_know_is_refused(tmp_path, tokenizer):
    saved(tmp_path, tokenizer, "bert", "ForSequenceClassification")
    content = json.loads((tmp_path / "config.json").read_text())
    content["problem_type"] = "ranking"
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"`problem_type` must be one of regression, .*'ranking'"):
        tasks.Task.from_preset(tmp_path)


# model_type, kind of task, the key of the config there.
HEAD_DROPOUTS = [
    ("bert", tasks.TextClassifier, "classifier_dropout"),
    ("albert", tasks.TextClassifier, "classifier_dropout_prob"),
    ("electra", tasks.MultipleChoice, "summary_last_dropout"),
    ("distilbert", tasks.TextClassifier, "seq_classif_dropout"),
    # The key again with other heads.
    ("bert", tasks.MultipleChoice, "classifier_dropout"),
    ("roberta", tasks.TokenClassifier, "classifier_dropout"),
]


@pytest.mark.parametrize(
    ("model_type", "kind", "key"),
    [*HEAD_DROPOUTS[:4], *(pytest.param(*x, marks=pytest.mark.slow) for x in HEAD_DROPOUTS[4:])],
    ids=lambda x: x if isinstance(x, str) else x.__name__,
)
def test_the_head_s_dropout_is_read_and_written_back(tmp_path, tokenizer, model_type, kind, key):
    """It stands before the last layer, the encoder's own being 0; predictions have none."""
    saved(tmp_path / "theirs", tokenizer, model_type, ENDINGS[kind], **{key: 0.25})
    task = tasks.Task.from_preset(tmp_path / "theirs")
    assert type(task) is kind
    assert (task.settings["dropout"], task.head_dropout.rate) == (0.25, 0.25)
    architecture = None if model_type == "albert" else model_type
    task.save_to_preset(tmp_path / "ours", "huggingface", architecture=architecture)
    assert json.loads((tmp_path / "ours" / "config.json").read_text())[key] == 0.25

    begun = kind.from_preset(tmp_path / "ours", new_head=True, **head_arguments(kind))
    assert begun.settings["dropout"] is None
    assert begun.head_dropout.rate == 0.0


@pytest.mark.parametrize(("model_type", "usual"), [("bert", None), ("distilbert", 0.2)])
def test_a_head_without_a_rate_of_its_own(tmp_path, tokenizer, model_type, usual):
    """Some architectures have another default there: then the encoder's rate is written out."""
    saved(tmp_path / "theirs", tokenizer, model_type, "ForSequenceClassification")
    assert tasks.Task.from_preset(tmp_path / "theirs").settings["dropout"] == usual
    task = tasks.TextClassifier.from_preset(tmp_path / "theirs", dropout=None)
    assert task.head_dropout.rate == 0.0
    task.save_to_preset(tmp_path / "ours", "huggingface", architecture=model_type)
    content = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert content.get("seq_classif_dropout") == (None if usual is None else 0.0)
    assert tasks.Task.from_preset(tmp_path / "ours").settings["dropout"] is None


def test_a_head_s_dropout_that_is_none_or_has_no_place(tmp_path, tokenizer, caplog):
    saved(tmp_path, tokenizer, "bert", "ForSequenceClassification")
    content = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**content, "classifier_dropout": "high"}))
    with pytest.raises(ValueError, match=r"`classifier_dropout` must be at least 0.*'high' in "):
        tasks.Task.from_preset(tmp_path)
    saved(tmp_path / "roberta", tokenizer, "roberta", "ForMultipleChoice")
    task = tasks.MultipleChoice.from_preset(tmp_path / "roberta", dropout=0.3)
    task.save_to_preset(tmp_path / "ours", "huggingface", architecture="roberta")
    assert "RoBERTa does not support a dropout of this head: dropout=0.3" in caplog.text


def head_arguments(kind) -> dict:
    takes_labels = kind in (tasks.TextClassifier, tasks.TokenClassifier)
    return {"labels": ["ham", "spam"]} if takes_labels else {}


@pytest.mark.parametrize("kind", [*ENDINGS, tasks.TextRegressor], ids=lambda kind: kind.__name__)
def test_kbert_s_own_folders_say_which_task_they_hold(tmp_path, config, tokenizer, kind):
    task = kind(kbert.Encoder(config), tokenizer, max_length=20, **head_arguments(kind))
    task.save_to_preset(tmp_path)
    again = tasks.Task.from_preset(tmp_path)
    assert type(again) is kind
    assert again.settings == task.settings
    features = batch(tokenizer, "bert", 3 if kind is tasks.MultipleChoice else None)
    for name, logits in task(features).items():
        np.testing.assert_array_equal(to_numpy(again(features)[name]), to_numpy(logits))
    content = json.loads((tmp_path / "kbert.json").read_text())
    assert "labels" not in content["task"]  # said once
    assert content.get("labels") == head_arguments(kind).get("labels")


@pytest.mark.parametrize(
    ("model_type", "activation"),
    [
        *(("roberta", "tanh"), ("distilbert", "relu"), ("electra", "gelu")),
        *(pytest.param(x, "tanh", marks=pytest.mark.slow) for x in ("bert", "albert")),
    ],
)
def test_a_new_head_on_any_encoder(tmp_path, tokenizer, model_type, activation):
    """Of a masked language model, which has no pooler: it is drawn too, as that family has it."""
    saved(tmp_path / "theirs", tokenizer, model_type, "ForMaskedLM")
    labels = ["ham", "spam"]
    task = tasks.TextClassifier.from_preset(tmp_path / "theirs", labels=labels, new_head=True)
    encoder = kbert.Encoder.from_preset(tmp_path / "theirs")
    np.testing.assert_array_equal(task.encoder.token_embedding, encoder.token_embedding)
    assert encoder.pooler is None
    assert task.encoder.config.pooler_activation == activation
    assert task.labels == labels
    task.save_to_preset(tmp_path / "ours", "huggingface")
    again = tasks.Task.from_preset(tmp_path / "ours")
    features = batch(tokenizer, model_type, None)
    found, wanted = (to_numpy(x(features)["classifier"]) for x in (again, task))
    assert_close(found, wanted, 1e-6)


def test_a_new_head_over_another_keeps_the_encoder_whole(tmp_path, config, tokenizer):
    old = tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["a", "b", "c"], doc_stride=4)
    old.save_to_preset(tmp_path)
    new = tasks.TextClassifier.from_preset(tmp_path, labels=["ham", "spam"], new_head=True)
    assert new.doc_stride is None
    assert new.labels == ["ham", "spam"]
    for mine, theirs in zip(new.encoder.weights, old.encoder.weights, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    tagger = tasks.TokenClassifier.from_preset(tmp_path, labels=["O", "B-x"], new_head=True)
    assert tagger.encoder.pooler is not None  # what is there stays


def test_settings_that_hugging_face_has_no_place_for_are_told(tmp_path, config, tokenizer, caplog):
    asked = {"labels": ["a", "b"], "multi_label": True, "doc_stride": 4}
    task = tasks.TextClassifier(kbert.Encoder(config), tokenizer, **asked)
    task.save_to_preset(tmp_path / "ours")
    assert not caplog.text
    task.save_to_preset(tmp_path / "theirs", "huggingface")
    assert "huggingface does not support these settings of the task: doc_stride=4" in caplog.text


def test_a_conversion_keeps_the_task(tmp_path, config, tokenizer):
    asked = {"labels": ["good", "bad"], "multi_label": True}
    task = tasks.TextClassifier(kbert.Encoder(config), tokenizer, **asked)
    task.save_to_preset(tmp_path / "ours")
    convert(tmp_path / "ours", tmp_path / "theirs", format="huggingface")
    convert(tmp_path / "theirs", tmp_path / "back")
    again = tasks.Task.from_preset(tmp_path / "back")
    assert (again.labels, again.multi_label) == (["good", "bad"], True)
    assert again.predict(["the fox"]) == task.predict(["the fox"])


def test_a_folder_of_another_task_or_none(tmp_path, config, tokenizer):
    task = tasks.TextRegressor(kbert.Encoder(config), tokenizer)
    task.save_to_preset(tmp_path / "task")
    with pytest.raises(ValueError, match=r"TextClassifier. Received: a TextRegressor .*new_head"):
        tasks.TextClassifier.from_preset(tmp_path / "task")
    with pytest.raises(ValueError, match=r"new_head=True must be passed to .* Received: Task"):
        tasks.Task.from_preset(tmp_path / "task", new_head=True)
    content = json.loads((tmp_path / "task" / "kbert.json").read_text())
    for kind in ("Summarizer", "adapt"):  # the second is a function there
        content["task"]["kind"] = kind
        (tmp_path / "task" / "kbert.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=f"a task of the class Task. Received: a {kind} in"):
            tasks.Task.from_preset(tmp_path / "task")
    task.encoder.save_to_preset(tmp_path / "encoder")
    tokenizer.save(tmp_path / "encoder")
    with pytest.raises(ValueError, match="A Task can only be loaded from a folder with its own"):
        tasks.Task.from_preset(tmp_path / "encoder")
