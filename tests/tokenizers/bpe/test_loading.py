"""Byte-level BPE tokenizers between folders of kbert and of Hugging Face."""

import json

import pytest
from tokenizers import AddedToken, ByteLevelBPETokenizer, normalizers, processors
from transformers import AutoTokenizer, GPT2Tokenizer

from kbert.tokenizers import BytePairTokenizer, load_tokenizer, train_byte_pair
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

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


OTHERS = {"add_prefix_space": True, "mask_takes_space": False}


@pytest.mark.parametrize(
    ("vocabulary", "options"),
    [
        pytest.param(ROBERTA, OTHERS, id="roberta-others"),
        pytest.param(GPT2, {}, id="gpt2-usual"),
        pytest.param(ROBERTA, {}, id="roberta-usual", marks=pytest.mark.slow),
        pytest.param(GPT2, OTHERS, id="gpt2-others", marks=pytest.mark.slow),
    ],
)
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
    """Two files, as fairseq's users have them; then with maps and added tokens."""
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
    assert tokenizer.special_ids == [259, 260]
    assert tokenizer.added_tokens == ["[X]"]


DEBERTA = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", *ROBERTA[5:], "[MASK]"]


@pytest.mark.parametrize(
    ("kind", "vocabulary", "config"),
    [
        ("roberta", ROBERTA, {"mask_token": "<mask>"}),
        ("roberta", ROBERTA, {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}),
        ("deberta", DEBERTA, {"cls_token": "[CLS]"}),
        ("deberta", DEBERTA, {"vocab_type": "gpt2"}),
    ],
)
def test_the_class_names_special_tokens_that_the_files_do_not(tmp_path, kind, vocabulary, config):
    write(tmp_path, vocabulary, config={"model_type": kind}, tokenizer_config=config)
    ours, theirs = load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    for role, token in ours.special_tokens.items():
        assert token == getattr(theirs, f"{role}_token")
    row = ours(["low"], padding=True)["token_ids"][0]
    assert row.numpy().tolist() == theirs("low").input_ids
    # kbert's own folders name all.
    bare = BytePairTokenizer(ROBERTA, MERGES, special_tokens={"cls": "<s>", "sep": "</s>"})
    bare.save(tmp_path / "bare")
    assert load_tokenizer(tmp_path / "bare").get_config() == bare.get_config()


def test_arguments_go_before_the_folder(tmp_path):
    BytePairTokenizer(ROBERTA, MERGES).save(tmp_path)
    assert load_tokenizer(tmp_path, add_prefix_space=True).add_prefix_space


def test_added_tokens_without_a_meaning_are_found_in_every_text(tmp_path):
    entry = {"content": "zebra", "special": False}
    write(tmp_path, GPT2, tokenizer_config={"added_tokens_decoder": {str(len(GPT2)): entry}})
    ours = load_tokenizer(tmp_path)
    assert (ours.added_tokens, ours.normalized_tokens) == (["zebra"], None)
    assert ours.encode("zebra<|endoftext|>").numpy().tolist()[:2] == [260, ord("<")]


def test_special_tokens_without_a_role_are_found_in_every_text(tmp_path):
    write(tmp_path / "plain", ROBERTA, tokenizer_config={"tokenizer_class": "RobertaTokenizer"})
    theirs = AutoTokenizer.from_pretrained(tmp_path / "plain")
    theirs.add_special_tokens({"additional_special_tokens": ["<e1>", "</e1>", "low"]})
    theirs.save_pretrained(tmp_path / "theirs")
    ours = load_tokenizer(tmp_path / "theirs")
    texts = ["<e1>low</e1> lower slow <e1 ></e1>", "<mask>"]
    expected = theirs(texts[0], add_special_tokens=False).input_ids
    assert ours.encode(texts).to_list()[0] == expected
    assert ours.mask_id not in ours.encode(texts[1]).numpy()
    ours.save(tmp_path / "ours")
    again = load_tokenizer(tmp_path / "ours")
    assert (again.get_config(), again.checksum) == (ours.get_config(), ours.checksum)
    again = AutoTokenizer.from_pretrained(tmp_path / "ours")
    assert again(texts[0], add_special_tokens=False).input_ids == expected
    # Before, kbert split them, also in the folders that it saved.
    split = load_tokenizer(tmp_path / "theirs", special_tokens_in_text=False)
    assert split.additional_special_tokens == ["low", "<e1>", "</e1>"]
    split.save(tmp_path / "older")
    assert (
        load_tokenizer(tmp_path / "older").encode(texts).to_list() == split.encode(texts).to_list()
    )


@pytest.mark.parametrize("flag", ["rstrip", "single_word", "lstrip"])
@pytest.mark.parametrize("special", [True, False])
def test_added_tokens_that_take_what_is_around_them_are_refused(tmp_path, flag, special):
    entry = {"content": "[X]", "special": special, flag: True}
    write(tmp_path, GPT2, tokenizer_config={"added_tokens_decoder": {str(len(GPT2)): entry}})
    with pytest.raises(ValueError, match=rf"Only the mask .*Received: '\[X\]' with {flag} in"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("model", {"byte_fallback": True}, "Received: byte_fallback=True in"),
        ("model", {"end_of_word_suffix": "</w>"}, "Received: end_of_word_suffix='</w>' in"),
        ("pre_tokenizer", {"type": "Whitespace"}, "Received: pre_tokenizer='Whitespace' in"),
        ("pre_tokenizer", {"type": "Sequence"}, "Received: pre_tokenizer='Sequence' in"),
        ("pre_tokenizer", {"use_regex": False}, "Received: pre_tokenizer='ByteLevel' in"),
    ],
)
def test_other_bpe_is_refused(tmp_path, section, change, message):
    content = json.loads(raw(GPT2).to_str())
    content[section] |= change
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("normalizer", "kind"),
    [
        (normalizers.NFKC(), "NFKC"),
        (normalizers.Sequence([normalizers.NFC(), normalizers.Lowercase()]), "Lowercase"),
    ],
)
def test_normalizers_but_nfc_are_refused(tmp_path, normalizer, kind):
    theirs = raw(GPT2)
    theirs.normalizer = normalizer
    theirs.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(ValueError, match=rf"no normalizer but NFC. Received: normalizer='{kind}'"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("steps", [[], [normalizers.NFC()]])
def test_a_sequence_of_normalizers(tmp_path, steps):
    theirs = raw(GPT2)
    theirs.normalizer = normalizers.Sequence(steps)
    theirs.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).normalization == ("nfc" if steps else None)


