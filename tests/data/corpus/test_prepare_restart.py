"""`kill -9` at any moment of `prepare_corpus`, the same call again: the same bytes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kbert
from kbert.data import prepare_corpus
from tests.processes import LIGHT
from tests.waiting import PATIENCE, until

ROOT = Path(kbert.__path__[0]).parent

# One process imports kbert and forks before TensorFlow starts its threads; each fork prepares the
# corpus and is killed, at a certain file operation or after a certain time.
KILLED_AGAIN_AND_AGAIN = """
import itertools, json, os, random, shutil, signal, sys, time
import kbert
from kbert.data import prepare_corpus
from kbert.data.corpus import chunks, shards

sources, out, vocabulary, how = sys.argv[1:]
chunks.CHUNK_BYTES = 40_000
shards.SHARD_TEXT_BYTES = 80_000


def prepare(folder):
    tokenizer = kbert.WordPieceTokenizer(vocabulary)
    prepare_corpus(sources, folder, tokenizer, held_out_share=0.1)


def dies_at(number):
    # Every publication of a file and every removal is a moment that matters: die before it.
    moments = itertools.count()

    def instrument(function):
        def dying(*arguments, **options):
            if next(moments) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)
        return dying

    os.replace, os.fsync = instrument(os.replace), instrument(os.fsync)
    os.unlink = os.remove = instrument(os.remove)
    prepare(out)


def run(function, *arguments, seconds=None):
    child = os.fork()
    if child == 0:
        function(*arguments)
        os._exit(0)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


start = time.monotonic()
assert run(prepare, out + "-whole") == 0
whole = time.monotonic() - start
exits, names = [], set()
if how == "moments":
    # Dies at its first such moment, then at its fourth, …: until no more of them are left.
    for number in range(0, 100, 3):
        exits.append(run(dies_at, number))
        names |= set(os.listdir(out))
        if exits[-1] == 0:
            break
else:
    draw = random.Random(0)
    for _ in range(12):
        exits.append(run(prepare, out, seconds=draw.uniform(0.05, 0.9) * whole))
        names |= set(os.listdir(out)) if os.path.exists(out) else set()
        if exits[-1] == 0:  # quicker than the first: from the beginning
            shutil.rmtree(out)
    exits.append(run(prepare, out))
print(json.dumps({"exits": exits, "names": sorted(names)}))
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def write_corpus_of(path: Path, documents: int) -> Path:
    texts = (f"The red fox {n} jumps. Over {n % 17} lazy dogs!" * 3 for n in range(documents))
    path.write_text("\n\n".join(texts))
    return path


@pytest.fixture
def corpus(tmp_path) -> Path:
    return write_corpus_of(tmp_path / "a.txt", 800)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["moments", pytest.param("times", marks=pytest.mark.slow)])
def test_killed_and_started_again(tmp_path, corpus, tiny_vocabulary, how):
    kbert.WordPieceTokenizer(tiny_vocabulary).save(tmp_path / "tokenizer")
    arguments = [str(corpus), str(tmp_path / "out"), str(tmp_path / "tokenizer/vocab.txt"), how]
    done = subprocess.run(
        [sys.executable, "-c", LIGHT + KILLED_AGAIN_AND_AGAIN, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=PATIENCE,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["exits"][-1] == 0, result
    if how == "moments":
        assert result["exits"].count(-9) >= 5, result
        # Killed in both halves of the work: before there were shards, and when there were.
        assert "work" in result["names"]
        assert any(name.startswith("train") for name in result["names"])
    assert contents(tmp_path / "out") == contents(tmp_path / "out-whole")


WITH_WORKERS = """
import sys
import kbert
from kbert.data import prepare_corpus
from kbert.data.corpus import chunks

if __name__ == "__main__":
    sources, out, vocabulary = sys.argv[1:]
    chunks.CHUNK_BYTES = 10_000
    prepare_corpus(sources, out, kbert.WordPieceTokenizer(vocabulary), num_workers=2)
"""


def children(process_id: int) -> list[int]:
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # ended between listing and reading
            if int(stat.read_text().rpartition(")")[2].split()[1]) == process_id:
                found.append(int(stat.parent.name))
    return found


@pytest.fixture
def running(tmp_path, tiny_vocabulary):
    """A preparation with two workers that has finished some chunks, and has many to go."""
    kbert.WordPieceTokenizer(tiny_vocabulary).save(tmp_path / "tokenizer")
    (tmp_path / "program.py").write_text(WITH_WORKERS)
    corpus = write_corpus_of(tmp_path / "a.txt", 40_000)
    command = [sys.executable, tmp_path / "program.py", corpus, tmp_path / "out"]
    parent = subprocess.Popen(
        [*command, tmp_path / "tokenizer/vocab.txt"],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": "."},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: list(tmp_path.glob("out/work/*.spill")))
        yield parent
    finally:
        parent.kill()
        parent.wait()


def finish_and_compare(folder: Path, vocabulary: list[str]) -> None:
    tokenizer = kbert.WordPieceTokenizer(vocabulary)
    prepare_corpus(folder / "a.txt", folder / "out", tokenizer)
    prepare_corpus(folder / "a.txt", folder / "whole", tokenizer)
    assert contents(folder / "out") == contents(folder / "whole")


@pytest.mark.slow
def test_workers_end_with_a_killed_parent(tmp_path, running, tiny_vocabulary):
    workers = children(running.pid)
    assert len(workers) >= 2
    running.kill()
    running.wait()
    until(lambda: not any(Path(f"/proc/{worker}").exists() for worker in workers))
    finish_and_compare(tmp_path, tiny_vocabulary)


@pytest.mark.slow
def test_a_killed_worker_is_a_clear_error(tmp_path, running, tiny_vocabulary):
    for child in children(running.pid):
        if "spawn_main" in Path(f"/proc/{child}/cmdline").read_text():
            os.kill(child, signal.SIGKILL)
    _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "A worker process was killed" in said
    assert "Finished work is kept" in said
    finish_and_compare(tmp_path, tiny_vocabulary)
