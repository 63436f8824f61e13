"""Ranges of pieces in the text as given."""

import tensorflow as tf

from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer

PIECES = "cafe cafes naive x ##x i ##s ! ο ##δ ##ος ᄀ ##ᅡ ##ᆨ 東 fi ##sh".split()
TOKENIZER = WordPieceTokenizer([*SPECIAL_TOKENS, *PIECES])


def slices(text: str, unit: str = "character") -> list[str]:
    out = TOKENIZER.encode_with_offsets(text, unit)
    given = text if unit == "character" else text.encode()
    found = [given[a:z] for a, z in zip(out["starts"].numpy(), out["ends"].numpy(), strict=True)]
    return found if unit == "character" else [piece.decode() for piece in found]


# Text -> the slices that its pieces point at.
TABLE = {
    "Café!": ["Café", "!"],
    "cafe\u0301s cafe\u0301\u0327 !": ["cafe\u0301s", "cafe\u0301\u0327", "!"],
    "\u0301cafe": ["cafe"],  # a mark that follows no letter
    "ca\u00adfe\u200b!": ["ca\u00adfe", "!"],  # inside a word dropped signs are in its range
    "  XX  x": ["X", "X", "x"],
    "İs": ["İ", "s"],
    "ΟΔΟΣ": ["Ο", "Δ", "ΟΣ"],
    "각x": ["각", "각", "각", "x"],  # three pieces of one character
    "東東": ["東", "東"],
    "fish\u2028unknown": ["fi", "sh", "unknown"],
    "fi\u0000sh": ["fi", "\u0000sh"],
    "": [],
}


def test_slices_of_the_table_in_both_units():
    for text, expected in TABLE.items():
        expected = [s.lstrip("\0") for s in expected]
        assert slices(text) == expected, ascii(text)
        assert slices(text, "byte") == expected, ascii(text)


def test_rows_of_a_batch_do_not_touch():
    # A text that begins with a mark must not lengthen the last piece of the text before it.
    texts = [*TABLE, "x", "\u0301x", "", "x"]
    together = TOKENIZER.encode_with_offsets(texts, "character")
    for key in ("token_ids", "starts", "ends", "word_index"):
        alone = [TOKENIZER.encode_with_offsets(t, "character")[key].numpy().tolist() for t in texts]
        assert together[key].to_list() == alone


def test_word_index_counts_words_and_punctuation():
    out = TOKENIZER.encode_with_offsets(["xx! unknown 東東", "fish"])
    assert out["word_index"].to_list() == [[0, 0, 1, 2, 3, 4], [0, 0]]


def test_invalid_bytes_keep_the_ranges_right():
    text = b"\xffcafe\xe4\xbd !\xed\xa0\x80x"
    out = TOKENIZER.encode_with_offsets(text)
    found = [text[a:z] for a, z in zip(out["starts"].numpy(), out["ends"].numpy(), strict=True)]
    assert found == [b"cafe", b"!", b"x"]
    shown = text.decode("utf-8", "replace")
    out = TOKENIZER.encode_with_offsets(text, "character")
    found = [shown[a:z] for a, z in zip(out["starts"].numpy(), out["ends"].numpy(), strict=True)]
    assert found == ["cafe", "!", "x"]


def test_reordered_musical_marks_do_not_raise():
    # The only characters whose order NFD changes and that are not dropped.
    text = "x\U0001d16d\U0001d165x \U0001d15e cafe"
    assert slices(text)[-1] == "cafe"


def test_int32_everywhere():
    for value in TOKENIZER.encode_with_offsets(["x"]).values():
        assert value.dtype == tf.int32
