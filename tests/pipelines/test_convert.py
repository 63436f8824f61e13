"""`kbert-convert` as it is typed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert import conversion
from kbert.models import Encoder
from pipelines import convert
from tests.harness import tiny_config

ROOT = Path(kbert.__path__[0]).parent


@pytest.fixture
def preset(tmp_path):
    Encoder(tiny_config()).save_to_preset(tmp_path / "preset")
    return tmp_path / "preset"


def program(*arguments: str) -> None:
    """Calls main with these flags; the definitions are gone afterwards."""
    with flagsaver.flagsaver():
        convert.define_flags()
        convert.main(flags.FLAGS(["kbert-convert", *arguments]))


def test_it_converts_reports_and_checks(preset, tmp_path, capsys):
    program(f"--from={preset}", f"--to={tmp_path}/out", "--format=huggingface", "--check")
    said = capsys.readouterr().out
    assert f"{preset} -> {tmp_path}/out (huggingface, float32)" in said
    assert "check: kbert on the source, kbert on the target: equal" in said
    assert Encoder.from_preset(tmp_path / "out").config.num_layers == 2


def test_a_difference_ends_it_with_an_error(preset, tmp_path, capsys, monkeypatch):
    wrong = conversion.Check("a", "b", {"sequence": 0.5})
    monkeypatch.setattr(conversion, "check", lambda *_: [wrong])
    with pytest.raises(SystemExit, match="does not compute the same as the source"):
        program(f"--from={preset}", f"--to={tmp_path}/out", "--check")
    assert "NOT EQUAL" in capsys.readouterr().out


@pytest.mark.slow
def test_keys_that_say_nothing_are_ignored_by_name(preset, tmp_path, capsys):
    program(f"--from={preset}", f"--to={tmp_path}/there", "--format=huggingface")
    path = tmp_path / "there/config.json"
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "house_style": 1, "use_flash_attn": True}))
    typed = [sys.executable, "-m", "pipelines.convert", f"--from={tmp_path}/there"]
    typed.append(f"--to={tmp_path}/out")
    for more, there in (([], False), (["--ignore=house_style"], True)):
        done = subprocess.run([*typed, *more], cwd=ROOT, capture_output=True, text=True)
        assert (done.returncode == 0) is there, done.stderr
        assert ("(programs: --ignore=house_style)" in done.stderr) is not there
        assert ("ignored, as requested: house_style" in done.stderr) is there
        assert ("do not change the model: use_flash_attn" in done.stderr) is there
    assert (tmp_path / "out/kbert.json").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from=nowhere"], "kbert-convert: There is no such folder.*Received: 'nowhere'"),
        (["--from=bert-base-uncasd"], "Close: bert-base-uncased"),
        (["--from=hf:a/b/c"], "kbert-convert: A model of the hub must be written"),
        (["--from={preset}", "--architecture=bert"], "architecture='bert' with format='kbert'"),
        (["--from={preset}", "--to={preset}"], "an empty folder or not exist"),
        (["--from={preset}", "more"], r"accepts flags only.*Received: \['more'\]"),
    ],
)
def test_mistakes_are_one_line(preset, tmp_path, arguments, message):
    given = [argument.format(preset=preset) for argument in arguments]
    with pytest.raises(SystemExit, match=message) as stopped:
        program(f"--to={tmp_path}/out", *given)
    assert "\n" not in str(stopped.value)


@pytest.mark.slow
def test_help_teaches():
    run = [sys.executable, "-m", "pipelines.convert", "--help"]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
    for text in ("kbert-convert --from=bert-base-uncased --to=bert --check", "--[no]strict"):
        assert text in done.stdout, done.stderr
