"""Folders with a SentencePiece model: what is known of them by class, type, name or pieces."""

import json

import pytest

from kbert.tokenizers import load_tokenizer


@pytest.fixture
def folder(tmp_path, cased_model):
    (tmp_path / "spiece.model").write_bytes(cased_model)
    return tmp_path


def test_a_release_of_alberts_own_has_the_model_alone(folder):
    tokenizer = load_tokenizer(folder)
    assert (tokenizer.layout, tokenizer.lowercase, tokenizer.keep_accents) == (
        "sentencepiece", True, False
    )  # fmt: skip
    assert load_tokenizer(folder / "spiece.model").checksum == tokenizer.checksum


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer_config.json", {"tokenizer_class": "XLNetTokenizerFast"}),
        ("tokenizer_config.json", {"do_lower_case": False}),
        ("config.json", {"model_type": "xlnet"}),
    ],
)
def test_case_by_class_or_setting_or_model_type(folder, file, content):
    (folder / file).write_text(json.dumps(content))
    tokenizer = load_tokenizer(folder)
    assert not tokenizer.lowercase
    assert tokenizer.preparation
    assert load_tokenizer(folder, lowercase=True).lowercase


def test_xlm_r_by_the_name_of_its_file(tmp_path, multilingual_model):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(multilingual_model)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.layout == "fairseq"
    assert not tokenizer.preparation


def test_a_class_of_which_nothing_is_known_is_refused(folder):
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    with pytest.raises(ValueError, match=r"Pass preparation=False .*of class T5Tokenizer"):
        load_tokenizer(folder)
    assert not load_tokenizer(folder, preparation=False).lowercase


def test_several_models_are_refused(folder, cased_model):
    (folder / "other.model").write_bytes(cased_model)
    with pytest.raises(ValueError, match=r"one SentencePiece model. Received: other.model, spiece"):
        load_tokenizer(folder)
