"""The interactive page: one piece of HTML, whatever the tokens are."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from kbert.visualization import AttentionPage, attention_map
from kbert.visualization.attention_reading import as_weights

HOSTILE = ["</script><b>bold", "<!--", "&lt;", "'\"\\", "\u2028", "\ud800", "__DATA__", "北京"]


def weights(*shape):
    values = np.random.default_rng(0).random(shape)
    return values / values.sum(-1, keepdims=True)


def content(fragment):
    """What the script reads."""
    return json.loads(re.search(r"const data = (\{.*\});\n", fragment)[1])


def unpacked(part):
    shape = (part["layers"], part["heads"], len(part["rows"]), len(part["columns"]))
    return np.frombuffer(base64.b64decode(part["weights"]), "uint8").reshape(shape) / 255


class Tags(HTMLParser):
    """Every tag with its attributes, in order; unclosed ones stay in `open`."""

    def __init__(self, text):
        super().__init__()
        self.found, self.open = [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_names_and_weights_reach_the_page():
    values = weights(2, 3, 4, 2)
    page = attention_map(values, list("abcd"), list("xy"), view="html", titles=("written", "read"))
    (part,) = content(page.fragment)["parts"]
    assert (part["rows"], part["columns"]) == (list("abcd"), list("xy"))
    assert part["titles"] == ["written", "read"]
    np.testing.assert_allclose(unpacked(part), values, atol=0.51 / 255)


def test_no_token_becomes_a_tag_or_ends_the_script():
    page = attention_map(weights(8, 8), HOSTILE, view="html", title=HOSTILE[0])
    tags = Tags(page.fragment)
    assert [tag for tag, _ in tags.found] == ["style", "div", "script"]
    assert not tags.open
    found = content(page.fragment)
    assert found["parts"][0]["rows"] == [x.replace("\ud800", "?") for x in HOSTILE]
    assert found["title"] == HOSTILE[0]


def test_the_page_asks_for_nothing_from_outside(tmp_path):
    page = attention_map(weights(2, 2), ["a", "b"], view="html", title="A & <b>")
    page.save(tmp_path / "attention.html")
    text = (tmp_path / "attention.html").read_text("utf-8")
    tags = Tags(text)
    names = ["html", "head", "meta", "title", "body", "style", "div", "script"]
    assert text.startswith("<!doctype html>")
    assert [tag for tag, _ in tags.found] == names
    attributes = {name for _, found in tags.found for name in found}
    assert attributes == {"lang", "charset", "class", "data-of"}  # no src, no href
    for outside in ("http", "import(", "fetch(", "innerHTML", "url("):
        assert outside not in page.fragment
    assert "<title>A &amp; &lt;b&gt;</title>" in text
    assert page.fragment in text


def test_a_notebook_shows_the_fragment_and_two_pages_do_not_meet():
    first, second = (
        attention_map(weights(2, 2), names, view="html") for names in (["a", "b"], ["a", "c"])
    )
    assert first._repr_html_() == first.fragment
    keys = [re.search('data-of="(.*?)"', page.fragment)[1] for page in (first, second)]
    assert keys[0] != keys[1]
    assert f"[data-of='{keys[0]}']" in first.fragment


@pytest.mark.parametrize(
    ("heads", "chosen", "start"),
    [(3, {}, (0, -1)), (3, {"layer": -1, "head": 1}, (1, 1)), (1, {}, (0, 0))],
    ids=["mean", "given", "one"],
)
def test_what_is_chosen_at_first(heads, chosen, start):
    part = as_weights(weights(2, heads, 2, 2), ["a", "b"], None, ("", ""))
    found = content(AttentionPage({"encoder": part}, **chosen).fragment)
    assert (found["start"]["layer"], found["start"]["head"]) == start


def test_several_kinds_and_what_they_are():
    cross = as_weights(weights(2, 2, 3, 2), list("abc"), list("de"), ("", ""))
    page = AttentionPage({"cross": cross, "decoder": as_weights(weights(3, 3), "abc", None, "  ")})
    assert [part["name"] for part in content(page.fragment)["parts"]] == ["cross", "decoder"]
    assert repr(page) == (
        "AttentionPage(cross: 2 layers, 2 heads, 3 × 2 tokens; decoder: 1 layer, 1 head, "
        "3 × 3 tokens)"
    )


def test_a_layer_that_there_is_not():
    part = as_weights(weights(2, 2, 2, 2), ["a", "b"], None, ("", ""))
    with pytest.raises(ValueError, match="layer must be a number from 0 to 1"):
        AttentionPage({"encoder": part}, layer=2)


def test_more_than_a_notebook_should_hold(monkeypatch):
    monkeypatch.setattr("kbert.visualization.attention_page.MOST_BYTES", 1_000_000)
    with pytest.raises(ValueError, match=r"at most 1 MB: use a shorter text.* Received: 2 MB of"):
        attention_map(weights(100, 128, 128), ["a"] * 128, view="html")
