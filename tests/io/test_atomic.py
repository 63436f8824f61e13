"""Files appear whole or not at all, also when the kernel itself refuses to write."""

import os
import signal
import socket
import subprocess
import sys

import numpy as np
import pytest

import kbert
from kbert.data import prepare_corpus
from kbert.data.corpus import records
from kbert.io import atomic
from tests.harness import files_of_at_most


def test_the_old_file_stays_when_the_new_one_fails(tmp_path):
    path = tmp_path / "a"
    atomic.write(str(path), b"old")
    error = r"Cannot write .*/a: File too large"
    with files_of_at_most(1000), pytest.raises(OSError, match=error):
        atomic.write(str(path), b"new", bytes(5000))
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_files_that_belong_together_change_together(tmp_path):
    weights, config = tmp_path / "weights", tmp_path / "config"
    atomic.write_together({weights: b"old weights", config: b"old config"})
    error = r"Cannot write .*/config: File too large"
    with files_of_at_most(1000), pytest.raises(OSError, match=error):
        atomic.write_together({weights: b"new weights", config: bytes(5000)})
    assert (weights.read_bytes(), config.read_bytes()) == (b"old weights", b"old config")
    atomic.write_together({weights: b"new weights", config: b"new config"})
    assert (weights.read_bytes(), config.read_bytes()) == (b"new weights", b"new config")
    assert sorted(os.listdir(tmp_path)) == ["config", "weights"]


def test_files_of_a_block_change_together(tmp_path, monkeypatch):
    weights, config, words = (tmp_path / name for name in ("weights", "config", "words"))

    def contents() -> dict[str, str]:
        return {path.name: path.read_text() for path in tmp_path.iterdir() if path.is_file()}

    def write(name: str, fails: bool = False) -> None:
        with atomic.together():
            atomic.write_together({path: name.encode() for path in (weights, config)})
            if fails:
                raise OSError("the disk is full")
            atomic.write(words, name.encode())

    write("old")
    old = dict.fromkeys(("weights", "config", "words"), "old")
    assert contents() == old
    with pytest.raises(OSError, match="the disk is full"):
        write("new", fails=True)
    assert contents() == old  # no temporary file either
    with atomic.together():
        write("new")
        assert {name: text for name, text in contents().items() if name in old} == old
        assert atomic.newest(words).read_text() == "new"
        assert atomic.newest(tmp_path / "other") == tmp_path / "other"
        atomic.remove(words)
        assert words.read_text() == "old"
    assert contents() == {"weights": "new", "config": "new"}

    # A process that dies between two renames leaves no config.
    write("old")
    names = []

    replace = os.replace

    def rename(source, target):
        names.append(os.path.basename(target))
        if len(names) == 3:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", rename)
    with pytest.raises(KeyboardInterrupt):
        write("new")
    assert names == ["weights", "words", "config"]
    assert not config.exists()
    write("newest")
    assert set(contents().values()) == {"newest"}


def test_leftovers_of_a_killed_process_are_removed(tmp_path):
    atomic.write(str(tmp_path / "a"), b"whole")
    with open(atomic.temporary_name(str(tmp_path / "b")), "wb") as file:
        file.write(b"half")
    atomic.remove_leftovers(str(tmp_path))
    assert os.listdir(tmp_path) == ["a"]


def test_tensorflow_failing_to_write_a_shard(tmp_path):
    def write():
        with records.BlockWriter(str(tmp_path / "a.tfrecord"), "uint16") as writer:
            for _ in range(2000):
                writer.add(np.arange(1000), np.array([1000]))

    error = r"Cannot write .*/a\.tfrecord: .*[Ff]ile too large"
    with files_of_at_most(100_000), pytest.raises(OSError, match=error):
        write()
    assert os.listdir(tmp_path) == []


def test_prepare_leaves_no_half_written_spill(tmp_path, tiny_vocabulary):
    texts = [f"the red fox jumps over {number} dogs." for number in range(2000)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts))
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    error = r"Cannot write .*work/chunk-.*: File too large"
    with files_of_at_most(4096), pytest.raises(OSError, match=error):
        prepare_corpus(tmp_path / "a.txt", tmp_path / "out", tokenizer)
    assert os.listdir(tmp_path) == ["a.txt"]


HOLD = """
import sys, time
from kbert.io import atomic
with atomic.refusing_others(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def test_a_second_process_is_refused_and_a_killed_one_leaves_no_lock(tmp_path):
    folder = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True, cwd=os.getcwd()
    )
    try:
        assert process.stdout.readline() == "held\n"
        holder = f"in use by process {process.pid} on {socket.gethostname()}"
        with pytest.raises(RuntimeError, match=holder), atomic.refusing_others(folder):
            raise AssertionError
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert os.listdir(folder) == [".lock"]  # a file, no lock
        with atomic.refusing_others(folder):
            pass
        assert os.listdir(folder) == []
    finally:
        process.kill()
        process.stdout.close()
