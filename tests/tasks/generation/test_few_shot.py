"""Few-shot classification: scores by brute force, calibration, truncation, bad input."""

import numpy as np
import pytest

import kbert
from kbert import FewShotClassifier
from kbert.tokenizers import BytePairTokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import assert_close
from tests.tasks.generation import writing

pytestmark = pytest.mark.tensorflow

END = "<|endoftext|>"
WORDS = {"low": "a", "high": "h g", "odd": "e f d"}
EXAMPLES = [("a b", "low"), ("h  h", "high")]
TEMPLATE = "c: {text} d: {label}"
TEXTS = ["a b c", "", "h", " g f\n", "e d c b"]


@pytest.fixture(scope="module")
def task():
    return writing.causal_lm(sigma=0.4)


@pytest.fixture(scope="module")
def byte_level():
    merges = [("Ġ", "a"), ("Ġ", "h"), ("d", ":")]
    vocabulary = [*CHARACTERS, "Ġa", "Ġh", "d:", END]
    roles = {"unk": END, "bos": END, "eos": END}
    own = BytePairTokenizer(vocabulary, merges, special_tokens=roles)
    return writing.causal_lm(own, sigma=0.4, max_positions=128)


def log_probability(task, prompt, continuation):
    """Of the tokens that the continuation adds to the prompt, one forward pass for all."""
    begin = task.tokenizer.cls_id if task.reads_cls else task.stop_ids[0]
    prompt_ids, ids = ([begin, *task.tokenizer(x).numpy()] for x in (prompt, prompt + continuation))
    assert ids[: len(prompt_ids)] == prompt_ids
    outputs = task.decoder({"token_ids": np.array([ids[:-1]])})
    logs = writing.log_softmax(task.decoder.logits(outputs["sequence"]))[0]
    places = range(len(prompt_ids), len(ids))
    return sum(float(logs[i - 1, ids[i]]) for i in places), len(places)


def expected(task, classifier, text, normalize=False):
    scores = []
    for word in WORDS.values():
        total, count = log_probability(task, classifier.prompt(text), f" {word}")
        scores.append(total / count if normalize else total)
    exponentials = np.exp(np.array(scores) - max(scores))
    return exponentials / exponentials.sum()


def found(answer):
    return [answer["probabilities"][name] for name in WORDS]


@pytest.mark.parametrize("normalize", [False, True], ids=["sum", "mean"])
@pytest.mark.parametrize("tokens", ["pieces", "bytes"])
def test_probabilities_are_those_of_the_labels_tokens(task, byte_level, tokens, normalize):
    model = {"pieces": task, "bytes": byte_level}[tokens]
    options = {"template": TEMPLATE, "examples": EXAMPLES, "separator": "\n"}
    classifier = FewShotClassifier(model, WORDS, normalize=normalize, **options)
    assert classifier.prompt(" g f\n") == "c: a b d: a\nc: h  h d: h g\nc: g f d:"
    for text, answer in zip(TEXTS, classifier.predict(TEXTS, batch_size=2), strict=True):
        wanted = expected(model, classifier, text, normalize)
        assert_close(found(answer), wanted, 1e-4)
        assert answer["label"] == [*WORDS][wanted.argmax()]
        assert answer["probability"] == max(answer["probabilities"].values())
        assert [*answer["probabilities"].values()] == sorted(found(answer), reverse=True)


def test_calibration_divides_by_the_mean_for_texts_without_content(task):
    plain = FewShotClassifier(task, WORDS, template=TEMPLATE)
    calibrated = FewShotClassifier(task, WORDS, template=TEMPLATE, content_free=["e", "f f"])
    prior = [
        np.mean([np.exp(log_probability(task, plain.prompt(x), f" {w}")[0]) for x in ("e", "f f")])
        for w in WORDS.values()
    ]
    for before, after in zip(plain.predict(TEXTS), calibrated.predict(TEXTS), strict=True):
        wanted = np.array(found(before)) / prior
        assert_close(found(after), wanted / wanted.sum(), 1e-4)
    (neutral,) = FewShotClassifier(task, WORDS, content_free="e").predict("e")
    assert_close(found(neutral), [1 / 3] * 3, 1e-5)


def test_names_are_their_own_words(task):
    classifier = FewShotClassifier(
        task, ["a", "h"], instruction="b", template="{text}\n{label}", examples=[("c", "h")]
    )
    assert classifier.prompt("d") == "b\n\nc\nh\n\nd"
    (answer,) = classifier.predict(b"d")
    pair = [log_probability(task, classifier.prompt("d"), f"\n{name}")[0] for name in "ah"]
    assert answer["probabilities"]["a"] == pytest.approx(1 / (1 + np.exp(pair[1] - pair[0])))
    assert classifier.predict([]) == []


def test_scores_of_labelled_texts(task):
    classifier = FewShotClassifier(task, WORDS)
    labels = [answer["label"] for answer in classifier.predict(TEXTS)]
    assert classifier.evaluate(TEXTS, labels, verbose=0)["accuracy"] == 1
    wrong = ["low" if label != "low" else "odd" for label in labels]
    assert classifier.evaluate((TEXTS, wrong))["accuracy"] == 0
    with pytest.raises(ValueError, match=r"one of the task's 3 classes.*Received: 'x'"):
        classifier.evaluate(["a"], ["x"])


def test_a_long_text_is_truncated_and_the_prompt_is_not(task, caplog):
    classifier = FewShotClassifier(task, WORDS, template=TEMPLATE, examples=EXAMPLES)
    answers = classifier.predict(["a " * 80, "b"])
    assert "1 of 2 examples are longer than" in caplog.text
    (whole,) = classifier.predict("a " * classifier._budget)
    assert found(answers[0]) == pytest.approx(found(whole))


def test_what_does_not_fit_is_told(task):
    encoder = kbert.Encoder(
        kbert.EncoderConfig(vocabulary_size=13, max_positions=32, **writing.SIZES)
    )
    classifier = kbert.TextClassifier(encoder, writing.tokenizer(), ["a", "b"])
    with pytest.raises(TypeError, match=r"CausalLM; for a class.*use kbert.ZeroShot.*Received: <T"):
        FewShotClassifier(classifier, ["a", "b"])
    for template in (
        "{label}",
        "{text}",
        "{label} {text}",
        "{text} {text} {label}",
        "{text} {label}.",
    ):
        with pytest.raises(ValueError, match=r"one {text}, and {label} at its end. Received: temp"):
            FewShotClassifier(task, ["a", "b"], template=template)
    with pytest.raises(ValueError, match=r"must be one of a, b. Received: 'c'"):
        FewShotClassifier(task, ["a", "b"], examples=[("x", "c")])
    with pytest.raises(ValueError, match=r"one or more different names. Received: \['a', 'a'\]"):
        FewShotClassifier(task, ["a", "a"])
    for words in ({"x": "a", "y": " a"}, {"x": "", "y": "a"}):
        with pytest.raises(ValueError, match=r"tokens of their own. Received: .* with the ids"):
            FewShotClassifier(task, words, template="{text} {label}")
    with pytest.raises(ValueError, match=r"64 positions: show fewer examples. Received: \d+ tok"):
        FewShotClassifier(task, ["a", "b"], examples=[("a " * 60, "a")])
