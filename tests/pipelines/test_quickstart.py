"""`make quickstart` at a small size: every stage runs, and a second start resumes."""

import json
import re

import pytest

from pipelines import quickstart
from tests.processes import LIGHT

pytestmark = pytest.mark.tensorflow
SMALL = (
    "--sources=docs:email,docs:unittest,docs:asyncio",
    "--vocabulary_size=1000",
    "--sequence_length=32",
    "--batch_size=16",
    "--held_out_share=0.3",
    "--train_steps=40",
)


@pytest.fixture
def start(call, tmp_path, monkeypatch, capsys):
    """Flags -> what the program says; the folder `out` is in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(quickstart, "CLIENT", LIGHT + quickstart.CLIENT)

    def start(*flags: str) -> str:
        call(quickstart, *SMALL, "--output_dir=out", *flags)
        return capsys.readouterr().out

    return start


@pytest.mark.graphs
def test_all_stages_then_again(start, tmp_path):
    said = start()
    stages = re.findall(r"^\[\d\] (.+)$", said, re.MULTILINE)
    table = said[said.index("-" * 72) :]
    assert len(stages) == 6
    assert all(f"\n{stage} " in table for stage in stages)
    # The served model gives the answers of the one in memory.
    blocks = said.split("fill the masks\n")[1].split("[6]")
    answers = re.findall(r"^      (.+)$", blocks[0], re.MULTILINE)
    assert answers
    assert answers == re.findall(r"^      (.+)$", blocks[1], re.MULTILINE)
    first, last = (
        float(re.search(rf"loss of the {which} step +([\d.]+)", said)[1])
        for which in ("first", "last")
    )
    assert last < first
    assert (tmp_path / "out" / "serving" / "1" / "saved_model.pb").exists()
    assert json.loads((tmp_path / "out" / "preset" / "kbert.json").read_text())["encoder"]

    # Nothing is trained twice, and what is evaluated, asked and exported is the trained model.
    again = start()
    for line in ("loss of the last step", "held-out masked-token accuracy"):
        assert re.search(rf"{line} +[\d.]+", again)[0] == re.search(rf"{line} +[\d.]+", said)[0]
    assert answers == re.findall(r"^      (.+)$", again.split("[6]")[1], re.MULTILINE)
    assert (tmp_path / "out" / "serving" / "2" / "saved_model.pb").exists()

    with pytest.raises(SystemExit, match="Received: model: bert-tiny before, bert-mini now"):
        start("--model=bert-mini")


def test_it_trains_encoders_alone():
    with pytest.raises(ValueError, match=r"trains a BERT. Received: --model=elmo-small"):
        quickstart.make_task("elmo-small", tokenizer=None, learning_rate=1e-3, train_steps=9)
