"""What every picture must be able to do."""

import io
import warnings

import pytest


@pytest.fixture
def drawn():
    """Draws a figure and gives back what is written on it; clean text must raise no warning."""

    def draw(figure, *, missing_glyphs=False):
        import matplotlib.text

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            if missing_glyphs:
                warnings.filterwarnings("ignore", "Glyph .* missing")
            figure.savefig(io.BytesIO(), format="png")
        found = figure.findobj(matplotlib.text.Text)
        return [text.get_text() for text in found if text.get_visible() and text.get_text()]

    return draw


@pytest.fixture
def boxes():
    """Where the texts that the axes hold stand, in pixels: (x0, y0, x1, y1)."""
    from matplotlib.text import Text

    def find(figure):
        figure.draw_without_rendering()
        renderer = figure.canvas.get_renderer()
        texts = figure.axes[0].texts
        return [Text.get_window_extent(text, renderer).extents for text in texts]

    return find


@pytest.fixture
def overlaps():
    """How many pairs of boxes meet."""

    def count(boxes):
        pairs = [(a, b) for i, a in enumerate(boxes) for b in boxes[:i]]
        return sum(a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3] for a, b in pairs)

    return count
