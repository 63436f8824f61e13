"""Files of word vectors: read, written, by their layout, and damaged."""

import contextlib
import gzip
import struct

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from kbert.word_vectors import Subwords, WordVectors

WORDS = ["the", "fox", "über", "中文", "don't"]
VECTORS = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")


def write_text(path, header=True, words=WORDS, vectors=VECTORS):
    lines = [f"{len(words)} {vectors.shape[1]}"] if header else []
    lines += [
        f"{w} {' '.join(map(repr, v.tolist()))} " for w, v in zip(words, vectors, strict=True)
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def binary(newline=b"\n", words=WORDS, vectors=VECTORS):
    content = f"{len(words)} {vectors.shape[1]}\n".encode()
    for word, vector in zip(words, vectors, strict=True):
        content += word.encode() + b" " + struct.pack(f"<{len(vector)}f", *vector) + newline
    return content


def fasttext(words=WORDS, width=3, bucket=7, minn=2, maxn=4, **changes):
    """As `FastText::saveModel` writes it, and the table of words and buckets."""
    table = np.random.default_rng(1).normal(size=(len(words) + bucket, width)).astype("<f4")
    parts = {
        "magic": struct.pack("<i", 793712314),
        "version": struct.pack("<i", 12),
        "arguments": struct.pack(
            "<12id", width, 5, 5, 1, 5, 1, 1, 2, bucket, minn, maxn, 100, 1e-4
        ),
        "counts": struct.pack("<3i2q", len(words), len(words), 0, 99, -1),
        "entries": b"".join(w.encode() + b"\0" + struct.pack("<qb", 5, 0) for w in words),
        "quantised": b"\0",
        "sizes": struct.pack("<2q", *table.shape),
        "table": table.tobytes(),
        "rest": b"\0" + struct.pack("<2q", 0, 0),
    }
    return b"".join({**parts, **changes}.values()), table


def same(found, vectors=VECTORS):
    assert found.words == WORDS
    np.testing.assert_array_equal(found.matrix, vectors)


@pytest.mark.parametrize("header", [True, False], ids=["word2vec", "GloVe"])
def test_text(tmp_path, header):
    path = write_text(tmp_path / "v.txt", header)
    same(WordVectors.load(path))
    (tmp_path / "v.vec.gz").write_bytes(gzip.compress(path.read_bytes()))
    same(WordVectors.load(tmp_path / "v.vec.gz"))
    assert WordVectors.load(path, limit=2).words == WORDS[:2]


@pytest.mark.parametrize("newline", [b"\n", b""])
@pytest.mark.parametrize("packed", [False, True])
def test_binary(tmp_path, newline, packed):
    path = tmp_path / ("v.bin.gz" if packed else "v.bin")
    path.write_bytes(gzip.compress(binary(newline)) if packed else binary(newline))
    same(WordVectors.load(path))
    assert WordVectors.load(path, limit=2).words == WORDS[:2]


@pytest.mark.parametrize(("format", "name"), [("binary", "v.bin"), ("text", "v"), ("glove", "v")])
def test_what_is_written_is_read(tmp_path, format, name):
    WordVectors(WORDS, VECTORS).save(tmp_path / name, format)
    same(WordVectors.load(tmp_path / name))
    if format == "binary":
        assert (tmp_path / name).read_bytes() == binary()


def test_the_suffix_is_the_format(tmp_path):
    vectors = WordVectors(WORDS, VECTORS)
    for name in ("v.bin", "v.txt", "v.vec"):
        vectors.save(tmp_path / name)
        same(WordVectors.load(tmp_path / name))
    for name, format in (("w.bin", "text"), ("w.txt", "binary"), ("w.txt.gz", "text")):
        with pytest.raises(ValueError, match=rf"by its suffix.*{name} with format='{format}'"):
            vectors.save(tmp_path / name, format)
        assert not (tmp_path / name).exists()


def test_a_word_with_blanks_and_one_that_comes_twice(tmp_path, caplog):
    path = tmp_path / "glove.txt"
    path.write_text("a 1 2\n. . 3 4\na 5 6\n")
    found = WordVectors.load(path)
    assert (found.words, found.matrix.tolist()) == (["a", ". ."], [[1, 2], [3, 4]])
    assert "has 1 repeated words: only the first vector of each word is used" in caplog.text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a 1 2\nb 1\n", r"line 2: a line must be a word and 2 numbers.*Received: 'b 1'"),
        ("a 1 2\nb 1 nan\n", r"line 2: a vector must have finite numbers. Received: 'nan' for 'b'"),
        ("a 1 2\nb 1 x\n", r"line 2: a vector must have finite numbers. Received: 'x' for 'b'"),
        ("a 1 1e99\n", r"line 1: a vector must have finite numbers. Received: '1e99' for 'a'"),
        ("a\n", r"line 1: a line must be a word and numbers"),
        ("3 2\na 1 2\n", r"as its header declares, 3. Received: 1"),
        ("0 2\n", r"must have at least one word with its vector"),
        (
            "a 1 2\nb 3 4 5\n",
            r"line 2: a line must be a word and 2 numbers.*nothing more. Received: 'b 3 4 5'",
        ),
        ("2 2\na 1 2\nb 3 4 5\n", r"line 3: a line must be a word and 2 numbers.*nothing more"),
        ("the 0.1\nfox 0.1 0.2\n", r"line 2: a line must be a word and 1 numbers.*nothing more"),
        (" 1 2\nb 3 4\n", r"line 1: a line must be a word and numbers.*Received: ' 1 2'"),
    ],
)
def test_damaged_text(tmp_path, content, message):
    (tmp_path / "v.txt").write_text(content)
    with pytest.raises(ValueError, match=message):
        WordVectors.load(tmp_path / "v.txt")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            binary()[:-4],
            r"word 5 of 5: a vector must have 12 bytes. Received: 9, then the file ends",
        ),
        (b"9 3\n" + binary()[4:], r"word 6 of 9: the file is truncated. Received: b''"),
        (b"x 3\n", r"must begin with the number of words and the width. Received: 'x 3"),
        (b"1 1\n\xff \0\0\0\0", r"a word must be UTF-8.*Received: b'\\xff'"),
        (b"1 1\na \0\0\xc0\x7f", r"finite numbers. Received: nan for 'a'"),
        (b"999999999999 65000\na ", r"word 1 of 999999999999: a vector must have 260000 bytes"),
    ],
)
def test_damaged_binary(tmp_path, content, message):
    (tmp_path / "v.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        WordVectors.load(tmp_path / "v.bin")


@pytest.mark.parametrize("name", ["v.bin.gz", "v.txt.gz"])
def test_damaged_gzip(tmp_path, name):
    content = binary() if "bin" in name else write_text(tmp_path / "v.txt").read_bytes()
    (tmp_path / name).write_bytes(gzip.compress(content)[:-12])
    with pytest.raises(ValueError, match=rf"{name}.*gzip"):
        WordVectors.load(tmp_path / name)


def fnv(gram):
    value = 2166136261
    for byte in gram.encode():
        value = ((value ^ (byte - 256 if byte > 127 else byte)) % 2**32 * 16777619) % 2**32
    return value


def grams(word, minn, maxn):
    """All n-grams of a word between its signs, by their definition."""
    word = f"<{word}>"
    starts = [(i, n) for i in range(len(word)) for n in range(minn, maxn + 1) if i + n <= len(word)]
    return [word[i : i + n] for i, n in starts if n > 1 or 0 < i < len(word) - 1]


@pytest.mark.parametrize(("minn", "maxn"), [(2, 4), (1, 3), (0, 0)])
def test_fasttext(tmp_path, minn, maxn):
    content, table = fasttext(minn=minn, maxn=maxn)
    (tmp_path / "v.bin").write_bytes(content)
    found = WordVectors.load(tmp_path / "v.bin")
    assert found.words == WORDS
    for number, word in enumerate(WORDS):
        rows = [5 + fnv(gram) % 7 for gram in grams(word, minn, maxn)] if maxn else []
        wanted = table[[number, *rows]].mean(0)
        np.testing.assert_allclose(found.vectors([word])[0], wanted, atol=1e-6)
    if maxn:
        rows = [5 + fnv(gram) % 7 for gram in grams("foxglove", minn, maxn)]
        np.testing.assert_allclose(found.vectors(["foxglove"])[0], table[rows].mean(0), atol=1e-6)
    else:
        with pytest.raises(KeyError, match="Received: 'foxglove'"):
            found.vectors(["foxglove"])
    assert WordVectors.load(tmp_path / "v.bin", limit=2).words == WORDS[:2]


@pytest.mark.parametrize(("minn", "maxn"), [(2, 4), (1, 3), (0, 0)])
def test_a_fasttext_model_is_written_as_it_was_read(tmp_path, minn, maxn):
    content, table = fasttext(minn=minn, maxn=maxn)
    (tmp_path / "v.bin").write_bytes(content)
    found = WordVectors.load(tmp_path / "v.bin")
    found.save(tmp_path / "again.bin", "fasttext")
    again = WordVectors.load(tmp_path / "again.bin")
    assert again.words == WORDS
    np.testing.assert_allclose(again.matrix, found.matrix, atol=1e-6)
    np.testing.assert_array_equal(again.subwords.table, found.subwords.table)
    rows = len(WORDS) + len(found.subwords.table)
    written = (tmp_path / "again.bin").read_bytes()
    end = len(written) - 17 - 4 * 3 * len(WORDS)  # before the output matrix
    raw = np.frombuffer(written[end - 4 * 3 * rows : end], "<f4").reshape(rows, 3)
    np.testing.assert_allclose(raw, table[:rows], atol=1e-5)


def test_what_is_no_fasttext_model(tmp_path):
    with pytest.raises(ValueError, match=r"requires vectors with n-grams .*Received: none"):
        WordVectors(["a"], [[1.0]]).save(tmp_path / "v.bin", "fasttext")
    subwords = Subwords(np.ones((2, 1), "float32"), 3, 3)
    with pytest.raises(ValueError, match=r"not be empty or have NUL.*Received: 'a\\x00'"):
        WordVectors(["a\0"], [[1.0]], subwords).save(tmp_path / "v.bin", "fasttext")
    assert not (tmp_path / "v.bin").exists()


@pytest.mark.parametrize(("gram", "value"), [("foobar", 0xBF9CF968), ("a", 0xE40C292C)])
def test_hashes_are_those_of_fnv_1a(gram, value):
    table = np.broadcast_to(np.zeros((1, 1), "float32"), (2**32, 1))
    assert value in Subwords(table, len(gram), len(gram)).rows(gram)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": struct.pack("<i", 11)}, r"version 12. Received: version 11"),
        ({"quantised": b"\1"}, r"Quantised and pruned models are not supported"),
        ({"counts": struct.pack("<3i2q", 5, 5, 0, 99, 3)}, r"Quantised and pruned"),
        (
            {"counts": struct.pack("<3i2q", 2**30, 5, 2**30 - 5, 99, -1)},
            r"A dictionary must have words",
        ),
        ({"sizes": struct.pack("<2q", 2**40, 3)}, r"must have 5 \+ 7 rows of 3 numbers"),
        ({"table": b"\0" * 10, "rest": b""}, r"The table must have 144 bytes. Received: 10, then"),
        ({"arguments": b""}, r"."),
    ],
)
def test_damaged_fasttext(tmp_path, changes, message):
    (tmp_path / "v.bin").write_bytes(fasttext(**changes)[0])
    with pytest.raises(ValueError, match=message):
        WordVectors.load(tmp_path / "v.bin")


