"""Tokenizers of PEGASUS, mBART and mBART-50: ids and rows of transformers and sentencepiece."""

import functools
import json

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings, strategies as st

import kbert
from kbert.tokenizers import UnigramTokenizer, train_unigram
from tests.tokenizers.unigram.sentencepiece_reference import corpus

transformers = pytest.importorskip("transformers")

# Without compatibility forms, which transformers' MBartTokenizer does not normalise, and without
# trailing spaces, for which its MBart50Tokenizer and PegasusTokenizer have a piece more.
PLAIN = [
    "The Battle of the River, in 2012, of 10,000 men.",
    *("", "over  two  rivers", "a\tb\nc", "unknown \u4e2d\u4e2d here", "\u00fcber Москва"),
    *corpus(40, seed=1),
]
TEXTS = [*PLAIN, " ", " \u00b2 \ufb01ne ", "e\u0301\u0301", "<mask_1> <mask> en_XX </s>", "a\0b"]
LAYOUTS = ("pegasus", "mbart", "mbart50")
FILES = {"pegasus": "spiece.model"}
CLASSES = {"pegasus": "PegasusTokenizer", "mbart": "MBartTokenizer", "mbart50": "MBart50Tokenizer"}


@pytest.fixture(scope="module")
def models():
    beginnings = {"pegasus": "pegasus", "mbart": "mbart", "mbart50": "mbart"}
    trained = {layout: train_unigram(corpus(), 300, layout=layout) for layout in LAYOUTS[:2]}
    return {layout: trained[beginnings[layout]] for layout in LAYOUTS}


