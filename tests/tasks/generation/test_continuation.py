"""Text behind a prompt: what pieces add, at once, in a graph and as they come."""

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.tasks.generation.continuation import TextStream, continuations, cut
from kbert.tokenizers import (
    BytePairTokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    train_byte_pair,
    train_unigram,
)
from tests.tasks.generation.writing import SPECIALS

CORPUS = ["it's größer, he said. don't!", "the fox — the dog 💡"] * 9
TOKENIZERS = {
    "bytes": BytePairTokenizer(*train_byte_pair(CORPUS, 300)),
    "unigram": UnigramTokenizer(train_unigram(CORPUS, 45)),
    "wordpiece": WordPieceTokenizer(
        [*SPECIALS, *"it'sm.,!", "##s", "##ing", "don", "##t", "n't", "fox"]
    ),
}
IDS = st.lists(st.integers(0, 10_000), max_size=12)


def ids_of(tokenizer, numbers):
    return [number % tokenizer.vocabulary_size for number in numbers]


def ragged(*rows):
    return tf.ragged.constant(list(rows), tf.int32, row_splits_dtype=tf.int64)


@pytest.mark.graphs
@pytest.mark.parametrize(
    "kind", ["bytes", pytest.param("unigram", marks=pytest.mark.slow), "wordpiece"]
)
@settings(max_examples=40, deadline=None)
@given(prompt=IDS, new=IDS, stop=st.lists(st.sampled_from([" ", "s", "t", "'s", "e d"])))
def test_a_stream_gives_the_continuation_and_takes_nothing_back(kind, prompt, new, stop):
    tokenizer = TOKENIZERS[kind]
    prompt, new = ids_of(tokenizer, prompt), ids_of(tokenizer, new)
    whole = continuations(tokenizer, ragged(prompt), ragged(new)).numpy()[0].decode()
    stream = TextStream(tokenizer, prompt, stop)
    given = ""
    for token_id in new:
        given += stream.add(token_id)
        if stream.ended:
            break
    given += stream.finish()
    assert given == cut(whole, stop)


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_prompt_and_continuation_are_the_text(kind):
    tokenizer = TOKENIZERS[kind]
    ids = tokenizer.encode("it's the fox, größer").numpy()
    whole = tokenizer.decode(ids.tolist())
    for n in range(len(ids) + 1):
        before = tokenizer.decode(ids[:n].tolist())
        rest = continuations(tokenizer, ragged(ids[:n]), ragged(ids[n:])).numpy()[0].decode()
        if whole.startswith(before) and "\ufffd" not in before:
            assert before + rest == whole


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_same_in_a_graph(kind):
    tokenizer = TOKENIZERS[kind]
    rng = np.random.default_rng(0)
    rows = [rng.integers(0, tokenizer.vocabulary_size, n) for n in (5, 0, 1, 9, 3, 0)]
    prompts, new = ragged(*rows[:3]), ragged(*rows[3:])
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    graph = tf.function(lambda a, b: continuations(tokenizer, a, b), input_signature=[spec, spec])
    want = [
        continuations(tokenizer, ragged(a), ragged(b)).numpy()[0]
        for a, b in zip(rows[:3], rows[3:], strict=True)
    ]
    assert graph(prompts, new).numpy().tolist() == want
    texts = graph(ragged([], [], []), new).numpy().tolist()
    decoded = tokenizer.decode([row.tolist() for row in rows[3:]])
    assert [text.decode() for text in texts] == decoded


def test_where_joining_changes_the_prompt_the_new_tokens_stand_alone():
    tokenizer = TOKENIZERS["wordpiece"]
    it, s = (tokenizer.encode(text).numpy() for text in ("it '", "s"))
    assert tokenizer.decode(np.append(it, s).tolist()) == "it's"
    assert continuations(tokenizer, ragged(it), ragged(s)).numpy()[0] == b"s"


def test_no_half_characters():
    tokenizer = TOKENIZERS["bytes"]
    stream = TextStream(tokenizer, tokenizer.encode("a").numpy())
    spelled = [tokenizer.token_to_id(piece) for piece in "ðŁĳį"]  # four bytes of one character
    assert [stream.add(i) for i in spelled] == ["", "", "", "👍"]
    assert [stream.add(spelled[0]), stream.finish()] == ["", "\ufffd"]


def test_a_stop_string_is_held_back_until_it_is_none():
    tokenizer = TOKENIZERS["bytes"]
    letters = {c: tokenizer.token_to_id(c) for c in "abcd"}
    stream = TextStream(tokenizer, [letters["a"]], ["abc"])
    assert [stream.add(letters[c]) for c in "dabdabc"] == ["d", "", "", "abd", "", "", ""]
    assert stream.ended
    assert stream.finish() == ""
