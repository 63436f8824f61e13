"""Pictures of a model's answers: bars of probabilities, and words with their labels."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kbert.metrics.entities import entity_spans
from kbert.visualization.canvas import (
    COLOURS,
    GREY,
    bare,
    label_axis,
    new_figure,
    set_title,
    shown,
    style,
)
from kbert.visualization.flow import Box, flow

_WIDTH = 9.0  # inches of a picture of words
_PREFIXES = frozenset("BIESLU")  # of BIO, BIOES and BILOU


def probability_bars(
    probabilities: Mapping[str, float], *, title: str | None = None, most: int = 12
) -> Any:
    """Draws a bar for each label, the most probable first: "spam 75 %".

    Args:
        probabilities: label -> probability, as the tasks' `predict` returns them.
        title: title above the picture, e.g. the text; None for none.
        most: maximum number of bars; a line below has the number of omitted labels.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there is no label, or a value is outside 0..1.

    Example:
        >>> figure = probability_bars({"not spam": 0.25, "spam": 0.75}, title="WIN a phone!")
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['75 %', '25 %']
    """
    wrong = {name: value for name, value in probabilities.items() if not 0 <= value <= 1 + 1e-6}
    if not probabilities or wrong:
        raise ValueError(
            "Every label must have a probability from 0 to 1, and there must be at least one "
            f"label. Received: {wrong or dict(probabilities)!r}"
        )
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])[:most]
    figure = new_figure(6.5, 0.5 + 0.42 * len(ranked) + 0.4 * (title is not None))
    axes = figure.add_subplot()
    colours = [COLOURS[0]] + ["#9ecae1"] * (len(ranked) - 1)
    bars = axes.barh(range(len(ranked)), [value for _, value in ranked], 0.62, color=colours)
    for bar, (_, value) in zip(bars, ranked, strict=True):
        position = (value + 0.01, bar.get_y() + bar.get_height() / 2)
        axes.text(*position, _percent(value), va="center", **style(fontsize=11))
    axes.set_xlim(0, 1.12)
    axes.set_ylim(len(ranked) - 0.45, -0.55)
    label_axis(axes.yaxis, [name for name, _ in ranked], fontsize=11)
    axes.set_xticks([])
    bare(axes, "left")
    if len(ranked) < len(probabilities):
        remainder = f"and {len(probabilities) - len(ranked):,} less probable"
        axes.set_xlabel(remainder, loc="left", **style(color=GREY, fontsize=9))
    set_title(axes, title)
    return figure


def tagged_words(
    words: Sequence[str],
    labels: Sequence[str],
    *,
    outside: Sequence[str] = ("O",),
    title: str | None = None,
) -> Any:
    """Draws words in reading order; labelled words have a coloured box with the label below.

    Words of one entity (labels "B-…", "I-…" and so on) share a box, as
    `kbert.metrics.entity_spans` joins them. The label is below each box, so that the picture can be
    read without its colours.

    Args:
        words: words of a text.
        labels: label of each word.
        outside: labels that mean "no entity" and are not drawn.
        title: title above the picture; None for none.

    Returns:
        A matplotlib Figure.

    Raises:
        ValueError: there is no word, or the numbers of labels and words differ.

    Example:
        >>> figure = tagged_words(["I", "love", "New", "York"], ["O", "O", "B-place", "I-place"])
        >>> [text.get_text() for text in figure.axes[0].texts]
        ['I', 'love', 'New York', 'place']
    """
    words, labels = list(words), list(labels)
    if len(words) != len(labels) or not words:
        raise ValueError(
            "Every word must have one label, and there must be at least one word. Received: "
            f"{len(words)} words and {len(labels)} labels"
        )
    groups = _groups(words, labels, set(outside))
    names = sorted({name for _, name in groups if name})
    colour_of = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}
    boxes = [Box(text, shown(name), colour_of.get(name)) for text, name in groups]
    return flow(boxes, _WIDTH, title)


def _percent(value: float) -> str:
    """Formats a share from 0 to 1 in whole percents; 0 % and 100 % only if they are exact."""
    if 0 < value < 0.005:
        return "< 1 %"
    return "> 99 %" if 0.995 <= value < 1 else f"{value:.0%}".replace("%", " %")


def _groups(
    words: Sequence[str], labels: Sequence[str], outside: Collection[str]
) -> list[tuple[str, str]]:
    """Joins the words of each entity.

    Args:
        words: words of a text.
        labels: label of each word; a prefix such as "B-" or "I-" marks its position in an entity.
        outside: labels that mean "no entity".

    Returns:
        (text, label without prefix) of each entity, and (word, "") of each other word, in order.
    """
    groups = [
        (shown(word), "" if label in outside else label)
        for word, label in zip(words, labels, strict=True)
    ]
    tags = [label if label not in outside and _has_prefix(label) else "O" for label in labels]
    for entity in reversed(entity_spans(tags)):  # from the end, so that the numbers stay
        part = slice(entity.start, entity.end)
        groups[part] = [(" ".join(map(shown, words[part])), entity.label)]
    return groups


def _has_prefix(label: str) -> bool:
    """Returns whether a label is a prefix and a name, such as "B-place"."""
    prefix, _, name = label.partition("-")
    return prefix in _PREFIXES and bool(name)
