"""Marian's tokenizer: ids and texts of transformers, which runs sentencepiece."""

import functools
import io
import json
import pickle

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings, strategies as st

import kbert
from kbert.tokenizers import MarianTokenizer
from tests.tokenizers.unigram.sentencepiece_reference import corpus

transformers = pytest.importorskip("transformers")

GERMAN = "der die das und ein eine Straße Fluß Berg schöne größer Häuser läuft müde 東京".split()
TEXTS = [
    *corpus(40, seed=1),
    *("", " ", "over  two \t rivers\n", "\ufb01ne \u00b2 e\u0301", "▁ a▁b", "a\x00b \ue000"),
    *("Straße und Fluß", "ß", "ßä ß\u4e2d ß", "\u4e2d\u4e2d night", "\U0001f600\U0001f600ß"),
    *(">>de<< the night", ">>de<<the night", ">>xx<< the", ">>de", "<<", ">> the << of", ">><< a"),
    *("of >>de<< the", ">>de<< >>fr<< the", ">>de<<", ">>\n<< a", ">>fr<< ß"),
]


def trained(lines) -> bytes:
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, vocab_size=150, minloglevel=2,
        hard_vocab_limit=False, character_coverage=1.0,
    )  # fmt: skip
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return processor.id_to_piece(list(range(3, processor.get_piece_size())))


@pytest.fixture(scope="module")
def models() -> tuple[bytes, bytes]:
    """Models of a source without ß and ä, and of a target with them."""
    english = [line for line in corpus() if not set(line) & set("ßäöü東京")]
    german = [" ".join(GERMAN[i % 7 :: 2]) for i in range(200)]
    return trained(english), trained(german)


def vocabularies(models, kind: str) -> list[list[str]]:
    """The vocabulary, as in OPUS-MT's files with padding last; or that of source and target."""
    source, target = map(pieces_of, models)
    if kind == "separate":
        return [["</s>", "<unk>", *pieces, "<pad>"] for pieces in (source, target[4:])]
    codes = [">>de<<", ">>fr<<"] if kind == "multilingual" else []
    shared = dict.fromkeys([*source[:4:-1], *target])  # not the first five of the source
    return [["</s>", "<unk>", *codes, *shared, "<pad>"]]


KINDS = ("shared", "multilingual", "separate")


@pytest.fixture(scope="module")
def folders(models, tmp_path_factory):
    """Folders as published, by kind of vocabulary."""
    root = tmp_path_factory.mktemp("marian")
    for kind in KINDS:
        (root / kind).mkdir()
        names = ("vocab.json", "target_vocab.json")
        for name, tokens in zip(names, vocabularies(models, kind), strict=False):
            ids = json.dumps({token: i for i, token in enumerate(tokens)})
            (root / kind / name).write_text(ids)
        for name, model in zip(("source.spm", "target.spm"), models, strict=True):
            (root / kind / name).write_bytes(model)
        config = {"source_lang": "en", "target_lang": "de", "separate_vocabs": kind == "separate"}
        config["tokenizer_class"] = "MarianTokenizer"
        (root / kind / "tokenizer_config.json").write_text(json.dumps(config))
    return root


def reference(folder):
    with pytest.warns(UserWarning, match="sacremoses"):  # transformers imports it for nothing
        return transformers.AutoTokenizer.from_pretrained(folder)


