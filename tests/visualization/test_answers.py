"""Bars of probabilities and words with their labels."""

from itertools import pairwise

import pytest

from kbert.visualization import probability_bars, tagged_words


def test_the_most_probable_label_comes_first(drawn):
    figure = probability_bars({"not spam": 0.25, "spam": 0.75}, title="WIN $1000 in $cash$")
    axes = figure.axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == ["spam", "not spam"]
    assert [round(bar.get_width(), 2) for bar in axes.patches] == [0.75, 0.25]
    assert "WIN $1000 in $cash$" in drawn(figure)


def test_nothing_certain_or_impossible_that_is_not():
    figure = probability_bars({"a": 0.999, "b": 0.001, "c": 0.0, "d": 1.0})
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert texts == ["100 %", "> 99 %", "< 1 %", "0 %"]


def test_labels_left_out_are_counted(drawn):
    texts = drawn(probability_bars({f"label {i}": i / 100 for i in range(50)}, most=5))
    assert "and 45 less probable" in texts
    assert "label 49" in texts
    assert "label 3" not in texts


@pytest.mark.parametrize("wrong", [{}, {"spam": 75}, {"spam": float("nan")}])
def test_what_is_no_probability(wrong):
    with pytest.raises(ValueError, match="a probability from 0 to 1"):
        probability_bars(wrong)


def texts(figure):
    return [text.get_text() for text in figure.axes[0].texts]


def test_words_of_one_entity_share_a_box():
    figure = tagged_words(["New", "York", "Paris", "is"], ["B-place", "I-place", "B-place", "O"])
    assert texts(figure) == ["New York", "place", "Paris", "place", "is"]
    assert len(figure.axes[0].patches) == 2


@pytest.mark.parametrize(
    ("labels", "boxes"),
    [
        ("S-place E-place", ["a", "b"]),
        ("B-place E-place I-place", ["a b", "c"]),
        ("U-place L-place O", ["a", "b"]),
        ("B-place I-time I-time", ["a", "b c"]),
        ("place I-place", ["a", "b"]),
        ("I-place I-place B-place", ["a b", "c"]),
        ("B-place O I-place", ["a", "c"]),
        ("B- I-", ["a", "b"]),
    ],
)
def test_words_are_joined_as_entities_are(labels, boxes):
    labels = labels.split()
    found = texts(tagged_words("a b c".split()[: len(labels)], labels))
    names = {label.partition("-")[2] or label for label in labels}
    assert [text for text, name in pairwise(found) if name in names] == boxes


def test_labels_without_a_scheme_are_drawn_as_they_are():
    figure = tagged_words(["un", "-", "do"], ["X-RAY", "PUNCT", "VERB"])
    assert texts(figure) == ["un", "X-RAY", "-", "PUNCT", "do", "VERB"]
    colours = {patch.get_edgecolor() for patch in figure.axes[0].patches}
    assert len(colours) == 3


def test_a_long_text_continues_in_the_next_line(boxes, overlaps):
    words = ["word", "internationalisation"] * 40
    figure = tagged_words(words, ["B-a-long-label", "O"] * 40)
    assert overlaps(boxes(figure)) == 0
    width = figure.get_figwidth() * figure.dpi
    assert all(box[0] >= 0 and box[2] <= width for box in boxes(figure))
    assert figure.get_figheight() > 4


def test_words_and_labels_must_agree():
    with pytest.raises(ValueError, match="Received: 2 words and 1 labels"):
        tagged_words(["a", "b"], ["O"])
