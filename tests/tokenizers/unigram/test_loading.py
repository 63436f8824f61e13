"""Folders with a SentencePiece model: what is known of them by class, type, name or pieces."""

import base64
import json

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer

from kbert.tokenizers import UnigramTokenizer, load_tokenizer


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


def test_xlm_r_by_the_name_of_its_file(tmp_path, multilingual_model, caplog):
    (tmp_path / "sentencepiece.bpe.model").write_bytes(multilingual_model)
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.layout == "fairseq"
    assert "assumed to be XLM-R's because of its name only" in caplog.text
    assert not tokenizer.preparation


@pytest.mark.parametrize(
    ("file", "content"),
    [
        (None, None),  # its pieces say it
        ("tokenizer_config.json", {"tokenizer_class": "DebertaV2TokenizerFast"}),
        ("tokenizer_config.json", {"do_lower_case": False, "vocab_type": "spm"}),  # as published
        ("config.json", {"model_type": "deberta-v2"}),
    ],
)
def test_deberta_s_folder(file, content, tmp_path, deberta_model):
    (tmp_path / "spm.model").write_bytes(deberta_model)
    if file:
        (tmp_path / file).write_text(json.dumps(content))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.layout, tokenizer.preparation) == ("deberta", False)
    ids = (tokenizer.pad_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.unk_id)
    assert ids == (0, 1, 2, 3)
    assert tokenizer.mask_id == tokenizer.vocabulary_size - 1
    (tmp_path / "tokenizer_config.json").write_text('{"split_by_punct": true}')
    with pytest.raises(
        ValueError, match=r"does not support splitting off punctuation.*split_by_punct=True in"
    ):
        load_tokenizer(tmp_path)


def test_deberta_s_tokenizer_json_of_transformers_4(tmp_path, deberta_model):
    """As its converter wrote them: [MASK] is no piece, but an added token."""
    from sentencepiece.sentencepiece_model_pb2 import ModelProto

    tokenizer = UnigramTokenizer(deberta_model, layout="deberta")
    proto = ModelProto.FromString(deberta_model)
    charsmap = base64.b64encode(proto.normalizer_spec.precompiled_charsmap).decode()
    steps = [
        {"type": "Strip", "strip_left": True, "strip_right": True},
        {"type": "Precompiled", "precompiled_charsmap": charsmap},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
    ]
    added = {"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[UNK]": 3, "[MASK]": tokenizer.mask_id}
    content = {
        "added_tokens": [
            {"id": number, "content": token, "special": True} for token, number in added.items()
        ],
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": {"type": "Metaspace", "prepend_scheme": "always"},
        "model": {
            "type": "Unigram",
            "unk_id": 3,
            "vocab": [[piece.piece, piece.score] for piece in proto.pieces],
        },
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "DebertaV2Tokenizer"}')
    again = load_tokenizer(tmp_path)
    assert again.vocabulary == tokenizer.vocabulary
    texts = ["The  naïve \u338f river [MASK], 東京 \U0001f600!", " ", "mountains \ufb01"]
    assert again.encode(texts).to_list() == tokenizer.encode(texts).to_list()


@pytest.mark.parametrize("config", [{"do_lower_case": True}, {"keep_accents": False}])
def test_case_and_accents_have_no_effect_on_xlm_r(tmp_path, multilingual_model, config, caplog):
    """As in transformers; ALBERT's preparation has both."""
    caplog.set_level("INFO", "absl")
    (tmp_path / "sentencepiece.bpe.model").write_bytes(multilingual_model)
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer", **config}))
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.lowercase, tokenizer.keep_accents) == (False, True)
    (key,) = config
    assert f"{path}: `{key}` has no effect, as XLMRobertaTokenizer" in caplog.text
    prepared = load_tokenizer(tmp_path, preparation=True)
    assert (prepared.lowercase, prepared.keep_accents) == (True, False)
    prepared.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").checksum == prepared.checksum


def test_lower_cased_deberta_is_refused(tmp_path, deberta_model):
    (tmp_path / "spm.model").write_bytes(deberta_model)
    config = {"tokenizer_class": "DebertaV2Tokenizer", "do_lower_case": True}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    message = "Received: do_lower_case=True in .*tokenizer_config.json"
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["BertTokenizer", "RobertaTokenizerFast"])
def test_a_unigram_tokenizer_json_beside_a_class_of_another_kind(
    tmp_path, multilingual_model, name, caplog
):
    """As in paraphrase-multilingual-MiniLM-L12-v2, and in a Polish RoBERTa."""
    (tmp_path / "sentencepiece.bpe.model").write_bytes(multilingual_model)
    path = tmp_path / "tokenizer_config.json"
    path.write_text('{"tokenizer_class": "XLMRobertaTokenizer"}')
    AutoTokenizer.from_pretrained(tmp_path).save_pretrained(tmp_path / "json")
    path = tmp_path / "json/tokenizer_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "tokenizer_class": name}))
    ours, theirs = load_tokenizer(tmp_path / "json"), path.with_name("tokenizer.json")
    assert f"{theirs}: read as written, because {name.removesuffix('Fast')} has" in caplog.text
    texts = ["the rivers of Łódź", "mountains"]
    expected = [x.ids for x in Tokenizer.from_file(str(theirs)).encode_batch(texts)]
    padded = ours(texts, padding=True)
    for ids, row in zip(expected, padded["token_ids"].numpy().tolist(), strict=True):
        assert row == ids + [ours.pad_id] * (len(row) - len(ids))


def test_a_class_of_which_nothing_is_known_is_refused(folder):
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "BigBirdTokenizer"}')
    with pytest.raises(ValueError, match=r"Pass preparation=False .*of class BigBirdTokenizer"):
        load_tokenizer(folder)
    assert not load_tokenizer(folder, preparation=False).lowercase


def test_several_models_are_refused(folder, cased_model):
    (folder / "other.model").write_bytes(cased_model)
    with pytest.raises(ValueError, match=r"one SentencePiece model. Received: other.model, spiece"):
        load_tokenizer(folder)


@pytest.mark.parametrize("layout", ["wordpiece", [], {}, None])
def test_another_layout_is_refused(cased_model, layout):
    with pytest.raises(ValueError, match="layout must be one of sentencepiece, "):
        UnigramTokenizer(cased_model, layout=layout)
