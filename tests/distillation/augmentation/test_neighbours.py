import numpy as np
import pytest

from kbert.distillation.augmentation import neighbours as neighbours_module
from kbert.distillation.augmentation.neighbours import Neighbours, model_neighbours, whole_words
from kbert.word_vectors import WordVectors


def test_among_words_of_letters():
    vectors = WordVectors(["film", "movie", ",", "pen"], [[1, 0.1], [1, 0], [1, 0.1], [-0.1, 2]])
    found = Neighbours.among(vectors)
    assert found.words == ["film", "movie", "pen"]
    assert found.nearest(["film", "FILM", "nothing", "pen"], 2) == [
        ["movie", "pen"],
        ["movie", "pen"],
        [],
        ["film", "movie"],
    ]
    other = Neighbours.among(WordVectors(["film", "movie"], [[1, 0.1], [1, 0]]))
    assert other.checksum != found.checksum
    with pytest.raises(ValueError, match="Received: vectors of 2 others, such as ','"):
        Neighbours.among(WordVectors([",", "7"], [[1.0], [2.0]]))


def test_neighbours_are_those_of_the_largest_cosine(monkeypatch):
    rng = np.random.default_rng(0)
    names = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(300)]
    table = rng.normal(size=(300, 8))
    table[7] = 0  # near to nothing
    cosines = (table @ table.T) / np.maximum(np.linalg.norm(table, axis=1), 1e-9)
    cosines[:, 7] = -9
    monkeypatch.setattr(neighbours_module, "_BLOCK", 1000)  # three words at a time
    found = Neighbours(names, table).nearest(names, 5)
    for row in (0, 9, 299):
        order = [i for i in np.argsort(-cosines[row]) if i != row]
        assert found[row] == [names[i] for i in order[:5]]
    assert found[7] == []


def test_equal_vectors_stay_in_their_order():
    table = np.tile(np.random.default_rng(0).normal(size=(1, 8)), (100, 1))
    names = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(100)]
    assert Neighbours(names, table).nearest(["wab"], 2) in ([["waa", "wac"]], [["waa", "wad"]])


def test_the_models_own_vectors(model, tokenizer):
    own = model_neighbours(model, ["foxing", "Fox", "dogless", "mööse", "καφές", "king"])
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
