"""Loading tokenizers of whole words and of characters from folders."""

from typing import Any

from kbert.tokenizers.folder import TokenizerFolder, check_forms
from kbert.tokenizers.words.characters import CharacterTokenizer
from kbert.tokenizers.words.tokenizer import WordTokenizer


def load_words(folder: TokenizerFolder, **options: Any) -> WordTokenizer:
    """Loads the tokenizer of a folder with a vocabulary of words.

    `options` must be empty: `WordTokenizer` has no arguments but the vocabulary.
    """
    assert folder.words_file is not None
    return WordTokenizer(folder.words_file, **options)


def load_characters(folder: TokenizerFolder, **options: Any) -> CharacterTokenizer:
    """Loads the character tokenizer that a folder's tokenizer_config.json names.

    `options` are arguments of `CharacterTokenizer` that override the file. Raises ValueError if the
    file's `max_characters` is not an integer.
    """
    path = folder.path / "tokenizer_config.json"
    check_forms(folder.config, {"max_characters": ("an integer", _is_int)}, path)
    settings = {k: v for k, v in folder.config.items() if k == "max_characters"}
    return CharacterTokenizer(**(settings | options))


def _is_int(value: Any) -> bool:
    return type(value) is int
