"""The page in a headless Chromium: typed, clicked, by keyboard, on a phone, in the dark."""

import os
from pathlib import Path

import pytest

from tests.browser import chromium, needs_chromium

pytestmark = [pytest.mark.tensorflow, needs_chromium]
# Where pictures of the page go, to be looked at.
PICTURES = os.environ.get("KBERT_SCREENSHOTS")
NAMES = (
    "return [...document.querySelectorAll('#panel-fill_mask .bars .name')].map(x => x.innerText)"
)


@pytest.fixture(scope="module")
def browser():
    with chromium() as browser:
        yield browser


@pytest.fixture
def page(browser, demo):
    """The page, opened anew; nothing that its console or its requests say may be wrong."""
    browser.size(1280, 900)
    browser.dark(False)
    browser.messages(), browser.requests()
    browser.open(demo.address)
    browser.wait("return document.querySelector('#tabs [role=tab]')")
    yield browser
    assert browser.messages() == []
    requests = browser.requests()
    assert requests
    assert all(address.startswith((demo.address, "data:")) for address in requests), requests


def picture(browser, name):
    if PICTURES:
        browser.screenshot(Path(PICTURES) / f"{name}.png")


def choose_model(browser, name):
    browser.run(
        "const select = document.getElementById('model');"
        "select.value = [...select.options].find(x => x.text === arguments[0]).value;"
        "select.dispatchEvent(new Event('change'))",
        name,
    )


def test_masks_are_filled_as_one_types(page, tasks):
    task = tasks["pretrained"]
    text = "the red [MASK] jumps"
    page.type("#fill_mask-text", text)
    (wanted,) = task.predict([text], top_k=8)
    page.wait(
        f"return JSON.stringify((() => {{ {NAMES} }})()) === JSON.stringify(arguments[0])",
        wanted["tokens"][0],
    )
    share = wanted["probabilities"][0][0]
    assert page.text("#panel-fill_mask .percent") == f"{100 * share:.1f} %"
    picture(page, "fill_mask")
    # A click puts the word into the text, which has no mask any more.
    page.click("#panel-fill_mask .bars button")
    token = wanted["tokens"][0][0]
    joined = f"the red{token[2:]}" if token.startswith("##") else f"the red {token}"
    assert page.run("return document.getElementById('fill_mask-text').value") == f"{joined} jumps"
    page.wait("return !document.querySelector('#panel-fill_mask .bars')")
    # And the button a mask.
    page.click("#panel-fill_mask .action")
    page.wait("return document.querySelectorAll('#panel-fill_mask .bars button').length === 8")


def test_tabs_by_keyboard(page):
    focused = "return document.activeElement.id"
    page.click("#tab-fill_mask")
    page.press("right")
    assert page.run(focused) == "tab-next_sentence"
    assert page.run("return document.getElementById('panel-next_sentence').hidden") is False
    assert page.run("return document.getElementById('panel-fill_mask').hidden") is True
    page.press("left", "left")  # from the first to the last
    assert page.run(focused) == "tab-attention"
    page.press("tab")
    assert page.run(focused) == "attention-first"
    selected = (
        "return [...document.querySelectorAll('[role=tab][aria-selected=true]')].map(x => x.id)"
    )
    assert page.run(selected) == ["tab-attention"]


def test_attention_of_every_head(page):
    page.click("#tab-attention")
    page.type("#attention-first", "the red fox")
    page.type("#attention-second", "she was old")
    page.wait_for_text("#panel-attention .kbert-attention", "old")
    assert page.run("return document.querySelectorAll('.panels canvas').length") == 2 * 4
    picture(page, "attention")
    # A token's weights by the keyboard: shown where it has the focus, kept by Enter.
    page.run("document.querySelector('.kbert-attention .token').focus()")
    shares = (
        "return [...document.querySelectorAll('.side:not(.left) .share')].map(x => x.innerText)"
    )
    assert any(share.endswith("%") for share in page.run(shares))
    page.press("enter")
    pressed = "return document.querySelector('.kbert-attention .token').ariaPressed"
    assert page.run(pressed) == "true"
    page.run("document.querySelector('.kbert-attention select').focus()")
    page.press("1")
    page.wait("return document.querySelector('.kbert-attention select').value === '1'")
    assert page.run("return document.activeElement.dataset.name") == "layer"