CONTENTS = {"v.bin": binary(), "f.bin": fasttext()[0], "v.txt": b"3 2\na 1 2\nb 3 4\nc 5 6\n"}


@pytest.mark.parametrize("name", CONTENTS)
@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_damage_is_an_error_or_a_file(tmp_path, name, data):
    """Bytes changed, cut out or put in: a ValueError, or vectors that are finite."""
    content = bytearray(CONTENTS[name])
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content)))
        end = place + data.draw(st.integers(0, 6))
        content[place:end] = data.draw(st.binary(max_size=6))
    path = tmp_path / name
    path.write_bytes(bytes(content))
    with contextlib.suppress(ValueError):
        found = WordVectors.load(path)
        assert np.isfinite(found.matrix).all()
        assert len(found.words) == len(found.matrix)


@pytest.mark.parametrize("words", [["a b"], ["a\n"], [""]])
def test_words_that_no_line_holds(tmp_path, words):
    with pytest.raises(ValueError, match=r"no blanks, no line breaks .*Received: "):
        WordVectors(words, [[1.0]]).save(tmp_path / "v.bin")
    assert not (tmp_path / "v.bin").exists()


@pytest.mark.parametrize(
    ("word", "formats", "message"),
    [
        ("\0", ("text", "glove"), r"no NUL character.*Received: '\\x00'"),
        ("\ufeffa", ("glove",), r"must not begin with U\+FEFF.*Received: '\\ufeffa'"),
    ],
)
def test_words_that_a_text_file_would_not_return(tmp_path, word, formats, message):
    vectors = WordVectors([word, "b"], [[1.0, 2.0], [3.0, 4.0]])
    for format in ("text", "glove", "binary"):
        path = tmp_path / ("v.bin" if format == "binary" else f"{format}.txt")
        if format in formats:
            with pytest.raises(ValueError, match=message):
                vectors.save(path, format)
            assert not path.exists()
        else:
            vectors.save(path, format)
            assert WordVectors.load(path).words == [word, "b"]


