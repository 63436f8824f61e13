"""WordPiece as Hugging Face's tokenizer.json: for libraries that read no other file."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def tokenizer_json(
    vocabulary: Sequence[str],
    *,
    unk_token: str,
    special_tokens: Sequence[str],
    added_tokens: Sequence[Mapping[str, Any]],
    lowercase: bool,
    strip_accents: bool | None,
    split_chinese: bool,
    max_word_characters: int,
) -> bytes:
    """Returns the content of a tokenizer.json, without a post-processor (no tokens around texts).

    Args:
        vocabulary: tokens in the order of their ids.
        unk_token: the unknown token, one of the vocabulary.
        special_tokens: special tokens that are recognised in texts.
        added_tokens: entries of added tokens, without their ids (`added_entry`).
        lowercase: whether texts are lower-cased.
        strip_accents: whether accents are stripped; None = the value of `lowercase`.
        split_chinese: whether every Chinese character is a word.
        max_word_characters: maximum length of a word; longer words are unknown.

    Example:
        >>> found = tokenizer_json(["[UNK]", "pen"], unk_token="[UNK]", special_tokens=[],
        ...                        added_tokens=[], lowercase=True, strip_accents=None,
        ...                        split_chinese=True, max_word_characters=200)
        >>> json.loads(found)["model"]["vocab"]
        {'[UNK]': 0, 'pen': 1}
    """
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    entries = [
        *({"id": ids[t], **added_entry(t, False, special=True)} for t in special_tokens),
        *({"id": ids[entry["content"]], **entry} for entry in added_tokens),
    ]
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(entries, key=lambda entry: entry["id"]),
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": split_chinese,
            "strip_accents": strip_accents,
            "lowercase": lowercase,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": None,
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "type": "WordPiece",
            "unk_token": unk_token,
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": max_word_characters,
            "vocab": ids,
        },
    }
    return json.dumps(content, ensure_ascii=False).encode()


def added_entry(
    token: str, normalized: bool, *, special: bool = False, single_word: bool = False
) -> dict[str, Any]:
    """Returns the tokenizer.json entry, without its id, of a token that is recognised in texts.

    `normalized`: whether it is matched in the normalised text. `single_word`: whether only as a
    whole word.
    """
    flags = {"lstrip": False, "rstrip": False, "normalized": normalized, "special": special}
    return {"content": token, "single_word": single_word, **flags}
