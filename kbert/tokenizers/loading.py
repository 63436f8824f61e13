"""Reading a tokenizer from a folder: kbert's own, Hugging Face's or Google's."""

import json
import os
from pathlib import Path
from typing import Any

from kbert.hub import locate
from kbert.tokenizers.vocabulary import read_vocabulary
from kbert.tokenizers.wordpiece import CONFIG_KEYS, WordPieceTokenizer


def load_tokenizer(folder: str | os.PathLike, **options: Any) -> WordPieceTokenizer:
    """The tokenizer of a model folder or of prepared data.

    It reads `vocab.txt`, or the vocabulary in Hugging Face's `tokenizer.json`. Settings come from
    `tokenizer_config.json` and `tokenizer.json`; a folder with neither (Google's TensorFlow 1
    releases) is taken for uncased where no piece holds an upper-case letter.

    Args:
        folder: the folder, or a model's name: "bert-base-uncased", "hf:owner/name@revision" (see
            `kbert.hub.locate`), of which the weights are not fetched.
        options: arguments of `WordPieceTokenizer` that go before what the folder says.

    Returns:
        The tokenizer.

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
    folder = locate(folder, weights=False)
    config = _read_json(folder / "tokenizer_config.json")
    full = _read_json(folder / "tokenizer.json")
    if (folder / "vocab.txt").is_file():
        vocabulary = read_vocabulary(folder / "vocab.txt")
    elif full:
        vocabulary = _wordpiece_vocabulary(full, folder / "tokenizer.json")
    else:
        raise FileNotFoundError(
            "A tokenizer's folder holds vocab.txt or tokenizer.json. "
            f"Received: {folder} with {sorted(os.listdir(folder))}"
        )
    settings = _settings(config, full)
    settings.setdefault("lowercase", not _has_upper_case(vocabulary))
    return WordPieceTokenizer(vocabulary, **(settings | options))


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"Not a JSON file. Received: {path}: {error}") from error


def _wordpiece_vocabulary(full: dict[str, Any], path: Path) -> list[str]:
    """The pieces in the order of their ids, from Hugging Face's tokenizer.json."""
    model = full.get("model", {})
    if model.get("type") != "WordPiece" or model.get("continuing_subword_prefix") != "##":
        raise ValueError(
            'Only WordPiece tokenizers that continue words with "##" are read here. '
            f"Received: {path} with model type {model.get('type')!r}"
        )
    ids = model["vocab"]
    if sorted(ids.values()) != list(range(len(ids))):
        raise ValueError(f"Ids of a vocabulary run from 0 without gaps. Received: {path}")
    return sorted(ids, key=ids.get)


def _settings(config: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """Arguments of the tokenizer that a folder's files name; tokenizer.json is what HF runs."""
    found = {name: config[key] for name, key in CONFIG_KEYS.items() if key in config}
    if "special_tokens_in_text" in config:
        found["special_tokens_in_text"] = config["special_tokens_in_text"]
    normalizer = full.get("normalizer") or {}
    if normalizer.get("type") == "BertNormalizer":
        found["lowercase"] = normalizer["lowercase"]
        found["strip_accents"] = normalizer["strip_accents"]
        found["split_chinese"] = normalizer["handle_chinese_chars"]
    return found


def _has_upper_case(vocabulary: list[str]) -> bool:
    """Pieces with signs in them do not count: "[CLS]" and "<S>" stand in uncased vocabularies."""
    words = (piece.removeprefix("##") for piece in vocabulary)
    return any(word.isalpha() and word != word.lower() for word in words)
