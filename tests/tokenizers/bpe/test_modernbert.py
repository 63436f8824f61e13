"""ModernBERT's kind of byte-level BPE: NFC, and tokens that are found in every text."""

import json
import unicodedata

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from kbert.tokenizers import BytePairTokenizer, load_tokenizer, train_byte_pair
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

TEXT = (
    "The flightless bird isn't at home; they're 1234 of 56. Ein größeres Café für Señor Łódź. "
    "Быстрая лиса прыгает. 한국어 각각. 東京。 def f(x):\n    return x\t# 👩\u200d🚀\n\n"
)
SPACES = [" " * n for n in range(24, 1, -1)]
ADDED = [*SPACES, "|||IP_ADDRESS|||", "|||EMAIL_ADDRESS|||", "[unused0]", "[unused1]", "[unused11]"]
SPECIALS = ["<|padding|>", "<|endoftext|>", "[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
HARD = [
    "e\u0301a\u0308 cafe\u0301 \u212bngstro\u0308m s\u0323\u0307\u0323 q\u0307\u0323",
    "\u1112\u1161\u11ab\u1100\u116e\u11a8 \uac00\u11a8 \u1161",
    "\u0301", "  \u0301", "\u0915\u093c \u0958 \u2126\u037e", "\u0cc6\u0cc2",
    "   three at begin,  two inside,   three at end   ",
    " " * 23 + "x" + " " * 24 + "x" + " " * 25 + "x" + " " * 50,
    "\t\t tab \n\n  \n line \r\n   \u3000  ",
    "a [unused0] b[unused1]1[unused11][unused2] [unused0",
    "at |||IP_ADDRESS|||, |||EMAIL_ADDRESS|||||IP_ADDRESS||| ||IP_ADDRESS||",
    "see   [MASK] \t[MASK]x [MASK]  [mask]", "[CLS] a [SEP]  b[SEP]\u0301", "[CLS][UNK]<|padding|>",
    "👩\u200d🚀  👩🏽\u200d💻", "\0  \0", "  ", " ", "",
]  # fmt: skip
PARTS = st.one_of(
    st.text(max_size=8),
    st.text(st.sampled_from(TEXT), max_size=20),
    st.text(st.sampled_from("aes=\u0301\u0323\u0307\u0327\u0338\u212b\u1e9b\u0344 "), max_size=10),
    st.text(st.sampled_from("\u1100\u1112\u1161\u116e\u11a8\u11ab\uac00\uac01 "), max_size=8),
    st.text(
        st.sampled_from("\u0915\u093c\u0958\u0cc6\u0cc2\u0cd5\u05e9\u05c1\ufb2aか\u3099"),
        max_size=6,
    ),
    st.text(st.sampled_from("  \t\n\xa0\u3000x"), max_size=30),
    st.sampled_from([*ADDED, *SPECIALS, "   [MASK]", "[unused", "|||IP", "|||"]),
)  # fmt: skip
TEXTS = st.lists(PARTS, max_size=6).map("".join)


def added(content: str, **flags) -> AddedToken:
    special = content in SPECIALS
    flags = {"normalized": not special, "special": special} | flags
    return AddedToken(content, lstrip=content == "[MASK]", **flags)


def pipeline(tokens: list[AddedToken]) -> Tokenizer:
    """A Tokenizer of `tokenizers` as ModernBERT's tokenizer.json has it, trained on a line."""
    vocabulary, merges = train_byte_pair([TEXT] * 3, 400, special_tokens=[])
    # GPT-NeoX's vocabulary lacks the bytes that UTF-8 never has, and so does ModernBERT's.
    never = {CHARACTERS[byte] for byte in (0xC0, 0xC1, *range(0xF5, 0x100))}
    vocabulary = [piece for piece in vocabulary if piece not in never]
    ids = {piece: number for number, piece in enumerate(["|||IP_ADDRESS|||", *vocabulary])}
    theirs = Tokenizer(models.BPE(ids, [tuple(merge.split(" ")) for merge in merges]))
    theirs.normalizer = normalizers.NFC()
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    theirs.add_tokens(tokens)
    ends = [(token, theirs.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    theirs.post_processor = TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", ends
    )
    return theirs


def save(theirs: Tokenizer, folder) -> None:
    """tokenizer.json and tokenizer_config.json, by transformers."""
    roles = {f"{token[1:-1].lower()}_token": token for token in SPECIALS[2:-1]}
    PreTrainedTokenizerFast(
        tokenizer_object=theirs, mask_token=added("[MASK]"), **roles
    ).save_pretrained(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("modernbert")
    save(pipeline([added(token) for token in [*ADDED, *SPECIALS]]), folder)
    return folder


@pytest.fixture(scope="module")
def other_flags(tmp_path_factory):
    """Every token in the other half: spaces before normalisation, the mask after it, …"""
    folder = tmp_path_factory.mktemp("flags")
    tokens = [added(token, normalized=token in SPECIALS) for token in [*ADDED, *SPECIALS]]
    tokens += [added("[x]", normalized=True), added("cafe\u0301", normalized=True)]
    save(
        pipeline([*tokens, added("re", normalized=False), added(" \u0301[", normalized=True)]),
        folder,
    )
    return folder


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("folder", False), id="as text", marks=pytest.mark.slow),
        pytest.param(("folder", True), id="found", marks=pytest.mark.slow),
        pytest.param(("other_flags", True), id="other flags"),
    ],
)
def pair(request):
    """Ours and theirs, with special tokens in a text as text or found."""
    name, found = request.param
    folder = request.getfixturevalue(name)
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.encode_special_tokens = not found
    return load_tokenizer(folder, special_tokens_in_text=found), theirs