@pytest.fixture
def folder(models, layout, tmp_path):
    """The folder of a published model: its SentencePiece model, and the name of its class."""
    path = tmp_path / "published"
    path.mkdir()
    (path / FILES.get(layout, "sentencepiece.bpe.model")).write_bytes(models[layout])
    (path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": CLASSES[layout]}))
    return path


def rows(features) -> list[list[int]]:
    ids, mask = (np.asarray(features[name]) for name in ("token_ids", "padding_mask"))
    return [row[: count.sum()].tolist() for row, count in zip(ids, mask, strict=True)]


def original_ids(models, layout, texts) -> list[list[int]]:
    """PEGASUS' are 103 higher than sentencepiece's; those of mBART one, except the unknown id."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=models[layout])
    shift, unknown = (103, 105) if layout == "pegasus" else (1, 3)
    return [
        [unknown if i == processor.unk_id() else i + shift for i in row]
        for row in processor.encode(texts)
    ]


@functools.cache
def made(model, layout) -> UnigramTokenizer:
    return UnigramTokenizer(model, layout=layout)


@pytest.mark.parametrize("layout", ["pegasus", "mbart"])
@given(texts=st.lists(st.text(max_size=20), min_size=20, max_size=60))
@settings(max_examples=20, deadline=None)
def test_ids_of_any_text_are_those_of_sentencepiece(models, layout, texts):
    ids = made(models[layout], layout).encode(texts).to_list()
    assert ids == original_ids(models, layout, texts)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_ids_are_those_of_sentencepiece(models, layout):
    tokenizer = UnigramTokenizer(models[layout], layout=layout)
    assert tokenizer.unk_id == (105 if layout == "pegasus" else 3)
    expected = original_ids(models, layout, TEXTS)
    assert tokenizer.encode(TEXTS).to_list() == expected
    pieces = tokenizer.encode_with_offsets(TEXTS, "character")
    assert pieces["token_ids"].to_list() == expected
    text, starts, ends = PLAIN[0], pieces["starts"][0].numpy(), pieces["ends"][0].numpy()
    assert "".join(text[a:b] for a, b in zip(starts, ends, strict=True)) == text.replace(" ", "")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_rows_and_texts_are_those_of_transformers(folder, layout):
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer = kbert.load_tokenizer(folder)
    assert type(theirs).__name__ == CLASSES[layout]
    assert tokenizer.vocabulary == theirs.convert_ids_to_tokens(list(range(len(theirs))))
    expected = [theirs(text).input_ids for text in PLAIN]
    features = tokenizer(PLAIN, padding=True)
    assert rows(features) == expected
    assert not np.asarray(features["segment_ids"]).any()
    pair = tokenizer("the river", "of men", padding=True)
    assert rows(pair)[0] == theirs("the river", "of men").input_ids
    known = [[i for i in row if i != tokenizer.unk_id] for row in expected]
    assert tokenizer.decode(known) == [
        " ".join(theirs.decode(row, skip_special_tokens=True).split()) for row in known
    ]


def test_special_tokens_of_pegasus(models):
    tokenizer = UnigramTokenizer(models["pegasus"], layout="pegasus")
    assert tokenizer.vocabulary[:5] == ["<pad>", "</s>", "<mask_1>", "<mask_2>", "<unk_2>"]
    assert tokenizer.vocabulary[103:106] == ["<unk_101>", "<unk_102>", "<unk>"]
    ids = (tokenizer.pad_id, tokenizer.sep_id, tokenizer.mask_id, tokenizer.unk_id)
    assert ids == (0, 1, 3, 105)
    assert tokenizer.cls_id is None
    assert tokenizer.special_ids == list(range(106))
    assert tokenizer.decode([2, *tokenizer.encode("the river").numpy(), 1, 0]) == "the river"


@pytest.mark.parametrize(
    ("layout", "token"), [("pegasus", "<mask_1>"), ("mbart", "ro_RO"), ("mbart50", "sl_SI")]
)
def test_special_tokens_in_text(models, layout, token):
    text = f"the {token} river"
    plain = UnigramTokenizer(models[layout], layout=layout)
    number = plain.token_to_id(token)
    assert number not in plain.encode(text).numpy()
    tokenizer = UnigramTokenizer(models[layout], layout=layout, special_tokens_in_text=True)
    words = [plain.encode(word).numpy().tolist() for word in ("the", "river")]
    assert tokenizer.encode(text).numpy().tolist() == [*words[0], number, *words[1]]


@pytest.mark.parametrize("layout", ["mbart", "mbart50"])
def test_languages_of_source_and_target(folder, layout, tmp_path):
    theirs = transformers.AutoTokenizer.from_pretrained(folder, src_lang="de_DE", tgt_lang="ro_RO")
    tokenizer = kbert.load_tokenizer(folder)
    assert (tokenizer.source_language, tokenizer.target_language) == ("en_XX", None)
    assert tokenizer.target is tokenizer
    chosen = tokenizer.with_languages("de_DE", "ro_RO")
    assert len(chosen.languages) == (25 if layout == "mbart" else 52)
    assert tokenizer.source_language == "en_XX"
    chosen.save(tmp_path / "saved")
    there = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    copies = (chosen, kbert.load_tokenizer(tmp_path / "saved"), type(chosen)(**chosen.get_config()))
    for copy in copies:
        assert copy.checksum == chosen.checksum != tokenizer.checksum
        assert rows(copy("the river", padding=True))[0] == theirs("the river").input_ids
        target = theirs(text_target="the river").input_ids
        assert rows(copy.target("the river", padding=True))[0] == target
        assert there(text_target="the river").input_ids == target
        assert there("the river").input_ids == theirs("the river").input_ids
    code = theirs.convert_tokens_to_ids("ro_RO")
    around = (chosen.target.prefix_ids, chosen.target.suffix_ids)
    assert around == (((), (2, code)) if layout == "mbart" else ((code,), (2,)))
    with pytest.raises(ValueError, match=r"one of the tokenizer's languages: ar_AR, .*target_la"):
        tokenizer.with_languages(target="rm_CH")


def test_a_tokenizer_without_languages_has_none_to_choose(multilingual_model, tmp_path):
    tokenizer = UnigramTokenizer(multilingual_model, layout="fairseq")
    assert tokenizer.languages == ()
    assert tokenizer.target is tokenizer
    assert "source_language" not in tokenizer.get_config()
    with pytest.raises(ValueError, match=r"it has none. Received: source_language='de_DE'"):
        tokenizer.with_languages("de_DE")
    tokenizer.save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "src_lang": "de_DE"}))
    with pytest.raises(ValueError, match=r"it has none. Received: source_language='de_DE' in"):
        kbert.load_tokenizer(tmp_path)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_saved_folders_load_here_and_in_transformers(folder, layout, tmp_path):
    tokenizer = kbert.load_tokenizer(folder)
    expected = transformers.AutoTokenizer.from_pretrained(folder)
    tokenizer.save(tmp_path / "saved")
    again = kbert.load_tokenizer(tmp_path / "saved")
    assert again.get_config() == tokenizer.get_config()
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
    assert type(theirs) is type(expected)
    assert theirs.mask_token_id == again.mask_id
    assert theirs.get_vocab() == expected.get_vocab()
    assert theirs(PLAIN).input_ids == expected(PLAIN).input_ids


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["class", "any"])
def test_a_tokenizer_json_without_a_model(folder, layout, name, tmp_path):
    """As transformers writes it; also for its general class, by the tokens."""
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    theirs.save_pretrained(tmp_path / "json")
    path = tmp_path / "json" / "tokenizer_config.json"
    if name == "any":
        config = json.loads(path.read_text()) | {"tokenizer_class": "PreTrainedTokenizerFast"}
        path.write_text(json.dumps(config))
    tokenizer = kbert.load_tokenizer(tmp_path / "json")
    assert tokenizer.layout == layout
    assert rows(tokenizer(PLAIN, padding=True)) == theirs(PLAIN).input_ids


@pytest.mark.parametrize("layout", LAYOUTS)
def test_in_datasets_and_exported(models, layout, tmp_path):
    tokenizer = UnigramTokenizer(models[layout], layout=layout)
    expected = tokenizer(PLAIN, padding="max_length", max_length=24)
    data = tf.data.Dataset.from_tensor_slices(PLAIN).batch(64)
    batch = next(iter(data.map(lambda x: tokenizer(x, padding="max_length", max_length=24))))
    for name, x in batch.items():
        np.testing.assert_array_equal(x, expected[name])
    assert not np.array_equal(expected["token_ids"][:, -1], np.full(len(PLAIN), tokenizer.pad_id))
    module = tf.Module()
    module.rows = tf.function(
        lambda x: tokenizer(x, padding="max_length", max_length=24)["token_ids"],
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path))
    again = tf.saved_model.load(str(tmp_path)).rows(tf.constant(PLAIN))
    np.testing.assert_array_equal(again, expected["token_ids"])


@pytest.mark.parametrize(
    ("layout", "content"),
    [("pegasus", {"model_type": "pegasus"}), ("mbart", {"model_type": "mbart"})],
)
def test_the_model_s_type_decides_without_a_class(folder, layout, content):
    (folder / "tokenizer_config.json").unlink()
    (folder / "config.json").write_text(json.dumps(content))
    assert kbert.load_tokenizer(folder).layout == layout


@pytest.mark.parametrize("layout", ["pegasus"])
def test_pegasus_by_its_model_alone_is_taken_for_t5_and_other_offsets_are_refused(
    folder, layout, caplog
):
    (folder / "tokenizer_config.json").unlink()
    assert kbert.load_tokenizer(folder).layout == "t5"
    assert 'for PEGASUS pass layout="pegasus"' in caplog.text
    assert kbert.load_tokenizer(folder, layout="pegasus").layout == "pegasus"
    (folder / "tokenizer_config.json").write_text('{"offset": 0}')
    with pytest.raises(ValueError, match=r"must have 103 ids before those of its model.*offset=0"):
        kbert.load_tokenizer(folder)
