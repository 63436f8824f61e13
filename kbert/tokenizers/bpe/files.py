"""Vocabulary and merges of a byte-level BPE: reading, checking and writing them."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kbert.io import atomic
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.tokenizers.bpe.byte_alphabet import IN_UTF8, is_spelled
from kbert.tokenizers.folder import TokenizerFolder
from kbert.tokenizers.lines import read_lines

_VERSION = "#version: 0.2"  # first line of a merges.txt


def as_vocabulary(given: Mapping[str, int] | Sequence[str] | str | os.PathLike) -> list[str]:
    """Converts the `vocabulary` argument of a tokenizer to tokens in the order of their ids.

    The argument is a dict token -> id, the tokens in order, or the path of a vocab.json.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a JSON object, ids with gaps, or a duplicate token.
    """
    source = "a vocabulary"
    if isinstance(given, str | os.PathLike):
        source = os.fspath(given)
        given = read_json(given)
    if not isinstance(given, Mapping):
        repeated = [piece for piece, count in Counter(given).items() if count > 1]
        if repeated:
            raise ValueError(
                f"The pieces of a vocabulary must be unique. Received: {repeated[0]!r} twice."
            )
        return list(given)
    are_integers = all(type(number) is int for number in given.values())
    if not are_integers or sorted(given.values()) != list(range(len(given))):
        raise ValueError(f"Ids of a vocabulary must run from 0 without gaps. Received: {source}")
    return sorted(given, key=given.__getitem__)


def as_merges(
    given: Iterable[str | tuple[str, str]] | str | os.PathLike,
) -> list[tuple[str, str]]:
    """Converts the `merges` argument of a tokenizer to pairs of tokens, in the same order.

    The argument contains pairs or strings "a b", or is the path of a merges.txt.

    Raises:
        FileNotFoundError: no such file.
        ValueError: the file is not UTF-8, or an entry is not a pair of tokens.
    """
    if isinstance(given, str | os.PathLike):
        lines = read_lines(given, "merges", "pair")
        given = [line for line in lines if line and not line.startswith("#version")]
    pairs: list[Any] = [
        tuple(entry.split(" ") if isinstance(entry, str) else entry) for entry in given
    ]
    for number, pair in enumerate(pairs):
        if len(pair) != 2 or not all(pair):
            raise ValueError(
                f"A merge must be two pieces with a space between. Received: {' '.join(pair)!r} as "
                f"number {number}."
            )
    return pairs


def check_model(
    vocabulary: Sequence[str], merges: Iterable[tuple[str, str]], special_tokens: Iterable[str]
) -> None:
    """Raises ValueError if a byte, a part or result of a merge, or a special token is missing.

    Also raises if a merge contains a character that stands for no byte.
    """
    known = set(vocabulary)
    missing = [character for character in IN_UTF8 if character not in known]
    if missing:
        raise ValueError(
            "A byte-level vocabulary must contain all 243 bytes that UTF-8 uses. Received: "
            f"{len(known)} pieces without {' '.join(missing[:8])}{' …' if missing[8:] else ''}"
        )
    for first, second in merges:
        for piece in (first, second, first + second):
            if piece not in known:
                raise ValueError(
                    "The vocabulary must contain both parts of every merge and its result. "
                    f"Received: merge {first} {second} without {piece!r}"
                )
        if not is_spelled(first + second):
            raise ValueError(
                "Byte-level merges must consist of characters that stand for bytes (a space is "
                f"\u0120). Received: {first} {second}"
            )
    for token in special_tokens:
        if token not in known:
            raise ValueError(f"The vocabulary must contain the special tokens. Received: {token!r}")


def save_model(folder: Path, vocabulary: Sequence[str], merges: Iterable[tuple[str, str]]) -> None:
    """Writes vocab.json and merges.txt in GPT-2's format."""
    ids = {piece: index for index, piece in enumerate(vocabulary)}
    atomic.write(folder / "vocab.json", json.dumps(ids, ensure_ascii=False).encode())
    lines = [_VERSION, *(" ".join(pair) for pair in merges)]
    atomic.write(folder / "merges.txt", "".join(line + "\n" for line in lines).encode())


def read_model(folder: TokenizerFolder) -> tuple[dict[str, int], Any]:
    """Returns token -> id, and the merges, as arguments of a byte-pair tokenizer.

    The merges are the path of merges.txt if vocab.json and merges.txt exist. Otherwise both come
    from tokenizer.json, the merges as a list.
    """
    if folder.has("vocab.json", "merges.txt"):
        return read_json(folder.path / "vocab.json"), folder.path / "merges.txt"
    model = folder.full["model"]
    merges = [m if isinstance(m, str) else tuple(m) for m in model["merges"]]
    return model["vocab"], merges


def ends_words(vocabulary: Iterable[str]) -> bool:
    """Whether a vocabulary is like GPT's: some tokens end in "</w>", and some bytes are missing.

    Example:
        >>> ends_words(["l", "o</w>"]), ends_words(["l", "o"])
        (True, False)
    """
    pieces = set(vocabulary)
    return any(piece.endswith("</w>") for piece in pieces) and not {*IN_UTF8} <= pieces
