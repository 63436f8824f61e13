"""Byte-level BPE tokenizers between folders of kbert and of Hugging Face."""

import json

import pytest
from tokenizers import AddedToken, ByteLevelBPETokenizer, normalizers
from transformers import AutoTokenizer

from kbert.tokenizers import BytePairTokenizer, load_tokenizer
from kbert.tokenizers.byte_alphabet import CHARACTERS

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
MERGES = ["l o", "lo w", "Ġ low"]
ROBERTA = [*SPECIALS, *CHARACTERS, "lo", "low", "Ġlow"]
GPT2 = [*CHARACTERS, "lo", "low", "Ġlow", "<|endoftext|>"]
TEXTS = ["low low", " low <mask>lo<mask>", "<s>é  \n low", "<|endoftext|>", ""]


def raw(vocabulary, **options) -> ByteLevelBPETokenizer:
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    return ByteLevelBPETokenizer(ids, [tuple(merge.split(" ")) for merge in MERGES], **options)


def write(folder, vocabulary, **files):
    """vocab.json, merges.txt, and other JSON files by their names."""
    BytePairTokenizer(vocabulary, MERGES).save(folder)
    (folder / "tokenizer_config.json").unlink()
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))


@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True, "mask_takes_space": False}])
@pytest.mark.parametrize("vocabulary", [ROBERTA, GPT2], ids=["roberta", "gpt2"])
def test_saved_folders_are_the_same_tokenizer_everywhere(tmp_path, vocabulary, options):
    if vocabulary is GPT2:
        options = options | {"mask_takes_space": True}  # it has none
    ours = BytePairTokenizer(vocabulary, MERGES, special_tokens_in_text=True, **options)
    ours.save(tmp_path / "kbert")
    assert load_tokenizer(tmp_path / "kbert").get_config() == ours.get_config()
    theirs = AutoTokenizer.from_pretrained(tmp_path / "kbert")
    for text in TEXTS:
        expected = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text).numpy().tolist() == expected, text
    theirs.save_pretrained(tmp_path / "theirs")  # tokenizer.json and its configuration
    back = load_tokenizer(tmp_path / "theirs", special_tokens_in_text=True)
    assert back.get_config() == ours.get_config()


def test_only_tokenizer_json(tmp_path):
    theirs = raw(ROBERTA, add_prefix_space=True)
    theirs.add_special_tokens([*SPECIALS[:4], AddedToken("<mask>", lstrip=True)])
    theirs.save(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    assert (ours.vocabulary, ours.add_prefix_space, ours.mask_takes_space) == (ROBERTA, True, True)
    assert (ours.cls_token, ours.mask_token, ours.pair_separators) == ("<s>", "<mask>", 2)


def test_older_folders(tmp_path):
    """Two files, as fairseq's users have them; then with maps and added tokens beside them."""
    write(tmp_path, ROBERTA)
    assert load_tokenizer(tmp_path).get_config() == BytePairTokenizer(ROBERTA, MERGES).get_config()
    special = {
        "unk_token": "<|endoftext|>",
        "pad_token": {"content": "[PAD]", "lstrip": False},
        "additional_special_tokens": ["[X]"],
    }
    write(
        tmp_path,
        GPT2,
        special_tokens_map=special,
        added_tokens={"[X]": len(GPT2) + 1, "[PAD]": len(GPT2)},
    )
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocabulary == [*GPT2, "[PAD]", "[X]"]
    assert tokenizer.special_tokens == {"unk": "<|endoftext|>", "pad": "[PAD]"}
    assert tokenizer.special_ids == [259, 260, 261]
    assert tokenizer.additional_special_tokens == ["[X]"]


def test_arguments_go_before_the_folder(tmp_path):
    BytePairTokenizer(ROBERTA, MERGES).save(tmp_path)
    assert load_tokenizer(tmp_path, add_prefix_space=True).add_prefix_space


def test_added_tokens_that_change_texts_are_refused(tmp_path):
    entry = {"content": "zebra", "special": False}
    write(tmp_path, GPT2, tokenizer_config={"added_tokens_decoder": {str(len(GPT2)): entry}})
    with pytest.raises(ValueError, match="no special tokens are not read.*Received: 'zebra'"):
        load_tokenizer(tmp_path)
    entry = {"content": "[X]", "special": True, "lstrip": True, "rstrip": True}
    write(tmp_path, GPT2, tokenizer_config={"added_tokens_decoder": {str(len(GPT2)): entry}})
    with pytest.raises(ValueError, match=r"only the mask .*'\[X\]' with rstrip, lstrip in"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("model", {"byte_fallback": True}, "Received: byte_fallback=True in"),
        ("model", {"end_of_word_suffix": "</w>"}, "Received: end_of_word_suffix='</w>' in"),
        ("pre_tokenizer", {"type": "Whitespace"}, "Received: pre_tokenizer='Whitespace' in"),
        ("pre_tokenizer", {"use_regex": False}, "Received: pre_tokenizer='ByteLevel' in"),
    ],
)
def test_other_bpe_is_refused(tmp_path, section, change, message):
    content = json.loads(raw(GPT2).to_str())
    content[section] |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


def test_normalizers_are_refused(tmp_path):
    theirs = raw(GPT2)
    theirs.normalizer = normalizers.NFC()
    theirs.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match="no normalizer .*Received: normalizer='NFC' in"):
        load_tokenizer(tmp_path)