def rows(features) -> list[list[int]]:
    ids, mask = (np.asarray(features[name]) for name in ("token_ids", "padding_mask"))
    return [row[: count.sum()].tolist() for row, count in zip(ids, mask, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_ids_of_sources_and_targets_are_those_of_transformers(folders, kind):
    theirs, tokenizer = reference(folders / kind), kbert.load_tokenizer(folders / kind)
    assert isinstance(tokenizer, MarianTokenizer)
    sources = [theirs(text).input_ids for text in TEXTS]
    targets = [theirs(text_target=text).input_ids for text in TEXTS]
    assert rows(tokenizer(TEXTS, padding=True)) == sources
    assert rows(tokenizer.target(TEXTS, padding=True)) == targets
    assert sources != targets
    ids = (tokenizer.sep_id, tokenizer.unk_id, tokenizer.pad_id, tokenizer.cls_id)
    assert ids == (0, 1, tokenizer.vocabulary_size - 1, None)
    assert rows(tokenizer("the", "night", padding=True))[0] == theirs("the", "night").input_ids
    assert tokenizer.target.target is tokenizer.target


_PARTS = st.sampled_from(
    [">>de<<", ">>", "<<", " ", "the night", "\u00df", "\u00e4", "\u4e2d", "Fluß"]
) | st.text(max_size=6)


@given(st.lists(st.lists(_PARTS, max_size=6).map("".join), min_size=20, max_size=40))
@settings(max_examples=20, deadline=None)
def test_ids_of_any_text_are_those_of_transformers(folders, texts):
    theirs, tokenizer = cached(folders / "multilingual")
    texts = [text for text in texts if not any(x in text for x in ("</s>", "<unk>", "<pad>"))]
    for ours, options in ((tokenizer, {}), (tokenizer.target, {"text_target": texts})):
        expected = [row[:-1] for row in theirs(**(options or {"text": texts})).input_ids]
        assert ours.encode_with_offsets(texts)["token_ids"].to_list() == expected
        assert ours.encode(texts).to_list() == expected


@functools.cache
def cached(folder):
    return reference(folder), kbert.load_tokenizer(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_texts_of_targets_are_those_of_transformers(folders, kind):
    theirs, tokenizer = reference(folders / kind), kbert.load_tokenizer(folders / kind)
    target = tokenizer.target
    ids = [[i for i in row if i != target.unk_id] for row in target(TEXTS).to_list()]
    ids = [[*row, target.sep_id] for row in ids]
    expected = theirs.batch_decode(ids, skip_special_tokens=True)
    texts = target.decode(ids)  # with single spaces where an unknown word stood
    assert texts == [" ".join(filter(None, text.split(" "))) for text in expected]
    if kind != "separate":
        assert tokenizer.decode(ids) == texts


def test_characters_that_the_source_model_lacks_have_the_ids_of_the_target_s(folders):
    tokenizer = kbert.load_tokenizer(folders / "shared")
    assert tokenizer.encode("ß").numpy().tolist()[-1] == tokenizer.token_to_id("ß")
    assert tokenizer.encode("ßä").numpy().tolist()[-1] == tokenizer.unk_id  # one unknown piece


@pytest.mark.parametrize("kind", KINDS)
def test_offsets(folders, kind):
    tokenizer = kbert.load_tokenizer(folders / kind)
    pieces = tokenizer.encode_with_offsets(TEXTS, "character")
    assert pieces["token_ids"].to_list() == tokenizer.encode(TEXTS).to_list()
    text = ">>de<< the  ßä\u4e2d night."
    pieces = tokenizer.encode_with_offsets(text, "character")
    spans = list(zip(pieces["starts"].numpy(), pieces["ends"].numpy(), strict=True))
    assert spans[0] == (0, 6)
    assert "".join(text[a:b] for a, b in spans) == text.replace(" ", "")
    assert pieces["word_index"].numpy()[:2].tolist() == [0, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_save_and_load(folders, kind, tmp_path):
    tokenizer = kbert.load_tokenizer(folders / kind)
    tokenizer.save(tmp_path)
    theirs, published = reference(tmp_path), reference(folders / kind)
    assert theirs(TEXTS).input_ids == published(TEXTS).input_ids
    assert theirs(text_target=TEXTS).input_ids == published(text_target=TEXTS).input_ids
    assert (tmp_path / "target_vocab.json").is_file() == (kind == "separate")
    for copy in (kbert.load_tokenizer(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert copy.get_config() == tokenizer.get_config()
        assert copy.checksum == tokenizer.checksum
        assert copy.target.encode(TEXTS).to_list() == tokenizer.target.encode(TEXTS).to_list()
    preprocess = kbert.TextPreprocessor(tokenizer, max_length=16)
    again = kbert.TextPreprocessor.from_config(json.loads(json.dumps(preprocess.get_config())))
    np.testing.assert_array_equal(again(TEXTS)["token_ids"], preprocess(TEXTS)["token_ids"])


def test_a_target_language_stands_before_the_text(folders, tmp_path):
    theirs = reference(folders / "multilingual")
    tokenizer = kbert.load_tokenizer(folders / "multilingual")
    assert tokenizer.languages == (">>de<<", ">>fr<<")
    chosen = tokenizer.with_languages(target=">>de<<")
    chosen.save(tmp_path)
    for copy in (chosen, kbert.load_tokenizer(tmp_path)):
        assert copy.checksum == chosen.checksum != tokenizer.checksum
        source = copy("the night", padding=True)
        assert rows(source)[0] == theirs(">>de<< the night").input_ids
        target = theirs(text_target="der Berg").input_ids
        assert rows(copy.target("der Berg", padding=True))[0] == target
    with pytest.raises(ValueError, match=r"one of .*: >>de<<, >>fr<<. .*target_language='>>xx<<'"):
        tokenizer.with_languages(target=">>xx<<")
    with pytest.raises(ValueError, match=r"pass it as target. Received: source='>>de<<'"):
        tokenizer.with_languages(">>de<<")


def test_one_model_for_both_sides(models):
    source = pieces_of(models[0])
    tokenizer = MarianTokenizer(models[0], ["</s>", "<unk>", ">>de<<", *source, "<pad>"])
    assert tokenizer.target is tokenizer
    chosen = tokenizer.with_languages(target=">>de<<")
    assert (chosen.prefix_ids, chosen.target.prefix_ids) == ((2,), ())


def test_in_datasets_and_exported(folders, tmp_path):
    tokenizer = kbert.load_tokenizer(folders / "multilingual")
    expected = tokenizer(TEXTS, padding="max_length", max_length=32)["token_ids"]
    data = tf.data.Dataset.from_tensor_slices(TEXTS).batch(99)
    batch = next(iter(data.map(lambda x: tokenizer(x, padding="max_length", max_length=32))))
    np.testing.assert_array_equal(batch["token_ids"], expected)
    assert next(iter(data.map(tokenizer.encode_with_offsets)))["starts"].shape[0] == len(TEXTS)
    module = tf.Module()
    module.resources = tokenizer.resources
    module.rows = tf.function(
        lambda x: tokenizer(x, padding="max_length", max_length=32)["token_ids"],
        input_signature=[tf.TensorSpec([None], tf.string)],
    )
    tf.saved_model.save(module, str(tmp_path))
    again = tf.saved_model.load(str(tmp_path))
    np.testing.assert_array_equal(again.rows(tf.constant(TEXTS)), expected)


def test_invalid_utf8_is_dropped(folders):
    tokenizer = kbert.load_tokenizer(folders / "multilingual")
    texts = [b"ni\xffght", b">>de<< \xe4\xbd", b">>de<< the \xed\xa0\x80night"]
    valid = [text.decode("utf-8", "ignore") for text in texts]
    out = tokenizer.encode_with_offsets(texts)
    assert tokenizer.encode(texts).to_list() == out["token_ids"].to_list()
    assert tokenizer.encode(texts).to_list() == tokenizer.encode(valid).to_list()


def test_a_second_vocabulary_is_read_only_if_the_config_says_so(folders, tmp_path, caplog):
    for path in (folders / "separate").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tokenizer_config.json").unlink()
    tokenizer = kbert.load_tokenizer(tmp_path)
    assert "target_vocab.json is not read" in caplog.text
    assert tokenizer.target.vocabulary == tokenizer.vocabulary


@pytest.mark.parametrize("name", ["target.spm", "vocab.json", "target_vocab.json"])
def test_a_missing_file_is_named(folders, name, tmp_path):
    for path in (folders / "separate").iterdir():
        if path.name != name:
            (tmp_path / path.name).write_bytes(path.read_bytes())
    with pytest.raises(FileNotFoundError, match=f"must contain source.spm, .* without {name}"):
        kbert.load_tokenizer(tmp_path)


def test_errors(models, folders, tmp_path):
    with pytest.raises(ValueError, match=r"must be in the vocabulary. .* without </s>, <pad>"):
        MarianTokenizer(models[0], ["<unk>", "▁the"])
    with pytest.raises(ValueError, match=r"without gaps"):
        MarianTokenizer(models[0], {"</s>": 0, "<unk>": 2, "<pad>": 3})
    for path in (folders / "shared").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "vocab.json").write_text('{"</s>": 0, "<unk>": 1}')
    with pytest.raises(ValueError, match=f"without <pad> in {tmp_path}"):
        kbert.load_tokenizer(tmp_path)
