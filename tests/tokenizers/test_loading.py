"""Tokenizers read from folders: kbert's, Hugging Face's, Google's."""

import json

import pytest
import tokenizers
import transformers
from tokenizers import BertWordPieceTokenizer

import kbert
from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer, load_tokenizer, save_vocabulary
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

VOCABULARY = [*SPECIAL_TOKENS, "pen", "##s", "京", "!"]
BERT_ROWS = {"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"lowercase": False},
        {"strip_accents": False, "split_chinese": False, "special_tokens_in_text": True},
    ],
)
def test_save_and_load(tmp_path, options):
    tokenizer = WordPieceTokenizer(VOCABULARY, **options)
    tokenizer.save(tmp_path / "folder")
    assert load_tokenizer(tmp_path / "folder").get_config() == tokenizer.get_config()


def test_saved_settings_have_hugging_faces_names(tmp_path):
    WordPieceTokenizer(VOCABULARY, lowercase=False).save(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    assert config["do_lower_case"] is False
    assert config["tokenize_chinese_chars"] is True
    assert config["tokenizer_class"] == "BertTokenizer"
    assert config["mask_token"] == "[MASK]"


def test_arguments_go_before_the_folder(tmp_path):
    WordPieceTokenizer(VOCABULARY, lowercase=False).save(tmp_path)
    assert load_tokenizer(tmp_path, lowercase=True).lowercase


@pytest.mark.parametrize(("piece", "lowercase"), [("Pen", False), ("##S", False), ("<S>", True)])
def test_google_folders_tell_their_case_by_the_vocabulary(tmp_path, piece, lowercase):
    save_vocabulary([*VOCABULARY, piece], tmp_path / "vocab.txt")
    (tmp_path / "bert_config.json").write_text("{}")
    assert load_tokenizer(tmp_path).lowercase is lowercase


def test_hugging_face_folder_without_vocab_txt(tmp_path):
    reference = BertWordPieceTokenizer(
        {piece: i for i, piece in enumerate(VOCABULARY)},
        lowercase=False,
        handle_chinese_chars=False,
    )
    reference.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text('{"do_lower_case": true}')  # is not what runs
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.vocabulary == VOCABULARY
    assert (tokenizer.lowercase, tokenizer.split_chinese) == (False, False)


def test_other_tokenizers_are_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordLevel"}}')
    with pytest.raises(ValueError, match=r"a unigram tokenizer.* type 'WordLevel'"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": {"type": "WordPiece"}}')
    with pytest.raises(ValueError, match=r'continue words with "##".*Received: .* with None'):
        load_tokenizer(tmp_path)


def test_two_sentencepiece_models_are_refused(tmp_path):
    for name in ("a.model", "b.model"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(ValueError, match=r"one SentencePiece model. Received: a.model, b.model"):
        load_tokenizer(tmp_path)


def test_gaps_in_the_ids_are_refused(tmp_path):
    model = {"type": "WordPiece", "continuing_subword_prefix": "##", "vocab": {"a": 0, "b": 2}}
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": model}))
    with pytest.raises(ValueError, match=r"without gaps. Received: .*tokenizer.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("tokenizer_config.json", {"do_lower_case": "maybe"}, "`do_lower_case` must be true, fal"),
        ("tokenizer_config.json", {"do_lower_case": 1}, "null. Received: 1 in"),
        ("tokenizer_config.json", {"strip_accents": [True]}, "`strip_accents` must be true"),
        ("tokenizer_config.json", {"mask_token": 7}, "`mask_token` must be a token.* 7 in"),
        (
            "tokenizer_config.json",
            {"added_tokens_decoder": {"x": 1}},
            "must be an object that maps ids to tok",
        ),
        ("special_tokens_map.json", {"cls_token": {"id": 1}}, "`cls_token` must be a token"),
        ("tokenizer.json", {"model": []}, "`model` must be an object with tokens"),
        ("tokenizer.json", {"model": {"vocab": {"a": "b"}}}, "`model` must be an object with tok"),
        ("tokenizer.json", {"normalizer": {"lowercase": True}}, "`normalizer` must be a normal"),
        ("tokenizer.json", {"added_tokens": [{"id": 1}]}, "`added_tokens` must be a list of tok"),
        (
            "tokenizer.json",
            {"normalizer": {"type": "BertNormalizer", "lowercase": "no"}},
            "`lowercase` must be true, false or null. Received: 'no' in",
        ),
    ],
)
def test_settings_of_another_kind_are_refused_with_the_file(tmp_path, file, content, message):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / file).write_text(json.dumps(content))
    with pytest.raises(ValueError, match=f"{message}.*{file}$"):
        load_tokenizer(tmp_path)


def test_what_a_normalizer_does_not_say_is_bert_s(tmp_path):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    content = {"pre_tokenizer": {"type": "BertPreTokenizer"}, "model": {"type": "WordPiece"}}
    content["normalizer"] = {"type": "BertNormalizer"}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    settings = load_tokenizer(tmp_path).settings
    assert (settings["lowercase"], settings["strip_accents"]) == (True, None)
    assert settings["split_chinese"]


def test_missing_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no such folder.*Received: .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    (tmp_path / "notes.md").write_text("")
    with pytest.raises(FileNotFoundError, match=r"vocab.txt, vocab.json .*\['notes.md'\]"):
        load_tokenizer(tmp_path)


def test_broken_settings_name_the_file(tmp_path):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text("{do_lower_case")
    with pytest.raises(ValueError, match=r"not JSON .* Received: .*tokenizer_config.json"):
        load_tokenizer(tmp_path)


def test_chinese_words_that_jieba_cuts_are_refused(tmp_path):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / "config.json").write_text('{"model_type": "roformer"}')
    with pytest.raises(ValueError, match=r"jieba and .*Received: tokenizer_class='RoFormerTok"):
        load_tokenizer(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "RoFormerTokenizerFast"}')
    with pytest.raises(ValueError, match="such as jieba"):
        load_tokenizer(tmp_path)
    config.write_text('{"tokenizer_class": "BertTokenizer"}')
    assert load_tokenizer(tmp_path).vocabulary_size == len(VOCABULARY)