@pytest.mark.parametrize(
    "name", ["Qwen2Tokenizer", "CLIPTokenizerFast", "GPTNeoXTokenizer", "OpenAIGPTTokenizer"]
)
def test_classes_of_other_words_are_refused_without_a_tokenizer_json(tmp_path, name):
    write(tmp_path, ROBERTA, tokenizer_config={"tokenizer_class": name})
    received = f"tokenizer_class='{name.removesuffix('Fast')}' in"
    with pytest.raises(ValueError, match=rf"a class with GPT-2's words.*Received: {received}"):
        load_tokenizer(tmp_path)
    raw(ROBERTA).save(str(tmp_path / "tokenizer.json"))  # it says how words are split
    assert load_tokenizer(tmp_path).vocabulary == ROBERTA


@pytest.mark.parametrize(
    "name",
    ["BartTokenizer", "CodeGenTokenizer", "LukeTokenizer", "MvpTokenizer", "WhisperTokenizer"],
)
def test_classes_of_gpt2_s_words(tmp_path, name):
    roles = dict.fromkeys(("bos_token", "eos_token", "unk_token"), "<|endoftext|>")
    write(tmp_path, GPT2, tokenizer_config={"tokenizer_class": name, **roles})
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)
    for text in (TEXTS[0], "low's 12345 e\u0301  \n"):
        assert ours.encode(text).numpy().tolist() == theirs.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("name", ["GPT2Tokenizer", "CodeGenTokenizer"])
def test_a_class_without_tokens_around_an_encoder_s_texts_is_refused(tmp_path, name):
    class_name, encoder = {"tokenizer_class": name}, {"model_type": "roberta"}
    write(tmp_path, ROBERTA, tokenizer_config=class_name, config=encoder)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("low").input_ids == theirs("low", add_special_tokens=False).input_ids
    with pytest.raises(ValueError, match=f"between <s> and </s>; {name} .*no post_processor in"):
        load_tokenizer(tmp_path)
    theirs = raw(ROBERTA)
    theirs.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    theirs.save(str(tmp_path / "tokenizer.json"))  # which transformers reads for these classes
    assert load_tokenizer(tmp_path).cls_token == "<s>"


@pytest.mark.parametrize("config", [{"model_type": "gpt2"}, {}])
def test_a_decoder_has_no_tokens_around_its_texts(tmp_path, config):
    roles = {"mask_token": "<mask>", "bos_token": "<s>", "eos_token": "</s>"}
    names = {"tokenizer_class": "GPT2Tokenizer", **roles}
    write(tmp_path, ROBERTA, tokenizer_config=names, config=config)
    assert load_tokenizer(tmp_path).mask_token == "<mask>"


def test_a_folder_of_ours_names_gpt2_s_class_for_an_encoder(tmp_path):
    roles = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    ours = BytePairTokenizer(DEBERTA, MERGES, special_tokens=roles)
    ours.save(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "deberta"}')
    assert (
        json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"][:4]
        == "GPT2"
    )
    assert load_tokenizer(tmp_path).get_config() == ours.get_config()


TORTURE = [
    "The flightless bird isn't at home; they're 1234 of 56, we'll see what it'd cost.",
    "  def f(x):\n    return x\t# \U0001f4a1 \U0001f469\u200d\U0001f680\r\n\n\n",
    "Ein größeres Haus für Señor Łódź. Быстрая лиса прыгает. 東京は日本の首都です。",
    "e\u0301 ²½ ٣Ⅷ \u200b\ufeff x\xa0\u3000y  ",
    "<|endoftext|> <|endoftext|",
    " ",
    "",
]


@pytest.mark.parametrize("files", ["vocab.json and merges.txt", "tokenizer.json", "all"])
def test_a_folder_of_gpt2_gives_the_ids_of_transformers(tmp_path, files):
    pieces, merges = train_byte_pair([*TORTURE] * 3, 400, special_tokens=[])
    vocabulary = [*pieces, "<|endoftext|>"]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    theirs = GPT2Tokenizer(vocab=ids, merges=[tuple(merge.split(" ")) for merge in merges])
    theirs.save_pretrained(tmp_path)
    if files != "tokenizer.json":
        BytePairTokenizer(vocabulary, merges)._save_model(tmp_path)
    if files == "vocab.json and merges.txt":
        (tmp_path / "tokenizer.json").unlink()
        (tmp_path / "tokenizer_config.json").unlink()
    ours = load_tokenizer(tmp_path, special_tokens_in_text=True)
    assert ours.vocabulary == vocabulary
    end = len(vocabulary) - 1
    assert [ours.cls_id, ours.sep_id, ours.unk_id, ours.pad_id] == [end, end, end, None]
    assert ours.special_ids == [end]
    encoded = ours.encode(TORTURE)
    assert encoded.to_list() == [theirs(text).input_ids for text in TORTURE]
    assert ours.decode(encoded.to_list(), skip_special_tokens=False) == TORTURE
