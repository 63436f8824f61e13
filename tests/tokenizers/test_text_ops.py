"""tensorflow-text's private names: they give what its public classes do, and lie in one file.

Where these tests fail with a new version of tensorflow-text: `kbert/tokenizers/text_ops.py`.
"""

import ast
import io
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import tensorflow_text as tf_text

from kbert.tokenizers import text_ops
from tests.processes import ROOT, run_code

TEXTS = ["the cat sat on the mat", "", "a  ham und Größe", "日本 ☃", "the ca" * 40]
PRIVATE = "kbert/tokenizers/text_ops.py"


def trained(kind):
    """A small model, serialised."""
    file = io.BytesIO()
    lines = ["the cat sat on the mat", "a ham and a hat", "the hat on the cat"] * 20
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=file,
        model_type=kind,
        vocab_size=30,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    return file.getvalue()


@pytest.mark.parametrize("kind", ["unigram", "bpe"])
def test_sentencepiece_is_the_public_class(kind):
    model = trained(kind)
    public = tf_text.SentencepieceTokenizer(model)
    wanted = public.tokenize_with_offsets(TEXTS)
    assert wanted[0].flat_values.dtype == tf.int32
    assert len(set(wanted[0].flat_values.numpy())) > 10

    @tf.function  # in a graph of its own, which holds the model
    def in_graph(texts):
        return text_ops.sentencepiece_with_offsets(model, texts)

    for ids, row_splits, starts, ends in (
        text_ops.sentencepiece_with_offsets(model, TEXTS),
        in_graph(tf.constant(TEXTS)),
    ):
        for column, theirs in zip((ids, starts, ends), wanted, strict=True):
            np.testing.assert_array_equal(column, theirs.flat_values)
            np.testing.assert_array_equal(row_splits, theirs.row_splits)
    ids, row_splits = text_ops.sentencepiece(model, TEXTS)
    np.testing.assert_array_equal(ids, wanted[0].flat_values)
    np.testing.assert_array_equal(row_splits, wanted[0].row_splits)
    assert row_splits.dtype == tf.int64
    assert not in_graph.get_concrete_function(tf.constant(TEXTS)).captured_inputs


def test_fast_sentencepiece_is_the_public_class():
    model = trained("unigram")
    wanted = tf_text.FastSentencepieceTokenizer(model).tokenize(TEXTS)
    found = text_ops.fast_sentencepiece(tf.constant(text_ops.fast_model(model)), TEXTS)
    assert found.to_list() == wanted.to_list()
    assert (found.dtype, found.row_splits.dtype) == (tf.int32, tf.int64)


@pytest.mark.parametrize("splits_words", [True, False])
def test_wordpiece_is_the_public_class(splits_words):
    pieces = ["[UNK]", "the", "cat", "c", "##at", "##s", "sat", "ham", "日", "本", "gr", "##ö"]
    model = text_ops.wordpiece_model(pieces, "[UNK]", longest=40, splits_words=splits_words)
    public = tf_text.FastWordpieceTokenizer(
        pieces, max_bytes_per_word=40, token_out_type=tf.int32, no_pretokenization=not splits_words
    )
    texts = [*TEXTS, "the", "cats", "grö", "größe", "日", "c" * 41]
    wanted = public.tokenize_with_offsets(texts)
    assert len(set(wanted[0].flat_values.numpy())) > 5
    for mine, theirs in zip(text_ops.wordpiece(tf.constant(model), texts), wanted, strict=True):
        assert mine.dtype == tf.int32
        assert mine.to_list() == theirs.to_list()


def test_splitting_and_normalizing_are_the_public_functions():
    texts = tf.constant([*TEXTS, "a, b.", "\t x\n"])
    wanted = tf_text.WhitespaceTokenizer().tokenize_with_offsets(texts)
    for mine, theirs in zip(text_ops.split_at_spaces(texts), wanted, strict=True):
        assert (mine.dtype, mine.to_list()) == (theirs.dtype, theirs.to_list())
    patterns = (r"\s|[,.]", r"[,.]")
    wanted = tf_text.regex_split_with_offsets(texts, *patterns)
    for mine, theirs in zip(text_ops.split_at(texts, *patterns), wanted, strict=True):
        assert (mine.dtype, mine.to_list()) == (theirs.dtype, theirs.to_list())
    for form in ("NFC", "NFD", "NFKC", "NFKD"):
        wanted = tf_text.normalize_utf8(texts, form).numpy()
        assert text_ops.normalized(texts, form).numpy().tolist() == wanted.tolist()


def test_no_other_file_uses_private_names():
    files = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "kbert").rglob("*.py")
        if re.search(r"tensorflow_text\.|load_op_library", path.read_text(encoding="utf-8"))
    }
    assert files == {PRIVATE}


@pytest.mark.parametrize("first", ["kbert", "tensorflow_text"])
def test_tensorflow_text_can_be_imported_before_and_after(first):
    theirs = "tf_text.FastWordpieceTokenizer([*SPECIAL_TOKENS, 'the', 'fox']).tokenize(['the fox'])"
    both = f"""
def mine():
    from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
    return WordPieceTokenizer([*SPECIAL_TOKENS, "the", "fox"])(["the fox"]).to_list()
def public():
    import tensorflow_text as tf_text
    from kbert.tokenizers import SPECIAL_TOKENS
    return {theirs}.to_list()
"""
    calls = ["mine()", "'tensorflow_text' in sys.modules", "public()"]
    calls = calls if first == "kbert" else calls[::-1]
    code = f"import sys\n{both}\nprint([{', '.join(calls)}])"
    found = ast.literal_eval(run_code(code, KERAS_BACKEND="tensorflow").splitlines()[-1])
    assert found == [[[5, 6]], first != "kbert", [[5, 6]]]


def test_without_tensorflow_text_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_text", None)  # None blocks
    text_ops._operators.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="pip install tensorflow-text"):
        text_ops.normalized(tf.constant(["a"]), "NFC")


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"\x7fELF")])
def test_a_damaged_tensorflow_text_is_named(monkeypatch, tmp_path, damage):
    for name in ("python/ops/_normalize_ops.so", "core/pybinds/pywrap_model_converter.so"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        damage(path)
    monkeypatch.setattr(text_ops, "_folder", lambda: str(tmp_path))
    monkeypatch.setattr(sys, "modules", {**sys.modules})
    sys.modules.pop("tensorflow_text.core.pybinds.pywrap_model_converter", None)
    for load, name in (
        (text_ops._operators, "normalize_ops"),
        (text_ops._builder, "model_converter"),
    ):
        with pytest.raises(ImportError, match=r"tensorflow-text must be whole.*Received: .*\.so"):
            load.__wrapped__(name)


def test_texts_are_split_in_a_process_without_keras():
    code = """
import sys
from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer, text_ops
import kbert.data.corpus.workers
text_ops.import_without_keras()
print(WordPieceTokenizer([*SPECIAL_TOKENS, "the", "fox"])(["the fox"]).to_list())
print([name for name in sys.modules if name.partition(".")[0] == "keras"])
import keras, tensorflow as tf
print(keras.layers.Dense(2)(tf.ones([1, 3])).shape, tf.keras.Model is keras.Model)
"""
    ids, modules, after = run_code(code, KERAS_BACKEND="tensorflow").splitlines()[-3:]
    assert (ids, modules, after) == ("[[5, 6]]", "[]", "(1, 2) True")
