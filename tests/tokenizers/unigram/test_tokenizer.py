"""UnigramTokenizer: ids, special tokens, decoding, graphs, settings, errors."""

import json
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
import transformers

from kbert.export import export_saved_model
from kbert.signatures import Signature
from kbert.tokenizers import UnigramTokenizer, load_tokenizer, train_unigram
from tests.tokenizers.unigram.sentencepiece_reference import corpus, original_ids, pieces_of

SESSION = Path(__file__).parents[2] / "export" / "session.py"
TEXTS = [
    "The Battle of the River, in 2012, of 10,000 ``men''.",
    "don\u2019t  na\u0131\u0308ve CAF\u00c9 \u0153uvre \ufb01 \u00bd \u338f",
    "東京\u3000日本語 Москва किताब مدينة \U0001f600",
    "1\x0b2\x1c3\x85 a\x00b \x01c\u200bd\u00ade\ufefff \ufffd \ue000",
    "ΟΔΟΣ ΟΔΟΣο İstanbul K \u2126",
    "e\u0301 \u0301 \u00a8 \u0915\u094d\u0937 \u034f",
    "",
    " \t ",
    "▁ a▁b",
    "<mask> [MASK] <s> <unk>",
    "x" * 300 + " night",
]


@pytest.fixture(scope="module")
def cased(cased_model) -> UnigramTokenizer:
    return UnigramTokenizer(cased_model, lowercase=False)


@pytest.fixture(scope="module")
def keeping(cased_model) -> UnigramTokenizer:
    return UnigramTokenizer(cased_model, lowercase=False, special_tokens_in_text=True)


@pytest.fixture(scope="module")
def multilingual(multilingual_model) -> UnigramTokenizer:
    return UnigramTokenizer(multilingual_model, layout="fairseq")


def pieces(tokenizer, text: str) -> list[str]:
    return [tokenizer.vocabulary[i] for i in tokenizer.encode(text).numpy()]


@pytest.mark.parametrize("lowercase", [True, False])
@pytest.mark.parametrize("keep_accents", [True, False])
def test_ids_are_those_of_the_original_code(cased_model, lowercase, keep_accents):
    options = {"lowercase": lowercase, "keep_accents": keep_accents}
    processor = sentencepiece.SentencePieceProcessor(model_proto=cased_model)
    tokenizer = UnigramTokenizer(cased_model, **options)
    texts = TEXTS + corpus(50, seed=1)
    assert tokenizer.encode(texts).to_list() == [
        original_ids(processor, text, **options) for text in texts
    ]


def test_ids_without_preparation_are_those_of_sentencepiece(cased_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=cased_model)
    tokenizer = UnigramTokenizer(cased_model, preparation=False)
    assert tokenizer.encode(TEXTS).to_list() == processor.encode(TEXTS)


def test_digits_before_a_comma_are_split_from_it(cased, cased_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=cased_model)
    whole = processor.encode("in 2012, of", out_type=str)
    assert any(piece.endswith("2,") for piece in whole), whole  # or this test tests nothing
    assert pieces(cased, "in 2012, of") == pieces_of(processor, "in 2012, of")
    assert "," in pieces(cased, "in 2012, of")


def test_fairseq_ids_are_those_of_xlm_r(multilingual, multilingual_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=multilingual_model)
    assert multilingual.vocabulary[:4] == ["<s>", "<pad>", "</s>", "<unk>"]
    assert multilingual.vocabulary[-1] == "<mask>"
    assert multilingual.vocabulary_size == processor.get_piece_size() + 2
    expected = [[3 if i == 0 else i + 1 for i in row] for row in processor.encode(TEXTS)]
    assert multilingual.encode(TEXTS).to_list() == expected
    t = multilingual
    assert (t.cls_id, t.pad_id, t.sep_id, t.unk_id) == (0, 1, 2, 3)
    assert t.mask_id == t.vocabulary_size - 1
    assert t.pair_separators == 2


def test_camembert_s_ids_are_its_own_five_and_the_model_s_after_its_unknown(multilingual_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=multilingual_model)
    t = UnigramTokenizer(multilingual_model, layout="camembert")
    assert t.vocabulary[:7:2] == ["<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED", "</s>"]
    assert t.vocabulary_size == processor.get_piece_size() + 5  # 32,000 and 32,005 as published
    expected = [[3 if i == 0 else i + 4 for i in row] for row in processor.encode(TEXTS)]
    assert t.encode(TEXTS).to_list() == expected
    assert (t.cls_id, t.pad_id, t.sep_id, t.unk_id) == (5, 1, 6, 3)
    assert (t.mask_id, t.pair_separators) == (t.vocabulary_size - 1, 2)


@pytest.fixture(scope="module")
def deberta(deberta_model) -> UnigramTokenizer:
    return UnigramTokenizer(deberta_model, layout="deberta")


