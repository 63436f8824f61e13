"""Figures need no window, no pyplot, and take any text."""

import subprocess
import sys

import numpy as np
import pytest

from kbert import visualization
from kbert.visualization.canvas import new_figure, shown

STRANGE = ["北京", "السلام", "नमस्ते", "$x_{", r"\frac", "two\nlines", "\ud800", "x" * 200, ""]


def test_a_figure_is_a_picture_in_a_notebook():
    assert new_figure(2, 1)._repr_png_().startswith(b"\x89PNG")


def test_pyplot_is_never_loaded_and_the_backend_never_chosen():
    code = (
        "import sys; from kbert import visualization as v\n"
        "v.confusion_matrix([[1]], ['a']); v.probability_bars({'a': 1.0})\n"
        "v.tagged_words(['a'], ['O']); v.similarity_heatmap([[1.0]], ['a'])\n"
        "v.layer_scores({'last': 0.5}); v.neighbours_map([[1, 0], [0, 1]], ['a', 'b'])\n"
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, "False"), done.stderr


@pytest.mark.parametrize(
    "draw",
    [
        lambda names: visualization.confusion_matrix(np.eye(len(names)), names, title=names[0]),
        lambda names: visualization.similarity_heatmap(np.eye(len(names)), names, title=names[3]),
        lambda names: visualization.probability_bars(dict.fromkeys(names, 0.1), title=names[4]),
        lambda names: visualization.tagged_words(names, names, title=names[5]),
        lambda names: visualization.layer_scores(dict.fromkeys(names, 0.1), metric=names[3]),
        lambda names: visualization.neighbours_map(np.eye(len(names)), names, groups=names),
        lambda names: visualization.trade_off(
            {name: {"time": 1.0, "score": 0.5} for name in names}, metric=names[3], title=names[4]
        ),
    ],
)
def test_any_text_is_drawn_as_it_is(draw, drawn):
    texts = drawn(draw(STRANGE), missing_glyphs=True)
    assert "$x_{" in texts
    assert r"\frac" in texts


def test_long_text_is_cut_and_lines_are_joined():
    assert shown("a  b\nc") == "a b c"
    assert shown("x" * 50, 10) == "x" * 9 + "…"
    assert shown(3) == "3"
