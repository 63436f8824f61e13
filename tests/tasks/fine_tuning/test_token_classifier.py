"""Labels of words: against transformers, in windows, to entities and their scores."""

import contextlib

import hypothesis.strategies as st
import keras
import numpy as np
import pytest
from hypothesis import given, settings

import kbert
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.data.tables.table import Table
from kbert.models.weights import named_weights
from kbert.tasks import TokenClassifier
from kbert.tokenizers import (
    BytePairTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    train_byte_pair,
    train_unigram,
)
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import LABELS, gradients, make_reference
from tests.tasks import toy
from tests.tokenizers.unigram.sentencepiece_reference import corpus

pytestmark = pytest.mark.tensorflow

TAGS = ["O", "B-thing", "I-thing", "B-who", "I-who"]
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}
SENTENCES = [["the", "red", "foxes"], [], ["unflinching"], ["is", "it", "a", "tree-house", "?"]]


def toy_data(count, seed=0):
    """A colour and the thing behind it are an entity; a thing behind another word is none."""
    rng = np.random.default_rng(seed)
    colours, things, others = list(toy.RULES), list(toy.RULES.values()), ["the", "a", "is", "they"]
    table = {"words": [], "labels": []}
    for _ in range(count):
        words, labels = [], []
        for _ in range(rng.integers(1, 5)):
            thing = rng.choice(things)
            first = rng.choice(colours if rng.integers(2) else others)
            before = rng.choice(others, rng.integers(3)).tolist()  # so that places tell nothing
            words += [*before, str(first), str(thing)]
            labels += ["O"] * len(before)
            labels += ["B-thing", "I-thing"] if first in colours else ["O", "O"]
        table["words"].append(words)
        table["labels"].append(labels)
    return table


@pytest.fixture(scope="module")
def task(config, tokenizer):
    keras.utils.set_random_seed(1)
    return TokenClassifier(kbert.Encoder(config.replace(**NO_DROPOUT)), tokenizer, TAGS)


def flat(answers, name):
    return [x for answer in answers for x in answer[name]]


# With a tokenizer of each kind: word pieces, byte pairs, a unigram model.
SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("roberta", "albert")]


@pytest.fixture(scope="module", params=["bert", *SLOW])
def theirs(request, tiny_vocabulary, tmp_path_factory):
    """A model of transformers, its tokenizer and its folder."""
    transformers = pytest.importorskip("transformers")
    options = {}
    if request.param == "bert":
        tokenizer = WordPieceTokenizer(tiny_vocabulary)
    elif request.param == "roberta":
        tokenizer = BytePairTokenizer(*train_byte_pair(corpus(), 400))
        options = {"add_prefix_space": True}
    else:
        # Without user-defined pieces, which transformers 5 takes for added tokens.
        tokenizer = UnigramTokenizer(train_unigram(corpus(), 300, user_defined=()))
    model = make_reference(
        *(request.param, "ForTokenClassification"),
        vocab_size=tokenizer.vocabulary_size,
        pad_token_id=tokenizer.pad_id,
    )
    folder = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(folder)
    tokenizer.save(folder)
    return model, transformers.AutoTokenizer.from_pretrained(folder, **options), folder


def test_loss_gradients_and_answers_are_those_of_transformers(theirs):
    """A label on the first piece of each word, -100 on all else there."""
    torch = pytest.importorskip("torch")
    model, their_tokenizer, folder = theirs
    sentences = [words for words in SENTENCES if words]
    rng = np.random.default_rng(0)
    labels = [rng.choice(LABELS, len(words)).tolist() for words in sentences]
    inputs = their_tokenizer(sentences, is_split_into_words=True, padding=True, return_tensors="pt")
    targets = np.full(inputs["input_ids"].shape, -100)
    firsts = []
    for row in range(len(sentences)):
        of_words = inputs.word_ids(row)
        for word, label in enumerate(labels[row]):
            firsts.append((row, of_words.index(word)))
            targets[firsts[-1]] = LABELS.index(label)
    out = model(**inputs, labels=torch.tensor(targets))
    out.loss.backward()

    task = TokenClassifier.from_preset(folder)
    assert task.labels == LABELS
    assert task.scheme is None
    table = {"words": sentences, "labels": labels}
    assert task.evaluate(table)["loss"] == pytest.approx(out.loss.item(), rel=1e-4)
    wanted = np.array([out.logits[at].detach().softmax(-1).numpy() for at in firsts])
    answers = task.predict(sentences)
    assert_close(flat(answers, "probabilities"), wanted.max(-1), 1e-4)
    assert flat(answers, "labels") == [LABELS[i] for i in wanted.argmax(-1)]

    rows = task.tokenize(Table(table), labelled=True)
    batch = task.assemble(rows.gather(np.arange(len(rows))))

    def our_loss():
        ((total, count),) = task.loss_terms(batch, training=False)[0].values()
        return total / count

    weights = named_weights(task.encoder, "encoder") | named_weights(task.tokens, "tokens")
    theirs = {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}
    wanted = import_model(model.config.to_dict(), theirs, "the reference").arrays
    # Where one segment is folded into the positions, its gradient was added there.
    folded = () if task.encoder.config.num_segments else ("position", "padding")
    wanted = {k: x for k, x in wanted.items() if not k.endswith(folded)}
    weights = {name: weights[name] for name in wanted}  # all but the pooler's
    assert {"tokens/dense/kernel", "encoder/embeddings/token"} <= set(wanted)
    assert_gradients_close(gradients(our_loss, weights), wanted)


