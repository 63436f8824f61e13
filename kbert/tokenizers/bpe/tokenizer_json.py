"""Writing a byte-level BPE as Hugging Face's tokenizer.json, with its complete pipeline."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from kbert.io import atomic
from kbert.io.paths import Path

_BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
# The pattern of Llama 3's words, as in its tokenizer.json.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def save_tokenizer_json(
    path: Path,
    vocabulary: Sequence[str],
    merges: Iterable[tuple[str, str]],
    *,
    added_tokens: list[dict[str, Any]],
    normalization: str | None,
    add_prefix_space: bool,
    words: str,
    ignore_merges: bool,
    ends: tuple[str | None, str | None],
    pair_separators: int,
) -> None:
    """Writes a byte-level BPE tokenizer as Hugging Face's tokenizer.json.

    Args:
        path: the file to write.
        vocabulary: tokens in the order of their ids, including added and special tokens.
        merges: pairs of tokens, in the order of merging.
        added_tokens: added and special tokens, with their ids and flags.
        normalization: "nfc" or None.
        add_prefix_space: whether a text is encoded with a space before it.
        words: kind of word splitting, "gpt2" or "llama3".
        ignore_merges: whether a word that is a token is not merged.
        ends: tokens that begin and end a model's input; None for a missing one.
        pair_separators: number of separators between two texts.
    """
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    content = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added_tokens,
        "normalizer": None if normalization is None else {"type": normalization.upper()},
        "pre_tokenizer": _pre_tokenizer(words, add_prefix_space),
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
            "ignore_merges": ignore_merges,
            "vocab": ids,
            "merges": [" ".join(pair) for pair in merges],
        },
    }
    atomic.write(path, (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode())


def _pre_tokenizer(words: str, add_prefix_space: bool) -> dict[str, Any]:
    if words == "gpt2":
        return _BYTES | {"add_prefix_space": add_prefix_space}
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated", "invert": False}
    return {"type": "Sequence", "pretokenizers": [split, _BYTES | {"use_regex": False}]}


def words_of(pre_tokenizer: dict[str, Any]) -> str | None:
    """Returns the kind of word splitting of a `pre_tokenizer` in tokenizer.json, None if unknown.

    Example:
        >>> words_of(_pre_tokenizer("llama3", False)), words_of({"type": "Whitespace"})
        ('llama3', None)
    """
    if pre_tokenizer.get("type") == "ByteLevel":
        return "gpt2" if pre_tokenizer.get("use_regex", True) else None
    steps = pre_tokenizer.get("pretokenizers")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        return None
    step_settings = [
        {key: step.get(key) for key in ("type", "pattern", "behavior")} for step in steps
    ]
    split = {"type": "Split", "pattern": {"Regex": LLAMA3}, "behavior": "Isolated"}
    llama3_steps = [split, {"type": "ByteLevel", "pattern": None, "behavior": None}]
    plain = (
        step_settings == llama3_steps
        and not steps[0].get("invert")
        and not steps[1].get("use_regex", True)
    )
    return "llama3" if plain and not steps[1].get("add_prefix_space") else None


def _template(
    ids: dict[str, int], cls: str | None, sep: str | None, pair_separators: int
) -> dict[str, Any] | None:
    """Returns the post-processor that makes [CLS] A [SEP] and [CLS] A [SEP] B [SEP].

    `ids` maps tokens to ids; `pair_separators` is the number of [SEP] between A and B. Returns None
    without both tokens or if they are the same, as in GPT-2: no tokens around texts.
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
