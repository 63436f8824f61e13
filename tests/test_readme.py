"""The tour of the README runs as it stands, only smaller."""

import re
from pathlib import Path

import pytest

from kbert.models import family_table

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
SMALLER = {
    'sources = ["docs:"]': 'sources = ["docs:email", "docs:unittest", "docs:asyncio"]',
    "sentences, 8000": "sentences, 1000",
    "held_out_share=0.02": "held_out_share=0.2",
    "batch_size=64": "batch_size=8",
    "total_steps=5000, warmup_steps=400": "total_steps=4, warmup_steps=1",
    "epochs=5, steps_per_epoch=1000": "epochs=2, steps_per_epoch=2",
}


@pytest.mark.tensorflow
def test_tour(tmp_path, monkeypatch):
    tour = re.search(r"```python\n(import kbert\n.+?)```", README, re.DOTALL)[1]
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


def test_which_model_to_use():
    table = re.search(r"<!-- family -->\n(.+?)\n<!-- /family -->", README, re.DOTALL)
    assert table, "README.md has no table between <!-- family --> and <!-- /family -->"
    assert table[1].strip() == family_table(), "paste what kbert.models.family_table() returns"
