"""A corpus prepared on Apache Beam has the bytes of one prepared here."""

import hashlib
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import kbert
from kbert.data import prepare_corpus
from kbert.data.corpus import beam
from kbert.text.source import Source
from tests.data.corpus.test_prepare import make_texts
from tests.waiting import until

ROOT = Path(__file__).parents[3]
TWO_WORKERS = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def text(tmp_path):
    """Three files of different kinds, with documents that are in two of them, and empty ones."""
    texts = make_texts(300)
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(texts[:150]) + "\n\n\u200b\n")
    (folder / "b.txt").write_text("\n\n".join([*texts[140:160], " ".join(texts[:200])]))
    (folder / "c.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts[155:]))
    return folder


def contents(folder) -> dict[str, str]:
    files = (path for path in Path(folder).iterdir() if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def test_without_beam_a_message_says_what_to_install(monkeypatch, tokenizer, text, tmp_path):
    monkeypatch.setitem(sys.modules, "apache_beam", None)
    with pytest.raises(ImportError, match=r"pip install 'kbert\[beam\]'"):
        prepare_corpus(f"{text}/*", tmp_path / "out", tokenizer, beam_flags=())
    assert not (tmp_path / "out" / "plan.json").exists()


def test_what_workers_return_is_what_is_counted_here(tokenizer, text):
    """The steps of the pipeline in this process, one after the other: no Beam is needed."""
    (source,) = kbert.text.open_sources(f"{text}/a.txt")
    config = json.dumps(tokenizer.get_config())
    found = list(beam._tokenised(source, type(tokenizer), config, "uint16"))
    total = beam._sum(counts for _, counts in found)
    assert total["documents_read"] == 151
    parts = [part for arrays, _ in found for part in beam._cut(arrays, 0.5, total)]
    assert sorted(number for number, _ in parts) == [0, 1]
    assert sum(len(arrays["high"]) for _, arrays in parts) == 151 - total["empty_documents"]


def test_counts_of_a_source_are_those_of_its_chunks(tokenizer, monkeypatch):
    class Cutting(Source):
        def documents(self):
            for number in range(4):
                self.cut_documents += number == 2
                self.replaced_characters += 3
                yield b"the red fox jumps over. " * 20

    monkeypatch.setattr("kbert.data.corpus.chunks.CHUNK_BYTES", 500)
    config = json.dumps(tokenizer.get_config())
    found = list(beam._tokenised(Cutting("x", 0), type(tokenizer), config, "uint16"))
    assert len(found) > 1
    total = beam._sum(counts for _, counts in found)
    assert (total["cut_documents"], total["replaced_characters"]) == (1, 12)


@pytest.mark.parametrize("held_out_share", [0.0, 0.2])
def test_the_bytes_are_those_of_the_local_run(
    tokenizer, text, tmp_path, held_out_share, monkeypatch
):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    monkeypatch.setattr("kbert.data.corpus.shards.SHARD_TEXT_BYTES", 4_000)
    options = {"held_out_share": held_out_share}
    here = prepare_corpus(f"{text}/*", tmp_path / "here", tokenizer, **options)
    there = prepare_corpus(f"{text}/*", tmp_path / "there", tokenizer, beam_flags=(), **options)
    assert there.counts == here.counts
    assert len(there.splits["train"].shards) > 5
    assert there.counts["duplicate_documents"] == 15
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    again = prepare_corpus(f"{text}/*", tmp_path / "there", tokenizer, beam_flags=(), **options)
    assert again.counts == here.counts


def test_a_flag_that_beam_does_not_have_is_refused(tokenizer, text, tmp_path):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    with pytest.raises(ValueError, match=r"Beam has no such flag\. Received: direct_workers"):
        prepare_corpus(f"{text}/*", tmp_path / "out", tokenizer, beam_flags=["--direct_workers=2"])


def test_one_document_is_too_few(tokenizer, tmp_path):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    (tmp_path / "one.txt").write_text("The red fox jumps.")
    with pytest.raises(ValueError, match=r"two different documents .* Received: 1 besides"):
        prepare_corpus(tmp_path / "one.txt", tmp_path / "out", tokenizer, beam_flags=())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_two_workers_and_a_kill_in_the_middle_leave_the_same_bytes(tokenizer, text, tmp_path):
    pytest.importorskip("apache_beam", reason="the extra [beam]")
    prepare_corpus(f"{text}/*", tmp_path / "here", tokenizer)
    vocabulary = tmp_path / "here" / "vocab.txt"
    command = [
        *(sys.executable, "-m", "pipelines.prepare_corpus", f"--input={text}/*"),
        *(f"--vocabulary={vocabulary}", f"--output_dir={tmp_path}/there", "--runner=beam"),
        f"--beam_flags={' '.join(TWO_WORKERS)}",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = subprocess.Popen(command, env=environment, cwd=ROOT, start_new_session=True)
    until(
        lambda: (tmp_path / "there" / "work" / "counts.json").exists() or started.poll() is not None
    )
    os.killpg(started.pid, signal.SIGKILL)
    started.wait()
    assert not (tmp_path / "there" / "manifest.json").exists()
    subprocess.run(command, env=environment, cwd=ROOT, check=True)
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
