"""Tokens that were added to a WordPiece, in the files of Hugging Face and in ours."""

import json

import pytest
import tensorflow as tf
from hypothesis import given, strategies as st
from transformers import AddedToken, AutoTokenizer, BertTokenizerFast

from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer, load_tokenizer, save_vocabulary

VOCABULARY = [*SPECIAL_TOKENS, "a", "pen", "##s", "co", "##vi", "##d", "un", "[unused0]"]
TEXTS = ["a <url> covids", "COVID [E1] pens[/E1]", "a<URL>", "[unused0] un", "", "co vid"]


@pytest.fixture
def theirs(tmp_path):
    """A folder of transformers', to which two tokens and two special ones were added."""
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    tokenizer.add_tokens(["<url>", "covid"])
    tokenizer.add_special_tokens({"additional_special_tokens": ["[E1]", "[/E1]", "[unused0]"]})
    tokenizer.save_pretrained(tmp_path / "theirs")
    return tmp_path / "theirs"


def ids_of(folder):
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, add_special_tokens=False).input_ids for text in TEXTS]


def as_of_version_4(folder):
    """The files of transformers 4 beside tokenizer.json, without which older ones were saved."""
    entries = json.loads((folder / "tokenizer.json").read_text())["added_tokens"]
    added = {str(entry.pop("id")): entry for entry in entries}
    (folder / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    save_vocabulary(VOCABULARY, folder / "vocab.txt")
    (folder / "tokenizer.json").unlink()


@pytest.mark.parametrize("is_old", [False, True])
def test_they_are_found_as_there_and_back(theirs, tmp_path, is_old):
    wanted = ids_of(theirs)
    if is_old:
        as_of_version_4(theirs)
    ours = load_tokenizer(theirs)
    assert ours.vocabulary == [*VOCABULARY, "<url>", "covid", "[E1]", "[/E1]"]
    assert ours.encode(TEXTS).to_list() == wanted
    assert len(wanted[0]) == 4
    ours.save(tmp_path / "ours")
    assert ids_of(tmp_path / "ours") == wanted
    again = load_tokenizer(tmp_path / "ours")
    assert again.get_config() == ours.get_config()
    assert again.encode(TEXTS).to_list() == wanted


def test_files_of_before_the_decoder(tmp_path):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / "added_tokens.json").write_text('{"covid": 14, "[E1]": 13}')
    special = {"additional_special_tokens": ["[E1]", "[unused0]", "[E2]"]}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(special))
    found = load_tokenizer(tmp_path)
    assert found.vocabulary == [*VOCABULARY, "[E1]", "covid", "[E2]"]
    assert found.normalized_tokens == ["covid"]
    assert found.encode("COVID[E1] [e1]").numpy().tolist() == [14, 13, 1, 1, 1]


def test_in_a_graph_and_of_an_empty_batch(theirs):
    ours = load_tokenizer(theirs)
    dataset = tf.data.Dataset.from_tensor_slices(TEXTS).batch(6).map(ours.encode)
    assert next(iter(dataset)).to_list() == ours.encode(TEXTS).to_list()
    assert ours.encode(tf.constant([], tf.string)).shape[0] == 0
    assert ours.decode(ours.encode(TEXTS[:1]).to_list()) == ["a <url> covid [UNK]"]


@pytest.mark.parametrize(
    ("added", "message"),
    [
        ({"99": {"content": "covid"}}, "without gaps.*'covid' with the id 99 after 13 pieces"),
    ],
)
def test_what_cannot_be_added_is_refused(tmp_path, added, message):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


def test_settings_that_do_not_fit():
    for settings, message in (
        ({"added_tokens": ["dog"]}, "must be tokens of the vocabulary.*'dog'"),
        ({"added_tokens": ["[MASK]"]}, r"special or added.*'\[MASK\]'"),
        ({"normalized_tokens": ["pen"]}, "`normalized_tokens` must be added tokens.*'pen'"),
        ({"single_word_tokens": ["pen"]}, "`single_word_tokens` must be added tokens.*'pen'"),
        ({"added_pieces": ["pen"]}, "`added_pieces` must be added tokens.*'pen'"),
    ):
        with pytest.raises(ValueError, match=message):
            WordPieceTokenizer(VOCABULARY, **settings)


def single_words(folder, *, normalized):
    """A folder with tokens that are words of their own, and one that is found within words too."""
    save_vocabulary(VOCABULARY, folder / "vocab.txt")
    tokenizer = BertTokenizerFast(str(folder / "vocab.txt"))
    single = [
        AddedToken(text, single_word=True, normalized=normalized)
        for text in ("[رابط]", "covid", "pen pen", "vi")
    ]
    tokenizer.add_tokens([*single, AddedToken("<u>", normalized=normalized)])
    tokenizer.save_pretrained(folder / "theirs")
    return folder / "theirs"


