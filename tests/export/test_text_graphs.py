"""Tokenizers inside runtimes: the ids of kbert's own, or none."""

import importlib.util
import logging
import os
import random
import string
import sys
from functools import partial

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import kbert
from kbert.export import text_graphs
from kbert.export.onnx import text as onnx_text
from kbert.export.openvino import text as openvino_text
from kbert.export.text_graphs import HARD_TEXTS, write_text_graphs
from kbert.export.text_to_rows import TextToRows, code_class
from kbert.tokenizers import train_unigram
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.tokenizers.packing import build_inputs

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


def byte_pairs(**options):
    """A tokenizer of many merges, of which many never happen; "xyz" is a piece that none makes."""
    draw, pieces, merges = random.Random(0), list("abcdxyz's1ĠĊÃ©Î£"), []
    for _ in range(400):
        pair = draw.choice(pieces), draw.choice(pieces)
        if len("".join(pair)) <= 6 and "".join(pair) != "xyz":
            merges.append(pair)
            pieces.append("".join(pair))
    special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    vocabulary = [*special, *dict.fromkeys([*CHARACTERS, "xyz", *pieces])]
    return kbert.BytePairTokenizer(vocabulary, merges, **options)


BYTE_PAIRS = {
    "gpt2": {},
    "with a space before": {"add_prefix_space": True},
    "llama3": {"words": "llama3"},
}


def letters(number):
    """Texts of the letters of `byte_pairs`."""
    draw = random.Random(number)
    return ["".join(draw.choices("abcdxyz's1 \néΣ", k=draw.randrange(60))) for _ in range(300)]


def text_rows(tokenizer, names=("token_ids", "segment_ids", "padding_mask"), **changes):
    options = {
        "cls_id": tokenizer.cls_id,
        "sep_id": tokenizer.sep_id,
        "pad_id": tokenizer.pad_id,
        "max_length": 24,
        "multiple": 1,
    }
    return TextToRows(tokenizer, partial(build_inputs, **{**options, **changes}), names)


OPENVINO = pytest.param("openvino", marks=pytest.mark.slow)


@pytest.fixture(params=["onnx", OPENVINO])
def format(request):
    for package in PACKAGES[request.param]:  # in the graphs' own process: not imported here
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"needs the package {package}")
    return request.param


@pytest.fixture
def refused(monkeypatch):
    """For graphs that are refused before they run: what they should compute is not computed."""
    monkeypatch.setattr(text_graphs, "_expected", lambda rows, count, texts: [])


def assert_exact(format, folder, rows, count, batches):
    for batch, found in zip(batches, WRITERS[format].run(folder, count, batches), strict=True):
        expected = rows.run(batch)
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert found[name].dtype == np.int32
            np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    "kind", [x if x == "uncased" else pytest.param(x, marks=pytest.mark.slow) for x in KINDS]
)
@pytest.mark.parametrize("format", PACKAGES, indirect=True)
def test_rows_are_those_of_kbert(tmp_path, format, kind):
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY, **KINDS[kind]))
    WRITERS[format].write(str(tmp_path), rows, 1)
    batches = [[text] for text in TEXTS] + [["", " ", ""], [*TEXTS, *HARD_TEXTS]]
    assert_exact(format, tmp_path, rows, 1, batches)


