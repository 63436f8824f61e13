"""Examples of the README and of docs/ run as they stand, only smaller."""

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import keras
import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline

import kbert
from kbert.models import family_table

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALLER = {
    'sources = ["docs:"]': 'sources = ["docs:email", "docs:unittest", "docs:asyncio"]',
    "sentences, 8000": "sentences, 1000",
    "held_out_share=0.02": "held_out_share=0.2",
    "batch_size=64": "batch_size=8",
    "steps=5000, learning_rate=2e-3, warmup_steps=400": "steps=4, learning_rate=2e-3",
}


@pytest.mark.tensorflow
def test_tour(tmp_path, monkeypatch):
    tour = re.search(r"```python\n(import kbert\n\n# 1\..+?)```", README, re.DOTALL)[1]
    for text, smaller in SMALLER.items():
        assert tour.count(text) == 1, f"the tour no longer says {text!r}"
        tour = tour.replace(text, smaller)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    names = {}
    exec(tour, names)
    answer = names["task"].predict(["returns the [MASK] of the array."], top_k=3)[0]
    assert len(answer["tokens"][0]) == 3
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()
    assert (tmp_path / "my-bert" / "kbert.json").exists()


@pytest.mark.tensorflow
def test_first_screen(pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rows = ["text,label", *["the old red fox,praise", "the big house,blame"] * 8]
    (tmp_path / "reviews.csv").write_text("\n".join(rows) + "\n")
    code = example("README.md", "import kbert\n\nreviews =")
    assert code.count('"nreimers/MiniLM-L6-H384-uncased"') == 1
    names = {}
    exec(code.replace('"nreimers/MiniLM-L6-H384-uncased"', repr(pretrained)), names)
    assert set(names["answers"][0]["probabilities"]) == {"praise", "blame"}
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()


def test_which_model_to_use():
    table = re.search(r"<!-- family -->\n(.+?)\n<!-- /family -->", README, re.DOTALL)
    assert table, "README.md has no table between <!-- family --> and <!-- /family -->"
    assert table[1].strip() == family_table(), "paste what kbert.models.family_table() returns"


def test_the_task_of_ones_own_is_an_excerpt():
    whole = (ROOT / "tests" / "tasks" / "ordinal.py").read_text(encoding="utf-8").splitlines()
    lines = iter(line for line in whole if line)
    for line in example("README.md", "class OrdinalOptions(").splitlines():
        assert not line or line in lines, f"{line!r} does not follow in tests/tasks/ordinal.py"


def example(page: str, first_line: str) -> str:
    """The block of code of a page that begins with a line."""
    text = (ROOT / page).read_text(encoding="utf-8")
    found = re.search(rf"```python\n({re.escape(first_line)}.+?)```", text, re.DOTALL)
    assert found, f"{page} has no example that begins with {first_line!r}"
    return found[1]


@pytest.fixture
def pretrained(tmp_path, tiny_vocabulary, request):
    """A folder of an encoder of two layers, or more, and a tokenizer."""
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = kbert.EncoderConfig(
        vocabulary_size=len(tiny_vocabulary),
        hidden_size=16,
        num_layers=getattr(request, "param", 2),
        num_heads=2,
        intermediate_size=32,
        initializer_range=0.15,  # so that texts differ
    )
    keras.utils.set_random_seed(0)
    kbert.tasks.Pretraining(kbert.Encoder(config), tokenizer).save_to_preset(
        tmp_path / "pretrained"
    )
    return str(tmp_path / "pretrained")


@pytest.mark.tensorflow
@pytest.mark.usefixtures("eagerly")
def test_fine_tuning(pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "SST-2").mkdir()
    rows = ["sentence\tlabel", "the old red fox\t1", "the big house\t0", "a new blue pen\t1"]
    for split in ("train", "dev"):
        (tmp_path / "SST-2" / f"{split}.tsv").write_text("\n".join(rows) + "\n")
    code = example("README.md", "task = kbert.TextClassifier.from_preset(")
    assert code.count('"bert-base-uncased"') == 1
    names = {"kbert": kbert}
    exec(code.replace('"bert-base-uncased"', repr(pretrained)), names)
    again = kbert.tasks.Task.from_preset("sst2")
    assert again.predict(["the old fox"]) == names["task"].predict(["the old fox"])
    assert (tmp_path / "serving" / "sst2" / "1" / "saved_model.pb").exists()


@pytest.mark.tensorflow
def test_kbert_in_a_keras_model(pretrained, tmp_path, monkeypatch):
    """Every block of the page, in its order."""
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/keras.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.+?)```", page, re.DOTALL)
    assert len(blocks) >= 7
    assert blocks[0].count('"bert-base-uncased"') == 1
    names = {}
    for code in blocks:
        code = code.replace('"bert-base-uncased"', repr(pretrained))
        exec(code.replace("max_length=128", "max_length=32"), names)
    texts = tf.constant(["the old fox"])
    loaded = keras.models.load_model("model.keras")
    served = tf.saved_model.load("served")
    np.testing.assert_allclose(served.serve(texts), loaded(texts), atol=1e-5)
    names["scorer"].save("scorer.keras")
    again = keras.models.load_model("scorer.keras")
    np.testing.assert_allclose(again(names["batch"]), names["scorer"](names["batch"]), atol=1e-5)


@pytest.mark.tensorflow
@pytest.mark.usefixtures("eagerly")
def test_compile_and_callbacks(pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = kbert.TextClassifier.from_preset(pretrained, labels=2, new_head=True)
    table = kbert.data.as_table(["the old fox", "a new pen"] * 4, [0, 1] * 4)
    names = {"kbert": kbert, "task": task, "train": table, "dev": table}
    exec(example("docs/fine_tuning.md", "import keras\n\nschedule ="), names)
    assert {"val_accuracy", "loss"} <= set(names["history"].history)
    assert (tmp_path / "log.csv").read_text().count("\n") == 4


@pytest.mark.tensorflow
def test_how_it_works(tmp_path, monkeypatch, tiny_vocabulary):
    monkeypatch.chdir(tmp_path)
    lines = ["the old red fox jumps over the lazy dog", "the big house on the river"] * 20
    (tmp_path / "text.txt").write_text("\n\n".join("\n".join(lines[n:]) for n in range(30)))
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    kbert.data.prepare_corpus("text.txt", "shards", tokenizer, held_out_share=0.1)
    names = {"kbert": kbert, "tokenizer": tokenizer}
    for first_line in ("settings = ", "parts = [[", "bert, albert = "):
        exec(example("docs/how_it_works.md", first_line), names)


def test_the_chart_has_the_rows_of_the_table(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "docs")
    chart = importlib.import_module("chart")
    rows = chart.speeds_in((ROOT / "BUILD.md").read_text(encoding="utf-8"))
    assert len(rows) >= 10
    found = {row.benchmark.split()[0]: row.speeds for row in rows}
    assert found["tokenizing"] == pytest.approx(
        {"kbert": 1, "KerasHub": 17.4 / 38.3, "Hugging Face": 3.5 / 38.3}
    )
    assert found["model"] == pytest.approx(
        {"kbert": 1, "KerasHub": 992 / 1111, "transformers": 992 / 1360}
    )
    picture = ElementTree.fromstring(chart.draw(rows))
    bars = [float(bar.get("width")) for bar in picture.iter("rect")]
    assert len(bars) == sum(len(row.speeds) for row in rows)
    assert max(bars) == 470


@pytest.mark.tensorflow
@pytest.mark.parametrize("pretrained", [4], indirect=True)  # the last four are joined
def test_features(pretrained):
    texts = ["the old red fox", "the big house", "a new blue pen"] * 5
    names = {"kbert": kbert, "name": pretrained, "texts": texts, "labels": [0, 1, 1] * 5}
    names |= {x.__name__: x for x in (LogisticRegression, cross_val_score, make_pipeline)}
    first_line = "encoder, tokenizer = kbert.Encoder.from_preset(name)"
    exec(example("docs/features.md", first_line), names)
    assert names["model"].fit(texts, names["labels"]).predict(texts).tolist() == names["labels"]


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("eagerly")
def test_adapters(pretrained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    texts = ["the old red fox", "the big house", "a new blue pen"] * 5
    names = {"kbert": kbert, "base": pretrained, "texts": texts, "labels": ["no", "yes", "yes"] * 5}
    exec(example("docs/adapters.md", "task = kbert.tasks.TextClassifier.from_preset(base"), names)
    first = names["task"].predict(texts[:3])
    exec(example("docs/adapters.md", "encoder = kbert.Encoder.from_preset(base)"), names)
    assert [x["label"] for x in names["reviews"].predict(texts[:3])] == [x["label"] for x in first]
    assert (tmp_path / "serving" / "1" / "saved_model.pb").exists()


@pytest.mark.slow
@pytest.mark.tensorflow
@pytest.mark.usefixtures("eagerly")
def test_several_tasks_together(pretrained):
    texts = ["the old red fox", "the big house"] * 4
    names = {"kbert": kbert, "encoder": kbert.Encoder.from_preset(pretrained)}
    names |= {"tokenizer": kbert.load_tokenizer(pretrained), "texts": texts}
    names |= {"questions": [(x, x) for x in texts], "answers": ["no", "yes"] * 4}
    names |= {"numbers": [1.0, 5.0] * 4}
    exec(example("docs/adapters.md", "pairs = kbert.tasks.TextClassifier("), names)
    assert len(names["stars"].predict(texts)) == 8
