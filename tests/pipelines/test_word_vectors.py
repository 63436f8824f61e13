"""`kbert-word-vectors` as it is typed."""

import os

import numpy as np
import pytest

from kbert.io import atomic
from kbert.word_vectors import SkipGram, WordVectors, train_word_vectors
from pipelines import word_vectors
from tests.killing import ends_killed, signalled
from tests.processes import ends_well, start_program
from tests.word_vectors.corpora import topics

QUICK = ("--width=4", "--epochs=2", "--min_count=2", "--batch_size=32")


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n".join(topics(60)) + "\n")
    return path


@pytest.mark.parametrize(
    ("method", "name", "more"),
    [
        ("skip_gram", "v.bin", ()),
        ("cbow", "v.txt", ()),
        ("glove", "v.txt", ("--format=glove", "--x_max=10")),
        ("fasttext", "v.bin", ("--buckets=300", "--shortest_ngram=2", "--longest_ngram=4")),
        ("fasttext", "v.txt", ("--buckets=300", "--format=text")),
    ],
    ids=["skip_gram", "cbow", "glove", "fasttext", "fasttext-text"],
)
def test_a_text_gives_a_file(call, text, tmp_path, capsys, method, name, more):
    output = tmp_path / name
    flags = (f"--input={text}", f"--output={output}", f"--method={method}", *QUICK, *more)
    call(word_vectors, *flags)
    assert f"{output}: 9 words, vectors of width 4" in capsys.readouterr().out
    found = WordVectors.load(output)
    assert (found.words[0], found.matrix.shape) == ("the", (9, 4))
    assert (found.subwords is not None) == (method == "fasttext" and name == "v.bin")
    assert sorted(os.listdir(tmp_path)) == ["text.txt", name, f"{name}.state.json"]
    before = output.read_bytes()
    call(word_vectors, *flags)
    assert f"{output} is complete" in capsys.readouterr().out
    assert output.read_bytes() == before
    with pytest.raises(SystemExit, match=r"^kbert-word-vectors: .*settings.seed was 0, is 1"):
        call(word_vectors, *flags, "--seed=1")


def test_it_is_the_call_of_the_library(call, text, tmp_path):
    call(word_vectors, f"--input={text}", f"--output={tmp_path / 'v.bin'}", *QUICK)
    settings = SkipGram(width=4, epochs=2, min_count=2, batch_size=32)
    wanted = train_word_vectors(topics(60), settings, verbose=0)
    np.testing.assert_array_equal(WordVectors.load(tmp_path / "v.bin").matrix, wanted.matrix)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--output=v.bin", "--x_max=3"), r"--x_max cannot be given for this method.*=skip_gram"),
        (("--output=v.bin", "--method=glove", "--negatives=3"), r"--negatives cannot .*=glove"),
        (("--output=v.txt", "--method=fasttext"), r"suffix must fit.*v.txt with format='fasttext'"),
        (("--output=v.bin", "--format=fasttext"), r"requires vectors with n-grams"),
        (("--output=v.txt.gz",), r"`.gz` is not supported for writing"),
        (
            ("--output=v.bin", "--method=fasttext", "--shortest_ngram=9"),
            r"`shortest_ngram` must be at least 1 and at most `longest_ngram`",
        ),
        (("--output=v.bin", "--min_count=99"), r"must occur 99 times"),
    ],
    ids=["glove", "negatives", "suffix", "format", "gz", "ngrams", "min_count"],
)
def test_flags_that_do_not_fit(call, text, tmp_path, monkeypatch, flags, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=rf"^kbert-word-vectors: .*{message}"):
        call(word_vectors, f"--input={text}", *flags)
    assert not any(os.path.exists(x) for x in ("v.bin", "v.txt", "v.txt.gz"))


def test_an_existing_file_of_another_program_is_kept(call, text, tmp_path):
    (tmp_path / "v.bin").write_bytes(b"precious")
    with pytest.raises(SystemExit, match=r"already exists without v.bin.state.json"):
        call(word_vectors, f"--input={text}", f"--output={tmp_path / 'v.bin'}", *QUICK)
    assert (tmp_path / "v.bin").read_bytes() == b"precious"


EACH_STEP = "import kbert.word_vectors.training as t; t._SECONDS = -1\n"


def test_a_killed_program_resumes_with_the_same_bytes(text, tmp_path):
    def start(name, **options):
        flags = (f"--input={text}", "--subsample=1", *QUICK, f"--output={tmp_path / name}")
        return start_program("word_vectors", *flags, **options)

    ends_well(start("whole.bin"))
    saved = signalled("kbert.word_vectors.training:_Checkpoint.save", calls=5)
    ends_killed(start("killed.bin", before=EACH_STEP + saved))
    assert (tmp_path / "killed.bin.training" / "checkpoint.safetensors").exists()
    ends_well(start("killed.bin"))
    assert (tmp_path / "killed.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()
    assert not (tmp_path / "killed.bin.training").exists()


def test_an_end_behind_the_output_is_made_up_for(call, text, tmp_path, monkeypatch, capsys):
    flags = (f"--input={text}", f"--output={tmp_path / 'v.bin'}", *QUICK)
    save = WordVectors.save

    def save_and_end(self, *arguments):
        save(self, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(WordVectors, "save", save_and_end)
        with pytest.raises(SystemExit):
            call(word_vectors, *flags)
    before = (tmp_path / "v.bin").read_bytes()
    for message in ("v.bin: 9 words", "v.bin is complete"):
        call(word_vectors, *flags)
        assert message in capsys.readouterr().out
        assert (tmp_path / "v.bin").read_bytes() == before
    assert not (tmp_path / "v.bin.training").exists()


def test_only_one_program_writes_a_file(call, text, tmp_path):
    flags = (f"--input={text}", f"--output={tmp_path / 'v.bin'}", *QUICK)
    message = r"Only one process may write .*v.bin.training"
    locked = atomic.refusing_others(tmp_path / "v.bin.training")
    with locked, pytest.raises(SystemExit, match=message):
        call(word_vectors, *flags)
