"""Tasks on an encoder-decoder: what is learned, folders, exports, and what is refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.edit import adapters, pruning
from kbert.export import load_exported
from kbert.models import Seq2SeqEncoder
from kbert.tasks import (
    MultipleChoice,
    QuestionAnswerer,
    Task,
    TextClassifier,
    TextRegressor,
    TokenClassifier,
    Translator,
)
from tests.harness import assert_close
from tests.tasks import bart, toy

pytestmark = pytest.mark.tensorflow

LABELS = ["no", "yes"]
COLOURS, THINGS = list(toy.RULES), list(toy.RULES.values())
TEXTS = ["the red pen", "", "one two three big house no"]
PAIRS = [("the red pen", "is red"), ("a", ""), ("no one is big", "is a fox.")]
CHOICES = [{"context": "the red", "choices": ["pen", "a fox"]}]


@pytest.fixture(scope="module")
def tokenizer():
    return bart.make_tokenizer()


def make_seq2seq(tokenizer, **changes):
    keras.utils.set_random_seed(1)
    sizes = {
        **{"vocabulary_size": tokenizer.vocabulary_size, "hidden_size": 32, "num_heads": 2},
        **{"num_layers": 1, "num_decoder_layers": 2, "intermediate_size": 64, "max_positions": 40},
        **{"positions": "learned", "embeddings": "normalised", "activation": "gelu"},
        **{"initializer_range": 0.15, "dropout": 0.0, "attention_dropout": 0.0},
        "layer_norm_epsilon": 1e-5,
    }
    return kbert.Seq2Seq(kbert.Seq2SeqConfig(**{**sizes, **changes}))


@pytest.fixture
def encoder(tokenizer):
    return Seq2SeqEncoder(make_seq2seq(tokenizer))


def make_task(kind, encoder, tokenizer, **options):
    labels = {TextClassifier: [LABELS], TokenClassifier: [["O", "B-x"]]}.get(kind, [])
    if not kind.needs_pooler:
        encoder = Seq2SeqEncoder(encoder.seq2seq, pooler=False)
    return kind(encoder, tokenizer, *labels, **options)


DATA = {
    TextClassifier: [*TEXTS],
    TextRegressor: PAIRS,
    QuestionAnswerer: PAIRS[::2],
    MultipleChoice: CHOICES,
    TokenClassifier: TEXTS[::2],
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=kind.kind, marks=() if number in (0, 2) else pytest.mark.slow)
        for number, kind in enumerate(DATA)
    ],
)
def test_a_task_comes_back_from_its_folder(kind, encoder, tokenizer, tmp_path):
    task = make_task(kind, encoder, tokenizer, max_length=24)
    wanted = task.predict(DATA[kind])
    task.save_to_preset(tmp_path / "preset")
    again = Task.from_preset(tmp_path / "preset")
    assert type(again) is kind
    assert again.settings == task.settings
    for ours, theirs in zip(again.predict(DATA[kind]), wanted, strict=True):
        assert ours == theirs
    assert kbert.Seq2Seq.from_preset(tmp_path / "preset").config == encoder.seq2seq.config


def test_a_new_head_on_a_folder(encoder, tokenizer, tmp_path):
    Translator(encoder.seq2seq, tokenizer).save_to_preset(tmp_path / "base")
    task = TextClassifier.from_preset(tmp_path / "base", new_head=True, labels=LABELS)
    table = encoder.seq2seq.token_embedding
    np.testing.assert_array_equal(task.encoder.seq2seq.token_embedding, table)
    task.save_to_preset(tmp_path / "classes")
    # Another classifier takes the pooler that is there, and a reader of answers none.
    other = TextClassifier.from_preset(tmp_path / "classes", new_head=True, labels=3)
    np.testing.assert_array_equal(other.encoder.pooler.kernel, task.encoder.pooler.kernel)
    reader = QuestionAnswerer.from_preset(tmp_path / "classes", new_head=True)
    assert reader.encoder.pooler is None
    reader.save_to_preset(tmp_path / "theirs", "huggingface")
    assert type(Task.from_preset(tmp_path / "theirs")) is QuestionAnswerer


@pytest.mark.slow
def test_a_classifier_learns(encoder, tokenizer):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 240)  # a text that holds a colour is a yes
    words = [str(rng.choice(COLOURS if label else THINGS)) for label in labels]
    texts = [" ".join(rng.permutation([word, "the", "one"])) for word in words]
    names = [LABELS[label] for label in labels]
    task = TextClassifier(encoder, tokenizer, LABELS)
    options = {"epochs": 6, "batch_size": 8, "learning_rate": 5e-3, "verbose": 0}
    task.fit(texts[:200], names[:200], **options)
    assert task.evaluate(texts[200:], names[200:])["accuracy"] > 0.9


@pytest.mark.slow
def test_exports_answer_as_the_task_does(encoder, tokenizer, tmp_path):
    task = TextClassifier(encoder, tokenizer, LABELS)
    entries = tf.saved_model.load(task.export(tmp_path / "saved")).signatures
    first, second = map(list, zip(*PAIRS, strict=True))
    wanted = [[*answer["probabilities"].values()] for answer in task.predict(PAIRS)]
    found = entries["classify_pairs"](first=tf.constant(first), second=tf.constant(second))
    assert_close(found["scores"], wanted, 1e-5)
    exported = load_exported(task.export(tmp_path / "onnx", format="onnx"))
    for answers in (exported.predict(PAIRS), exported.task.predict(PAIRS)):
        assert_close([[*answer["probabilities"].values()] for answer in answers], wanted, 1e-5)
    reader = make_task(QuestionAnswerer, encoder, tokenizer)
    exported = load_exported(reader.export(tmp_path / "reader", format="onnx"))
    for ours, theirs in zip(exported.predict(PAIRS), reader.predict(PAIRS), strict=True):
        assert ours["answer"] == theirs["answer"]
        assert_close(ours["score"], theirs["score"], 1e-4)


def test_what_does_not_fit_is_told(encoder, tokenizer, tmp_path):
    task = TextClassifier(encoder, tokenizer, LABELS)
    for edit in (
        lambda: adapters.add(task, "lora"),
        lambda: encoder.enable_lora(4),
        lambda: pruning.prune_heads(task, {0: [1]}),
        lambda: pruning.keep_layers(task, [0]),
        lambda: kbert.edit.quantization.quantization_aware(task),
    ):
        with pytest.raises(TypeError, match=r"must be a kbert.Encoder, a kbert.Decoder or a task"):
            edit()
    with pytest.raises(ValueError, match=r"an encoder of the BERT family.*a Seq2SeqEncoder"):
        kbert.student(task, num_layers=1)
    with pytest.raises(ValueError, match=r"layer decay requires .*Received: a Seq2SeqEncoder"):
        task.fit(TEXTS[:2], LABELS, layer_decay=0.9, verbose=0)
    for kind in (kbert.TextEmbedder, kbert.Pretraining):
        with pytest.raises(ValueError, match=r"Encoder-decoders are supported by .*QuestionAns"):
            kind(encoder, tokenizer)
    with pytest.raises(ValueError, match=r"both_orders=True is for decoders.*a Seq2SeqEncoder"):
        TextClassifier(encoder, tokenizer, LABELS, both_orders=True)
    with pytest.raises(ValueError, match=r"must have a pooler.*Received: a Seq2SeqEncoder without"):
        TextClassifier(Seq2SeqEncoder(encoder.seq2seq, pooler=False), tokenizer, LABELS)
    mbart = Seq2SeqEncoder(make_seq2seq(tokenizer, block="pre_norm"))
    with pytest.raises(ValueError, match=r"no counterpart of these weights. Received: pooler/"):
        TextClassifier(mbart, tokenizer, LABELS).save_to_preset(tmp_path, "huggingface")
