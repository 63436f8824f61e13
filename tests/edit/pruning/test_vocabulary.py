"""Vocabularies cut to a corpus: the same ids by name, the same outputs, nothing unreadable."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

import kbert
from kbert.edit import adapters
from kbert.edit.pruning import kept_tokens, prune_vocabulary
from kbert.models import Encoder
from kbert.models.weights import get_arrays
from kbert.tasks import CausalLM, Pretraining, ReplacedTokenDetection, TextClassifier
from kbert.tokenizers import (
    BytePairTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    train_byte_pair,
    train_unigram,
    train_wordpiece,
)
from tests.conftest import WORDS
from tests.harness import KINDS, assert_close, randomise, tiny_config, to_numpy

CORPUS = ["the red fox jumps", "A lazy dog, and the moon!"]
WORDS_OF_ALL = " ".join(WORDS)


def encoder_for(tokenizer, **changes):
    encoder = Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size, **changes))
    randomise(encoder)
    return encoder


def pieces(tokenizer, text):
    return [tokenizer.vocabulary[i] for i in tokenizer.encode(text).numpy()]


@pytest.fixture(scope="module")
def byte_pairs():
    texts = [WORDS_OF_ALL, *CORPUS, "señor 💡 naïve"] * 3
    return BytePairTokenizer(*train_byte_pair(texts, 420))


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_what_a_corpus_reads_is_the_same(kind, tokenizer, byte_pairs):
    tokenizer = tokenizer if kind == "wordpiece" else byte_pairs
    encoder = encoder_for(tokenizer)
    small, smaller = prune_vocabulary(encoder, tokenizer, texts=CORPUS)
    assert smaller.vocabulary_size < tokenizer.vocabulary_size
    assert small.config == encoder.config.replace(vocabulary_size=smaller.vocabulary_size)
    for text in CORPUS:
        assert pieces(smaller, text) == pieces(tokenizer, text)
        found, wanted = (
            to_numpy(model(words.encode([text]).to_tensor()))
            for model, words in ((small, smaller), (encoder, tokenizer))
        )
        for name in wanted:
            assert_close(found[name], wanted[name], 0.0, name)


@given(st.data())
@settings(max_examples=8, deadline=None)
def test_texts_of_kept_tokens_are_split_as_before(data):
    corpus = data.draw(st.lists(st.sampled_from(WORDS), min_size=1, max_size=5))
    text = " ".join(data.draw(st.lists(st.sampled_from(WORDS), max_size=9)))
    for made in SPLITTERS:
        kept = kept_tokens(made, texts=corpus)
        smaller = smaller_of(made, kept)
        there = set(smaller.vocabulary)
        if there.issuperset(pieces(made, text)):
            assert pieces(smaller, text) == pieces(made, text)
        assert smaller.decode(smaller.encode(text).numpy()) == text
        assert smaller.unk_id is None or smaller.unk_id not in smaller.encode(text).numpy()


def smaller_of(tokenizer, kept):
    small = {"hidden_size": 4, "num_layers": 1, "pooler_activation": None}
    config = tiny_config(vocabulary_size=tokenizer.vocabulary_size, **small)
    return prune_vocabulary(
        Encoder(config), tokenizer, keep=[tokenizer.vocabulary[i] for i in kept]
    )[1]


SPLITTERS = [
    WordPieceTokenizer(train_wordpiece([WORDS_OF_ALL] * 3, 160, min_frequency=1)),
    BytePairTokenizer(*train_byte_pair([WORDS_OF_ALL] * 3, 330)),
]


def test_every_text_is_still_read(tokenizer, byte_pairs):
    _, smaller = prune_vocabulary(encoder_for(tokenizer), tokenizer, texts=["fox"])
    assert pieces(smaller, "river fox") == ["r", "##i", "##v", "##e", "##r", "fox"]
    _, smaller = prune_vocabulary(encoder_for(byte_pairs), byte_pairs, texts=["fox"])
    assert smaller.decode(smaller.encode("日本 💡 fox").numpy()) == "日本 💡 fox"


def test_counts_and_named_tokens_and_characters(tokenizer):
    kept = kept_tokens(tokenizer, texts=["fox fox dog"], min_count=2, keep=["moon"])
    names = {tokenizer.vocabulary[i] for i in kept}
    assert {"fox", "moon", "[MASK]", "a", "##a"} < names
    assert not names & {"dog", "##ing"}
    kept = kept_tokens(tokenizer, texts=["fox a!"], characters=False)
    assert [tokenizer.vocabulary[i] for i in kept][5:] == ["!", "a", "fox"]


def test_order_of_ids_and_settings_stay(byte_pairs):
    cased = WordPieceTokenizer(
        ["[PAD]", "Fox", "[UNK]", "[CLS]", "dog", "[SEP]", "[MASK]", "<url>"],
        lowercase=False,
        special_tokens_in_text=True,
        added_tokens=["<url>"],
    )
    _, smaller = prune_vocabulary(encoder_for(cased), cased, texts=["Fox [MASK] fox"])
    assert smaller.vocabulary == ["[PAD]", "Fox", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "<url>"]
    assert (smaller.settings, smaller.pad_id, smaller.mask_id) == (cased.settings, 0, 5)
    _, smaller = prune_vocabulary(encoder_for(byte_pairs), byte_pairs, texts=CORPUS)
    assert smaller.settings == byte_pairs.settings
    there = set(smaller.vocabulary)
    assert all({a, b, a + b} <= there for a, b in smaller.merges)


def test_rows_beyond_the_vocabulary_go_too(tokenizer):
    encoder = Encoder(tiny_config(vocabulary_size=tokenizer.vocabulary_size + 5))
    small, smaller = prune_vocabulary(encoder, tokenizer, texts=CORPUS)
    assert small.config.vocabulary_size == smaller.vocabulary_size


@pytest.mark.parametrize("token", ["[PAD]", "moon", "river"])
def test_the_padding_id_is_kept(tokenizer, token):
    """Positions skip it, so it is needed even where no text has it; it may be any id."""
    encoder = encoder_for(tokenizer, padding_id=tokenizer.token_to_id(token))
    small, smaller = prune_vocabulary(encoder, tokenizer, texts=CORPUS)
    assert smaller.id_to_token(small.config.padding_id) == token
    found, wanted = (
        to_numpy(model(words.encode(CORPUS).to_tensor(words.token_to_id(token))))
        for model, words in ((small, smaller), (encoder, tokenizer))
    )
    for name in wanted:
        assert_close(found[name], wanted[name], 0.0, name)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in (
                {"output": "untied"},
                {"hidden_size": 64, "num_heads": 4, "embedding_size": 16},
                KINDS["bottleneck"],
                KINDS["disentangled"],
            )
        ),
    ],
)
def test_the_masked_lm_head_is_cut_with_the_table(changes, tokenizer, tmp_path):
    task = Pretraining(encoder_for(tokenizer, **changes), tokenizer, next_sentence=False)
    randomise(task, sigma=0.3)
    small, smaller = prune_vocabulary(task, texts=CORPUS)
    kept = kept_tokens(tokenizer, texts=CORPUS)
    ids = smaller.encode(CORPUS[:1]).to_tensor()
    batch = {"mask_positions": np.array([[1, 3]])}
    found = small({**batch, "token_ids": ids, "padding_mask": tf.ones_like(ids)})
    ids = tokenizer.encode(CORPUS[:1]).to_tensor()
    wanted = task({**batch, "token_ids": ids, "padding_mask": tf.ones_like(ids)})
    found, wanted = (to_numpy(x["masked_lm"]) for x in (found, wanted))
    assert_close(found, wanted[..., kept], 1e-5)
    small.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert again.tokenizer.vocabulary == smaller.vocabulary
    text = "the [MASK] fox"
    assert again.predict([text]) == small.predict([text])


def test_a_classifier_answers_as_before_in_every_format(task, tmp_path):
    small, _ = prune_vocabulary(task, texts=CORPUS)
    assert small.predict(CORPUS) == task.predict(CORPUS)
    small.save_to_preset(tmp_path, "huggingface")
    assert TextClassifier.from_preset(tmp_path).predict(CORPUS) == small.predict(CORPUS)


def test_an_axis_of_the_same_length_is_no_vocabulary():
    """Hidden width and vocabulary of one size: the shapes of the new model tell them apart."""
    words = [f"w{i}" for i in range(11)]
    tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])
    task = Pretraining(encoder_for(tokenizer), tokenizer)
    randomise(task)
    small, _ = prune_vocabulary(task, texts=["w3 w4"])
    arrays = get_arrays(small.masked_lm, "masked_lm")
    assert arrays["masked_lm/transform/kernel"].shape == (16, 16)
    assert arrays["masked_lm/bias"].shape == (7,)


def test_a_discriminator_is_cut(tokenizer):
    task = ReplacedTokenDetection(encoder_for(tokenizer, num_segments=0), tokenizer)
    randomise(task)
    small, _ = prune_vocabulary(task, texts=CORPUS)
    for found, wanted in zip(small.predict(CORPUS), task.predict(CORPUS), strict=True):
        assert_close(found["probabilities"], wanted["probabilities"], 1e-6)


def test_a_decoder_is_cut(tokenizer):
    sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    config = kbert.DecoderConfig(vocabulary_size=tokenizer.vocabulary_size, **sizes)
    task = CausalLM(kbert.Decoder(config), tokenizer)
    randomise(task)
    small, cut = prune_vocabulary(task, texts=CORPUS)
    ids, kept = (np.array([x.encode(CORPUS[0]).numpy()]) for x in (tokenizer, cut))
    rows = [tokenizer.vocabulary.index(piece) for piece in cut.vocabulary]
    logits = to_numpy(task({"token_ids": ids}))[..., rows]
    assert_close(to_numpy(small({"token_ids": kept})), logits, 1e-6)


def test_what_it_cannot_do_is_refused(tokenizer, task):
    encoder = encoder_for(tokenizer)
    unigram = UnigramTokenizer(train_unigram(["the light of the night"] * 9, 50))
    with pytest.raises(ValueError, match=r"scores of its pieces.*a UnigramTokenizer"):
        prune_vocabulary(encoder, unigram, texts=CORPUS)
    with pytest.raises(ValueError, match="Received: neither"):
        prune_vocabulary(encoder, tokenizer)
    with pytest.raises(ValueError, match="Received: tokenizer=None"):
        prune_vocabulary(encoder, texts=CORPUS)
    with pytest.raises(ValueError, match="must be left out for a task"):
        prune_vocabulary(task, tokenizer, texts=CORPUS)
    with pytest.raises(ValueError, match=r"The token must be one of .*'nowhere'"):
        prune_vocabulary(encoder, tokenizer, keep=["nowhere"])
    with pytest.raises(TypeError, match="texts must be an iterable"):
        prune_vocabulary(encoder, tokenizer, texts="the fox")
    with pytest.raises(ValueError, match=r"at least 1. Received: 0"):
        prune_vocabulary(encoder, tokenizer, texts=CORPUS, min_count=0)
    with pytest.raises(ValueError, match="must have a row for each vocabulary entry"):
        prune_vocabulary(Encoder(tiny_config()), tokenizer, texts=CORPUS)
    longer = tiny_config(vocabulary_size=tokenizer.vocabulary_size + 5)
    beyond = Encoder(longer.replace(padding_id=tokenizer.vocabulary_size))
    with pytest.raises(ValueError, match=r"`padding_id` must be an id of the tokenizer. Received"):
        prune_vocabulary(beyond, tokenizer, texts=CORPUS)
    adapters.add(encoder, "bitfit")
    with pytest.raises(ValueError, match="Configs do not include adapters"):
        prune_vocabulary(encoder, tokenizer, texts=CORPUS)