def wordpiece_json(folder, vocabulary=VOCABULARY, **changes):
    """What Hugging Face writes of an uncased BERT, with changes."""
    content = json.loads(WordPieceTokenizer(vocabulary).tokenizer_json())
    model = {**content["model"], **changes.pop("model", {})}
    (folder / "tokenizer.json").write_text(json.dumps({**content, "model": model, **changes}))


@pytest.mark.parametrize("beside", [True, False])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFD"}]}},
            r"normalizer=\['NFD'\]",
        ),
        ({"normalizer": {"type": "BertNormalizer", "clean_text": False}}, "clean_text=False"),
        ({"pre_tokenizer": {"type": "Whitespace"}}, r"pre_tokenizer=\['Whitespace'\]"),
        ({"pre_tokenizer": None}, r"pre_tokenizer=\[\]"),
        ({"normalizer": None}, r"normalizer=\[\]"),
        ({"normalizer": {"type": "Sequence", "normalizers": []}}, r"normalizer=\[\]"),
    ],
)
def test_another_pipeline_of_word_pieces_is_refused(tmp_path, changes, message, beside):
    if beside:
        save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    wordpiece_json(tmp_path, **changes)
    with pytest.raises(ValueError, match=f"{message} in .*tokenizer.json"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("length", [3, 100])
def test_longer_words_are_unknown_where_the_file_says_so(tmp_path, length):
    vocabulary = [*VOCABULARY, "x", "##x"]
    wordpiece_json(tmp_path, vocabulary, model={"max_input_chars_per_word": length})
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    ours = load_tokenizer(tmp_path)
    texts = ["x" * length, "x" * (length + 1), "é" * length + " x"]
    expected = [encoding.ids for encoding in theirs.encode_batch(texts)]
    assert ours.encode(texts).to_list() == expected
    assert expected[1] == [ours.unk_id]
    ours.save(tmp_path / "saved")
    assert load_tokenizer(tmp_path / "saved").encode(texts).to_list() == expected
    wordpiece_json(tmp_path, model={"max_input_chars_per_word": 0})
    with pytest.raises(ValueError, match=r"a whole number from 1 to 1,000,000\. Received: 0 in"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize("config", [{}, {"do_lower_case": True}, {"do_lower_case": False}])
@pytest.mark.parametrize("lowercase", [True, False, None])
@pytest.mark.parametrize(
    ("folder_class", "model_type"),
    [
        ("BertTokenizer", None),
        pytest.param("DistilBertTokenizerFast", None, marks=pytest.mark.slow),
        ("TokenizersBackend", "bert"),
        ("ConvBertTokenizer", None),
        (None, "bert"),
        (None, None),
    ],
)
def test_which_file_decides_is_as_transformers_has_it(
    tmp_path, config, lowercase, folder_class, model_type, caplog
):
    step = {"type": "BertNormalizer", "lowercase": lowercase, "clean_text": True}
    step |= {"handle_chinese_chars": True, "strip_accents": None}
    wordpiece_json(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "A", "é", "e"],
                   normalizer=None if lowercase is None else step,
                   post_processor=BERT_ROWS)  # fmt: skip
    named = {"tokenizer_class": folder_class} if folder_class else {}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config | named))
    if model_type:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    own = folder_class in ("BertTokenizer", "DistilBertTokenizerFast")
    if lowercase is None and not own and (folder_class or not model_type):
        with pytest.raises(ValueError, match=r"normalizer=\[\]"):
            load_tokenizer(tmp_path)
        return
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    texts = ["A a é É"]
    ours = load_tokenizer(tmp_path).encode(texts).to_list()
    assert ours == theirs(texts, add_special_tokens=False)["input_ids"]


