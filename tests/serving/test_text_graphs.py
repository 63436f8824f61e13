"""Tokenizers inside runtimes: the ids of kbert's own, or none."""

import logging
import os
import string
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kbert
from kbert.data.tables.inputs import build_inputs
from kbert.serving import onnx_text, openvino_text
from kbert.serving.text_graphs import HARD_TEXTS, write_text_graphs
from kbert.serving.text_rows import TextRows, code_class
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

pytestmark = pytest.mark.tensorflow
PACKAGES = {
    "onnx": ("tf2onnx", "onnxruntime_extensions"),
    "openvino": ("openvino_tokenizers",),
}
WRITERS = {"onnx": onnx_text, "openvino": openvino_text}
LETTERS = [*string.ascii_letters, *string.digits, *"éÉßøœσςжЖהاक한東가ᄀ"]
VOCABULARY = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *string.punctuation,
    *"€«»–—…、。",
    *LETTERS,
    *("##" + x for x in LETTERS),
    *("the", "un", "##aff", "##able", "##ab", "ab", "café", "cafe", "##ing", "οδος", "οδοσ"),
]
TEXTS = [
    "Fine.",
    "The unaffable CAFÉ, un-affable café!",
    "unaff日able 東京 ab\u200bable",
    "ΟΔΟΣ οδός Жж ΣΑΣ. (Σ) ΑΣ'Σ",
    "abc " * 30,
    "abi unaffil",  # words of which a beginning is spelled
    "x" * 201 + " " + "x" * 200,
]
KINDS = {
    "uncased": {"lowercase": True},
    "cased": {"lowercase": False},
    "no accents, no Chinese": {
        "lowercase": False,
        "strip_accents": True,
        "split_chinese": False,
    },
    "lower case with accents": {"lowercase": True, "strip_accents": False},
}


def text_rows(tokenizer, names=("token_ids", "segment_ids", "padding_mask"), **changes):
    options = {
        "cls_id": tokenizer.cls_id,
        "sep_id": tokenizer.sep_id,
        "pad_id": tokenizer.pad_id,
        "max_length": 24,
        "multiple": 1,
    }
    return TextRows(tokenizer, partial(build_inputs, **{**options, **changes}), names)


@pytest.fixture(params=PACKAGES)
def format(request):
    for package in PACKAGES[request.param]:
        pytest.importorskip(package)
    return request.param


def assert_exact(format, folder, rows, count, batches):
    for batch, found in zip(batches, WRITERS[format].run(folder, count, batches), strict=True):
        expected = rows.run(batch)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == np.int32
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_those_of_kbert(tmp_path, format, kind):
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY, **KINDS[kind]))
    WRITERS[format].write(str(tmp_path), rows, 1)
    batches = [[text] for text in TEXTS] + [["", " ", ""], [*TEXTS, *HARD_TEXTS]]
    assert_exact(format, tmp_path, rows, 1, batches)


def test_a_graph_for_texts_and_one_for_pairs(tmp_path, format):
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY))
    said = write_text_graphs(str(tmp_path), format, rows, TEXTS)
    assert list(said["inside"].values()) == ["text", "pairs"], said
    assert set(said["inside"]) <= set(os.listdir(tmp_path))
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    assert_exact(format, tmp_path, rows, 2, [pairs, pairs[:1], [("", "the")], [("the", "")]])


@pytest.mark.parametrize("changes", [{"separators": 2}, {"cls_last": True}])
def test_other_forms_of_rows(tmp_path, format, changes):
    """MPNet's two separators and no segments; XLNet's [CLS] behind."""
    names = ("token_ids", "padding_mask")
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY), names, **changes)
    WRITERS[format].write(str(tmp_path), rows, 2)
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    assert_exact(format, tmp_path, rows, 2, [pairs])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(tmp_path_factory.mktemp("graphs"))


@pytest.mark.parametrize("name", PACKAGES)
@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# onnxruntime-extensions ends a text at U+0000, and NumPy drops those at its end.
@given(
    texts=st.lists(
        st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
        | st.text(st.sampled_from([*LETTERS, *" .,'-Σς\u0301"]), max_size=60),
        min_size=1,
        max_size=99,
    )
)
def test_any_text(folder, name, texts):
    for package in PACKAGES[name]:
        pytest.importorskip(package)
    rows, writer = text_rows(kbert.WordPieceTokenizer(VOCABULARY), max_length=80), WRITERS[name]
    if not os.path.exists(os.path.join(folder, writer.FILES[1])):
        writer.write(folder, rows, 1)
    assert_exact(name, folder, rows, 1, [texts])


def test_one_that_is_not_exact_is_not_kept(tmp_path, format, caplog, monkeypatch):
    writer, rows = WRITERS[format], text_rows(kbert.WordPieceTokenizer(VOCABULARY))

    def wrong(folder, count, batches):
        found = [rows.run(batch) for batch in batches]
        found[0]["token_ids"][1, 2] += 1
        return found

    monkeypatch.setattr(writer, "run", wrong)
    with caplog.at_level(logging.WARNING, "absl"):
        said = write_text_graphs(str(tmp_path), format, rows, TEXTS)
    assert said == {"why": f"{writer.PACKAGE} gives other token_ids for {TEXTS[1]!r}"}
    assert f"not inside: {said['why']}" in caplog.text
    assert os.listdir(tmp_path) == []


def test_without_the_extension_there_is_none(tmp_path, format, monkeypatch):
    monkeypatch.setitem(sys.modules, WRITERS[format].MODULE, None)
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY))
    said = write_text_graphs(str(tmp_path), format, rows, TEXTS)
    assert f"needs the extra: pip install 'kbert[{format}]'" in said["why"]
    assert os.listdir(tmp_path) == []


def test_tokenizers_that_no_extension_has(tmp_path, format):
    pieces = kbert.BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])
    said = write_text_graphs(str(tmp_path), format, text_rows(pieces, pad_id=0), TEXTS)
    assert said["why"].endswith("has no BytePairTokenizer that is exact")
    known = kbert.WordPieceTokenizer(VOCABULARY, special_tokens_in_text=True)
    said = write_text_graphs(str(tmp_path), format, text_rows(known), TEXTS)
    assert "special_tokens_in_text" in said["why"]
    assert os.listdir(tmp_path) == []


def test_litert_has_no_strings(tmp_path):
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY))
    assert write_text_graphs(str(tmp_path), "litert", rows, TEXTS) == {
        "why": "litert has no operations on strings"
    }


def test_classes_of_characters():
    assert code_class("ba") == r"[\x{61}-\x{62}]"
    assert code_class("a東", others=True) == r"[^\x{61}\x{6771}]"
