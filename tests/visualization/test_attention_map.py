"""Heat maps and lines of attention weights that are arrays."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection

from kbert.visualization import attention_map
from kbert.visualization.attention_drawing import tile
from kbert.visualization.attention_reading import as_weights, index_of

STRANGE = ["北京", "السلام", "नमस्ते", "$x_{", r"\frac", "two\nlines", "\ud800", "x" * 200, ""]


def each_once(quick, slow):
    return [*quick, *(pytest.param(*case, marks=pytest.mark.slow) for case in slow)]


def weights(*shape):
    """Rows that sum to 1."""
    values = np.random.default_rng(0).random(shape) ** 4
    return values / values.sum(-1, keepdims=True)


def lines(axes):
    """[(row, column, strength)] of what is drawn."""
    (found,) = [x for x in axes.collections if isinstance(x, LineCollection)]
    return [
        (start[1], end[1], colour[3])
        for (start, end), colour in zip(found.get_segments(), found.get_colors(), strict=True)
    ]


def test_rows_look_and_columns_are_looked_at(drawn):
    values = weights(2, 3)
    figure = attention_map(values, ["a", "b"], ["c", "d", "e"], titles=("written", "read"))
    axes = figure.axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), values, atol=1e-6)
    assert axes.yaxis.get_inverted()  # the first row is the highest
    texts = drawn(figure)
    assert {"a", "b", "c", "d", "e", "written", "read", "weight"} <= set(texts)


def test_lines_are_as_strong_as_the_weights():
    values = np.array([[0.0, 1.0], [0.5, 0.5]])
    figure = attention_map(values, ["a", "b"], ["c", "d"], view="lines")
    assert sorted(lines(figure.axes[0])) == [(0, 1, 1.0), (1, 0, 0.5), (1, 1, 0.5)]


@pytest.mark.parametrize("view", ["heatmap", "lines"])
def test_heads_stand_side_by_side_with_their_numbers(view, drawn):
    texts = drawn(attention_map(weights(5, 4, 4), list("abcd"), view=view, title="Five heads"))
    assert [text for text in texts if text.startswith("head")] == [f"head {i}" for i in range(5)]
    assert "Five heads" in texts
    assert {"a", "b", "c", "d"} <= set(texts)


def test_panels_share_one_scale():
    values = np.stack([np.full((2, 2), 0.1), np.eye(2)])
    figure = attention_map(values, ["a", "b"])
    assert {axes.images[0].get_clim() for axes in figure.axes[:2]} == {(0.0, 1.0)}


@pytest.mark.parametrize("view", ["heatmap", "lines"])
def test_layers_of_one_head_are_named_as_layers(view, drawn):
    texts = drawn(attention_map(weights(3, 1, 2, 2), ["a", "b"], view=view))
    assert {"layer 0", "layer 1", "layer 2"} <= set(texts)
    assert "head 0" not in texts


@pytest.mark.parametrize("view", ["heatmap", "lines"])
def test_all_heads_of_all_layers_are_numbered(view, drawn):
    texts = drawn(attention_map(weights(3, 12, 5, 4), list("abcde"), list("abcd"), view=view))
    assert {"layer", "head", "0", "1", "2", "11"} <= set(texts)
    assert "a" not in texts


def test_tiles_keep_every_weight_in_its_place():
    values = weights(2, 3, 4, 5).astype("float32")
    mosaic, (high, wide) = tile(values)
    for layer, head in np.ndindex(2, 3):
        part = mosaic[layer * high :, head * wide :][:4, :5]
        np.testing.assert_array_equal(part, values[layer, head])
    assert np.isnan(mosaic).sum() == mosaic.size - values.size


@pytest.mark.parametrize(
    ("shape", "view"),
    each_once(
        [((9, 9), "heatmap"), ((2, 9, 9), "lines"), ((2, 2, 9, 9), "heatmap")],
        [((9, 9), "lines"), ((2, 9, 9), "heatmap"), ((2, 2, 9, 9), "lines")],
    ),
    ids=str,
)
def test_any_text_is_drawn_as_it_is(view, shape, drawn):
    texts = drawn(
        attention_map(weights(*shape), STRANGE, view=view, title=STRANGE[3]), missing_glyphs=True
    )
    assert "$x_{" in texts
    assert len(shape) == 4 or r"\frac" in texts


@pytest.mark.parametrize(
    ("tokens", "view"),
    each_once(
        [(1, "heatmap"), (2, "lines"), (40, "heatmap"), (128, "lines")],
        [(1, "lines"), (2, "heatmap"), (40, "lines"), (128, "heatmap")],
    ),
)
def test_names_do_not_meet(view, tokens, overlaps):
    names = [f"token{i}" for i in range(tokens)]
    figure = attention_map(weights(tokens, tokens), names, view=view)
    figure.draw_without_rendering()
    renderer = figure.canvas.get_renderer()
    found = figure.axes[0].get_yticklabels()
    assert [text.get_text() for text in found] == names
    # Letters stand nearer together than the lines of a paragraph, but no letter meets another.
    boxes = [text.get_window_extent(renderer).shrunk(1, 0.7).extents for text in found]
    assert overlaps(boxes) == 0


def test_small_panels_of_many_tokens_have_no_names():
    figure = attention_map(weights(4, 60, 60), [f"t{i}" for i in range(60)])
    assert not any(label.get_text() for label in figure.axes[0].get_yticklabels())


def test_an_attention_of_nothing_is_drawn(drawn):
    drawn(attention_map(np.zeros((2, 2)), ["a", "b"]))
    drawn(attention_map(np.zeros((2, 2)), ["a", "b"], view="lines"))


@pytest.mark.parametrize(
    ("values", "rows", "message"),
    [
        (np.ones((2, 3)), ["a", "b"], r"shape \(2, 3\), 2 names of rows and 2 of columns"),
        (np.ones(2), ["a", "b"], "Attention weights must be"),
        (np.ones((0, 1, 1)), ["a"], "must not be empty"),
        ([[1.5]], ["a"], "between 0 and 1. Received: values from 1.5 to 1.5"),
        ([[-0.5]], ["a"], "between 0 and 1"),
        ([[np.nan]], ["a"], "between 0 and 1"),
        (np.eye(129), ["a"] * 129, "at most 128 tokens.* Received: 129 rows and 129 columns"),
    ],
    ids=["shape", "rank", "empty", "large", "negative", "nan", "long"],
)
def test_what_is_no_attention(values, rows, message):
    with pytest.raises(ValueError, match=message):
        attention_map(values, rows)


def test_sums_of_rounded_numbers_are_cut_at_one():
    assert as_weights([[1.004]], ["a"], None, ("", "")).values.max() == 1.0


def test_an_unknown_view():
    with pytest.raises(ValueError, match=r"view must be one of .* Received: 'graph'"):
        attention_map([[1.0]], ["a"], view="graph")


def test_numbers_count_from_both_ends():
    assert [index_of("head", i, 3) for i in (0, 2, -1, -3)] == [0, 2, 2, 0]
    for wrong in (3, -4):
        message = f"head must be a number from 0 to 2, or from -3 to -1 .*Received: {wrong}"
        with pytest.raises(ValueError, match=message):
            index_of("head", wrong, 3)
    for wrong in (True, "1", 1.0):
        with pytest.raises(TypeError, match="whole number, or None for all"):
            index_of("head", wrong, 3)