def test_a_guess_of_case_is_logged(tmp_path, caplog):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    with caplog.at_level("INFO", "absl"):
        guessed = load_tokenizer(tmp_path).lowercase
    assert f"guessed from the vocabulary: lowercase={guessed}" in caplog.text
    caplog.clear()
    with caplog.at_level("INFO", "absl"):
        load_tokenizer(tmp_path, lowercase=True)
    assert "guessed" not in caplog.text


def test_fast_bpe_is_named(tmp_path):
    (tmp_path / "vocab.txt").write_text("a@@ 10\nb 7\n")
    (tmp_path / "bpe.codes").write_text("a b 10\n")
    with pytest.raises(ValueError, match=r"fastBPE .*PhoBERT, BERTweet\) is not supported"):
        load_tokenizer(tmp_path)


def template(*parts):
    return [
        {"Sequence": {"id": x, "type_id": 0}} if x in "AB" else {"SpecialToken": {"id": x}}
        for x in parts
    ]


@pytest.mark.parametrize(
    ("single", "pair"),
    [
        (("A",), ("A", "B")),
        (("[CLS]", "A"), ("[CLS]", "A", "[SEP]", "B", "[SEP]")),
        (("[CLS]", "A", "[SEP]"), ("[CLS]", "A", "[SEP]", "[SEP]", "B", "[SEP]")),
        (("[CLS]", "[MASK]", "A", "[SEP]"), ("[CLS]", "A", "[SEP]", "B", "[SEP]")),
        (("A", "[SEP]", "[CLS]"), ("A", "[SEP]", "B", "[SEP]", "[CLS]")),
    ],
)
def test_other_tokens_around_texts_are_refused(tmp_path, single, pair):
    step = {"type": "TemplateProcessing", "single": template(*single), "pair": template(*pair)}
    wordpiece_json(tmp_path, post_processor=step)
    with pytest.raises(ValueError, match=r"\[CLS\] A \[SEP\] and .*Received: post_processor"):
        load_tokenizer(tmp_path)
    # transformers makes BERT's own of this class, whatever the file says
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}')
    load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    for pair in ("[CLS]", "A", "[SEP]", "B", "[SEP]"), ("A", "B"):  # the latter where none is said
        step |= {"single": template("[CLS]", "A", "[SEP]"), "pair": template(*pair)}
        wordpiece_json(tmp_path, post_processor=step)
        load_tokenizer(tmp_path)


