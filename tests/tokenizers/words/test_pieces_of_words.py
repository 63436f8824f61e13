"""Words that are split already: piece by piece what Hugging Face's fast tokenizers make of them."""

import hypothesis.strategies as st
import pytest
import tensorflow as tf
from hypothesis import given, settings

from kbert.tokenizers import (
    SPECIAL_TOKENS,
    BytePairTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    train_byte_pair,
    train_unigram,
)
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.tokenizers.unigram.sentencepiece_reference import corpus

TEXT = "The fox isn't at home; they're 12 of 56. Ein größeres Haus. Быстрая лиса. 東京は"
LETTERS = sorted(set(TEXT + TEXT.lower()) - {" "})
# Where their rules agree; each tokenizer's own tests go further.
WORDS = st.text(st.sampled_from(TEXT + "xyz'-€💡"), max_size=12)


@pytest.fixture(
    scope="module",
    params=["wordpiece", "bpe", "sentencepiece", pytest.param("fairseq", marks=pytest.mark.slow)],
)
def pair(request, tmp_path_factory):
    transformers = pytest.importorskip("transformers")
    options = {}
    if request.param == "wordpiece":
        pieces = [*LETTERS, *("##" + c for c in LETTERS), "the", "fox", "##ey", "##re"]
        ours = WordPieceTokenizer([*SPECIAL_TOKENS, *pieces])
    elif request.param == "bpe":
        ours = BytePairTokenizer(*train_byte_pair([TEXT] * 3, 400))
        options = {"add_prefix_space": True}
    else:
        # Without user-defined pieces, which transformers 5 takes for added tokens.
        model = train_unigram(corpus(), 300, layout=request.param, user_defined=())
        ours = UnigramTokenizer(model, layout=request.param)
    folder = tmp_path_factory.mktemp(request.param)
    ours.save(folder)
    return ours, transformers.AutoTokenizer.from_pretrained(folder, **options)


@given(sentences=st.lists(st.lists(WORDS, min_size=1, max_size=8), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_the_pieces_of_each_word_are_hugging_faces(pair, sentences):
    ours, theirs = pair
    encoded = theirs(sentences, is_split_into_words=True, add_special_tokens=False)
    for row, words in enumerate(sentences):
        wanted = [[] for _ in words]
        ids = encoded["input_ids"][row]
        for piece, word in zip(ids, encoded.word_ids(row), strict=True):
            wanted[word].append(piece)
        # A word of which nothing is left has no piece there.
        wanted = [pieces or [ours.unk_id] for pieces in wanted]
        assert ours.encode_words(words).to_list() == wanted, ascii(words)


@given(words=st.lists(st.one_of(st.text(max_size=9), st.binary(max_size=6)), max_size=9))
@settings(max_examples=40, deadline=None)
def test_no_word_is_lost_whatever_it_is(pair, words):
    ours, _ = pair
    pieces = ours.encode_words(words)
    assert pieces.nrows() == len(words)
    assert (pieces.row_lengths().numpy() > 0).all()
    for word, row in zip(words, pieces.to_list(), strict=True):
        if not ours.encode([word])[0].shape[0]:
            assert row == [ours.unk_id]


def test_within_a_text(pair):
    ours, _ = pair
    words = TEXT.split()
    joined = tf.concat(ours.encode_words(words), 0).flat_values.numpy().tolist()
    whole = ours.encode(TEXT).numpy().tolist()
    if isinstance(ours, BytePairTokenizer):  # its text begins without a space
        whole = ours.encode(" " + TEXT).numpy().tolist()
    assert joined == whole


def test_in_a_graph(pair):
    ours, _ = pair
    graph = tf.function(ours.encode_words, input_signature=[tf.TensorSpec([None], tf.string)])
    words = ["isn't", "", "Haus"]
    assert graph(tf.constant(words)).to_list() == ours.encode_words(words).to_list()
    assert (
        ours.encode_words("Haus").numpy().tolist() == ours.encode_words(words)[2].numpy().tolist()
    )
    assert ours.encode_words([]).to_list() == []


def test_a_tokenizer_without_an_unknown_token_is_refused():
    tokenizer = BytePairTokenizer(CHARACTERS, [], special_tokens={})
    with pytest.raises(
        ValueError, match=r"unknown token.*Received: a BytePairTokenizer without one"
    ):
        tokenizer.encode_words(["a"])
