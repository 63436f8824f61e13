"""Zero-shot classification: as transformers' pipeline has it, labels by name, long texts."""

import pytest

import kbert
from kbert import TextClassifier, ZeroShotClassifier
from kbert.export import load_exported
from kbert.tasks.fine_tuning.options import ZeroShotOptions
from tests.harness import assert_close
from tests.models.references import make_reference
from tests.tasks import bart

pytestmark = pytest.mark.tensorflow

TEXTS = [
    "the red pen",
    "one two three big house no",
    "a fox",
    "the red pen is big and the old man is one of the new moon house no one two three fox a dog",
]
NAMES = ["red", "big house", "fox dog"]
TEMPLATE = "it is about {}."


@pytest.fixture
def classifier(config, tokenizer):
    return TextClassifier(kbert.Encoder(config), tokenizer, bart.NAMES)


def folder_of(kind, path, tokenizer):
    if kind == "bart":
        bart.saved(path, bart.make_tokenizer())
        return 40
    model = make_reference(
        "bert", "ForSequenceClassification", vocab_size=tokenizer.vocabulary_size
    )
    model.config.id2label = dict(enumerate(bart.NAMES))
    model.config.label2id = {name: number for number, name in enumerate(bart.NAMES)}
    model.save_pretrained(path)
    tokenizer.save(path)
    return 24


@pytest.mark.parametrize("kind", ["bart", "bert"])
def test_scores_are_those_of_the_pipeline(kind, tmp_path, tokenizer, caplog):
    transformers = pytest.importorskip("transformers")
    width = folder_of(kind, tmp_path, tokenizer)
    theirs = transformers.pipeline("zero-shot-classification", str(tmp_path), device="cpu")
    theirs.tokenizer.model_max_length = width
    task = TextClassifier.from_preset(tmp_path)
    for multi_label in (False, True):
        ours = ZeroShotClassifier(task, template=TEMPLATE, multi_label=multi_label)
        options = {"multi_label": multi_label, "hypothesis_template": TEMPLATE}
        for labels in (NAMES, NAMES[:1]):
            wanted = theirs(TEXTS, labels, **options)
            for answer, expected in zip(ours.predict(TEXTS, labels), wanted, strict=True):
                assert list(answer["probabilities"]) == expected["labels"]
                assert_close([*answer["probabilities"].values()], expected["scores"], 1e-5)
    assert f"1 of 4 examples are longer than {width} tokens and are truncated" in caplog.text


def test_answers_have_the_form_of_a_classifier_s(classifier):
    zero_shot = ZeroShotClassifier(classifier, NAMES)
    for answer in zero_shot.predict(TEXTS[:3], batch_size=2):
        values = [*answer["probabilities"].values()]
        assert set(answer) == {"label", "probability", "probabilities"}
        assert (answer["label"], answer["probability"]) == next(
            iter(answer["probabilities"].items())
        )
        assert values == sorted(values, reverse=True)
        assert sum(values) == pytest.approx(1)
    assert zero_shot.predict([]) == []
    (answer,) = ZeroShotClassifier(classifier, NAMES, multi_label=True).predict("the red pen")
    likely = [name for name, value in answer["probabilities"].items() if value >= 0.5]
    assert answer["labels"] == likely


def test_windows_instead_of_truncation(config, tokenizer, caplog):
    task = TextClassifier(kbert.Encoder(config), tokenizer, bart.NAMES, max_length=20, doc_stride=4)
    ZeroShotClassifier(task, NAMES).predict(TEXTS)
    assert "truncated" not in caplog.text


@pytest.mark.parametrize(
    ("labels", "arguments", "found"),
    [
        (["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], {}, (2, 0)),
        (["entailment", "not_entailment"], {}, (0, 1)),
        (["no", "Entailed"], {}, (1, 0)),
        (["entailment", "neutral", "odd"], {}, (0, None)),
        (3, {"entailment": "LABEL_2"}, (2, None)),
        (3, {"entailment": "LABEL_2", "contradiction": "LABEL_0"}, (2, 0)),
    ],
    ids=["mnli", "rte", "two", "no-contradiction", "numbers", "both-named"],
)
def test_labels_by_name(config, tokenizer, labels, arguments, found):
    task = TextClassifier(kbert.Encoder(config), tokenizer, labels)
    zero_shot = ZeroShotClassifier(task, **arguments)
    assert (zero_shot._entailment, zero_shot._contradiction) == found
    if found[1] is None:
        message = r"pass contradiction=….*labels (entailment, neutral, odd|LABEL_0)"
        with pytest.raises(ValueError, match=message):
            ZeroShotClassifier(task, multi_label=True, **arguments)
        with pytest.raises(ValueError, match=message):
            zero_shot.predict(["a"], ["red"])


def test_what_does_not_fit_is_told(classifier, config, tokenizer):
    encoder = kbert.Encoder(config)
    with pytest.raises(TypeError, match=r"must be a kbert.TextClassifier of ent.*Received: <Tex"):
        ZeroShotClassifier(kbert.TextRegressor(encoder, tokenizer))
    with pytest.raises(ValueError, match=r"argument `entailment`.*=None, and.*good, bad"):
        ZeroShotClassifier(TextClassifier(encoder, tokenizer, ["good", "bad"]))
    with pytest.raises(ValueError, match=r"argument `entailment`.*Received: entailment='x'"):
        ZeroShotClassifier(classifier, entailment="x")
    for name in ("x", "entailment"):
        with pytest.raises(ValueError, match=f"`contradiction` must be a label.*ion='{name}'"):
            ZeroShotClassifier(classifier, contradiction=name)
    several = TextClassifier(encoder, tokenizer, bart.NAMES, multi_label=True)
    with pytest.raises(ValueError, match=r"one label.*Received: a classifier with multi_label"):
        ZeroShotClassifier(several)
    with pytest.raises(ValueError, match=r"`template` must have \{\}.*template='about'"):
        ZeroShotClassifier(classifier, template="about")
    for labels in ([], ["a", "a"]):
        with pytest.raises(ValueError, match=r"one or more different names. Received: \["):
            ZeroShotClassifier(classifier, labels)
    with pytest.raises(ValueError, match=r"`labels` must name the classes. Received: labels=None"):
        ZeroShotClassifier(classifier).predict(["a"])
    with pytest.raises(ValueError, match=r"must leave room.*of 40 tokens.*a hypothesis of \d+"):
        ZeroShotClassifier(classifier).predict(["a"], ["red " * 40])
    with pytest.raises(ValueError, match=r"require `candidate_labels`. Received: hypothesis_temp"):
        ZeroShotOptions(multi_label=True)
    assert ZeroShotOptions().identity() == {"attributions": None}
    named = ZeroShotOptions(candidate_labels=("a", "b")).identity()
    assert set(named) == {"attributions", "candidate_labels", "hypothesis_template", "multi_label"}


@pytest.mark.slow
def test_an_export_classifies_likewise(classifier, tmp_path):
    exported = load_exported(classifier.export(tmp_path, format="onnx")).task
    found, wanted = (ZeroShotClassifier(x, NAMES).predict(TEXTS) for x in (exported, classifier))
    for ours, theirs in zip(found, wanted, strict=True):
        assert ours["label"] == theirs["label"]
        assert_close(ours["probability"], theirs["probability"], 1e-5)
