"""Reading, checking and writing vocab.txt."""

import pytest
from transformers import AutoTokenizer

from kbert.tokenizers import (
    SPECIAL_TOKENS,
    WordPieceTokenizer,
    load_tokenizer,
    read_vocabulary,
    save_vocabulary,
)

GOOD = [*SPECIAL_TOKENS, "pen", "##s"]


def written(tmp_path, content: str | bytes) -> str:
    path = tmp_path / "vocab.txt"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_round_trip_keeps_every_piece(tmp_path):
    # U+2028 is a line of the published Chinese vocabulary; `str.splitlines` would end a line there.
    pieces = [*GOOD, "\u2028", "\u0085", "é", " ", "東", "\x1c"]
    save_vocabulary(pieces, tmp_path / "new" / "vocab.txt")
    assert read_vocabulary(tmp_path / "new" / "vocab.txt") == pieces
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["vocab.txt"]


def test_windows_line_ends_byte_order_mark_and_missing_last_line_feed(tmp_path):
    path = written(tmp_path, b"\xef\xbb\xbf" + "\r\n".join(GOOD).encode())
    assert read_vocabulary(path) == GOOD


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("\n".join([*GOOD, "pen"]), r"vocab.txt, line 6 and again at .*vocab.txt, line 8"),
        (
            "\n".join([*GOOD[:3], "", "", *GOOD[3:]]),
            r"Received: '' at .*vocab.txt, line 4 and again at .*vocab.txt, line 5",
        ),
        ("\n".join(GOOD) + "\n\n", r"not contain empty pieces. Received: .*vocab.txt, line 8"),
        ("\n".join(GOOD[2:]), r"vocab.txt without \[PAD\], \[UNK\]"),
        ("", r"vocab.txt without \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"),
        ("\n".join(GOOD).encode() + b"\n\xff", r"must be UTF-8. Received: .*vocab.txt, line 8"),
        ("\n".join([*GOOD, "a\0b"]), r"not contain U\+0000. Received: 'a\\x00b' at .*line 8"),
        ("\n".join([*GOOD, "x" * 300]), r"at most 256 bytes.*line 8"),
    ],
)
def test_a_bad_file_names_file_and_line(tmp_path, content, message):
    with pytest.raises(ValueError, match=message):
        WordPieceTokenizer(written(tmp_path, content))


def test_one_piece_may_be_empty(tmp_path):
    """As the piece 208 of legal-BERT; no text contains it."""
    pieces = [*GOOD[:5], "", "pen", "##s"]
    tokenizer = WordPieceTokenizer(written(tmp_path, "\n".join(pieces)))
    assert tokenizer.vocabulary == pieces
    texts = ["pens", "", " ", "x", "[added5] pens"]
    expected = [[6, 7], [], [], [1], [1, 1, 1, 6, 7]]
    assert tokenizer.encode(texts).to_list() == expected
    assert tokenizer.array_encoder(texts).to_list() == expected
    assert tokenizer.decode([5, 6, 7]).split() == ["pens"]
    tokenizer.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").checksum == tokenizer.checksum
    theirs = AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert [theirs(text, add_special_tokens=False).input_ids for text in texts] == expected


def test_a_bad_list_names_the_entry():
    with pytest.raises(ValueError, match="'pen' at entry 5 and again at entry 7"):
        WordPieceTokenizer([*GOOD, "pen"])
    with pytest.raises(ValueError, match=r"a list of 6 pieces without \[MASK\]"):
        WordPieceTokenizer([*GOOD[:4], *GOOD[5:]])
    with pytest.raises(TypeError, match=r"sequence of str. Received: 7 at entry 7"):
        WordPieceTokenizer([*GOOD, 7])


def test_a_vocabulary_without_pieces_is_refused_with_the_first_text():
    with pytest.raises(ValueError, match="tensorflow-text does not support this vocabulary"):
        WordPieceTokenizer(SPECIAL_TOKENS)(["pen"])


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No vocabulary file .*nothing.txt"):
        WordPieceTokenizer(tmp_path / "nothing.txt")


def test_a_bad_list_is_not_written(tmp_path):
    with pytest.raises(ValueError, match="fit on one line"):
        save_vocabulary([*GOOD, "a\nb"], tmp_path / "vocab.txt")
    assert not list(tmp_path.iterdir())


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    save_vocabulary(GOOD, tmp_path / "vocab.txt")

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="disk full"):
        save_vocabulary([*GOOD, "new"], tmp_path / "vocab.txt")
    assert read_vocabulary(tmp_path / "vocab.txt") == GOOD
    assert [p.name for p in tmp_path.iterdir()] == ["vocab.txt"]
