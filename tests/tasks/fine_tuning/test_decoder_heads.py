"""Hugging Face's GPT and GPT-2 with heads: equal where kbert has the task, else refused by name."""

import json

import numpy as np
import pytest

import kbert
from kbert.conversion import convert
from kbert.tasks import CausalLM, QuestionAnswerer, Task, TextClassifier, TextRegressor
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import SIGMA, assert_close

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.tensorflow

TEXTS = ["the red pen", "a", "fox jumps over the lazy dogs", "ça 💡 & so on"]
PAIRS = [("the red pen", " is red"), ("a", ""), ("no", " one at all")]
NAMES = ["bad", "good", "odd"]
SIZES = {"n_positions": 40, "n_embd": 32, "n_layer": 2, "n_head": 2}
CLASSES = {"gpt2": "GPT2", "openai-gpt": "OpenAIGPT"}


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])


def saved(folder, tokenizer, model_type, ending, labels=NAMES, **values):
    """A model of transformers with random weights, in a folder with the tokenizer."""
    first = CLASSES[model_type]
    names = {"id2label": dict(enumerate(labels))} if labels else {}
    values = {**SIZES, "vocab_size": tokenizer.vocabulary_size, **names, **values}
    config = getattr(transformers, f"{first}Config")(**values)
    model = getattr(transformers, first + ending)(config).eval()
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            scale = ".ln_" in name and name.endswith("weight")
            weight.normal_(1.0 if scale else 0.0, SIGMA)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model


def their_logits(model, tokenizer, texts):
    """A row at a time: without a token for padding, transformers takes no more."""
    with torch.no_grad():
        rows = [tokenizer.encode(text).numpy().tolist() for text in texts]
        return np.array([model(torch.tensor([ids])).logits[0].numpy() for ids in rows])


def softmax(logits):
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    return exp / exp.sum(-1, keepdims=True)


def probabilities(task, texts):
    return np.array([[*answer["probabilities"].values()] for answer in task.predict(texts)])


@pytest.mark.parametrize("model_type", CLASSES)
def test_classes_are_those_of_transformers_there_and_back(tmp_path, tokenizer, model_type):
    model = saved(tmp_path / "theirs", tokenizer, model_type, "ForSequenceClassification")
    task = Task.from_preset(tmp_path / "theirs")
    assert type(task) is TextClassifier
    assert task.labels == NAMES
    assert task.encoder.config.vocabulary_size == tokenizer.vocabulary_size
    wanted = softmax(their_logits(model, tokenizer, TEXTS))
    assert np.ptp(wanted) > 0.2
    assert_close(probabilities(task, TEXTS), wanted, 1e-5)
    joined = [first + second for first, second in PAIRS]
    assert_close(probabilities(task, PAIRS), softmax(their_logits(model, tokenizer, joined)), 1e-5)
    # kbert's own folder, an export and a folder of theirs answer alike.
    task.save_to_preset(tmp_path / "ours")
    again = Task.from_preset(tmp_path / "ours")
    assert again.settings == task.settings
    assert_close(probabilities(again, TEXTS), wanted, 1e-5)
    convert(tmp_path / "ours", tmp_path / "back", format="huggingface")
    back, report = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert back.config.id2label == dict(enumerate(NAMES))
    assert_close(softmax(their_logits(back, tokenizer, TEXTS)), wanted, 1e-5)


@pytest.mark.parametrize("model_type", ["gpt2", pytest.param("openai-gpt", marks=pytest.mark.slow)])
def test_a_classifier_is_trained_and_written_back(tmp_path, tokenizer, model_type):
    """Its tokenizer has a token for padding, so that transformers reads a batch."""
    roles = {"pad": "<pad>", **dict.fromkeys(("unk", "cls", "sep"), "<|endoftext|>")}
    padded = kbert.BytePairTokenizer(
        [*CHARACTERS, "<|endoftext|>", "<pad>"], [], special_tokens=roles
    )
    saved(tmp_path / "theirs", padded, model_type, "ForSequenceClassification")
    task = TextClassifier.from_preset(tmp_path / "theirs")
    table = [{"text": text, "label": name} for text, name in zip(TEXTS, NAMES, strict=False)]
    task.fit(table, epochs=2, batch_size=2, learning_rate=1e-3, verbose=0)
    assert not np.any(task.classifier.dense.bias)
    task.save_to_preset(tmp_path / "back", format="huggingface")
    back = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "back").eval()
    assert type(back).__name__ == f"{CLASSES[model_type]}ForSequenceClassification"
    assert back.config.pad_token_id == padded.pad_id
    rows = [padded.encode(text).numpy().tolist() for text in TEXTS]
    width = max(map(len, rows))
    ids = torch.tensor([row + [padded.pad_id] * (width - len(row)) for row in rows])
    with torch.no_grad():
        logits = back(ids, attention_mask=(ids != padded.pad_id).long()).logits.numpy()
    assert_close(probabilities(task, TEXTS), softmax(logits), 1e-5)


@pytest.mark.slow
def test_an_export_reads_the_text_alone_too(tmp_path, tokenizer):
    import tensorflow as tf

    saved(tmp_path / "theirs", tokenizer, "gpt2", "ForSequenceClassification")
    task = TextClassifier.from_preset(tmp_path / "theirs")
    entry = tf.saved_model.load(task.export(tmp_path / "export")).signatures["classify"]
    found = entry(text=tf.constant([*TEXTS, ""]))["scores"]
    assert_close(found, probabilities(task, [*TEXTS, ""]), 1e-5)


