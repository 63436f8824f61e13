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


def test_what_else_belongs_to_a_folder_is_written_before_its_last_file(tmp_path):
    def write(name: str, fails: bool = False) -> None:
        with atomic.last_files_last():
            paths = tmp_path / "weights", tmp_path / "config"
            atomic.write_together({path: name.encode() for path in paths})
            assert (tmp_path / "weights").read_text() == name
            assert not (tmp_path / "config").exists()
            if fails:
                raise OSError("the disk is full")

    write("old")
    assert (tmp_path / "config").read_text() == "old"
    with pytest.raises(OSError, match="the disk is full"):
        write("new", fails=True)
    assert os.listdir(tmp_path) == ["weights"]
    write("newer")
    assert sorted(os.listdir(tmp_path)) == ["config", "weights"]
    with atomic.last_files_last():
        write("newest")
        assert os.listdir(tmp_path).count("config") == 0  # a block inside another is part of it
    assert (tmp_path / "config").read_text() == "newest"
    atomic.write_together({tmp_path / "a": b"", tmp_path / "b": b""})
    assert (tmp_path / "b").exists()


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
