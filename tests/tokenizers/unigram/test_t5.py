"""T5's and mT5's tokenizers: ids of transformers, and sentinels after the model's pieces."""

import io
import json

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

import kbert
from kbert.tokenizers import UnigramTokenizer, train_unigram

transformers = pytest.importorskip("transformers")

TEXTS = [
    *("the quick brown fox", "two  dogs", "", " leading and trailing ", "a\tb\nc"),
    *("\ufb01ne \u00dcn\u00ef x\u00b2", "unknown \u4e2d here", "jumps, over: 12 lazy-dogs!"),
]


def trained(**options):
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(["the quick brown fox jumps over the lazy dog .", *TEXTS[:6]] * 5),
        model_writer=model, vocab_size=60, hard_vocab_limit=False, minloglevel=2,
        pad_id=0, eos_id=1, unk_id=2, bos_id=-1, **options,
    )  # fmt: skip
    return model.getvalue()


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder with the model alone, and the one that transformers writes of it."""
    root = tmp_path_factory.mktemp("t5")
    (root / "model").mkdir()
    (root / "model" / "spiece.model").write_bytes(trained())
    theirs = transformers.T5Tokenizer.from_pretrained(root / "model")
    theirs.save_pretrained(root / "json")
    return root, [theirs(text)["input_ids"][:-1] for text in TEXTS], theirs


@pytest.mark.parametrize("name", ["model", "json"])
def test_ids_equal_transformers_there_and_back(folders, name, tmp_path):
    root, expected, _ = folders
    tokenizer = kbert.load_tokenizer(root / name)
    assert tokenizer(TEXTS).to_list() == expected
    roles = (tokenizer.pad_id, tokenizer.sep_id, tokenizer.unk_id, tokenizer.cls_id)
    assert roles == (0, 1, 2, None)
    size = tokenizer.vocabulary_size
    assert tokenizer.token_to_id("<extra_id_0>") == size - 1
    assert tokenizer.token_to_id("<extra_id_99>") == size - 100
    tokenizer.save(tmp_path)
    again = kbert.load_tokenizer(tmp_path)
    assert (again.layout, again.checksum) == ("t5", tokenizer.checksum)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert len(theirs) == size
    assert [theirs(text)["input_ids"][:-1] for text in TEXTS] == expected
    assert theirs("<extra_id_3> a")["input_ids"][0] == size - 4


def test_padded_rows_equal_transformers(folders):
    root, _, theirs = folders
    tokenizer = kbert.load_tokenizer(root / "model")
    expected = theirs(TEXTS, padding=True)
    for found in (
        tokenizer(TEXTS, padding=True),
        tokenizer(tf.constant(TEXTS), padding="longest", max_length=64),
    ):
        np.testing.assert_array_equal(found["token_ids"], expected["input_ids"])
        np.testing.assert_array_equal(found["padding_mask"], expected["attention_mask"])
        assert not found["segment_ids"].numpy().any()
    cut = theirs(TEXTS, padding="max_length", max_length=5, truncation=True)["input_ids"]
    preprocess = kbert.TextPreprocessor(tokenizer, max_length=5)
    np.testing.assert_array_equal(preprocess(TEXTS)["token_ids"], cut)
    pairs = tokenizer(TEXTS, TEXTS[::-1], padding=True)
    expected = theirs(TEXTS, TEXTS[::-1], padding=True)["input_ids"]
    np.testing.assert_array_equal(pairs["token_ids"], expected)
    separator = np.argmax(np.asarray(expected) == tokenizer.sep_id, axis=1)[:, None]
    second = (np.arange(len(expected[0])) > separator) & pairs["padding_mask"].numpy().astype(bool)
    np.testing.assert_array_equal(pairs["segment_ids"], second)
    with pytest.raises(ValueError, match=r"max_length must be at least 1 .the special tokens"):
        tokenizer(TEXTS, padding=True, max_length=0)


@pytest.mark.parametrize("number", [3, 0])
def test_another_number_of_sentinels(tmp_path, number):
    (tmp_path / "spiece.model").write_bytes(trained())
    path = tmp_path / "tokenizer_config.json"
    path.write_text(json.dumps({"tokenizer_class": "T5Tokenizer", "extra_ids": number}))
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    tokenizer = kbert.load_tokenizer(tmp_path)
    assert tokenizer.vocabulary == theirs.convert_ids_to_tokens(range(len(theirs)))
    tokenizer.save(tmp_path / "saved")
    again = kbert.load_tokenizer(tmp_path / "saved")
    assert (again.vocabulary, again.checksum) == (tokenizer.vocabulary, tokenizer.checksum)
    saved = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert saved.get_vocab() == theirs.get_vocab()
    with pytest.raises(ValueError, match=r"at least 0, and requires the layout t5. Received: -1"):
        kbert.load_tokenizer(tmp_path, num_sentinels=-1)
    listed = [f"<extra_id_{index}>" for index in range(number)]
    path.write_text(json.dumps({"additional_special_tokens": listed, "extra_ids": number}))
    assert kbert.load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary
    if number:
        path.write_text(json.dumps({"additional_special_tokens": listed}))
        assert kbert.load_tokenizer(tmp_path).vocabulary == tokenizer.vocabulary


def test_mt5_s_model_has_its_sentinels():
    sentinels = ["<extra_id_1>", "<extra_id_0>"]
    tokenizer = UnigramTokenizer(trained(user_defined_symbols=sentinels), layout="t5")
    assert tokenizer.vocabulary.count("<extra_id_0>") == 1
    assert "<extra_id_99>" not in tokenizer.vocabulary


def test_another_model_is_refused():
    with pytest.raises(ValueError, match=r"begins with <pad>, </s>, <unk>. Received: .* \[CLS\]"):
        UnigramTokenizer(train_unigram(["low lower"] * 9, 30), layout="t5")
