"""`kbert-prepare-corpus` as it is typed, and its pieces."""

import json

import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert.data.corpus.records import parse_blocks
from pipelines import prepare_corpus
from tests.processes import start_program


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
    assert (ids[:, 0] == learned.cls_id).all()
    assert ids.max() < learned.vocabulary_size
    # The folder of shards is a folder of its tokenizer: other text, the same pieces.
    program(source, f"--vocabulary={corpus}/out", f"--output_dir={corpus}/again")
    assert kbert.load_tokenizer(corpus / "again").checksum == learned.checksum
    program(source, f"--vocabulary={corpus}/out", f"--output_dir={corpus}/none", "--dry_run")
    assert learned.id_to_token(learned.encode("It runs.")[0].numpy()) in capsys.readouterr().out


def test_words_come_back_from_the_shards(corpus, capsys):
    """Two documents of split words and what the shards must hold of them."""
    source = f"--input={corpus}/split.txt"
    texts = ["the sun shone . <unk> sank .\nthe Sun\n", "a caf\u00e9 , the sun .\n"]
    (corpus / "split.txt").write_text("\n".join(texts))
    program(source, "--tokenizer=words", f"--output_dir={corpus}/out", "--held_out_share=0")
    learned = kbert.load_tokenizer(corpus / "out")
    special = ["</S>", "<S>", "<UNK>"]
    words = [".", "the", "sun", ",", "<unk>", "Sun", "a", "caf\u00e9", "sank", "shone"]
    assert (learned.kind, learned.vocabulary) == ("words", [*special, *words])
    sentences = [["the sun shone .", "<unk> sank .", "the Sun"], ["a caf\u00e9 , the sun ."]]
    expected = [
        [[learned.vocabulary.index(word) for word in sentence.split()] for sentence in document]
        for document in sentences
    ]
    manifest = kbert.data.verify_corpus(corpus / "out")
    assert (manifest.token_dtype, manifest.vocabulary_size) == ("uint16", 13)
    assert sorted(documents_of(manifest)) == sorted(expected)
    manifest.check_tokenizer(learned)
    # A file of words, of another order and without some of them.
    (corpus / "vocab.txt").write_text("\n".join(["<S>", "</S>", "<UNK>", "sun", "the", "."]))
    program(
        source, f"--vocabulary={corpus}/vocab.txt", "--tokenizer=words",
        f"--output_dir={corpus}/given", "--held_out_share=0",
    )  # fmt: skip
    given = kbert.data.verify_corpus(corpus / "given")
    assert [[2, 2, 2, 4, 3, 5]] in documents_of(given)
    with pytest.raises(ValueError, match="written with another vocabulary"):
        given.check_tokenizer(learned)
    program(source, "--tokenizer=words", f"--output_dir={corpus}/none", "--dry_run")
    assert "    the sun shone .\n" in capsys.readouterr().out


def documents_of(manifest) -> list[list[list[int]]]:
    """The ids of the sentences of the documents of the train split."""
    found = []
    for record in tf.data.TFRecordDataset(manifest.shard_paths()).batch(1):
        block = parse_blocks(record, manifest.token_dtype)
        tokens = tf.RaggedTensor.from_row_lengths(block["tokens"], block["sentences"])
        found += tf.RaggedTensor.from_row_lengths(tokens, block["documents"]).to_list()
    return found


def test_more_words_than_sixteen_bits(corpus):
    numbers = [" ".join(map(str, range(n, n + 500))) for n in range(0, 66_000, 500)]
    (corpus / "numbers.txt").write_text("\n\n".join(numbers))
    program(
        f"--input={corpus}/numbers.txt", "--tokenizer=words", f"--output_dir={corpus}/out",
        "--held_out_share=0",
    )  # fmt: skip
    manifest = kbert.data.verify_corpus(corpus / "out")
    assert (manifest.token_dtype, manifest.vocabulary_size) == ("int32", 66_003)
    words = kbert.load_tokenizer(corpus / "out").vocabulary
    found = [" ".join(words[i] for i in row) for doc in documents_of(manifest) for row in doc]
    assert sorted(" ".join(found).split()) == sorted(words[3:])


def test_what_words_do_not_take(corpus):
    arguments = (f"--input={corpus}/a.txt", f"--output_dir={corpus}/out", "--tokenizer=words")
    with pytest.raises(SystemExit, match="words do not support lowercase"):
        program(*arguments, "--lowercase")
    with pytest.raises(SystemExit, match=r"must include a word besides .*Received: 2"):
        program(*arguments, "--vocabulary_size=2")
    (corpus / "vocab.txt").write_text("the\nsun\n")
    with pytest.raises(SystemExit, match=r"must contain </S>, <S>, <UNK>. Received: .*vocab.txt"):
        program(*arguments, f"--vocabulary={corpus}/vocab.txt")
    (corpus / "vocab.txt").write_text("</S>\n<S>\n<UNK>\n")
    with pytest.raises(
        SystemExit, match=r"not supported by a tokenizer of kind words. Received: --lowercase"
    ):
        program(*arguments, f"--vocabulary={corpus}/vocab.txt", "--lowercase")
    with pytest.raises(ValueError, match=r"a vocabulary, .*Received: a CharacterTokenizer"):
        kbert.data.prepare_corpus(
            f"{corpus}/a.txt", f"{corpus}/out", kbert.tokenizers.CharacterTokenizer()
        )


