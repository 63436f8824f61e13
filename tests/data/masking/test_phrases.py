import tempfile
import warnings

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data.masking.hashing import fold
from kbert.data.masking.phrases import Phrases, read_phrases
from kbert.data.masking.units import choose_words, find_units


def joined(phrases, row, begins):
    """The plain search: from left to right, the longest phrase that begins at a word."""
    begins, place = list(begins), 0
    while place < len(row):
        sizes = [
            len(phrase)
            for phrase in phrases
            if len(phrase) > 1
            and begins[place]
            and tuple(row[place : place + len(phrase)]) == tuple(phrase)
            and (place + len(phrase) == len(row) or begins[place + len(phrase)])
        ]
        size = max(sizes, default=1)
        begins[place + 1 : place + size] = [False] * (size - 1)
        place += size
    return begins


ids = st.integers(5, 8)


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(
    phrases=st.lists(st.lists(ids, min_size=2, max_size=6), min_size=1, max_size=8),
    rows=st.lists(st.lists(ids, min_size=14, max_size=14), min_size=1, max_size=3),
    seed=st.integers(0, 1000),
)
def test_phrases_are_those_of_a_plain_search(phrases, rows, seed):
    rng = np.random.default_rng(seed)
    begins = rng.random((len(rows), 14)) < 0.8
    begins[:, 0] = True
    # [CLS] text [SEP]: no phrase continues in the next row.
    token_ids = np.pad(np.array(rows), [[0, 0], [1, 1]], constant_values=2).astype(np.int32)
    in_text, flags = token_ids > 4, np.pad(begins, [[0, 0], [1, 1]])
    found = Phrases(phrases).join(tf.constant(token_ids), tf.constant(in_text), tf.constant(flags))
    expected = [joined(phrases, *row) for row in zip(rows, begins, strict=True)]
    assert found.numpy()[:, 1:-1].tolist() == expected
    assert not found.numpy()[:, [0, -1]].any()


def test_ids_that_differ_only_far_up_are_told_apart():
    token_ids = tf.constant([[2, 65_541, 6, 5, 65_542, 5, 6, 3]])
    in_text = token_ids > 4
    found = Phrases([[5, 6]]).join(token_ids, in_text, in_text)
    assert found.numpy()[0].tolist() == [False, True, True, True, True, True, False, False]


def test_a_lexicon_longer_than_the_row():
    token_ids = tf.constant([[2, 5, 6, 3]])
    in_text = token_ids > 4
    found = Phrases([[5] * 9, [5, 6]]).join(token_ids, in_text, in_text)
    assert found.numpy()[0].tolist() == [False, True, False, False]


def test_phrases_are_masked_whole():
    rng = np.random.default_rng(0)
    token_ids = rng.integers(5, 9, (500, 64)).astype(np.int32)
    token_ids[:, 0], token_ids[:, -1] = 2, 3
    in_text = token_ids > 4
    units = find_units(
        tf.constant(in_text),
        Phrases([[5, 6, 7], [8, 8]]).join(
            tf.constant(token_ids), tf.constant(in_text), tf.constant(in_text)
        ),
    )
    chosen = choose_words(fold(0, tf.range(500)), units, tf.fill([500], 9), 10).numpy()
    phrases = 0
    for start, size in zip(units.start.numpy(), units.size.numpy(), strict=True):
        row, column = divmod(start, 64)
        shares = np.isin(np.arange(column, column + size), chosen[row])
        assert shares.all() or not shares.any()
        phrases += size > 1 and shares.all()
    assert phrases > 200


@pytest.fixture
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


def test_a_lexicon_of_strings_or_lines(tokenizer, tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_text("The red fox\n\n the dog \r\n", encoding="utf-8")
    spelt = tokenizer.encode(["[CLS] the red fox the dog the fox"]).to_tensor()
    for phrases in (path, str(path), ["The red fox", "the dog"]):
        flags = tf.ones_like(spelt, tf.bool)
        found = read_phrases(phrases, tokenizer).join(spelt, flags, flags).numpy()[0]
        words = [tokenizer.id_to_token(n) for n in spelt[0, -7:]]
        assert words == ["the", "red", "fox", "the", "dog", "the", "fox"]
        assert found[-7:].tolist() == [True, False, False, True, False, True, True]


def test_a_byte_order_mark_is_no_part_of_a_phrase(tmp_path):
    """Byte-level BPE spells it; WordPiece's normalisation drops it."""
    path = tmp_path / "lexicon.txt"
    path.write_text("the red fox\n", encoding="utf-8-sig")
    tokenizer = kbert.tokenizers.train_tokenizer(["the red fox runs"] * 3, 270, kind="bpe")
    spelt = tokenizer.encode(["the red fox runs"]).to_tensor()
    flags = tf.ones_like(spelt, tf.bool)
    by_file, by_list = (
        read_phrases(phrases, tokenizer).join(spelt, flags, flags).numpy()
        for phrases in (path, ["the red fox"])
    )
    assert np.array_equal(by_file, by_list)
    assert not by_list.all()


def test_phrases_that_cannot_be_spelt_are_named(tokenizer):
    with pytest.warns(UserWarning, match="1 of 2 phrases have characters.*such as 'the 狐'"):
        read_phrases(["the 狐", "the dog"], tokenizer)


@pytest.mark.parametrize(
    ("phrases", "message"),
    [
        ([], "`phrases` must contain at least one phrase. Received: none"),
        (["dog", "fox"], "must contain a phrase of at least two tokens.*Received: "),
        (["the dog", 3], "must be a path or a sequence of strings. Received: 3 of type int"),
    ],
)
def test_lexica_that_are_refused(tokenizer, phrases, message):
    with pytest.raises(ValueError, match=message):
        read_phrases(phrases, tokenizer)


def test_a_lexicon_that_is_not_utf_8_is_refused_by_line(tokenizer, tmp_path):
    path = tmp_path / "lexicon.txt"
    path.write_bytes(b"the dog\n\xff\xfe\n")
    with pytest.raises(ValueError, match=r"lexicon.txt, line 2: .* UTF-8. Received: b'.xff"):
        read_phrases(path, tokenizer)
    with pytest.raises(FileNotFoundError, match=r"No such lexicon .*Received: .*nowhere"):
        read_phrases(tmp_path / "nowhere", tokenizer)


_ASCII = kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##a"])


@hypothesis.settings(max_examples=25, deadline=None)
@hypothesis.given(st.binary(max_size=60))
def test_any_bytes_are_a_lexicon_or_refused(data):
    with tempfile.NamedTemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file.write(data)
        file.flush()
        try:
            phrases = read_phrases(file.name, _ASCII)
        except ValueError as error:
            message = str(error)
        else:
            assert isinstance(phrases, Phrases)
            return
    assert "Received" in message
