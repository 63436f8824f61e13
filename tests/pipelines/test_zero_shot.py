"""kbert-predict with classes that are only named."""

import json

import pytest

import kbert
from pipelines import predict
from tests.harness import tiny_config

pytestmark = pytest.mark.tensorflow
TEXTS = ["the red pen", "one two three", "a fox"]
NAMES = ["red", "house"]
TEMPLATE = "it is about {}."


@pytest.fixture
def folders(tiny_vocabulary, tmp_path):
    """Presets of a classifier of entailment and of a regressor, and a file of texts."""
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    encoder = kbert.Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size))
    labels = ["entailment", "not_entailment"]
    kbert.TextClassifier(encoder, tokenizer, labels).save_to_preset(tmp_path / "classes")
    kbert.TextRegressor(encoder, tokenizer).save_to_preset(tmp_path / "numbers")
    (tmp_path / "texts.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    return tmp_path


def arguments(folders, name="classes", output="-"):
    return f"--preset={folders / name}", f"--input={folders / 'texts.txt'}", f"--output={output}"


@pytest.mark.parametrize("flags", [(), ("--multi_label",)], ids=["one", "several"])
def test_answers_are_those_of_the_library(call, folders, flags):
    output = folders / "answers.jsonl"
    labels = f"--candidate_labels={','.join(NAMES)}"
    flags = (*flags, labels, f"--hypothesis_template={TEMPLATE}")
    call(predict, *arguments(folders, output=output), *flags)
    classifier = kbert.TextClassifier.from_preset(folders / "classes")
    options = {"template": TEMPLATE, "multi_label": len(flags) == 3}
    wanted = kbert.ZeroShotClassifier(classifier, NAMES, **options).predict(TEXTS)
    for line, text, answer in zip(output.read_text().splitlines(), TEXTS, wanted, strict=True):
        found = json.loads(line)
        assert found["text"] == text
        assert found["probabilities"] == pytest.approx(answer["probabilities"], abs=1e-4)
    # Other labels are other answers.
    with pytest.raises((SystemExit, ValueError)):
        call(predict, *arguments(folders, output=output), "--candidate_labels=pen")


@pytest.mark.parametrize(
    ("name", "flags", "message"),
    [
        ("numbers", ["--candidate_labels=red"], "--candidate_labels cannot be given for this task"),
        ("classes", ["--multi_label"], "require `candidate_labels`"),
        ("classes", ["--candidate_labels=a", "--attributions=flow"], "own classes only"),
        ("classes", ["--candidate_labels=a", "--runner=beam"], "beam does not support --cand"),
    ],
    ids=["regressor", "no-labels", "attributions", "beam"],
)
def test_flags_that_do_not_fit_are_refused(call, folders, capfd, name, flags, message):
    output = folders / "out"
    with pytest.raises((SystemExit, ValueError)) as error:
        call(predict, *arguments(folders, name, output), *flags)
    assert message in f"{error.value}{capfd.readouterr().err}"