def test_a_label_stands_on_the_first_piece_of_its_word(task):
    table = {"words": [["the", "unflinching", "fox"]], "labels": [["O", "B-who", "I-who"]]}
    rows = task.tokenize(Table(table), labelled=True)
    batch = {name: x.numpy()[0] for name, x in task.assemble(rows.gather(np.array([0]))).items()}
    pieces = [task.tokenizer.vocabulary[i] for i in batch["token_ids"]]
    begins = [place for place, piece in enumerate(pieces) if piece in ("the", "u", "fox")]
    assert batch["label_weights"].nonzero()[0].tolist() == begins
    assert batch["labels"][begins].tolist() == [0, 3, 4]
    assert set(batch["label_weights"][begins]) == {1.0}


def test_a_word_in_two_windows_counts_once(config, tokenizer):
    task = TokenClassifier(kbert.Encoder(config), tokenizer, TAGS, max_length=6, doc_stride=2)
    words = "the a of to and in".split()
    table = {"words": [words], "labels": [["O", "B-who"] * 3]}
    rows = task.tokenize(Table(table), labelled=True)
    assert rows.ragged["words"].to_list() == [[0, 1, 2, 3], [2, 3, 4, 5]]
    batch = task.assemble(rows.gather(np.arange(2)))
    weights = batch["label_weights"].numpy()[:, 1:5]
    assert weights.tolist() == [[1, 1, 0.5, 0.5], [0.5, 0.5, 1, 1]]
    assert rows.lengths.tolist() == [6, 6]
    assert rows.examples.tolist() == [0, 0]


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_words_of_a_long_sentence_pool_their_windows(config, tokenizer, pooling):
    keras.utils.set_random_seed(1)
    task = TokenClassifier(
        kbert.Encoder(config), tokenizer, TAGS, max_length=8, doc_stride=4, pooling=pooling
    )
    words = "the red fox is in a big old house by the river".split()
    (answer,) = task.predict([words])
    of_word = [[] for _ in words]
    for begin in (0, 4, 8):  # every word is one piece here
        ids = tokenizer.encode([" ".join(words[begin : begin + 6])])
        logits = task(task.build_inputs(ids))["tokens"].numpy()[0, 1:7]
        for values, logit in zip(of_word[begin:], logits, strict=False):
            values.append(logit)
    wanted = np.stack([getattr(np, pooling)(values, axis=0) for values in of_word])
    wanted = np.exp(wanted) / np.exp(wanted).sum(-1, keepdims=True)
    assert answer["labels"] == [TAGS[i] for i in wanted.argmax(-1)]
    assert_close(answer["probabilities"], wanted.max(-1), 1e-5)


def test_sentences_of_any_length_are_read_whole(task, caplog):
    """Alone and in a batch: 40 positions, one word with 90 pieces, sentences of 300 words."""
    sentences = [["fox"] * 300, ["x" * 90, "fox"], [], ["red"]]
    answers = task.predict(sentences)
    assert [len(answer["labels"]) for answer in answers] == [300, 2, 0, 1]
    for words, answer in zip(sentences, answers, strict=True):
        (alone,) = task.predict([words])
        assert alone["labels"] == answer["labels"]
        assert_close(alone["probabilities"], answer["probabilities"], 1e-5)
    (cut,) = task.predict([["x" * 38, "fox"]])
    assert cut["probabilities"][0] == pytest.approx(answers[1]["probabilities"][0], abs=1e-5)


@given(texts=st.lists(st.text(st.characters(codec="utf-8"), max_size=30), max_size=4))
@settings(max_examples=12, deadline=None)
def test_any_text_has_a_label_for_each_word(task, texts):
    for text, answer in zip(texts, task.predict(texts, verbose=0), strict=True):
        words, places = answer["words"], zip(answer["starts"], answer["ends"], strict=True)
        assert [text[start:end] for start, end in places] == words
        assert words == text.split()
        assert len(answer["labels"]) == len(answer["probabilities"]) == len(words)
        for entity in answer["entities"]:
            start, end = entity["start_character"], entity["end_character"]
            assert text[start:end] == entity["text"]
            assert text[start:end].split() == words[entity["start"] : entity["end"]]


