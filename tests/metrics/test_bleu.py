"""BLEU and chrF: sacrebleu's numbers, and its formula by hand."""

import math

import pandas as pd
import pytest

from kbert.metrics import bleu, chrf, rouge

HYPOTHESES = ["The cat sits on a mat .", "A dog runs ."]
REFERENCES = ["The cat sits on the mat .", "A dog runs away from me ."]


def test_the_formula_by_hand():
    result = bleu(HYPOTHESES, REFERENCES)
    # Of 7 + 4 tokens 6 + 4 are in the references (the second "." is there too), and so on.
    precisions = [10 / 11, 6 / 9, 3 / 7, 1 / 5]
    assert result.precisions == pytest.approx([100 * p for p in precisions])
    assert result.brevity_penalty == pytest.approx(math.exp(1 - 14 / 11))
    assert result.length_ratio == pytest.approx(11 / 14)
    mean = math.exp(sum(map(math.log, precisions)) / 4)
    assert result.score == pytest.approx(100 * result.brevity_penalty * mean)


def test_equal_to_sacrebleu():
    import sacrebleu

    assert (
        bleu(HYPOTHESES, REFERENCES).score == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES]).score
    )
    assert chrf(HYPOTHESES, REFERENCES) == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    plus = sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES], word_order=2).score
    assert chrf(HYPOTHESES, REFERENCES, word_order=2) == plus
    assert plus != chrf(HYPOTHESES, REFERENCES)


@pytest.mark.parametrize("word_order", [-1, 1.0, True])
def test_the_order_of_words_is_an_integer(word_order):
    with pytest.raises(ValueError, match=r"integer of at least 0\. Received"):
        chrf(["a"], ["a"], word_order=word_order)


def test_a_perfect_translation_and_none():
    assert bleu(REFERENCES, REFERENCES).score == pytest.approx(100)
    assert chrf(REFERENCES, REFERENCES) == pytest.approx(100)
    nothing = bleu(["", ""], REFERENCES)
    assert nothing.score == nothing.brevity_penalty == 0


def test_several_references():
    both = [
        [reference, hypothesis]
        for reference, hypothesis in zip(REFERENCES, HYPOTHESES, strict=True)
    ]
    assert bleu(HYPOTHESES, both).score == pytest.approx(100)
    assert "nrefs:2" in bleu(HYPOTHESES, both).signature
    assert chrf(HYPOTHESES, both) == pytest.approx(100)


def test_options_stand_in_the_signature():
    upper = [text.upper() for text in HYPOTHESES]
    plain, lower = bleu(upper, REFERENCES), bleu(upper, REFERENCES, lowercase=True)
    assert plain.score < lower.score == bleu(HYPOTHESES, REFERENCES).score
    assert "case:mixed" in plain.signature
    assert "case:lc" in lower.signature
    assert "tok:13a" in plain.signature
    assert "version:" in plain.signature
    chinese = bleu(["猫坐在垫子上。"], ["猫坐在垫子上!"], tokenize="zh")
    assert "tok:zh" in chinese.signature
    assert 50 < chinese.score < 100
    assert str(plain).startswith(f"BLEU {plain.score:.2f} (")
    assert plain.signature in str(plain)


def test_series_are_matched_by_position():
    """A frame that was sorted or filtered has an index in another order, or with gaps."""
    frame = pd.DataFrame({"x": HYPOTHESES, "y": REFERENCES}, index=[3, 0])
    assert bleu(frame.x, frame.y) == bleu(HYPOTHESES, REFERENCES)
    assert rouge(frame.x, frame.y) == rouge(HYPOTHESES, REFERENCES)


@pytest.mark.parametrize("metric", [bleu, chrf])
@pytest.mark.parametrize(
    ("hypotheses", "references", "message"),
    [
        (["a", "b"], ["a"], "as many references as hypotheses.*2 hypotheses and 1 references"),
        ([], [], "at least one. Received: 0 hypotheses"),
        ("ab", ["a", "b"], "lists of texts. Received: one text"),
        (["a"], [None], "a string or a list of strings. Received: 'a' and None at 0"),
        (["a", b"b"], ["a", "b"], "Received: b'b' and 'b' at 1"),
        (["a", "b"], [["a"], ["b", "c"]], r"as many references as the others.*\[1, 2\]"),
        (["a"], [[]], r"at least one. Received: \[0\]"),
        ({"a"}, ["a"], "value of hypotheses must have an order"),
        (["a"], {"a"}, "value of references must have an order"),
    ],
)
def test_bad_input(metric, hypotheses, references, message):
    with pytest.raises(ValueError, match=message):
        metric(hypotheses, references)


def test_an_unknown_tokenizer():
    with pytest.raises(ValueError, match=r"tokenize must be one of 13a, .* Received: 'moses'"):
        bleu(["a"], ["a"], tokenize="moses")
