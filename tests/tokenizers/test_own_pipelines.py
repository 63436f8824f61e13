"""Whose word counts where files of a folder differ: as transformers 5 has it of each class."""

import json

import pytest
from transformers import AutoTokenizer

from kbert.tokenizers import WordPieceTokenizer, load_tokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

WORDPIECE = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "é", "e", "b"]
BPE = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "Ġa", "<mask>"]
ODD = {  # no encoder's
    "type": "TemplateProcessing",
    "single": [{"SpecialToken": {"id": "</s>", "type_id": 0}},
               {"Sequence": {"id": "A", "type_id": 0}}],
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
    "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}},
}  # fmt: skip
TEXTS = ["a", "A é", "a b", "<x>a <x>"]


def write(folder, name, content):
    (folder / name).write_text(json.dumps(content))


def wordpiece(folder, **changes):
    content = json.loads(WordPieceTokenizer(WORDPIECE, lowercase=False).tokenizer_json())
    step = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}
    write(folder, "tokenizer.json", {**content, "post_processor": step, **changes})


def byte_pair(folder, beside=False, merges=("Ġ a",), **changes):
    ids = {piece: number for number, piece in enumerate(BPE)}
    flags = dict.fromkeys(("lstrip", "rstrip", "single_word", "normalized"), False)
    added = [{"id": ids[t], "content": t, "special": True, **flags} for t in (*BPE[:4], "<mask>")]
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "fuse_unk": False,
        "vocab": ids,
        "merges": list(merges),
    }
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    content = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
               "normalizer": None, "pre_tokenizer": words, "decoder": words, "model": model,
               "post_processor": {"type": "RobertaProcessing", "sep": ["</s>", 2],
                                  "cls": ["<s>", 0], "trim_offsets": True,
                                  "add_prefix_space": False}}  # fmt: skip
    write(folder, "tokenizer.json", {**content, **changes})
    if beside:
        write(folder, "vocab.json", ids)
        (folder / "merges.txt").write_text("#version: 0.2\nĠ a\n")


def settings(folder, name=None, config=None, **others):
    """The class in tokenizer_config.json, or in the model's config.json."""
    tokens = ("<s>", "</s>", "<pad>", "<unk>", "<mask>")
    roles = dict(zip(("cls", "sep", "pad", "unk", "mask"), tokens, strict=True))
    if (folder / "tokenizer.json").read_text().count("[CLS]"):
        roles = {role: f"[{role.upper()}]" for role in roles}
    named = {f"{role}_token": token for role, token in roles.items()}
    own = {} if name is None else {"tokenizer_class": name}
    write(folder, "tokenizer_config.json", named | own | others)
    if config is not None:
        write(folder, "config.json", config)


def check(folder):
    """The same ids as there, apart from special tokens in texts."""
    theirs, ours = AutoTokenizer.from_pretrained(folder), load_tokenizer(folder)
    for text in TEXTS:
        ids = theirs(text, add_special_tokens=False).input_ids
        assert ours.encode(text).numpy().tolist() == ids
        assert theirs(text).input_ids == [ours.cls_id, *ids, ours.sep_id]


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "tokenizer_class": "PreTrainedTokenizerFast"},
        {"model_type": "roberta", "tokenizer_class": "BertTokenizer"},
        {"model_type": "roberta", "tokenizer_class": "ElectraTokenizerFast"},
        {"model_type": "modernbert", "tokenizer_class": "BertTokenizer"},  # ignored there too
    ],
)
def test_the_model_s_config_names_the_class_too(tmp_path, config):
    wordpiece(tmp_path)
    settings(tmp_path, config=config)
    check(tmp_path)


@pytest.mark.parametrize(
    ("name", "model_type", "is_other"),
    [
        ("RobertaTokenizer", "roberta", True),
        (None, "roberta", True),
        ("BertTokenizer", "roberta", False),
        ("PreTrainedTokenizerFast", "roberta", False),
    ],
)
def test_word_pieces_of_a_class_of_byte_pairs_are_read_as_written(
    tmp_path, caplog, name, model_type, is_other
):
    wordpiece(tmp_path)
    settings(tmp_path, name, {"model_type": model_type})
    with caplog.at_level("WARNING", logger="absl"):
        ours = load_tokenizer(tmp_path)
    received = f"{name or model_type} has no WordPiece model; transformers 5 gives other ids"
    assert (received in caplog.text) is is_other
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    texts = ["a é b", "A"]
    differs = [theirs(x, add_special_tokens=False).input_ids for x in texts]
    assert (ours.encode(texts).to_list() != differs) is is_other


@pytest.mark.parametrize("model_type", ["modernbert", "modernbert-decoder"])
def test_word_pieces_of_a_modernbert_without_a_tokenizer_json(tmp_path, model_type):
    WordPieceTokenizer(WORDPIECE, lowercase=False).save(tmp_path)
    write(tmp_path, "config.json", {"model_type": model_type})
    assert not load_tokenizer(tmp_path).lowercase


