"""`kill -9` at any moment of `prepare_corpus`, the same call again: the same bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import kbert

ROOT = Path(kbert.__path__[0]).parent

# One process imports kbert and forks before TensorFlow starts its threads; each fork prepares the
# corpus and is killed, at a certain file operation or after a certain time.
KILLED_AGAIN_AND_AGAIN = """
import itertools, json, os, random, signal, sys, time
import kbert
from kbert.data import prepare_chunks, prepare_corpus, prepare_shards

sources, out, vocabulary, how = sys.argv[1:]
prepare_chunks.CHUNK_BYTES = 20_000
prepare_shards.SHARD_TEXT_BYTES = 60_000


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
    # Dies at its first such moment, then at its second, …: until there are no more of them.
    for number in range(100):
        exits.append(run(dies_at, number))
        names |= set(os.listdir(out))
        if exits[-1] == 0:
            break
else:
    draw = random.Random(0)
    for _ in range(8):
        exits.append(run(prepare, out, seconds=draw.uniform(0.05, 0.9) * whole))
        names |= set(os.listdir(out)) if os.path.exists(out) else set()
    exits.append(run(prepare, out))
print(json.dumps({"exits": exits, "names": sorted(names)}))
"""


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def corpus(tmp_path) -> Path:
    texts = [f"The red fox {n} jumps. Over {n % 17} lazy dogs!" * 3 for n in range(800)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    return tmp_path / "a.txt"


@pytest.mark.parametrize("how", ["moments", pytest.param("times", marks=pytest.mark.slow)])
def test_killed_and_started_again(tmp_path, corpus, tiny_vocabulary, how):
    kbert.WordPieceTokenizer(tiny_vocabulary).save(tmp_path / "tokenizer")
    arguments = [str(corpus), str(tmp_path / "out"), str(tmp_path / "tokenizer/vocab.txt"), how]
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AGAIN_AND_AGAIN, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["exits"][-1] == 0 and result["exits"].count(-9) >= 5, result
    # Killed in both halves of the work: before there were shards, and when there were.
    assert "work" in result["names"]
    if how == "moments":
        assert any(name.startswith("train") for name in result["names"])
    assert contents(tmp_path / "out") == contents(tmp_path / "out-whole")
