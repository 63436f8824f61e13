"""kbert-demo: what it serves or writes, and what it refuses."""

import json
import signal
import urllib.request

import pytest

import kbert
from pipelines import demo
from tests.processes import start_program
from tests.waiting import PATIENCE

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
def test_it_prints_its_address_and_serves_until_it_is_stopped(preset, tmp_path):
    encoder, tokenizer = kbert.Encoder.from_preset(preset), kbert.load_tokenizer(preset)
    kbert.tasks.Pretraining(encoder, tokenizer).save_to_preset(tmp_path / "trained")
    program = start_program(
        "demo", f"--preset={tmp_path / 'trained'}", "--port=0", "--max_waiting=2"
    )
    try:
        address = program.stdout.readline().strip()
        with urllib.request.urlopen(f"{address}/api/about", timeout=PATIENCE) as answer:
            (model,) = json.load(answer)["models"]
        assert model["abilities"] == ["fill_mask", "next_sentence", "attention"]
        program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=PATIENCE)
        assert program.returncode == 0  # as intended: it is stopped in no other way
        assert "Traceback" not in errors  # TensorFlow has notices of its own
    finally:
        program.kill()
        program.wait()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            (),
            r"kbert-quickstart makes one in five minutes.* Received: none, and no quickstart/pres",
        ),
        (("--preset=nowhere",), "nowhere"),
        (
            ("--preset=a", "--site_dir=b"),
            "must be given together.* Received: --site_dir=b, --runtime=None",
        ),
        (
            ("--preset=a", "--preset=b", "--site_dir=c", "--runtime=d"),
            "--site_dir supports only one --preset. Received: a, b",
        ),
    ],
)
def test_what_does_not_start(call, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        call(demo, "--port=0", *flags)


def test_without_a_preset_it_takes_that_of_the_quickstart(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart" / "preset").mkdir(parents=True)
    served = []
    monkeypatch.setattr(kbert.serve.demo, "serve", lambda options, started: served.append(options))
    call(demo, "--port=0")
    assert served[0].preset == ("quickstart/preset",)
    assert served[0].port == 0
