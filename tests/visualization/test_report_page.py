"""A report of sections in one file."""

import re

import numpy as np

from kbert.visualization import ReportPage, attention_map, learning_curve
from tests.visualization.test_attention_page import HOSTILE, Tags


def tags_of(text):
    """Those that are closed, each in its place."""
    tags = Tags(re.sub("<(meta|link|img)[^>]*>", "", text))
    assert not tags.open
    return {tag for tag, _ in tags.found}


def test_sections_stand_in_one_file_that_fetches_nothing(tmp_path):
    report = ReportPage("A <run>", "Two & more.")
    steps = [{"step": n, "loss": 1 / n} for n in range(1, 9)]
    report.picture("Curve", learning_curve(steps), 'The loss falls "fast".')
    report.attention("Attention", attention_map(np.eye(2), ["a", "b"], view="html"))
    report.table("Times", ["stage", "seconds"], [("first", 1234.5), ("all", 7)])
    report.heading("Try it")
    report.command("kbert-demo --preset=a")
    report.save(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert {"h1", "h2", "figure", "table", "script", "style"} <= tags_of(text)
    assert "<h1>A &lt;run&gt;</h1>\n<p>Two &amp; more.</p>" in text
    assert 'alt="The loss falls &quot;fast&quot;." src="data:image/png;base64,' in text
    assert '<td>first</td><td class="number">1,234.50</td>' in text
    assert '<td>all</td><td class="number">7</td>' in text
    assert re.findall("<h2>(.+?)</h2>", text) == ["Curve", "Attention", "Times", "Try it"]
    assert not re.findall(r"(?:src|href)=\"(?!data:)", text)
    assert "http" not in text


def test_no_text_becomes_a_tag():
    report = ReportPage(HOSTILE[0])
    report.table(HOSTILE[0], HOSTILE, [HOSTILE])
    report.text(HOSTILE[1])
    assert not {"b", "script"} & tags_of(report.html())
