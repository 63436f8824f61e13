import gzip

import numpy as np
import pytest

from kbert.distillation.augmentation import WordVectors, read_vectors
from kbert.distillation.augmentation import vectors as vectors_module
from kbert.distillation.augmentation.vectors import model_vectors, whole_words

GLOVE = "film 1 0.1\nmovie 1.0 0\n, 1 0\npen -1e-1 2\n"


def test_reading_a_file(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_text(GLOVE)
    read = read_vectors(path)
    assert read.words == ["film", "movie", "pen"]
    assert read.nearest(["film", "FILM", "nothing", "pen"], 2) == [
        ["movie", "pen"],
        ["movie", "pen"],
        [],
        ["film", "movie"],
    ]
    assert read_vectors(path, limit=2).words == ["film", "movie"]
    with gzip.open(tmp_path / "w2v.txt.gz", "wt") as file:
        file.write("4 2\nfilm 1 0\nfilm 0 1\nat name@domain.com 1 1\nmovie 1 0.5 \r\n")
    again = read_vectors(tmp_path / "w2v.txt.gz")  # a header, a word twice, a word of two
    assert again.words == ["film", "movie"]
    assert again.checksum != read.checksum
    assert again.nearest(["film"], 1) == [["movie"]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("film 1 2\nmovie 1\n", r"line 2: a line is a word and 2 numbers.* Received: 'movie 1'"),
        ("film 1 2\n\n", "line 2: a line is a word and 2 numbers"),
        ("film\n", "line 1: a line is a word and numbers"),
        ("film 1 2\nmovie 1 x\n", r"line 2: .* finite numbers. Received: 'x' for 'movie'"),
        ("film 1 nan\n", r"line 1: .* finite numbers. Received: 'nan' for 'film'"),
        ("film 1 1e99\n", r"line 1: .* finite numbers. Received: '1e99' for 'film'"),
        ("1 2 3\n", "holds no vector of a word of letters"),
    ],
)
def test_bad_lines_are_named(tmp_path, content, message):
    path = tmp_path / "bad.txt"
    path.write_text(content)
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=f"bad.txt.*{message}"):
        read_vectors(path)
    with pytest.raises(ValueError, match=r"At least one vector is read. Received: limit=0"):
        read_vectors(path, limit=0)


def test_neighbours_are_those_of_the_largest_cosine(monkeypatch):
    rng = np.random.default_rng(0)
    names = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300)]
    table = rng.normal(size=(300, 8))
    table[7] = 0  # near to nothing
    cosines = (table @ table.T) / np.maximum(np.linalg.norm(table, axis=1), 1e-9)
    cosines[:, 7] = -9
    monkeypatch.setattr(vectors_module, "_BLOCK", 1000)  # three words at a time
    found = WordVectors(names, table).nearest(names, 5)
    for row in (0, 9, 299):
        order = [i for i in np.argsort(-cosines[row]) if i != row]
        assert found[row] == [names[i] for i in order[:5]]
    assert found[7] == []


def test_equal_vectors_stay_in_their_order():
    table = np.tile(np.random.default_rng(0).normal(size=(1, 8)), (100, 1))
    names = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(100)]
    assert WordVectors(names, table).nearest(["wab"], 2) in ([["waa", "wac"]], [["waa", "wad"]])


def test_the_models_own_vectors(model, tokenizer):
    own = model_vectors(model, ["foxing", "Fox", "dogless", "mööse", "καφές", "king"])
    table = model.encoder.token_embedding.numpy()
    fox, ing = (tokenizer.token_to_id(piece) for piece in ("fox", "##ing"))
    directions = {word: own._directions[own.row(word)] for word in ("fox", "foxing")}
    for word, ids in (("fox", [fox]), ("foxing", [fox, ing])):
        mean = table[ids].mean(0)
        np.testing.assert_allclose(directions[word], mean / np.linalg.norm(mean), rtol=1e-5)
    assert own.row("Fox") == own.row("fox")
    assert "Fox" not in own.words
    assert own.row("mööse") is not None
    assert own.row("καφές") is None
    assert {"king", "dogless", "x"} <= set(own.words)
    assert not {"##ing", "[MASK]", ",", "7"} & set(own.words)
    assert "fox" in own.nearest(["foxing"], 60)[0]
    assert "foxing" not in own.nearest(["foxing"], 60)[0]


def test_whole_words_of_a_vocabulary(tokenizer):
    words = whole_words(tokenizer)
    assert words["fox"] == tokenizer.token_to_id("fox")
    assert "ed" not in words
    assert not {"[CLS]", ".", "3"} & set(words)
