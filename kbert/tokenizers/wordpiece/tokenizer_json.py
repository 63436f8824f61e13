"""WordPiece as Hugging Face's tokenizer.json: for libraries that read no other file."""

import json
from collections.abc import Mapping, Sequence
from typing import Any


def tokenizer_json(
    vocabulary: Sequence[str],
    *,
    unk_token: str,
    special_tokens: Sequence[str],
    added_tokens: Mapping[str, bool],
    lowercase: bool,
    strip_accents: bool | None,
    split_chinese: bool,
    max_word_characters: int,
) -> bytes:
    """The content of the file. Nothing is put around texts.

    Args:
        vocabulary: the pieces in the order of their ids.
        unk_token: one of them.
        special_tokens: those that are kept whole inside a text.
        added_tokens: others that are -> whether they are looked for in the normalised text.
        lowercase: see `kbert.WordPieceTokenizer`, as the next two.
        strip_accents: None = as `lowercase`.
        split_chinese: every Chinese character is a word.
        max_word_characters: longer words are unknown.

    Example:
        >>> found = tokenizer_json(["[UNK]", "pen"], unk_token="[UNK]", special_tokens=[],
        ...                        added_tokens={}, lowercase=True, strip_accents=None,
        ...                        split_chinese=True, max_word_characters=200)
        >>> json.loads(found)["model"]["vocab"]
        {'[UNK]': 0, 'pen': 1}
    """
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    found = [
        *({"id": ids[t], **added_entry(t, False, special=True)} for t in special_tokens),
        *({"id": ids[t], **added_entry(t, late)} for t, late in added_tokens.items()),
    ]
    content: dict[str, Any] = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": sorted(found, key=lambda entry: entry["id"]),
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


def added_entry(token: str, normalized: bool, *, special: bool = False) -> dict[str, Any]:
    """A token that is found in texts, as Hugging Face's files have it, but for its id."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized}
    return {"content": token, **flags, "special": special}
