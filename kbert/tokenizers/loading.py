"""Reading a tokenizer from a folder: kbert's own, Hugging Face's, KerasHub's or Google's."""

import os
from typing import Any

from kbert.files import Path
from kbert.hub import locate
from kbert.json_file import read_json
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe.loading import ends_words, load_byte_pair, read_model
from kbert.tokenizers.folder import FLAG, TokenizerFolder, check_forms
from kbert.tokenizers.gpt.loading import load_gpt
from kbert.tokenizers.loading_keras_hub import is_keras_hub, load_keras_hub
from kbert.tokenizers.loading_saved_model import saved_settings, vocabulary_folder
from kbert.tokenizers.unigram.loading import load_unigram, model_file
from kbert.tokenizers.wordpiece.tokenizer import CONFIG_KEYS, WordPieceTokenizer
from kbert.tokenizers.wordpiece.tokenizer_json import MAX_CHARACTERS
from kbert.tokenizers.wordpiece.vocab_txt import read_vocabulary, special_tokens
from kbert.tokenizers.words.characters import CharacterTokenizer
from kbert.tokenizers.words.tokenizer import WordTokenizer
from kbert.tokenizers.words.vocabulary import words_file

# Where sentence-transformers may keep a table of vectors, and its tokenizer.
STATIC_FOLDER = "0_StaticEmbedding"


def load_tokenizer(folder: str | os.PathLike, **options: Any) -> Tokenizer | CharacterTokenizer:
    """The tokenizer of a model folder or of prepared data.

    Its files tell the kind: vocab.txt a WordPiece, vocab.json and merges.txt a byte-level BPE or
    (where pieces end in "</w>") GPT's, one *.model a SentencePiece unigram tokenizer, and where
    there is none of these Hugging Face's tokenizer.json or KerasHub's assets/tokenizer any of the
    three; words.txt whole words, and so does the one vocab*.txt next to bilm-tf's options.json;
    tokenizer_config.json names the tokenizer of characters. Settings come from
    tokenizer_config.json and tokenizer.json, special tokens also from special_tokens_map.json and
    added_tokens.json. A WordPiece folder without settings (Google's TensorFlow 1 releases) is taken
    for uncased where no piece holds an upper-case letter. In a SavedModel of TF Hub the files lie
    in assets/, and the variable do_lower_case says it, where there is one. To a WordPiece in
    tokenizer.json that puts nothing around texts the special tokens are added that it lacks
    (model2vec).

    Args:
        folder: the folder, a SentencePiece `.model` in one, or a model's name:
            "bert-base-uncased", "hf:owner/name@revision" (see `kbert.hub.locate`), of which the
            weights are not fetched.
        options: arguments of the tokenizer that override the folder.

    Returns:
        The tokenizer: a `WordPieceTokenizer`, `BytePairTokenizer`, `GptTokenizer`,
        `UnigramTokenizer`, `WordTokenizer` or `CharacterTokenizer`.

    Raises:
        FileNotFoundError: no such folder or model, or nothing in it that holds a vocabulary.
        ConnectionError: the hub cannot be reached; the message says what to put where.
        ValueError: another kind of tokenizer, or a vocabulary that breaks the rules.

    Example:
        >>> import tempfile
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> folder = tempfile.mkdtemp()
        >>> WordPieceTokenizer([*SPECIAL_TOKENS, "Pen"], lowercase=False).save(folder)
        >>> load_tokenizer(folder).lowercase
        False
    """
    if Path(folder).suffix == ".model" and Path(folder).is_file():
        return load_unigram(TokenizerFolder.read(Path(folder).parent), Path(folder), **options)
    found = locate(folder, weights=False)
    if (found / STATIC_FOLDER / "tokenizer.json").is_file():
        found = found / STATIC_FOLDER
    if (assets := vocabulary_folder(found)) is not None:
        found, options = assets, saved_settings(found) | options
    files = TokenizerFolder.read(found)
    kind = (files.full.get("model") or {}).get("type")
    if files.config.get("tokenizer_class") == CharacterTokenizer.__name__:
        path = files.path / "tokenizer_config.json"
        check_forms(files.config, {"max_characters": ("an integer", _is_int)}, path)
        said = {k: v for k, v in files.config.items() if k == "max_characters"}
        return CharacterTokenizer(**(said | options))
    if words := words_file(files):
        return WordTokenizer(words, **options)
    if files.has("vocab.txt"):
        return _load_wordpiece(files, read_vocabulary(files.path / "vocab.txt"), options)
    if files.has("vocab.json", "merges.txt") or (kind == "BPE" and not model_file(files.path)):
        load = load_gpt if ends_words(read_model(files)[0]) else load_byte_pair
        return load(files, **options)
    if model_file(files.path) or kind == "Unigram":
        return load_unigram(files, **options)
    if is_keras_hub(files):
        return load_keras_hub(files, **options)
    if kind == "WordPiece":
        return _load_wordpiece(files, _wordpiece_vocabulary(files), options)
    if kind is not None:
        raise ValueError(
            "Of tokenizer.json alone a WordPiece, a byte-level BPE or a unigram tokenizer is made. "
            f"Received: {files.path / 'tokenizer.json'} with model type {kind!r}"
        )
    names = sorted(path.name for path in files.path.iterdir())
    raise FileNotFoundError(
        "A tokenizer's folder holds vocab.txt, vocab.json and merges.txt, a *.model, words.txt or "
        f"tokenizer.json. Received: {files.path} with {names}"
    )


def _load_wordpiece(
    files: TokenizerFolder, vocabulary: list[str], options: dict[str, Any]
) -> WordPieceTokenizer:
    _refuse_segmenter(files)
    settings = _wordpiece_settings(files)
    _check_wordpiece(files)
    settings.setdefault("lowercase", not _has_upper_case(vocabulary))
    vocabulary, added = _with_added_tokens(files, vocabulary)
    return WordPieceTokenizer(vocabulary, **(settings | added | options))