@pytest.mark.graphs
@given(words=st.lists(st.text(st.characters(codec="utf-8"), max_size=9), max_size=9))
@settings(max_examples=12, deadline=None)
def test_any_words_keep_their_number(task, words):
    (answer,) = task.predict([words], verbose=0)
    assert answer["words"] == words
    assert len(answer["labels"]) == len(words)
    assert "starts" not in answer


@pytest.mark.slow
def test_it_learns_a_rule_and_measures_it_by_entities(config, tokenizer):
    keras.utils.set_random_seed(1)
    deep = config.replace(num_layers=2, **NO_DROPOUT)
    task = TokenClassifier(kbert.Encoder(deep), tokenizer, TAGS[:3])
    assert (task.scheme, task.metric) == ("BIO", "f1")
    history = task.fit(
        *toy_data(800).values(),
        validation_data=tuple(toy_data(50, seed=2).values()),
        epochs=10,
        learning_rate=1e-2,
        verbose=0,
    )
    assert history.history["val_f1"][-1] > 0.9
    data = toy_data(200, seed=1)
    scores = task.evaluate(data)
    assert scores["f1"] > 0.9  # by a list of words two thirds
    assert scores["f1"] == pytest.approx(scores["f1_thing"]) == scores["macro_f1"]
    wanted = kbert.metrics.entity_report(
        data["labels"], [answer["labels"] for answer in task.predict(data["words"])]
    )
    assert {name: scores[name] for name in wanted.scores} == wanted.scores
    assert str(task.report(data)) == str(wanted)
    (answer,) = task.predict(["they is  the red pen moon"])
    assert answer["entities"] == [
        {"label": "thing", "start": 3, "end": 5, "text": "red pen", "start_character": 13,
         "end_character": 20}
    ]  # fmt: skip
    (answer,) = task.predict([["the", "red", "pen"]])
    assert answer["entities"] == [{"label": "thing", "start": 1, "end": 3, "text": "red pen"}]


def test_labels_without_a_scheme_are_measured_by_accuracy(config, tokenizer):
    task = TokenClassifier(kbert.Encoder(config), tokenizer, ["NOUN", "VERB"])
    assert (task.scheme, task.metric) == (None, "accuracy")
    data = {"words": [["red", "is"], ["fox"]], "labels": [["NOUN", "VERB"], ["NOUN"]]}
    answers = task.predict(data["words"])
    assert "entities" not in answers[0]
    scores = task.evaluate(data)
    assert set(scores) == {"loss", "accuracy", "macro_f1"}
    right = np.equal(flat(answers, "labels"), ["NOUN", "VERB", "NOUN"])
    assert scores["accuracy"] == pytest.approx(right.mean())
    assert task.report(data).accuracy == scores["accuracy"]


def test_labels_by_index_and_by_name_are_one(task):
    named = toy_data(5)
    indices = [[TAGS.index(label) for label in row] for row in named["labels"]]
    assert task.evaluate(named["words"], indices) == task.evaluate(named)


def test_class_weights_weigh_words_by_their_label(task):
    table = Table({"words": [["red", "fox", "is"]], "labels": [["B-thing", "I-thing", "O"]]})
    rows = task.tokenize(table, labelled=True)
    weighed = task.weigh_classes(rows, {"O": 0.25}).ragged["label_weights"].to_list()
    assert weighed == [[1.0, 1.0, 0.25]]
    balanced = task.weigh_classes(rows, "balanced").ragged["label_weights"].to_list()
    assert balanced == [[1.0, 1.0, 1.0]]
    with pytest.raises(ValueError, match=r"class_weights.*'nothing'"):
        task.weigh_classes(rows, {"nothing": 1.0})


def test_balanced_weights_count_a_word_of_several_windows_once(config, tokenizer):
    words, labels = ["red", "fox", "is", "the"] * 4, ["B-thing", "I-thing", "O", "O"] * 4
    encoder = kbert.Encoder(config)
    task = TokenClassifier(encoder, tokenizer, TAGS, max_length=8, doc_stride=2)
    rows = task.tokenize(Table({"words": [words], "labels": [labels]}), labelled=True)
    assert len(rows) > 2
    ids, weights = (
        np.concatenate(task.weigh_classes(rows, "balanced").ragged[name].to_list())
        for name in ("labels", "label_weights")
    )
    totals = np.bincount(ids, weights, minlength=len(TAGS))
    assert_close(totals[totals > 0], np.full(3, 16 / 3), 1e-5)