def test_deberta_s_ids_are_those_of_its_model(deberta, deberta_model):
    processor = sentencepiece.SentencePieceProcessor(model_proto=deberta_model)
    assert deberta.vocabulary[:4] == ["[PAD]", "[CLS]", "[SEP]", "[UNK]"]
    assert deberta.vocabulary_size == processor.get_piece_size() + 1
    assert deberta.vocabulary[deberta.mask_id] == "[MASK]"
    assert deberta.encode(TEXTS).to_list() == processor.encode(TEXTS)
    assert not deberta.lowercase
    assert deberta.pair_separators == 1


def test_deberta_s_ids_are_those_of_transformers(deberta, tmp_path):
    """But for the texts that its model's rules change and NFC does not."""
    deberta.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == "DebertaV2Tokenizer"
    assert len(theirs) == deberta.vocabulary_size
    assert theirs.mask_token_id == deberta.mask_id
    texts = [
        "The Battle of the River, in 2012, of 10,000 ``men''.",
        "don\u2019t  na\u00efve CAF\u00c9 \u0153uvre \t\n e\u0301",
        "東京日本語 Москва किताब مدينة \U0001f600",
        "x" * 300 + " night ",
        *corpus(50, seed=1),
    ]
    for text in texts:
        ids = deberta.encode(text).numpy()
        assert theirs(text).input_ids == [deberta.cls_id, *ids, deberta.sep_id], text


