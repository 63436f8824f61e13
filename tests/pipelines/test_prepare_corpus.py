"""`kbert-prepare-corpus` as it is typed, and its pieces."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from absl import flags
from absl.testing import flagsaver

import kbert
from pipelines import prepare_corpus

ROOT = Path(kbert.__path__[0]).parent


@pytest.fixture
def corpus(tmp_path):
    texts = [f"The red fox {n} jumps over two lazy dogs. It runs." for n in range(200)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:100]))
    (tmp_path / "b.jsonl").write_text("\n".join(json.dumps({"body": t}) for t in texts[100:]))
    return tmp_path


def program(*arguments: str) -> None:
    """Calls main with these flags; the definitions are gone afterwards."""
    with flagsaver.flagsaver():
        prepare_corpus.define_flags()
        prepare_corpus.main(flags.FLAGS(["kbert-prepare-corpus", *arguments]))


def test_from_text_to_shards_with_a_vocabulary_learned_on_the_way(corpus, capsys):
    out = corpus / "out"
    program(
        f"--input={corpus}/a.txt,{corpus}/b.jsonl",
        "--field=body",
        f"--output_dir={out}",
        "--vocabulary_size=80",
        "--held_out_share=0.1",
    )
    manifest = kbert.data.verify_corpus(out)
    assert sum(split.documents for split in manifest.splits.values()) == 200
    assert manifest.splits["held_out"].documents > 5
    assert kbert.load_tokenizer(out).vocabulary_size == 80 == manifest.vocabulary_size
    assert "out: train: " in capsys.readouterr().out


@pytest.mark.parametrize(("kind", "size"), [("bpe", 300), ("unigram", 80)])
def test_every_kind_of_tokenizer(corpus, capsys, kind, size):
    source = f"--input={corpus}/a.txt"
    program(
        source, f"--tokenizer={kind}", f"--vocabulary_size={size}", f"--output_dir={corpus}/out"
    )
    learned = kbert.load_tokenizer(corpus / "out")
    assert learned.kind == kind
    assert kbert.data.verify_corpus(corpus / "out").vocabulary_size == learned.vocabulary_size
    rows = kbert.data.pretraining_dataset(
        corpus / "out", learned, sequence_length=32, batch_size=4, epochs=1
    )
    ids = next(iter(rows))["token_ids"].numpy()
    assert (ids[:, 0] == learned.cls_id).all() and ids.max() < learned.vocabulary_size
    # The folder of shards is a folder of its tokenizer: other text, the same pieces.
    program(source, f"--vocabulary={corpus}/out", f"--output_dir={corpus}/again")
    assert kbert.load_tokenizer(corpus / "again").checksum == learned.checksum
    program(source, f"--vocabulary={corpus}/out", f"--output_dir={corpus}/none", "--dry_run")
    assert learned.id_to_token(learned.encode("It runs.")[0].numpy()) in capsys.readouterr().out


def test_a_sentencepiece_file(corpus):
    text = f"--input={corpus}/a.txt"
    program(text, "--tokenizer=unigram", "--vocabulary_size=80", f"--output_dir={corpus}/out")
    model = corpus / "out" / "spiece.model"
    program(text, f"--vocabulary={model}", f"--output_dir={corpus}/cased", "--nolowercase")
    cased = kbert.load_tokenizer(corpus / "cased")
    assert cased.kind == "unigram" and not cased.lowercase
    with pytest.raises(SystemExit, match="was prepared otherwise"):
        program(text, f"--vocabulary={model}", f"--output_dir={corpus}/cased")


def test_kinds_that_do_not_fit(corpus, tiny_vocabulary):
    kbert.WordPieceTokenizer(tiny_vocabulary).save(corpus / "model")
    arguments = (f"--input={corpus}/a.txt", f"--output_dir={corpus}/out")
    with pytest.raises(SystemExit, match="holds one of kind wordpiece. .*--tokenizer=bpe"):
        program(*arguments, f"--vocabulary={corpus}/model", "--tokenizer=bpe")
    with pytest.raises(SystemExit, match="keeps a text byte for byte"):
        program(*arguments, "--tokenizer=bpe", "--vocabulary_size=300", "--lowercase")


def test_a_start_with_other_input_learns_another_vocabulary(corpus, monkeypatch):
    def interrupted(*args, **options):
        raise OSError("interrupted")

    (corpus / "z.txt").write_text("\n\n".join(f"Zebras zoom past {n}." for n in range(100)))
    common = (f"--output_dir={corpus}/out", "--vocabulary_size=80")
    with monkeypatch.context() as patch:
        patch.setattr(kbert.data, "prepare_corpus", interrupted)
        with pytest.raises(SystemExit, match="interrupted"):
            program(f"--input={corpus}/a.txt", *common)
    program(f"--input={corpus}/z.txt", *common)
    learned = kbert.load_tokenizer(corpus / "out").vocabulary
    assert "z" in learned and "x" not in learned  # zebras, and no fox
    with pytest.raises(SystemExit, match="holds shards that were made with another vocabulary"):
        program(f"--input={corpus}/z.txt", *common, "--nolowercase")
    program(f"--input={corpus}/z.txt", *common)  # finished: nothing to do


def test_a_cased_vocabulary_by_flag(corpus, tiny_vocabulary):
    kbert.WordPieceTokenizer(tiny_vocabulary, lowercase=True).save(corpus / "model")
    arguments = (f"--input={corpus}/a.txt", f"--vocabulary={corpus}/model")
    program(*arguments, f"--output_dir={corpus}/cased", "--nolowercase")
    assert not kbert.load_tokenizer(corpus / "cased").lowercase
    program(*arguments, f"--output_dir={corpus}/uncased")
    assert kbert.load_tokenizer(corpus / "uncased").lowercase


def test_dry_run_shows_and_writes_nothing(corpus, capsys):
    out = corpus / "out"
    program(f"--input={corpus}/a.txt", f"--output_dir={out}", "--vocabulary_size=80", "--dry_run")
    shown = capsys.readouterr().out
    assert "document 1: 2 sentences" in shown and "  It runs." in shown
    assert "estimate, num_workers=1:" in shown
    assert not out.exists()


def test_bad_input_is_one_line_not_a_traceback(corpus):
    (corpus / "c.txt").write_bytes(b"bad \xff")
    common = (f"--output_dir={corpus}/out", "--vocabulary_size=80")
    with pytest.raises(SystemExit, match=r"^kbert-prepare-corpus: .*c\.txt: invalid UTF-8 at byte"):
        program(f"--input={corpus}/*.txt", *common)
    with pytest.raises(SystemExit, match=r"^kbert-prepare-corpus: No file matches"):
        program(f"--input={corpus}/*.text", *common)
    with pytest.raises(SystemExit, match=r"given with --input. Received: \['a.txt'\]"):
        program(f"--input={corpus}/*.txt", *common, "a.txt")


def test_flags_that_must_be_there():
    with pytest.raises(flags.IllegalFlagValueError, match="--output_dir must have a value"):
        program("--input=a", "--vocabulary_size=80")
    with pytest.raises(flags.IllegalFlagValueError, match="vocabulary, vocabulary_size"):
        program("--input=a", "--output_dir=b")


def test_importing_the_program_defines_no_flags():
    assert "on_bad_utf8" not in flags.FLAGS


def test_help_teaches_by_example():
    code = "from pipelines.prepare_corpus import run; run()"
    done = subprocess.run(
        [sys.executable, "-c", code, "--help"], capture_output=True, text=True, cwd=ROOT
    )
    assert "kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary=vocab.txt" in done.stdout
    assert "--on_bad_utf8: <fail|replace>" in done.stdout