def written(folder, name, **content):
    (folder / name).write_text(json.dumps(content))


def test_texts_cut_at_their_beginning_are_refused(tmp_path):
    WordPieceTokenizer(VOCABULARY).save(tmp_path)
    written(tmp_path, "tokenizer_config.json", truncation_side="left")
    with pytest.raises(
        ValueError, match=r"truncated at their end\. Received: truncation_side='left'"
    ):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    truncation = {"direction": "Left", "max_length": 9, "strategy": "LongestFirst", "stride": 0}
    wordpiece_json(tmp_path, truncation=truncation)
    with pytest.raises(ValueError, match="truncation_side='left'"):
        load_tokenizer(tmp_path)
    written(tmp_path, "tokenizer_config.json", truncation_side="right")  # it overrides the other
    load_tokenizer(tmp_path)


def test_an_encoder_without_tokens_around_its_texts_is_refused(tmp_path):
    wordpiece_json(tmp_path)
    written(tmp_path, "config.json", model_type="bert")
    for name in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        written(tmp_path, "tokenizer_config.json", tokenizer_class=name)
        with pytest.raises(ValueError, match=r"between \[CLS\] and \[SEP\].*no post_processor"):
            load_tokenizer(tmp_path)
        assert transformers.AutoTokenizer.from_pretrained(tmp_path)("a").input_ids == [1]
    written(tmp_path, "tokenizer_config.json", tokenizer_class="BertTokenizer")
    load_tokenizer(tmp_path)
    written(tmp_path, "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    written(tmp_path, "config.json", model_type="model2vec")  # nothing is around its texts
    load_tokenizer(tmp_path)


@pytest.mark.parametrize("name", ["PreTrainedTokenizerFast", "BertTokenizer"])
@pytest.mark.parametrize("settings", [{"add_bos_token": False}, {"add_eos_token": True}])
def test_settings_of_decoders_change_nothing(tmp_path, name, settings):
    wordpiece_json(tmp_path, post_processor=BERT_ROWS)
    tokens = {"cls_token": "[CLS]", "sep_token": "[SEP]", "bos_token": "[CLS]"}
    tokens |= {"eos_token": "[SEP]", "mask_token": "[MASK]", "pad_token": "[PAD]"}
    written(tmp_path, "tokenizer_config.json", tokenizer_class=name, **tokens, **settings)
    reference = transformers.AutoTokenizer.from_pretrained(tmp_path)
    ids = load_tokenizer(tmp_path).encode("a").numpy().tolist()
    ends = [VOCABULARY.index(token) for token in ("[CLS]", "[SEP]")]
    assert reference("a").input_ids == [ends[0], *ids, ends[1]]


@pytest.mark.parametrize(
    ("segments", "settings", "told"),
    [
        (2, {"model_input_names": ["input_ids", "attention_mask"]}, True),
        (2, {"model_input_names": ["input_ids", "token_type_ids", "attention_mask"]}, False),
        (1, {"model_input_names": ["input_ids", "attention_mask"]}, False),
        (2, {}, False),
    ],
)
def test_segments_that_transformers_does_not_give_are_told(
    tmp_path, caplog, segments, settings, told
):
    WordPieceTokenizer(VOCABULARY).save(tmp_path)
    written(tmp_path, "config.json", model_type="bert", type_vocab_size=segments)
    written(tmp_path, "tokenizer_config.json", tokenizer_class="BertTokenizer", **settings)
    load_tokenizer(tmp_path)
    assert (
        "second text of a pair has segment 1 in kbert, but 0 in transformers" in caplog.text
    ) is told


def test_a_normalizer_in_a_sequence(tmp_path):
    inner = {"type": "BertNormalizer", "lowercase": False, "handle_chinese_chars": False}
    wordpiece_json(tmp_path, normalizer={"type": "Sequence", "normalizers": [inner]})
    found = load_tokenizer(tmp_path)
    assert (found.lowercase, found.strip_accents, found.split_chinese) == (False, None, False)


def test_a_folder_holds_the_tokenizer_that_was_saved_last(tmp_path):
    (tmp_path / "special_tokens_map.json").write_text('{"cls_token": "[SEP]"}')
    wordpiece_json(tmp_path)
    cased = WordPieceTokenizer(VOCABULARY, lowercase=False)
    cased.save(tmp_path)
    assert not load_tokenizer(tmp_path).lowercase
    (tmp_path / "tokenizer.json").write_bytes(cased.tokenizer_json())  # as model2vec's folders
    cased.save(tmp_path)
    assert (tmp_path / "tokenizer.json").exists()
    characters = [*CHARACTERS, "<|endoftext|>"]
    bytes_ = kbert.BytePairTokenizer(characters, [])
    bytes_.save(tmp_path)
    again = load_tokenizer(tmp_path)
    assert again.get_config() == bytes_.get_config()
    assert {path.name for path in tmp_path.iterdir()} == {
        *("vocab.json", "merges.txt", "tokenizer_config.json")
    }


@pytest.mark.parametrize("beside", [True, False])
def test_a_tokenizer_json_of_before_2021_does_not_say_its_type(tmp_path, beside):
    if beside:
        save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    wordpiece_json(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    del content["model"]["type"]
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert load_tokenizer(tmp_path).get_config() == WordPieceTokenizer(VOCABULARY).get_config()


def test_the_other_kinds_without_a_type(tmp_path):
    bytes_ = kbert.BytePairTokenizer([*CHARACTERS, "ab"], ["a b"], special_tokens={})
    model = {"vocab": {p: i for i, p in enumerate(bytes_.vocabulary)}, "merges": ["a b"]}
    content = {"pre_tokenizer": {"type": "ByteLevel"}, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    assert (
        load_tokenizer(tmp_path).encode("abc").numpy().tolist()
        == bytes_.encode("abc").numpy().tolist()
    )
    (tmp_path / "tokenizer.json").write_text('{"model": {"vocab": [["a", 0.0]], "unk_id": 0}}')
    with pytest.raises(ValueError, match="of type 'Unigram' with 0 Precompiled"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tokenizer_class": "BertweetTokenizer"}, "tokenizer_class='BertweetTokenizer'"),
        (
            {"tokenizer_class": "BertJapaneseTokenizer", "word_tokenizer_type": "mecab"},
            "='BertJapaneseTokenizer', word_tokenizer_type='mecab'",
        ),
        ({"do_basic_tokenize": False}, "Received: do_basic_tokenize=False"),
        ({"never_split": ["[MASK]", "pen"]}, r"Received: never_split=\['pen'\]"),
        (
            {"cls_token": "pen"},
            r"The cls token of a WordPiece tokenizer must be \[CLS\]. Received: 'pen' in",
        ),
    ],
)
def test_words_that_are_not_bert_s_are_refused(tmp_path, settings, message):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


def test_a_pipeline_says_how_words_are_cut_whatever_the_class(tmp_path):
    wordpiece_json(tmp_path)
    config = tmp_path / "tokenizer_config.json"
    config.write_text('{"tokenizer_class": "OwnTokenizer", "never_split": ["pen"]}')
    assert load_tokenizer(tmp_path).vocabulary == VOCABULARY
    config.write_text('{"tokenizer_class": "BertJapaneseTokenizer"}')
    with pytest.raises(ValueError, match="MeCab"):
        load_tokenizer(tmp_path)


@pytest.mark.parametrize(
    ("there", "model", "message"),
    [
        ([*VOCABULARY[:-2], "!", "京"], {}, "'!' with the id 7 in tokenizer.json, and 8 in vocab"),
        ([*VOCABULARY, "new"], {}, "'new' with the id 9 in tokenizer.json, and None in vocab"),
        (VOCABULARY, {"unk_token": "pen"}, "unk_token='pen'"),
        (VOCABULARY, {"continuing_subword_prefix": "@@"}, "continuing_subword_prefix='@@'"),
    ],
)
def test_files_that_contradict_each_other_are_refused(tmp_path, there, model, message):
    save_vocabulary(VOCABULARY, tmp_path / "vocab.txt")
    wordpiece_json(tmp_path, there, model=model)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)
