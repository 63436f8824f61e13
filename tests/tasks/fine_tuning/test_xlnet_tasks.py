"""XLNet's rows, `A <sep> B <sep> <cls>`, and the tasks on them, against transformers."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert import tasks
from kbert.tasks.input_form import input_form
from kbert.tokenizers import UnigramTokenizer, train_unigram
from tests.harness import assert_close, randomise, tiny_config, to_numpy
from tests.models.references import make_reference
from tests.tokenizers.unigram.sentencepiece_reference import corpus

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.tensorflow

SESSION = Path(__file__).parents[2] / "export" / "session.py"
ENDINGS = {
    tasks.TextClassifier: "ForSequenceClassification",
    tasks.TokenClassifier: "ForTokenClassification",
    tasks.QuestionAnswerer: "ForQuestionAnsweringSimple",
    tasks.MultipleChoice: "ForMultipleChoice",
}
TEXTS = ["The river of the night", "mountains", "The Battle of the River, in 2012"]


@pytest.fixture(scope="module")
def tokenizer():
    # Without user-defined pieces, which transformers 5 takes for added tokens.
    return UnigramTokenizer(
        train_unigram(corpus(), 300, layout="xlnet", user_defined=()), layout="xlnet"
    )


@pytest.fixture(scope="module")
def encoder(tokenizer):
    keras.utils.set_random_seed(0)
    size = {"vocabulary_size": tokenizer.vocabulary_size, "max_positions": 40}
    encoder = kbert.Encoder(tiny_config("xlnet", **size))
    randomise(encoder)
    return encoder


def test_special_tokens_are_xlnet_s(tokenizer):
    names = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>"]
    assert tokenizer.vocabulary[:8] == names
    ids = (
        tokenizer.unk_id,
        tokenizer.cls_id,
        tokenizer.sep_id,
        tokenizer.pad_id,
        tokenizer.mask_id,
    )
    assert ids == (0, 3, 4, 5, 6)
    assert not tokenizer.lowercase
    usual = UnigramTokenizer(train_unigram(corpus(), 300, layout="xlnet"), layout="xlnet")
    assert usual.vocabulary[8] == "<eop>"


def test_rows_are_those_of_transformers_with_the_padding_behind(tokenizer, encoder, tmp_path):
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs.padding_side == "left"
    form = input_form(encoder, tokenizer)
    seconds = TEXTS[::-1]
    for given in ((TEXTS,), (TEXTS, seconds)):
        rows = form.build_inputs(*map(tokenizer.encode, given), max_length=40, multiple=1)
        expected = theirs(*given, padding=True, return_token_type_ids=True)
        names = {"token_ids": "input_ids", "segment_ids": "token_type_ids"}
        lengths = rows["padding_mask"].numpy().sum(1)
        for name, there in names.items():
            for row, length, their_row in zip(
                rows[name].numpy(), lengths, expected[there], strict=True
            ):
                assert row[:length].tolist() == their_row[-length:]
        assert lengths.tolist() == np.sum(expected["attention_mask"], 1).tolist()
        assert form.cls_columns(rows["padding_mask"]).numpy().tolist() == (lengths - 1).tolist()


@pytest.mark.parametrize(
    "kind",
    [
        *(tasks.QuestionAnswerer, tasks.MultipleChoice),
        # Of their folders see test_fine_tuned_heads.py too.
        *(pytest.param(x, marks=pytest.mark.slow) for x in list(ENDINGS)[:2]),
    ],
)
def test_a_folder_of_transformers_is_the_task(kind, tokenizer, tmp_path):
    """From text to logits: their tokenizer and model, padded on the left, and kbert's task."""
    values = {"vocab_size": tokenizer.vocabulary_size, "pad_token_id": tokenizer.pad_id}
    model = make_reference("xlnet", ENDINGS[kind], **values)
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    task = tasks.Task.from_preset(tmp_path)
    assert type(task) is kind
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    single = kind in (tasks.TextClassifier, tasks.TokenClassifier)
    given = (TEXTS,) if single else (TEXTS, TEXTS[::-1])
    tensors = theirs(*given, padding=True, return_tensors="pt", return_token_type_ids=True)
    if kind is tasks.MultipleChoice:
        tensors = {name: x[None] for name, x in tensors.items()}
    with torch.no_grad():
        out = model(**tensors)
    features = {k: v.numpy() for k, v in task.build_inputs(*map(tokenizer.encode, given)).items()}
    lengths = features["padding_mask"].sum(1)
    if kind is tasks.MultipleChoice:
        features = {name: x[None] for name, x in features.items()}
    found = [to_numpy(x) for x in task(features).values()]
    names = ("start_logits", "end_logits") if kind is tasks.QuestionAnswerer else ("logits",)
    for ours, name in zip(found, names, strict=True):
        expected = out[name].numpy()
        if kind in (tasks.TokenClassifier, tasks.QuestionAnswerer):
            for row, their_row, length in zip(ours, expected, lengths, strict=True):
                assert_close(row[:length], their_row[-length:], 1e-4)
        else:
            assert_close(ours, expected, 1e-4)
    task.save_to_preset(tmp_path / "back", "huggingface")
    _, report = type(model).from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(report[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    again = transformers.AutoTokenizer.from_pretrained(tmp_path / "back")
    assert again(TEXTS[0]).input_ids == theirs(TEXTS[0]).input_ids


def served(path, *requests):
    done = subprocess.run(
        [sys.executable, SESSION, path, json.dumps(requests)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_classifier_learns_is_kept_and_served(tokenizer, tmp_path):
    keras.utils.set_random_seed(0)
    encoder = kbert.Encoder(tiny_config("xlnet", vocabulary_size=tokenizer.vocabulary_size))
    task = tasks.TextClassifier(encoder, tokenizer, ["night", "river"], max_length=16)
    texts = [f"{word} the night of {word}" for word in ("mountains", "river")] * 16
    labels = ["night", "river"] * 16
    task.fit((texts, labels), epochs=12, batch_size=8, learning_rate=0.01, verbose=0)
    answers = task.predict(texts[:2])
    assert [answer["label"] for answer in answers] == labels[:2]
    task.save_to_preset(tmp_path / "preset")
    again = tasks.TextClassifier.from_preset(tmp_path / "preset")
    assert again.predict(texts[:2])[0]["label"] == labels[0]
    path = task.export(tmp_path / "export")
    (found,) = served(path, ["classify", {"text": texts[:2]}])
    expected = [list(answer["probabilities"].values()) for answer in answers]
    assert_close(found["scores"], expected, 1e-5)


def test_tags_stand_on_their_words(tokenizer, encoder):
    """A model that names each token by its own id: every word has the tag of its first piece."""
    task = tasks.TokenClassifier(encoder, tokenizer, ["O", "B-X", "I-X"], max_length=12)
    sentence = "The river of the night and the mountains".split()
    (whole,) = task.predict([sentence])
    rows = task.tokenize(kbert.data.Table({"words": [sentence], "labels": [["O"] * 8]}), True)
    batch = task.assemble({**rows.ragged})
    weights = batch["label_weights"].numpy()
    assert weights.sum() == pytest.approx(len(sentence))
    assert weights[:, 0].max() > 0  # no special token is before the first word
    assert (batch["token_ids"].numpy()[weights > 0] != tokenizer.cls_id).all()
    assert len(whole["labels"]) == len(sentence)


def test_answers_are_where_the_context_is(tokenizer, encoder):
    task = tasks.QuestionAnswerer(encoder, tokenizer, max_length=24, max_question_length=6)
    context = "The river of the night, and the mountains of the Battle. The night."
    table = kbert.data.Table(
        {
            "question": ["The river?", "mountains"],
            "context": [context, context],
            "answers": [["mountains"], []],
            "answer_starts": [[context.index("mountains")], []],
        }
    )
    rows = task.tokenize(table, True)
    dense = {name: tf.constant(x) for name, x in rows.dense.items()}
    batch = task.assemble({**rows.ragged, **dense})
    batch = {name: x.numpy() for name, x in batch.items()}
    ids, labels = batch["token_ids"], batch["labels"]
    cls = task.form.cls_columns(batch["padding_mask"]).numpy()
    assert (ids[np.arange(len(ids)), cls] == tokenizer.cls_id).all()
    inside = labels[:, 0] != cls
    assert inside.any()
    assert not inside[rows.examples == 1].any()
    assert (labels[~inside] == cls[~inside, None]).all()
    for row in np.flatnonzero(inside):
        first, last = labels[row]
        start, end = batch["answer_starts"][row, first], batch["answer_ends"][row, last]
        assert context[max(start, 0) : end] in ("mountains", context[:end])
        assert tokenizer.decode(ids[row, first : last + 1]) == "mountains"
    # The score of no answer is that of <cls>, wherever it stands.
    logits = {name: np.zeros(ids.shape, "float32") for name in ("start", "end")}
    logits["start"][np.arange(len(ids)), cls] = np.arange(len(ids)) + 1
    found = to_numpy(task.outputs(logits, batch)["null_scores"])
    assert found.tolist() == (np.arange(len(ids)) + 1).tolist()


@pytest.mark.parametrize("special_tokens", [True, False])
def test_features_are_of_the_right_tokens(tokenizer, encoder, special_tokens):
    options = {"special_tokens": special_tokens, "pooling": None, "with_tokens": True}
    for given in (TEXTS, [(a, b) for a, b in zip(TEXTS, TEXTS[::-1], strict=True)]):
        for text, row in zip(
            given, kbert.features(encoder, tokenizer, given, **options), strict=True
        ):
            sides = [text] if isinstance(text, str) else text
            ids = [tokenizer.encode(side).numpy() for side in sides]
            pieces = [[tokenizer.vocabulary[i] for i in side] for side in ids]
            expected = [*pieces[0], "<sep>"]
            segments = [0] * len(expected)
            for side in pieces[1:]:
                expected += [*side, "<sep>"]
                segments += [1] * (len(side) + 1)
            expected, segments = [*expected, "<cls>"], [*segments, 2]
            if not special_tokens:
                kept = [token not in ("<sep>", "<cls>") for token in expected]
                expected = [x for x, keep in zip(expected, kept, strict=True) if keep]
                segments = [x for x, keep in zip(segments, kept, strict=True) if keep]
            assert list(row.tokens) == expected
            assert row.segments.tolist() == segments
    form = input_form(encoder, tokenizer)
    rows = form.build_inputs(tokenizer.encode(TEXTS), max_length=40, multiple=1)
    sequence = to_numpy(encoder(rows)["sequence"])
    lengths = rows["padding_mask"].numpy().sum(1)
    if special_tokens:
        found = kbert.features(encoder, tokenizer, TEXTS, pooling="cls")
        assert_close(found, sequence[np.arange(3), lengths - 1], 1e-5)
    mean = kbert.features(encoder, tokenizer, TEXTS, pooling="mean", special_tokens=special_tokens)
    ends = lengths if special_tokens else lengths - 2
    means = [row[:end].mean(0) for row, end in zip(sequence, ends, strict=True)]
    assert_close(mean, means, 1e-5)
    words = [text.split() for text in TEXTS]
    found = kbert.features(encoder, tokenizer, words, words=True)
    assert [len(x) for x in found] == [len(x) for x in words]
    first = len(tokenizer.encode(words[0][0]).numpy())
    assert_close(found[0][0], sequence[0, :first].mean(0), 1e-5)