def test_roles_and_settings(folder):
    ours = load_tokenizer(folder)
    assert {role: ours.special_tokens[role] for role in ("cls", "sep", "pad", "mask", "unk")} == {
        "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]", "unk": "[UNK]",
    }  # fmt: skip
    assert len(ours.special_tokens) == 5
    assert ours.additional_special_tokens == SPECIALS[:2]
    assert (ours.normalization, sorted(ours.added_tokens)) == ("nfc", sorted(ADDED))
    assert (ours.normalized_tokens, ours.mask_takes_space) == (None, True)
    assert (ours.pair_separators, ours.special_tokens_in_text) == (1, False)
    assert ours.vocabulary[0] == "|||IP_ADDRESS|||"
    assert [ours.vocabulary[i] for i in ours.special_ids] == SPECIALS


def same(ours: BytePairTokenizer, theirs: Tokenizer, texts: list[str]) -> None:
    out = {k: v.to_list() for k, v in ours.encode_with_offsets(texts, "character").items()}
    assert ours.encode(texts).to_list() == out["token_ids"]
    for i, expected in enumerate(theirs.encode_batch(texts, add_special_tokens=False)):
        assert out["token_ids"][i] == expected.ids, ascii(texts[i])
        assert out["word_index"][i] == expected.word_ids, ascii(texts[i])
        for start, end, (a, z) in zip(
            out["starts"][i], out["ends"][i], expected.offsets, strict=True
        ):
            assert start <= a <= z <= end, ascii(texts[i])
            # Ours take the whole of what was composed: a character and those that join it.
            joins = texts[i][start + 1 : a] + texts[i][z:end]
            assert all(
                unicodedata.category(c)[0] == "M" or "\u1160" <= c <= "\u11ff" for c in joins
            )
            if (start, end) != (a, z):
                assert not unicodedata.is_normalized("NFC", texts[i][start:end])


def test_hard_texts(pair):
    same(*pair, HARD)
    ours, _ = pair
    texts = [text for text in HARD if "[MASK]" not in text]  # it takes white space
    decoded = ours.decode(ours.encode(texts).to_list(), skip_special_tokens=False)
    for text, back in zip(texts, decoded, strict=True):
        assert unicodedata.normalize("NFC", back) == unicodedata.normalize("NFC", text)


@given(texts=st.lists(TEXTS, min_size=1, max_size=20))
@settings(max_examples=60, deadline=None)
def test_any_text(pair, texts):
    same(*pair, texts)


@pytest.mark.parametrize("name", ["folder", "other_flags"])
def test_what_is_saved_is_read_by_transformers(tmp_path, request, name):
    given = request.getfixturevalue(name)
    ours = load_tokenizer(given)
    ours.save(tmp_path / "kbert")
    assert sorted(path.name for path in (tmp_path / "kbert").iterdir()) == [
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again = load_tokenizer(tmp_path / "kbert")
    assert (again.get_config(), again.checksum) == (ours.get_config(), ours.checksum)
    before = AutoTokenizer.from_pretrained(given)
    theirs = AutoTokenizer.from_pretrained(tmp_path / "kbert")
    assert theirs(HARD).input_ids == before(HARD).input_ids
    assert theirs("a  b", "c").input_ids == before("a  b", "c").input_ids
    assert set(theirs("a")) == {"input_ids", "attention_mask"}
    assert (theirs.mask_token, theirs.unk_token, theirs.vocab_size) == (
        "[MASK]", "[UNK]", len(ours.vocabulary),
    )  # fmt: skip
    texts = [text for text in HARD if not any(token in text for token in SPECIALS)]
    framed = [[ours.cls_id, *row, ours.sep_id] for row in ours.encode(texts).to_list()]
    assert theirs(texts).input_ids == framed
    theirs.save_pretrained(tmp_path / "theirs")
    assert load_tokenizer(tmp_path / "theirs").get_config() == ours.get_config()


def test_published_layout(folder, tmp_path):
    """Merges as strings, the roles in special_tokens_map.json, Hugging Face's older class."""
    content = json.loads((folder / "tokenizer.json").read_text())
    content["model"]["merges"] = [" ".join(pair) for pair in content["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    decoder = {str(entry.pop("id")): entry for entry in content["added_tokens"]}
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": decoder}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    roles = {f"{token[1:-1].lower()}_token": decoder[number] for number, token in (
        (number, entry["content"]) for number, entry in decoder.items()
    ) if token in SPECIALS[2:]}  # fmt: skip
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(roles))
    assert load_tokenizer(tmp_path).get_config() == load_tokenizer(folder).get_config()