def test_gensim_reads_and_writes_the_same(tmp_path):
    gensim = pytest.importorskip("gensim.models")
    ours = WordVectors(WORDS, VECTORS)
    for format, is_binary in (("binary", True), ("text", False)):
        name = f"v.{'bin' if is_binary else 'txt'}"
        ours.save(tmp_path / name, format)
        theirs = gensim.KeyedVectors.load_word2vec_format(tmp_path / name, binary=is_binary)
        assert theirs.index_to_key == WORDS
        np.testing.assert_array_equal(theirs.vectors, VECTORS)
        theirs.save_word2vec_format(str(tmp_path / f"again-{name}"), binary=is_binary)
        same(WordVectors.load(tmp_path / f"again-{name}"))


def test_numbers_of_fasttext_that_are_not_finite(tmp_path):
    table = fasttext()[1]
    for value in (np.inf, np.nan, 3e38):
        table[:3], table[5:9] = -value, value
        (tmp_path / "v.bin").write_bytes(fasttext(table=table.tobytes())[0])
        with pytest.raises(ValueError, match=r"word 1: a vector must have finite numbers"):
            WordVectors.load(tmp_path / "v.bin")
    with pytest.raises(ValueError, match=r"n-grams must be finite numbers. Received: NaN or inf"):
        Subwords(table[5:], 2, 4).vector("fox")


def test_n_grams_are_counted_in_letters():
    table = np.eye(50, dtype="float32")
    assert Subwords(table, 3, 3).rows("où") == [fnv("<où") % 50, fnv("où>") % 50]
    assert Subwords(table, 3, 6).rows("</s>") == []