def _check_wordpiece(files: TokenizerFolder) -> None:
    """Refuses what tokenizer.json asks for besides BERT's words and their pieces."""
    if not (model := files.full.get("model")):  # KerasHub has another file of that name
        return
    kinds = [step["type"] for step in files.normalizers()]
    words = [step.get("type") for step in files.pre_tokenizers()]
    longest = model.get("max_input_chars_per_word", MAX_CHARACTERS)
    found = {
        "type": (model.get("type"), model.get("type") != "WordPiece"),
        "normalizer": (kinds, kinds not in ([], ["BertNormalizer"])),
        "clean_text": (False, any(x.get("clean_text") is False for x in files.normalizers())),
        "pre_tokenizer": (words, words != ["BertPreTokenizer"]),
        "max_input_chars_per_word": (longest, longest not in (100, MAX_CHARACTERS)),
    }
    files.refuse(
        "Word pieces are read with BERT's normalizer and words (BertNormalizer, BertPreTokenizer), "
        f"for words of up to 100 or {MAX_CHARACTERS} characters",
        {name: value for name, (value, is_other) in found.items() if is_other},
    )


def _with_added_tokens(
    files: TokenizerFolder, vocabulary: list[str]
) -> tuple[list[str], dict[str, Any]]:
    """The vocabulary with the tokens that were added behind it, and which are found in texts."""
    roles, ids = special_tokens(vocabulary), {token: i for i, token in enumerate(vocabulary)}
    added = [entry for entry in files.added_tokens() if entry["content"] not in roles]
    listed = {entry["content"] for entry in added}
    named = sorted(files.specials_without_role() - {*roles, *listed})
    for entry in sorted(added, key=lambda entry: entry["id"]):
        token, number = entry["content"], ids.setdefault(entry["content"], entry["id"])
        if entry.get("single_word"):
            raise ValueError(
                "Added tokens are found wherever they stand, within words too. "
                f"Received: {token!r} with single_word in {files.path}"
            )
        if number > len(vocabulary):
            raise ValueError(
                "Added tokens follow each other behind the vocabulary, without gaps. "
                f"Received: {token!r} with the id {number} behind {len(vocabulary)} pieces in "
                f"{files.path}"
            )
        vocabulary = [*vocabulary, token] if number == len(vocabulary) else vocabulary
    vocabulary = [*vocabulary, *(token for token in named if token not in ids)]
    specials = files.specials_without_role()
    late = [
        entry["content"]
        for entry in added
        if entry.get("normalized", not entry.get("special", entry["content"] in specials))
    ]
    found = {"added_tokens": [*listed, *named], "normalized_tokens": late}
    return vocabulary, {name: tokens for name, tokens in found.items() if tokens}


def _refuse_segmenter(files: TokenizerFolder) -> None:
    """Refuses RoFormer's vocabularies of Chinese words, which a program in Python cuts first."""
    named = files.config.get("tokenizer_class")
    if named is None and files.has("config.json"):
        told = read_json(files.path / "config.json").get("model_type")
        named = "RoFormerTokenizer" if told == "roformer" else None
    if str(named).startswith("RoFormer"):
        raise ValueError(
            "RoFormer's vocabulary is of Chinese words that jieba cuts, which is no part of a "
            "graph. kbert.Encoder.from_preset loads the model without its tokenizer; where the "
            'vocabulary is of characters, "tokenizer_class": "BertTokenizer" in '
            f"tokenizer_config.json says so. Received: {named} in {files.path}"
        )


def _wordpiece_vocabulary(files: TokenizerFolder) -> list[str]:
    """The pieces in the order of their ids, from Hugging Face's tokenizer.json."""
    model, path = files.full["model"], files.path / "tokenizer.json"
    prefix = model.get("continuing_subword_prefix")
    if prefix != "##":
        raise ValueError(f'Word pieces continue words with "##". Received: {path} with {prefix!r}')
    ids = model.get("vocab", {})
    if not isinstance(ids, dict) or sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"Ids of a vocabulary run from 0 without gaps. Received: {path}")
    pieces = sorted(ids, key=ids.__getitem__)
    if not files.full.get("post_processor"):  # nothing is put around texts: such tokens may lack
        pieces += [token for token in special_tokens(pieces) if token not in ids]
    return pieces


def _wordpiece_settings(files: TokenizerFolder) -> dict[str, Any]:
    """Arguments of the tokenizer that a folder's files name; tokenizer.json is what HF runs."""
    config = files.config
    found = {name: config[key] for name, key in CONFIG_KEYS.items() if key in config}
    if "special_tokens_in_text" in config:
        found["special_tokens_in_text"] = config["special_tokens_in_text"]
    for normalizer in files.normalizers():
        names = ("lowercase", "strip_accents", "handle_chinese_chars")
        check_forms(normalizer, dict.fromkeys(names, FLAG), files.path / "tokenizer.json")
        found["lowercase"] = normalizer.get("lowercase", True)
        found["strip_accents"] = normalizer.get("strip_accents")
        found["split_chinese"] = normalizer.get("handle_chinese_chars", True)
    if files.full.get("model") and not files.normalizers():
        found |= dict.fromkeys(("lowercase", "strip_accents", "split_chinese"), False)
    return found


def _is_int(value: Any) -> bool:
    return type(value) is int


def _has_upper_case(vocabulary: list[str]) -> bool:
    """Pieces with signs in them do not count: "[CLS]" and "<S>" stand in uncased vocabularies."""
    words = (piece.removeprefix("##") for piece in vocabulary)
    return any(word.isalpha() and word != word.lower() for word in words)