def test_answers_of_fine_tuned_models(page, tasks):
    choose_model(page, "classifier")
    page.type("#predict-text", "the red fox")
    (answer,) = tasks["classifier"].predict(["the red fox"], verbose=0)
    page.wait_for_text("#panel-predict .bars .name", answer["label"])
    page.wait_for_text("#panel-predict .percent", f"{100 * answer['probability']:.1f} %")
    page.click("#panel-predict .action")
    page.wait("return document.querySelectorAll('#panel-predict .scored').length === 5")
    assert page.text("#panel-predict .scored") == "[CLS]"
    picture(page, "classify")
    choose_model(page, "tagger")
    page.type("#predict-text", "the red fox")
    page.wait("return document.querySelectorAll('#panel-predict .word').length === 3")
    picture(page, "tag")
    choose_model(page, "answerer")
    page.type("#predict-question", "who was it?")
    page.type("#predict-context", "👑 it was the old king.")
    row = [("who was it?", "👑 it was the old king.")]
    (answer,) = tasks["answerer"].predict(row, verbose=0)
    page.wait_for_text("#panel-predict mark", answer["answer"])
    picture(page, "answer")
    choose_model(page, "embedder")
    page.click("#tab-nearest")
    page.type("#nearest-text", "the red fox jumps")
    page.wait_for_text("#panel-nearest li", "the red fox jumps 1.000")
    picture(page, "nearest")


def test_an_error_is_shown_and_goes(page):
    page.type("#fill_mask-text", "a " * 70 + "[MASK]")
    page.wait_for_text("#panel-fill_mask .error", "Every mask must be within the 64 tokens")
    assert not page.run("return document.querySelector('#panel-fill_mask .bars')")
    picture(page, "error")
    page.type("#fill_mask-text", "a [MASK]")
    page.wait("return document.querySelector('#panel-fill_mask .error').hidden")
    # The browser itself notes an answer of 400.
    assert all("400 (Bad Request)" in message for message in page.messages())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone(page, dark):
    page.size(390, 844)
    page.dark(dark)
    for number, (tab, wanted) in enumerate(
        [
            ("fill_mask", ".bars button"),
            ("next_sentence", ".bars li"),
            ("attention", ".kbert-attention .token"),
        ]
    ):
        page.click(f"#tab-{tab}")
        page.wait("return document.querySelector(arguments[0])", f"#panel-{tab} {wanted}")
        assert page.run("return document.documentElement.scrollWidth") <= 390
        picture(page, f"phone_{number}_{'dark' if dark else 'light'}")
    back = page.run("return getComputedStyle(document.body).backgroundColor")
    paper = page.run(
        "return getComputedStyle(document.querySelector('.kbert-attention')).backgroundColor"
    )
    assert (back, paper) == (
        ("rgb(20, 23, 26)", "rgb(29, 33, 38)")
        if dark
        else ("rgb(246, 247, 249)", "rgb(255, 255, 255)")
    )


def luminance(colour):
    parts = [x / 255 for x in colour]
    parts = [x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return sum(a * b for a, b in zip((0.2126, 0.7152, 0.0722), parts, strict=True))


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_texts_can_be_read(page, dark):
    """WCAG 2, 1.4.3: a contrast of 4.5."""
    page.dark(dark)
    page.wait("return document.querySelector('#panel-fill_mask .bars button')")
    pairs = page.run("""
        const behind = node => {
          for (; node; node = node.parentElement) {
            const found = getComputedStyle(node).backgroundColor;
            if (!found.endsWith(", 0)") && found !== "transparent") return found;
          }
        };
        return [...document.querySelectorAll("h1, p, label, button, .percent, textarea, select")]
          .filter(x => x.offsetParent && (x.innerText || x.value))
          .map(x => [x.outerHTML.slice(0, 60), getComputedStyle(x).color, behind(x)]);
    """)
    assert len(pairs) > 20
    for text, *colours in pairs:
        light, dim = sorted(
            (luminance([int(x) for x in c[c.index("(") + 1 : -1].split(",")[:3]]) for c in colours),
            reverse=True,
        )
        assert (light + 0.05) / (dim + 0.05) >= 4.5, (text, colours)


@pytest.mark.parametrize("model", ["pretrained", "classifier", "embedder"])
def test_everything_has_a_name_for_a_screen_reader(page, model):
    choose_model(page, model)
    ids = page.run("return [...document.querySelectorAll('[role=tab]')].map(x => x.id)")
    controls = {"textbox", "combobox", "button", "tab", "tablist", "tabpanel"}
    seen = set()
    for tab in ids:
        page.click(f"#{tab}")
        if tab == "tab-attention":
            page.wait("return document.querySelector('.kbert-attention .token')")
        page.chrome("Accessibility.enable")
        nodes = page.chrome("Accessibility.getFullAXTree")["nodes"]
        for node in nodes:
            role = node.get("role", {}).get("value")
            if role in controls and not node.get("ignored"):
                seen.add(role)
                assert node.get("name", {}).get("value"), (tab, node)
    assert {"textbox", "combobox", "tab", "tablist", "tabpanel"} <= seen
    assert page.run("return document.documentElement.lang") == "en"
    assert len(page.run("return [...document.querySelectorAll('h1')].map(x => x.innerText)")) == 1