def test_special_tokens_of_albert(cased):
    assert cased.vocabulary[:5] == ["<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert cased.special_ids == [0, 1, 2, 3, 4]
    assert cased.pair_separators == 1
    assert cased.kind == "unigram"


def test_a_vocabulary_without_special_tokens_has_no_ids_for_them(multilingual_model):
    tokenizer = UnigramTokenizer(multilingual_model)
    assert tokenizer.mask_id is None
    assert tokenizer.pad_token is None
    assert (tokenizer.cls_token, tokenizer.sep_token) == ("<s>", "</s>")


@pytest.mark.parametrize("name", ["keeping", "multilingual", "deberta"])
def test_special_tokens_in_text(name, request):
    tokenizer = request.getfixturevalue(name)
    config = {**tokenizer.get_config(), "special_tokens_in_text": True}
    tokenizer = UnigramTokenizer(**config)
    plain = UnigramTokenizer(**{**config, "special_tokens_in_text": False})
    mask = tokenizer.mask_token
    assert pieces(tokenizer, f"the {mask} night") == [
        *pieces(plain, "the"), mask, *pieces(plain, "night")
    ]  # fmt: skip
    assert pieces(tokenizer, f"a{mask}{mask}b") == [
        *pieces(plain, "a"), mask, mask, *pieces(plain, "b")
    ]  # fmt: skip
    assert tokenizer.mask_id not in plain.encode(f"the {mask} night").numpy()


def test_private_use_characters_do_not_pass_for_special_tokens(keeping, cased):
    texts = [chr(code) for code in range(0xE000, 0xE010)]
    expected = cased.encode(texts)
    assert keeping.encode(texts).to_list() == expected.to_list()
    assert set(expected.values.numpy()) <= {cased.token_to_id("▁"), cased.unk_id}


def test_continuation_is_alberts_rule(cased):
    marked = dict(zip(cased.vocabulary, cased.continuation, strict=True))
    assert not marked["▁the"]
    assert not marked["."]
    assert not marked["("]
    assert not marked["東"]
    assert not marked["[MASK]"]
    assert not marked["<unk>"]
    assert not marked["2"]
    assert marked["s"]
    assert marked["d"]


def test_invalid_utf8_is_dropped(cased, multilingual):
    texts = [b"ni\xffght", b"\xe4\xbd", b"the \xed\xa0\x80night", b"of"]
    valid = [text.decode("utf-8", "ignore") for text in texts]
    for tokenizer in (cased, multilingual):
        out = tokenizer.encode_with_offsets(texts)
        expected = tokenizer.encode(valid).to_list()
        assert tokenizer.encode(texts).to_list() == out["token_ids"].to_list() == expected


def test_decode_is_that_of_sentencepiece(cased, cased_model, multilingual):
    processor = sentencepiece.SentencePieceProcessor(model_proto=cased_model)
    ids = cased.encode(TEXTS)
    expected = [processor.decode(row).strip() for row in ids.to_list()]
    assert [text.decode().strip() for text in cased.decode(ids).numpy()] == expected
    assert cased.decode([2, *cased.encode("the night").numpy(), 3, 0]) == "the night"
    assert cased.decode([2, 4, 3], skip_special_tokens=False) == "[CLS] [MASK] [SEP]"
    assert multilingual.decode(multilingual.encode("über 東京, don't.").numpy()) == (
        "über 東京, don't."
    )


def test_inside_tf_data_and_functions_of_unknown_batch_size(cased):
    expected = cased.encode_with_offsets(TEXTS)
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(4).map(cased.encode_with_offsets)
    rows = {key: [row for batch in data for row in batch[key].to_list()] for key in expected}
    assert rows == {key: value.to_list() for key, value in expected.items()}
    encode = tf.function(cased.encode, input_signature=[tf.TensorSpec([None], tf.string)])
    assert encode(tf.constant(TEXTS)).to_list() == expected["token_ids"].to_list()
    assert encode(tf.constant([], tf.string)).to_list() == []
    assert cased.encode_with_offsets([])["starts"].to_list() == []


@pytest.mark.tensorflow
@pytest.mark.slow
def test_saved_model_by_the_session_loader(keeping, tmp_path):
    """Ids need no resource; the characters that offsets are read from hold one."""
    texts = ["the [MASK] of naïve cafés,", "\U0001f600 2012, 東京", ""]
    text = [tf.TensorSpec([None], tf.string, "text")]

    def ranges(text):
        out = keeping.encode_with_offsets(text, "character")
        return {name: ragged.to_tensor() for name, ragged in out.items()}

    signatures = {
        "ids": Signature(lambda text: {"ids": keeping.encode(text).to_tensor()}, text),
        "ranges": Signature(ranges, text),
    }
    path = export_saved_model(tmp_path, signatures, resources=keeping.resources)
    requests = json.dumps([["ids", {"text": texts}], ["ranges", {"text": texts}]])
    done = subprocess.run([sys.executable, SESSION, path, requests], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first["ids"] == keeping.encode(texts).to_tensor().numpy().tolist()
    expected = {name: value.numpy().tolist() for name, value in ranges(tf.constant(texts)).items()}
    assert second == expected


@pytest.mark.parametrize("name", ["cased", "keeping", "multilingual", "deberta"])
def test_save_and_load(name, request, tmp_path):
    tokenizer = request.getfixturevalue(name)
    tokenizer.save(tmp_path / "folder")
    for copy in (load_tokenizer(tmp_path / "folder"), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.get_config() == tokenizer.get_config()
        assert copy.checksum == tokenizer.checksum
        assert copy.encode(TEXTS).to_list() == tokenizer.encode(TEXTS).to_list()


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        ("sentencepiece", "AlbertTokenizer"),
        ("fairseq", "XLMRobertaTokenizer"),
        ("camembert", "CamembertTokenizer"),
        ("xlnet", "XLNetTokenizer"),
    ],
)
def test_hugging_face_loads_what_is_saved(layout, name, tmp_path):
    # Without user-defined pieces, which transformers 5 takes for added tokens.
    model = train_unigram(corpus(), 300, layout=layout, user_defined=())
    tokenizer = UnigramTokenizer(model, layout=layout)
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert type(theirs).__name__ == name
    assert len(theirs) == tokenizer.vocabulary_size
    text = "Über the naïve river, 東京!"
    row = [tokenizer.cls_id, *tokenizer.encode(text).numpy(), tokenizer.sep_id]
    assert theirs(text).input_ids == (row if name != "XLNetTokenizer" else [*row[1:], row[0]])


def test_checksum_goes_by_everything_that_decides_ids(cased, cased_model, multilingual_model):
    others = [
        UnigramTokenizer(cased_model),
        UnigramTokenizer(cased_model, lowercase=False, keep_accents=True),
        UnigramTokenizer(cased_model, preparation=False),
        UnigramTokenizer(multilingual_model),
        UnigramTokenizer(multilingual_model, layout="fairseq"),
    ]
    assert len({cased.checksum, *(other.checksum for other in others)}) == 6
    assert UnigramTokenizer(cased_model, lowercase=False).checksum == cased.checksum


def test_errors(cased_model, multilingual_model, tmp_path):
    with pytest.raises(ValueError, match=r"sentencepiece, fairseq, .* mbart50. Received: 'bert'"):
        UnigramTokenizer(cased_model, layout="bert")
    with pytest.raises(ValueError, match=r"begins with <unk>, <s>, </s>. Received: .*<pad>"):
        UnigramTokenizer(cased_model, layout="fairseq")
    with pytest.raises(ValueError, match=r"with \[PAD\], \[CLS\], .*Received: .*<pad>"):
        UnigramTokenizer(cased_model, layout="deberta")
    with pytest.raises(ValueError, match=r"require the preparation. Received: .*lowercase=True"):
        UnigramTokenizer(cased_model, preparation=False, lowercase=True)
    with pytest.raises(ValueError, match=r"must be pieces of the model. Received: \['<hole>'\]"):
        UnigramTokenizer(multilingual_model, special_tokens={"mask": "<hole>"})
    with pytest.raises(ValueError, match=r".byte. or .character.\. Received: 'word'"):
        UnigramTokenizer(cased_model).encode_with_offsets("the", unit="word")


def test_one_string_gives_one_row(cased):
    ids = cased.encode("the night")
    assert isinstance(ids, tf.Tensor)
    assert ids.dtype == tf.int32
    assert np.array_equal(ids, cased.encode(["the night"])[0])
