"""BERTScore against a plain implementation on transformers' hidden states."""

import math

import numpy as np
import pandas as pd
import pytest

import kbert
from tests.harness import assert_close

CANDIDATES = ["the quick brown fox", "a red pen!", "x", "the king walked to the river"]
REFERENCES = ["the brown fox jumps", "a blue book, a pen", "the queen", "the king and the queen"]
LAYER = 3


def frequencies(tokenizer, references):
    """Token -> inverse document frequency, as in section 3 of the paper with add-one counts."""
    documents = [set(tokenizer.encode(text).numpy().tolist()) for text in references]

    def idf(token):
        count = sum(token in document for document in documents)
        return math.log((len(documents) + 1) / (count + 1))

    return idf


@pytest.fixture(scope="module")
def plain(tokenizer, hidden_states):
    """Precision, recall and F1 of a pair, with loops over tokens; special tokens do not count."""

    def score(candidate, reference, idf):
        sides = []
        for text in (candidate, reference):
            vectors = hidden_states([text])[0][LAYER].astype("float64")
            vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
            ids = tokenizer.encode(text).numpy().tolist()
            sides.append((vectors, [0.0, *map(idf, ids), 0.0]))
        shares = []
        for (vectors, weights), (others, _) in (sides, sides[::-1]):
            best = [max(float(x @ y) for y in others) for x in vectors]
            total = sum(weights)
            shares.append(sum(w * b for w, b in zip(weights, best, strict=True)) / total)
        precision, recall = shares
        return [precision, recall, 2 * precision * recall / (precision + recall)]

    return score


@pytest.mark.parametrize("idf", [False, True], ids=["plain", "idf"])
def test_scores_equal_a_plain_implementation(encoder, tokenizer, plain, idf):
    found = kbert.bert_score(
        encoder, tokenizer, CANDIDATES, REFERENCES, layer=LAYER, idf=idf, verbose=0
    )
    weigh = frequencies(tokenizer, REFERENCES) if idf else lambda token: 1.0
    pairs = zip(CANDIDATES, REFERENCES, strict=True)
    expected = [plain(*pair, weigh) for pair in pairs]
    assert_close(np.stack(found, 1), np.array(expected), 1e-5)


def test_the_best_of_several_references_counts(encoder, tokenizer):
    options = {"layer": LAYER, "verbose": 0}
    rows = [REFERENCES[:2], [REFERENCES[2]], REFERENCES]
    found = kbert.bert_score(encoder, tokenizer, CANDIDATES[:3], rows, **options)
    for number, row in enumerate(rows):
        copies = [CANDIDATES[number]] * len(row)
        each = kbert.bert_score(encoder, tokenizer, copies, row, **options)
        assert_close([x[number] for x in found], [x.max() for x in each], 1e-6)


def test_series_are_matched_by_position(encoder, tokenizer):
    frame = pd.DataFrame({"x": CANDIDATES[:3], "y": REFERENCES[:3]}, index=[7, 1, 0])
    options = {"layer": LAYER, "verbose": 0}
    found = kbert.bert_score(encoder, tokenizer, frame.x, frame.y, **options)
    lists = kbert.bert_score(encoder, tokenizer, CANDIDATES[:3], REFERENCES[:3], **options)
    np.testing.assert_array_equal(found, lists)


def test_rescaled_scores(encoder, tokenizer, monkeypatch):
    monkeypatch.setattr("kbert.extraction.bertscore._PAIRS", 3)  # in two parts
    arguments = (encoder, tokenizer, CANDIDATES, REFERENCES)
    raw = kbert.bert_score(*arguments, layer=-1, verbose=0)
    for rescale in (0.5, (0.1, 0.5, -0.2)):
        found = kbert.bert_score(*arguments, layer=-1, rescale=rescale, verbose=0)
        floors = np.broadcast_to(rescale, 3)
        for score, raw_score, floor in zip(found, raw, floors, strict=True):
            assert_close(score, (raw_score - floor) / (1 - floor), 1e-6)


def test_a_text_without_tokens_scores_nothing(encoder, tokenizer):
    texts = ["", "the fox", ""]
    found = kbert.bert_score(encoder, tokenizer, texts, texts[::-1], layer=1, verbose=0)
    assert [x.tolist() for x in found] == [[0.0, pytest.approx(1), 0.0]] * 3


@pytest.mark.parametrize(
    ("candidates", "references", "options", "message"),
    [
        (["a"], [[]], {}, "at least one reference. Received: none at 0"),
        (["a"], ["b", "c"], {}, "Received"),
        (["a"], ["b"], {"layer": 9}, "0 .the embeddings. to 5. Received: 9"),
        (["a", "b\ud800"], ["b", "c"], {}, "Number 1 of candidates.* half a surrogate pair at.* 1"),
        (["a"], [["b", "\ud800"]], {"idf": True}, "Number 1 of references.* half a surrogate pair"),
        (["a"], ["b"], {"rescale": 1.0}, "below 1.*Received: rescale=1.0"),
        (["a"], ["b"], {"rescale": (0.1, 0.2)}, "recall and F1. Received: rescale="),
    ],
    ids=["no reference", "lengths", "layer", "surrogate", "reference", "rescale", "two numbers"],
)
def test_arguments_that_are_refused(encoder, tokenizer, candidates, references, options, message):
    with pytest.raises(ValueError, match=message):
        kbert.bert_score(
            encoder, tokenizer, candidates, references, **{"layer": 1, "verbose": 0, **options}
        )