@pytest.mark.slow
def test_a_graph_for_texts_and_one_for_pairs(tmp_path, format):
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY))
    said = write_text_graphs(str(tmp_path), format, rows, TEXTS)
    assert list(said["inside"].values()) == ["text", "pairs"], said
    assert set(said["inside"]) <= set(os.listdir(tmp_path))
    pairs = list(zip(TEXTS, reversed(TEXTS), strict=True))
    assert_exact(format, tmp_path, rows, 2, [pairs, pairs[:1], [("", "the")], [("the", "")]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [x if x == "gpt2" else pytest.param(x, marks=pytest.mark.slow) for x in BYTE_PAIRS]
)
def test_rows_of_byte_pairs(tmp_path, format, kind):
    rows = text_rows(byte_pairs(**BYTE_PAIRS[kind]))
    WRITERS[format].write(str(tmp_path), rows, 1)
    batches = [[text] for text in TEXTS] + [["", " ", ""], ["", "", ""], ["xyz", " xyz"]]
    batches += [[*TEXTS, *HARD_TEXTS], letters(1)]
    if format == "openvino":  # onnxruntime-extensions ends a text there
        batches.append(["a\0b \0 c"])
    assert_exact(format, tmp_path, rows, 1, batches)


def test_words_of_byte_pairs_are_split_by_kbert_s_tables(tmp_path, format):
    """Also at letters and numbers that the runtime's own tables do not know."""
    rows = text_rows(byte_pairs())
    WRITERS[format].write(str(tmp_path), rows, 1)
    # One of each kind beside the others, and Unicode 15's and 16's.
    codes = [*range(0xA0, 0x3100, 7), *range(0xA7CB, 0xA7DD), *range(0x105C0, 0x105F4)]
    codes += [*range(0x1D7CE, 0x1D800), *range(0x16D70, 0x16D7A), 0x1C89, 0x2EBF0]
    texts = [f"a {chr(x)}b{chr(x)}{chr(x)}'s{chr(x)}1  {chr(x)}" for x in codes]
    assert_exact(format, tmp_path, rows, 1, [texts])


@pytest.mark.slow
def test_pairs_of_byte_pairs(tmp_path, format):
    rows = text_rows(byte_pairs(), ("token_ids", "padding_mask"), separators=2)
    said = write_text_graphs(str(tmp_path), format, rows, letters(2))
    assert list(said["inside"].values()) == ["text", "pairs"], said
    pairs = list(zip(letters(3), letters(4), strict=True))
    assert_exact(format, tmp_path, rows, 2, [pairs, [("", "a")], [("a", "")]])


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes", [{"separators": 2}, pytest.param({"cls_last": True}, marks=pytest.mark.slow)]
)
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


@pytest.mark.slow
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
    for tokenizer in (kbert.WordPieceTokenizer(VOCABULARY), byte_pairs()):
        rows, writer = text_rows(tokenizer, max_length=80), WRITERS[name]
        place = os.path.join(folder, tokenizer.kind)
        if not os.path.exists(os.path.join(place, writer.FILES[1])):
            os.makedirs(place, exist_ok=True)
            writer.write(place, rows, 1)
        assert_exact(name, place, rows, 1, [texts])


def test_one_that_is_not_exact_is_not_kept(tmp_path, format, caplog, monkeypatch):
    writer, rows = WRITERS[format], text_rows(kbert.WordPieceTokenizer(VOCABULARY))

    def wrong(folder, count, batches):
        found = [rows.run(batch) for batch in batches]
        found[0]["token_ids"][1, 2] += 1
        return found

    monkeypatch.setattr(writer, "run", wrong)
    monkeypatch.setattr(text_graphs, "HARD_TEXTS", ())
    with caplog.at_level(logging.WARNING, "absl"):
        said = write_text_graphs(str(tmp_path), format, rows, TEXTS[:2])
    assert said == {"why": f"{writer.PACKAGE} computes different token_ids for {TEXTS[1]!r}"}
    assert f"not inside: {said['why']}" in caplog.text
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("refused")
def test_without_the_extension_there_is_none(tmp_path, format, monkeypatch):
    monkeypatch.setitem(sys.modules, WRITERS[format].MODULE, None)
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY))
    said = write_text_graphs(str(tmp_path), format, rows, TEXTS)
    assert f"needs the extra: pip install 'kbert[{format}]'" in said["why"]
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("refused")
def test_tokenizers_that_no_extension_has(tmp_path, format):
    reasons = {
        "no exact UnigramTokenizer": kbert.UnigramTokenizer(
            train_unigram(["the light of the night"] * 9, 50)
        ),
        "special_tokens_in_text": kbert.WordPieceTokenizer(VOCABULARY, special_tokens_in_text=True),
        "special_tokens_in_text=": byte_pairs(special_tokens_in_text=True),
        "normalization='nfc'": byte_pairs(normalization="nfc"),
        "ignore_merges": byte_pairs(ignore_merges=True),
        "added_tokens=": byte_pairs(added_tokens=["xyz"]),
        "added_tokens": kbert.WordPieceTokenizer(VOCABULARY, added_tokens=[VOCABULARY[-1]]),
    }
    for why, tokenizer in reasons.items():
        said = write_text_graphs(str(tmp_path), format, text_rows(tokenizer), TEXTS)
        assert why in said["why"]
    assert os.listdir(tmp_path) == []


def test_litert_has_no_strings(tmp_path):
    rows = text_rows(kbert.WordPieceTokenizer(VOCABULARY))
    assert write_text_graphs(str(tmp_path), "litert", rows, TEXTS) == {
        "why": "litert has no operations on strings"
    }


def test_classes_of_characters():
    assert code_class("ba") == r"[\x{61}-\x{62}]"
    assert code_class("a東", others=True) == r"[^\x{61}\x{6771}]"