def test_presets_keep_it(task, tmp_path):
    texts = ["the red  fox jumps over the dog", ""]
    for format in ("kbert", "huggingface"):
        task.save_to_preset(tmp_path / format, format=format)
        again = kbert.tasks.Task.from_preset(tmp_path / format)
        assert isinstance(again, TokenClassifier)
        assert again.labels == TAGS
        found, wanted = again.predict(texts), task.predict(texts)
        assert flat(found, "labels") == flat(wanted, "labels")
        assert_close(flat(found, "probabilities"), flat(wanted, "probabilities"), 1e-5)


def test_settings_are_kept(config, tokenizer, tmp_path):
    options = {"max_length": 20, "doc_stride": 5, "pooling": "max", "dropout": 0.3}
    task = TokenClassifier(kbert.Encoder(config), tokenizer, TAGS, **options)
    task.save_to_preset(tmp_path)
    assert TokenClassifier.from_preset(tmp_path).settings == {"labels": TAGS, **options}


def test_a_new_head_fits_any_encoder(config, tokenizer, tmp_path):
    kbert.Encoder(config.replace(pooler_activation=None)).save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    task = TokenClassifier.from_preset(tmp_path, new_head=True, labels=TAGS)
    assert task.encoder.pooler is None  # it reads no pooled vector
    assert len(task.predict(["red fox"])[0]["labels"]) == 2


@pytest.mark.slow
def test_two_replicas_train_as_one(config, tokenizer, mirrored):
    """Long sentences among short ones, and a last batch that is not full."""
    data = toy_data(20)
    data["words"][0], data["labels"][0] = ["red", "pen"] * 30, ["B-thing", "I-thing"] * 30

    def trained(scope):
        keras.utils.set_random_seed(1)
        with scope:
            task = TokenClassifier(kbert.Encoder(config.replace(**NO_DROPOUT)), tokenizer, TAGS)
        history = task.fit(data, epochs=2, batch_size=8, learning_rate=1e-3, verbose=0)
        return history.history["loss"], task.get_weights()

    one, two = trained(contextlib.nullcontext()), trained(mirrored.scope())
    np.testing.assert_allclose(two[0], one[0], rtol=1e-4)
    for found, wanted in zip(two[1], one[1], strict=True):
        assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"words": [["a"]], "labels": [["NOUN"]]}, "row 0 of the data: .*the task's 5 classes.*"
         r"\('O', .*Received: 'NOUN' for word 0, 'a'"),
        ({"words": [["a"]], "labels": [[5]]}, "Received: 5 for word 0"),
        ({"words": [["a"], ["a", "b"]], "labels": [["O"], ["O"]]},
         "row 1 .*: a sentence must have one label per word. Received: 2 words and 1 labels"),
        ({"words": [["a"]], "labels": [[None]]}, "'labels' must be a string. Received: None"),
        ({"first": ["a"], "second": ["b"], "labels": [["O"]]}, "column `words`.*first, second"),
        ({"words": [[]], "labels": [[]]}, "An evaluation needs words"),
    ],
)  # fmt: skip
def test_bad_data_names_its_row(task, data, message):
    with pytest.raises(ValueError, match=message):
        task.evaluate(data)


def test_bad_data_names_its_file(task):
    table = Table({"words": [["a"]], "labels": [["X"]]}, source="dev.conll", lines=[7])
    with pytest.raises(ValueError, match=r"dev.conll, line 7: a word's label"):
        task.evaluate(table)
    train = {"words": [["a"]], "labels": [["O"]]}
    held_out = Table({"words": [["a"]], "labels": [["B-who"]]}, source="dev.conll", lines=[7])
    with pytest.raises(ValueError, match=r"dev.conll, line 7: .*must occur in the training"):
        task.fit(train, validation_data=held_out)
    with pytest.raises(ValueError, match=r"Training needs words. Received: 2 examples without"):
        task.fit([[], []], [[], []])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"doc_stride": 0}, "`doc_stride` must be .*at least 1 .*Received: 0"),
        ({"pooling": "first"}, "`pooling` must be one of .*mean.*max.*Received: 'first'"),
        ({"labels": ["O", "O"]}, r"must be unique.*\['O'\]"),
    ],
)
def test_bad_settings(config, tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        TokenClassifier(kbert.Encoder(config), tokenizer, **{"labels": TAGS, **options})


def test_a_tokenizer_without_an_unknown_token_is_refused(config):
    specials = {"pad": "<pad>", "cls": "<s>", "sep": "</s>"}
    from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

    tokenizer = BytePairTokenizer([*specials.values(), *CHARACTERS], [], special_tokens=specials)
    encoder = kbert.Encoder(config.replace(vocabulary_size=300))
    with pytest.raises(ValueError, match=r"unknown token.*a BytePairTokenizer without one"):
        TokenClassifier(encoder, tokenizer, TAGS)