def test_rows_are_the_texts_and_cut_like_theirs(tmp_path, tokenizer):
    model = saved(tmp_path, tokenizer, "gpt2", "ForSequenceClassification")
    task = TextClassifier.from_preset(tmp_path, max_length=8)
    text = "the quick brown fox"
    cut = softmax(their_logits(model, tokenizer, [text[:8]]))
    assert_close(probabilities(task, [text]), cut, 1e-5)
    windows = TextClassifier.from_preset(tmp_path, max_length=8, doc_stride=6)
    both = their_logits(model, tokenizer, ["the quic", "ick brow", "own fox"])
    assert_close(probabilities(windows, [text]), softmax(both.mean(0))[None], 1e-5)


@pytest.mark.slow
def test_it_learns_on(tmp_path, tokenizer):
    saved(tmp_path, tokenizer, "gpt2", "ForSequenceClassification", labels=["no", "yes"])
    task = TextClassifier.from_preset(tmp_path)
    texts, labels = ["red", "fox", "a red pen", "the fox"] * 8, ["yes", "no"] * 16
    task.fit(texts, labels, epochs=8, batch_size=8, learning_rate=5e-3, verbose=0)
    assert task.evaluate(texts, labels)["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("problem_type", "labels", "kind"),
    [
        (None, ["score"], TextRegressor),
        ("regression", ["score"], TextRegressor),
        ("multi_label_classification", NAMES, TextClassifier),
    ],
)
def test_what_the_head_is_for(tmp_path, tokenizer, problem_type, labels, kind):
    model = saved(
        *(tmp_path, tokenizer, "gpt2", "ForSequenceClassification", labels),
        problem_type=problem_type,
    )
    task = Task.from_preset(tmp_path)
    assert type(task) is kind
    logits = their_logits(model, tokenizer, TEXTS)
    if kind is TextRegressor:
        assert_close(task.predict(TEXTS), logits[:, 0], 1e-4)
        pairs = [first + second for first, second in PAIRS]
        assert_close(task.predict(PAIRS), their_logits(model, tokenizer, pairs)[:, 0], 1e-4)
    else:
        assert_close(probabilities(task, TEXTS), 1 / (1 + np.exp(-logits)), 1e-5)


@pytest.mark.parametrize("kind", [CausalLM, QuestionAnswerer])
def test_a_classifier_is_no_other_task(tmp_path, tokenizer, kind):
    saved(tmp_path, tokenizer, "gpt2", "ForSequenceClassification")
    with pytest.raises(ValueError, match=rf"{kind.__name__}. Received: a TextClassifier in "):
        kind.from_preset(tmp_path)
    decoder = kbert.Decoder.from_preset(tmp_path)  # asked for alone, as an encoder is
    assert decoder.config.vocabulary_size == tokenizer.vocabulary_size


@pytest.mark.parametrize(
    ("model_type", "ending", "weight"),
    [
        ("gpt2", "ForTokenClassification", "classifier.bias, classifier.weight"),
        ("gpt2", "ForQuestionAnswering", "qa_outputs.bias, qa_outputs.weight"),
        ("gpt2", "DoubleHeadsModel", "multiple_choice_head.summary.bias, multiple_choice_head.s"),
        ("openai-gpt", "DoubleHeadsModel", "multiple_choice_head.summary.bias"),
    ],
)
def test_heads_that_no_task_has_are_told(tmp_path, tokenizer, model_type, ending, weight):
    saved(tmp_path, tokenizer, model_type, ending, labels=None, num_labels=1)
    named = rf"a head of {CLASSES[model_type]}{ending} that kbert has no task for \({weight}"
    for kind in (Task, CausalLM, TextClassifier, QuestionAnswerer):
        with pytest.raises(ValueError, match=f"A {kind.__name__} can only be .*{named}"):
            kind.from_preset(tmp_path)
    with pytest.raises(ValueError, match=r"CausalLM can only be .* strict=False loads the model"):
        CausalLM.from_preset(tmp_path)
    task = CausalLM.from_preset(tmp_path, strict=False)
    assert isinstance(task.decoder, kbert.Decoder)
    begun = TextClassifier.from_preset(tmp_path, new_head=True, labels=NAMES)
    assert begun.encoder.start_id == tokenizer.vocabulary_size


def test_a_new_head_on_a_classifier_has_tokens_of_its_own(tmp_path, tokenizer):
    saved(tmp_path, tokenizer, "gpt2", "ForSequenceClassification")
    task = TextClassifier.from_preset(tmp_path, new_head=True, labels=["a", "b"])
    assert task.encoder.has_input_tokens
    assert task.encoder.start_id == tokenizer.vocabulary_size
    assert task.settings["auxiliary_lm_weight"] == 0.5


def test_what_their_classifier_cannot_be(tmp_path, tokenizer):
    saved(tmp_path / "theirs", tokenizer, "gpt2", "ForSequenceClassification")
    task = TextClassifier.from_preset(tmp_path / "theirs")
    task.classifier.dense.bias.assign([0.0, 0.5, 0.0])
    task.save_to_preset(tmp_path / "bias")
    with pytest.raises(ValueError, match=r"GPT-2 must have no bias. Received: a bias of up to 0.5"):
        convert(tmp_path / "bias", tmp_path / "x", format="huggingface")
    begun = TextClassifier.from_preset(tmp_path / "theirs", new_head=True, labels=["a", "b"])
    begun.save_to_preset(tmp_path / "begun")
    with pytest.raises(ValueError, match=r"support input tokens. Received: one that was trained"):
        convert(tmp_path / "begun", tmp_path / "x", format="huggingface")
    assert json.loads((tmp_path / "begun" / "kbert.json").read_text())["task"].keys() >= {"kind"}