def test_a_class_of_other_words_in_the_model_s_config_is_refused(tmp_path):
    wordpiece(tmp_path)
    settings(tmp_path, config={"model_type": "bert", "tokenizer_class": "BertJapaneseTokenizer"})
    with pytest.raises(ValueError, match="BertJapaneseTokenizer"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("prefix", [True, False, None])
@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("RobertaTokenizer", True),
        ("LongformerTokenizerFast", True),
        ("PreTrainedTokenizerFast", False),
        (None, True),  # by the model's type
    ],
)
def test_who_says_whether_a_space_is_before_bytes(tmp_path, name, own, there, prefix):
    words = {"type": "ByteLevel", "add_prefix_space": there, "trim_offsets": True}
    byte_pair(tmp_path, pre_tokenizer=words)
    config = {"model_type": "roberta"}
    settings(tmp_path, name, config, **({} if prefix is None else {"add_prefix_space": prefix}))
    check(tmp_path)
    assert load_tokenizer(tmp_path).add_prefix_space is (bool(prefix) if own else there)


def test_a_class_with_a_template_of_its_own_has_its_own(tmp_path):
    byte_pair(tmp_path, post_processor=ODD, normalizer={"type": "NFC"})
    settings(tmp_path, "RobertaTokenizerFast", {"model_type": "roberta"})
    check(tmp_path)
    settings(tmp_path, "PreTrainedTokenizerFast", {"model_type": "roberta"})
    with pytest.raises(ValueError, match="without other tokens"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("named", [["<x>"], {"x_token": "<x>"}])
def test_special_tokens_by_their_name_in_transformers_5(tmp_path, named):
    ids = {"id": len(WORDPIECE), "content": "<x>", "special": True, "normalized": False,
           "lstrip": False, "rstrip": False, "single_word": False}  # fmt: skip
    wordpiece(tmp_path, added_tokens=[ids])
    settings(tmp_path, "BertTokenizer", extra_special_tokens=named)
    check(tmp_path)
    wordpiece(tmp_path)  # it is in no list of added tokens
    check(tmp_path)
    assert load_tokenizer(tmp_path).vocabulary[-1] == "<x>"


def test_bytes_beside_a_tokenizer_json_with_others_are_refused(tmp_path):
    byte_pair(tmp_path, beside=True)
    settings(tmp_path, "RobertaTokenizer")
    check(tmp_path)
    byte_pair(tmp_path, beside=True, merges=["Ġ b"])
    with pytest.raises(
        ValueError, match=r"merges\.txt and tokenizer\.json of a folder must have the"
    ):
        load_tokenizer(tmp_path)
    byte_pair(tmp_path, beside=True)
    ids = json.loads((tmp_path / "vocab.json").read_text())
    ids |= {"a": ids["b"], "b": ids["a"]}
    write(tmp_path, "vocab.json", ids)
    with pytest.raises(ValueError, match=r"the same tokens\. Received: '[ab]' with the id"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("ids", [[2, 5], [5]])
def test_ids_of_a_template_that_are_not_the_vocabulary_s_are_refused(tmp_path, ids):
    parts = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}},
             {"Sequence": {"id": "A", "type_id": 0}},
             {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
    second = [{"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]"}}]
    tokens = {"[CLS]": {"id": "[CLS]", "ids": ids, "tokens": ["[CLS]"] * len(ids)},
              "[SEP]": {"id": "[SEP]", "ids": [3], "tokens": ["[SEP]"]}}  # fmt: skip
    step = {"type": "TemplateProcessing", "single": parts, "pair": parts + second}
    wordpiece(tmp_path, post_processor={**step, "special_tokens": tokens})
    with pytest.raises(ValueError, match=r"the ids of the vocabulary.*Received: \{'\[CLS\]'"):
        load_tokenizer(tmp_path)
    wordpiece(tmp_path, post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3],
                                        "cls": ["[CLS]", 5]})  # fmt: skip
    with pytest.raises(ValueError, match="the ids of the vocabulary"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "step",
    [
        *("x", ["x"], {"type": 5}, {"type": "BertProcessing"}),
        {"type": "BertProcessing", "cls": ["[CLS]"], "sep": "[SEP]"},
        {"type": "TemplateProcessing", "single": 5, "pair": []},
        {"type": "TemplateProcessing", "single": [{"Sequence": {}}], "pair": []},
        {"type": "TemplateProcessing", "single": [], "special_tokens": {"a": 1}},
    ],
)
def test_a_damaged_post_processor_is_named(tmp_path, step):
    wordpiece(tmp_path, post_processor=step)
    with pytest.raises(ValueError, match=r"post_processor(` must be| ).*Received"):
        load_tokenizer(tmp_path)


def test_a_limit_that_no_kernel_counts_is_refused(tmp_path):
    content = json.loads(WordPieceTokenizer(WORDPIECE).tokenizer_json())
    content["model"]["max_input_chars_per_word"] = 10**9
    write(tmp_path, "tokenizer.json", content)
    with pytest.raises(ValueError, match=r"from 1 to 1,000,000\. Received: 1000000000"):
        load_tokenizer(tmp_path)