def test_a_sentencepiece_file(corpus):
    text = f"--input={corpus}/a.txt"
    program(text, "--tokenizer=unigram", "--vocabulary_size=80", f"--output_dir={corpus}/out")
    model = corpus / "out" / "spiece.model"
    program(text, f"--vocabulary={model}", f"--output_dir={corpus}/cased", "--nolowercase")
    cased = kbert.load_tokenizer(corpus / "cased")
    assert cased.kind == "unigram"
    assert not cased.lowercase
    assert cased.keep_accents
    program(text, f"--vocabulary={corpus}/cased", f"--output_dir={corpus}/uncased", "--lowercase")
    uncased = kbert.load_tokenizer(corpus / "uncased")
    assert uncased.lowercase
    assert not uncased.keep_accents
    with pytest.raises(SystemExit, match="was prepared with other settings"):
        program(text, f"--vocabulary={model}", f"--output_dir={corpus}/cased")


def test_a_trained_vocabulary_has_sentinels(corpus):
    arguments = (f"--input={corpus}/a.txt", "--tokenizer=unigram", "--vocabulary_size=90")
    program(*arguments, f"--output_dir={corpus}/out", "--num_sentinels=3")
    tokenizer = kbert.load_tokenizer(corpus / "out")
    assert tokenizer.vocabulary[5:8] == [f"<extra_id_{n}>" for n in range(3)]
    with pytest.raises(SystemExit, match=r"with another vocabulary.*num_sentinels"):
        program(*arguments, f"--output_dir={corpus}/out")


def test_kinds_that_do_not_fit(corpus, tiny_vocabulary):
    kbert.WordPieceTokenizer(tiny_vocabulary).save(corpus / "model")
    arguments = (f"--input={corpus}/a.txt", f"--output_dir={corpus}/out")
    with pytest.raises(SystemExit, match=r"a tokenizer of kind wordpiece. .*--tokenizer=bpe"):
        program(*arguments, f"--vocabulary={corpus}/model", "--tokenizer=bpe")
    with pytest.raises(SystemExit, match=r"vocab.txt holds a tokenizer of kind wordpiece"):
        program(*arguments, f"--vocabulary={corpus}/model/vocab.txt", "--tokenizer=bpe")
    with pytest.raises(SystemExit, match="bpe and words do not support lowercase"):
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
    assert "z" in learned
    assert "x" not in learned
    with pytest.raises(SystemExit, match="contains shards that were made with another vocabulary"):
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
    assert "document 1: 2 sentences" in shown
    assert "  It runs." in shown
    assert "estimate, num_workers=1:" in shown
    assert not out.exists()


def test_bad_input_is_one_line_not_a_traceback(corpus):
    (corpus / "c.txt").write_bytes(b"bad \xff")
    common = (f"--output_dir={corpus}/out", "--vocabulary_size=80")
    with pytest.raises(SystemExit, match=r"^kbert-prepare-corpus: .*c\.txt: invalid UTF-8 at byte"):
        program(f"--input={corpus}/*.txt", *common)
    with pytest.raises(SystemExit, match=r"^kbert-prepare-corpus: No file matches"):
        program(f"--input={corpus}/*.text", *common)
    with pytest.raises(SystemExit, match=r"accepts flags only. Received: \['a.txt'\]"):
        program(f"--input={corpus}/*.txt", *common, "a.txt")


def test_flags_that_must_be_there():
    with pytest.raises(flags.IllegalFlagValueError, match="--output_dir must have a value"):
        program("--input=a", "--vocabulary_size=80")
    common = ("--input=a", "--output_dir=b")
    both = ("--vocabulary=c", "--vocabulary_size=9")
    with pytest.raises(flags.IllegalFlagValueError, match="--num_sentinels requires a vocabulary"):
        program("--input=a", "--output_dir=b", "--vocabulary=c", "--num_sentinels=2")
    for wrong in ((), ("--tokenizer=bpe",), both, (*both, "--tokenizer=words")):
        with pytest.raises(
            flags.IllegalFlagValueError, match="one of --vocabulary and --vocabulary_size"
        ):
            program(*common, *wrong)


def test_importing_the_program_defines_no_flags():
    assert "on_bad_utf8" not in flags.FLAGS


@pytest.mark.slow
def test_help_teaches_by_example():
    out, _ = start_program("prepare_corpus", "--help").communicate()
    assert "kbert-prepare-corpus --input='corpus/*.txt.gz' --vocabulary=vocab.txt" in out
    assert "--on_bad_utf8: <fail|replace>" in out