TOUCHING = [
    *("a [رابط] pen", "[رابط]pen", "a[رابط]", "[رابط][رابط]", "[رابط],[رابط]", "رابط[رابط]", "vi"),
    *(
        "vivi",
        "vi<u>vi",
        "<u>vi",
        "vi<u>",
        "pen pen",
        "pen penpen",
        "a pen pen",
        "apen pen",
        "vi-a",
    ),
    *("covid_19", "COVID-19", "vi1", "vi\u0301", "①vi", "ⓐvi", "vi\u200d", "\u4e00vi", "vi\u4e00"),
    *("covid vi", "covi", "", " vi ", "vi-a"),
]


@pytest.mark.parametrize("normalized", [pytest.param(False, marks=pytest.mark.slow), True])
def test_words_of_their_own_are_found_as_there(tmp_path, normalized):
    folder = single_words(tmp_path, normalized=normalized)
    reference, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    assert {*ours.single_word_tokens} == {"[رابط]", "covid", "pen pen", "vi"}

    def check(texts):
        wanted = [reference(text, add_special_tokens=False).input_ids for text in texts]
        assert ours.encode(texts).to_list() == wanted

    check(TOUCHING)
    ours.save(tmp_path / "ours")
    assert load_tokenizer(tmp_path / "ours").get_config() == ours.get_config()
    again = AutoTokenizer.from_pretrained(tmp_path / "ours")
    for text in ("a [رابط] pen", "[رابط]pen", "a[رابط]", "pen pen", "pen penpen", "vi", "covid vi"):
        assert again(text).input_ids == reference(text).input_ids

    parts = st.sampled_from(
        ["pen", "vi", "[رابط]", "<u>", "a", " ", "-", "é", "\u0301", "一", "_", "7"]
    )

    @given(st.lists(st.lists(parts, max_size=8).map("".join), min_size=1, max_size=4))
    def any_texts(texts):
        check(texts)

    any_texts()


PIECES_TOO = ["pen PEN Pens", "apen pen-pen PENS", "p\u00e9n [unused0] a", "cod CODS", "co##s ##s"]


@pytest.mark.parametrize("is_old", [False, True])
@pytest.mark.parametrize(
    "added",
    [
        {"special_tokens": ["pen", "co", "##s", "[unused0]"]},
        {"new_tokens": [AddedToken(x, single_word=True) for x in ("pen", "##s")]},
        {"new_tokens": [AddedToken(x, normalized=False) for x in ("pen", "covid")]},
    ],
    ids=["special", "single words", "as written"],
)
def test_word_pieces_that_are_added_stay_word_pieces_as_there(tmp_path, added, is_old):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    tokenizer = BertTokenizerFast(str(tmp_path / "vocab.txt"))
    tokenizer.add_tokens(added.get("new_tokens", []))
    special = added.get("special_tokens", [])
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    theirs = tmp_path / "theirs"
    tokenizer.save_pretrained(theirs)
    wanted = [tokenizer(text, add_special_tokens=False).input_ids for text in PIECES_TOO]
    if is_old:
        as_of_version_4(theirs)
    ours = load_tokenizer(theirs)
    assert "pen" in ours.added_pieces
    assert not {"covid", "[unused0]"} & {*ours.added_pieces}
    assert ours.encode(PIECES_TOO).to_list() == wanted
    assert ours.encode_with_offsets(PIECES_TOO)["token_ids"].to_list() == wanted
    assert ours.continuation[VOCABULARY.index("##s")]
    ours.save(tmp_path / "ours")
    again = load_tokenizer(tmp_path / "ours")
    assert again.get_config() == ours.get_config()
    assert again.encode(PIECES_TOO).to_list() == wanted


def test_a_folder_of_ours_keeps_the_ids_that_its_model_was_trained_on(tmp_path):
    ours = WordPieceTokenizer(VOCABULARY, added_tokens=["pen"])
    ours.save(tmp_path)
    assert "added_pieces" not in ours.get_config()
    again = load_tokenizer(tmp_path)
    assert again.get_config() == ours.get_config()
    assert again.encode("pen Pen").numpy().tolist() == [6, 1]


def test_added_pieces_of_another_form_are_refused(tmp_path):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_pieces": "pen"}))
    with pytest.raises(ValueError, match=r"`added_pieces` must be a list of tokens.*'pen'"):
        load_tokenizer(tmp_path)


def test_a_token_of_marks_alone_is_in_no_normalised_text():
    marks = ["\ufe0f", "\u0301"]
    settings = {"added_tokens": marks, "normalized_tokens": marks}
    tokenizer = WordPieceTokenizer([*VOCABULARY, *marks], **settings)
    assert tokenizer.encode(["a pen", "a\ufe0fa\u0301"]).to_list() == [[5, 6], [1]]
