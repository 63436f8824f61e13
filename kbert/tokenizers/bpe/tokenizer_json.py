"""Writing a byte-level BPE as Hugging Face's tokenizer.json: all that is done to a text."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from kbert import atomic
from kbert.files import Path

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}


def save_tokenizer_json(
    path: Path,
    vocabulary: Sequence[str],
    merges: Iterable[tuple[str, str]],
    *,
    added_tokens: list[dict[str, Any]],
    normalization: str | None,
    add_prefix_space: bool,
    ends: tuple[str | None, str | None],
    pair_separators: int,
) -> None:
    """Writes the file.

    Args:
        path: of the file.
        vocabulary: the pieces in the order of their ids, all tokens among them.
        merges: pairs, the first to be merged first.
        added_tokens: added and special tokens, with their ids and flags.
        normalization: "nfc" or None.
        add_prefix_space: a text begins with a space.
        ends: the tokens that begin and end a model's input.
        pair_separators: tokens between two texts.
    """
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None if normalization is None else {"type": normalization.upper()},
        "pre_tokenizer": _BYTES | {"add_prefix_space": add_prefix_space},
        "post_processor": _template(ids, *ends, pair_separators),
        "decoder": _BYTES,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": ids,
            "merges": [" ".join(pair) for pair in merges],
        },
    }
    atomic.write(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())


def _template(
    ids: dict[str, int], cls: str | None, sep: str | None, pair_separators: int
) -> dict[str, Any] | None:
    """[CLS] A [SEP] and [CLS] A [SEP] B [SEP].

    None where one token begins and ends all, GPT-2's: its inputs are texts alone.
    """
    if cls is None or sep is None or cls == sep:
        return None

    def token(content: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": content, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [token(cls, 0), text("A", 0), token(sep, 0)]
    between = [token(sep, 0)] * (pair_separators - 1)
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, *between, text("B", 1), token(sep, 1)],
        "special_tokens": {
            content: {"id": content, "ids": [ids[content]], "tokens": [content]}
            for content in (cls, sep)
        },
    }
