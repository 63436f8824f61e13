"""Answers made on Apache Beam have the bytes of those made here, file by file."""

import gzip
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kbert
from kbert.experiments import (
    AnswerFile,
    Records,
    answer_file,
    answer_on_beam,
    answer_records,
    beam,
    model_checksum,
)
from tests.waiting import until

ROOT = Path(__file__).parents[2]
TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


@pytest.fixture(scope="module")
def task(preset):
    options = {"labels": ["ham", "spam"], "max_length": 16}
    return kbert.tasks.TextClassifier.from_preset(preset, new_head=True, **options)


@pytest.fixture(scope="module")
def trained(task, tmp_path_factory):
    """A folder with the task."""
    folder = tmp_path_factory.mktemp("trained")
    task.save_to_preset(folder)
    return folder


@pytest.fixture
def texts(tmp_path, mail):
    """Files of different kinds: one of several chunks, one without records."""
    folder = tmp_path / "texts"
    folder.mkdir()
    rows = [f"{text} {'the fox ' * (number % 9)}" for number, text in enumerate(mail["text"])]
    (folder / "a.txt").write_text("\n".join(rows) + "\n\n")
    with gzip.open(folder / "b.csv.gz", "wt") as file:
        file.write("id,text\n" + "".join(f"{n},{text}\n" for n, text in enumerate(rows[:21])))
    (folder / "c.csv").write_text("id,text\n")
    lines = [json.dumps({"text": text, "id": n}) for n, text in enumerate(rows[:10])]
    (folder / "d.jsonl").write_text("\n".join(lines))
    return folder


def answer_here(task, folder, output) -> dict[str, bytes]:
    """What the local run writes for each file, by the names that the other run gives."""
    output.mkdir()
    paths = sorted(folder.iterdir())
    found = {}
    for number, path in enumerate(paths):
        answers = AnswerFile(output / path.name, {"model": model_checksum(task)})
        list(answer_records(task, Records(path, "classify"), answers))
        name = f"predictions-{number:05d}-of-{len(paths):05d}.jsonl"
        found[name] = (output / path.name).read_bytes()
    return found


def contents(folder) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def test_without_beam_a_message_says_what_to_install(monkeypatch, trained, texts, tmp_path):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match=r"^Predicting .* pip install 'kbert\[beam\]'"):
        answer_on_beam(trained, f"{texts}/*", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_workers_write_is_what_a_local_run_writes(task, trained, texts, tmp_path, monkeypatch):
    """The steps of the pipeline in this process, one after the other: no Beam is needed."""
    monkeypatch.setattr(answer_file, "CHUNK", 10)
    work = str(tmp_path / "work")
    job = beam._Job(str(trained), None, model_checksum(task), "classify", {}, 32, work)
    here = answer_here(task, texts, tmp_path / "here")

    def run() -> list[tuple[int, int]]:
        counts = []
        for file in enumerate(map(str, sorted(texts.iterdir()))):
            places = [beam._answer(chunk, job) for chunk in beam._read(file, job)]
            counts.append(beam._join((file[0], [chunk for _, chunk in places[::-1]]), job))
        return counts

    counts = run()
    assert [records for records, _ in counts] == [65, 21, 0, 10]
    assert all(cut for records, cut in counts if records)
    assert beam._sum(counts)[0] == 96
    joined = [Path(job.joined(number)).read_bytes() for number in range(4)]
    assert joined == list(here.values())

    asked = []
    whole = answer_file.answer_chunk
    monkeypatch.setattr(
        answer_file, "answer_chunk", lambda *given: asked.append(given[1]) or whole(*given)
    )
    assert run() == counts
    assert not asked
    (texts / "d.jsonl").write_text((texts / "d.jsonl").read_text().replace("fox", "king"))
    assert run()[0] == counts[0]
    assert [len(chunk) for chunk in asked] == [10]
    os.remove(job.part(0, 3))
    with pytest.raises(
        RuntimeError, match=r"All workers must have access to .*00000-00000003\.json"
    ):
        beam._join((0, [7]), job)


def test_a_worker_that_finds_another_model_says_so(trained):
    with pytest.raises(ValueError, match=f"the same model.*another one in {trained} .*, not 0123"):
        beam._model(str(trained), None, "0123")


def test_the_bytes_are_those_of_the_local_run(task, trained, texts, tmp_path, monkeypatch, caplog):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    monkeypatch.setattr(answer_file, "CHUNK", 10)
    out = tmp_path / "out"
    here = answer_here(task, texts, tmp_path / "here")
    assert answer_on_beam(trained, f"{texts}/*", out) == 96
    assert "of 96 examples are longer than" in caplog.text
    assert contents(out) == here
    for path in out.iterdir():
        os.utime(path, (1, 1))
    assert answer_on_beam(trained, f"{texts}/*", out) == 96
    assert all(path.stat().st_mtime == 1 for path in out.iterdir())
    with pytest.raises(ValueError, match=r"other settings.*files of the input was 4, is 2"):
        answer_on_beam(trained, f"{texts}/*.csv*", out)
    with pytest.raises(ValueError, match=r"texts already exists without texts.state.json"):
        answer_on_beam(trained, f"{texts}/*", texts)
    assert contents(out) == here


def test_a_record_that_is_wrong_is_named_and_may_be_mended(
    task, trained, texts, tmp_path, monkeypatch
):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    monkeypatch.setattr(answer_file, "CHUNK", 10)
    with (texts / "d.jsonl").open("a") as file:
        file.write('\n{"text": 5, "id": 10}')
    out = tmp_path / "out"
    with pytest.raises(Exception, match=r"d\.jsonl, line 11: 'text' must be a string"):
        answer_on_beam(trained, f"{texts}/*", out)
    assert not list(out.glob("predictions-*"))
    (out / "work").mkdir(exist_ok=True)
    (out / "predictions-00000-of-00003.jsonl").write_text("as of one killed at its end")
    with pytest.raises(ValueError, match=r"other settings.*columns was {}, is {'text': 'id'}"):
        answer_on_beam(trained, f"{texts}/*", out, columns={"text": "id"})
    (texts / "d.jsonl").write_text((texts / "d.jsonl").read_text().replace(" 5,", ' "rain",'))
    assert answer_on_beam(trained, f"{texts}/*", out) == 97
    assert contents(out) == answer_here(task, texts, tmp_path / "here")


@pytest.mark.slow
def test_two_workers_and_a_kill_in_the_middle_leave_the_same_bytes(task, trained, texts, tmp_path):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    (texts / "a.txt").write_text("".join(f"the fox number {n} .\n" for n in range(8_000)))
    here = answer_here(task, texts, tmp_path / "here")
    out = tmp_path / "there"
    command = [
        *(sys.executable, "-m", "pipelines.predict", f"--preset={trained}", f"--input={texts}/*"),
        *(f"--output={out}", "--runner=beam", f"--beam_flags={' '.join(TWO_WORKERS)}"),
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
    until(lambda: list((out / "work").glob("*-*.json")) or started.poll() is not None)
    os.killpg(started.pid, signal.SIGKILL)
    assert started.wait() == -signal.SIGKILL
    assert os.listdir(out) == ["work"]
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    assert contents(out) == here
