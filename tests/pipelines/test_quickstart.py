"""`make quickstart` at a small size: every stage runs, and a second start resumes."""

import html
import json
import re
import types

import keras
import pytest

import kbert
from pipelines import five_minutes, quickstart
from tests.installed import SMALL
from tests.processes import LIGHT

pytestmark = pytest.mark.tensorflow


@pytest.fixture
def start(call, tmp_path, monkeypatch, capsys):
    """Flags -> what the program says; the folder `out` is in `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(five_minutes, "CLIENT", LIGHT + five_minutes.CLIENT)

    def start(*flags: str) -> str:
        call(quickstart, *SMALL, "--output_dir=out", *flags)
        return capsys.readouterr().out

    return start


@pytest.mark.graphs
@pytest.mark.slow
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

    # The report has the curve, the answers of both models, attention, and what is printed.
    report = (tmp_path / "out" / "report.html").read_text("utf-8")
    headings = re.findall("<h2>(.+?)</h2>", report)
    assert headings == [
        *("Learning curve", "For each [MASK]", "Attention", "Numbers", "Times", "Sizes", "Try it"),
    ]
    shown = re.findall(r"<tr><td>[^<]*\[MASK\][^<]*</td><td>([^<]+)</td><td>([^<]+)</td>", report)
    assert [html.unescape(after) for _, after in shown] == answers
    assert all(before != after for before, after in shown)
    assert "over 40 steps" in report
    assert "function drawAttention" in report
    assert said.endswith("in a browser: kbert-demo --preset=out/preset\n")

    # Nothing is trained twice, and what is evaluated, asked and exported is the trained model.
    again = start()
    for line in ("loss of the last step", "held-out masked-token accuracy"):
        assert re.search(rf"{line} +[\d.]+", again)[0] == re.search(rf"{line} +[\d.]+", said)[0]
    assert answers == re.findall(r"^      (.+)$", again.split("[6]")[1], re.MULTILINE)
    assert (tmp_path / "out" / "serving" / "2" / "saved_model.pb").exists()

    with pytest.raises(SystemExit, match="Received: model: bert-tiny before, bert-mini now"):
        start("--model=bert-mini")


def test_it_trains_encoders_alone():
    with pytest.raises(
        ValueError, match=r"encoder of the BERT family. Received: --model=elmo-small"
    ):
        five_minutes.make_task("elmo-small", tokenizer=None)


def test_a_roberta_s_padding_is_the_tokenizer_s(monkeypatch, tiny_vocabulary):
    small = kbert.family("bert-tiny").replace(padding_id=1)
    monkeypatch.setattr(kbert, "family", lambda name: small)
    task = five_minutes.make_task("roberta-base", kbert.WordPieceTokenizer(tiny_vocabulary))
    assert task.encoder.config.padding_id == 0


@pytest.mark.parametrize("slower", [1, 4])
def test_a_busy_machine_makes_fewer_steps_in_the_time(slower, monkeypatch):
    now = 0.0
    monkeypatch.setattr(five_minutes, "time", types.SimpleNamespace(perf_counter=lambda: now))
    rate = keras.Variable(0.0)
    model = types.SimpleNamespace(
        optimizer=types.SimpleNamespace(learning_rate=rate), stop_training=False
    )
    clock = five_minutes.ByTheClock(0.01, 400, seconds=400.0)
    clock.set_model(model)
    rates = []
    for batch in range(400):
        if model.stop_training:
            break
        clock.on_train_batch_begin(batch)
        rates.append(float(rate.value))
        now += slower
        clock.on_train_batch_end(batch)
    assert len(rates) == pytest.approx(400 / slower, abs=2)  # the first compiles and counts nothing
    assert max(rates) == pytest.approx(0.01, rel=0.1)
    assert rates.index(max(rates)) == pytest.approx(len(rates) / 10, abs=2)
    assert rates[int(0.79 * len(rates))] == max(rates)
    assert rates[-1] < 0.0006
