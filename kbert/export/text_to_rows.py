"""From texts to the rows of a model: the computation of a tokenizer inside a runtime.

Shapes: B texts or pairs, T tokens of the longest row, P tokens of all texts together.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe.pre_split import PATTERNS
from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer
from kbert.tokenizers.wordpiece.characters import CharacterRules

# Number of texts per row -> name of the graph's input: strings (B,) or (B, 2).
INPUTS = {1: "text", 2: "pairs"}
# Texts, or pairs of texts.
Batch = Sequence[str] | Sequence[tuple[str, str]]


Value = TypeVar("Value")
# All characters except surrogates, which no text contains.
_CHARACTERS = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
_CLASS = re.compile(r"\[[^\]]*\]")


class NotInside(Exception):
    """The runtime cannot reproduce the tokenizer exactly; the message has the reason."""


def of_kind(tokenizer: Tokenizer, package: str, kinds: Mapping[type, Value]) -> Value:
    """Returns a runtime's value, such as a graph builder, for the class of a tokenizer.

    Args:
        tokenizer: a tokenizer of kbert.
        package: package of the runtime, for messages.
        kinds: class of tokenizers -> value of the runtime.

    Raises:
        NotInside: the class is not in `kinds`, or the runtime does not support the tokenizer's
            settings.
    """
    # Both packages have SentencePiece, but it may choose another of two splits with equal scores.
    if type(tokenizer) not in kinds:
        raise NotInside(f"{package} has no exact {type(tokenizer).__name__}")
    if getattr(tokenizer, "special_tokens_in_text", False):
        raise NotInside(
            f"{package} does not support special tokens in texts, special_tokens_in_text=True"
        )
    if getattr(tokenizer, "added_tokens", None):
        raise NotInside(f"{package} does not support added tokens in texts, added_tokens=[…]")
    if isinstance(tokenizer, BytePairTokenizer):
        if tokenizer.normalization:
            # They compose characters, but do not reorder several marks of one letter.
            raise NotInside(f"{package} has no exact normalization={tokenizer.normalization!r}")
        if tokenizer.ignore_merges:
            raise NotInside(
                f"{package} does not support subwords that no merges make, ignore_merges=True"
            )
    return kinds[type(tokenizer)]


@dataclass(frozen=True)
class TextToRows:
    """The function from texts to the rows that a model reads.

    Args:
        tokenizer: tokenizer of the task.
        build: function from ragged ids (B, None), one argument for each text of a row, to features
            (B, T) by name.
        names: names of the features that the model reads.

    Example:
        >>> from kbert.tokenizers.packing import build_inputs
        >>> from kbert.tokenizers import WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pen"])
        >>> special = {"cls_id": 2, "sep_id": 3, "pad_id": 0, "max_length": 8, "multiple": 1}
        >>> rows = TextToRows(tokenizer, lambda *ids: build_inputs(*ids, **special), ["token_ids"])
        >>> rows.run(["a pen", ""])["token_ids"].tolist()
        [[2, 1, 5, 3], [2, 3, 0, 0]]
    """

    tokenizer: Tokenizer
    build: Callable[..., Mapping[str, tf.Tensor]]
    names: Sequence[str]

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        """Returns the rows (B, T) of texts or pairs by name, computed with TensorFlow."""
        texts = np.array(batch, object)
        columns = [texts] if texts.ndim == 1 else list(texts.T)
        ids = [self.tokenizer.encode(tf.constant(x.tolist(), tf.string)) for x in columns]
        rows = self.build(*ids)
        return {name: rows[name].numpy() for name in self.names}

    def packing(self, count: int, ids: Sequence[int] | None = None) -> Any:
        """Returns the function from token ids to rows, for the converters of the runtimes.

        Args:
            count: number of texts per row.
            ids: the tokenizer's id for each id of the runtime; None = they are the same.

        Returns:
            A `tf.function` that returns the rows. Its arguments are `pieces`, (P,) int32, the ids
            of all texts, and `ends`, (B,) int32, the position where the ids of each text end. For
            pairs `ends` is (2 B,), with all first texts before all second texts.
        """

        def pack(pieces: tf.Tensor, ends: tf.Tensor) -> dict[str, tf.Tensor]:
            if ids is not None:
                pieces = tf.gather(tf.constant(ids, tf.int32), pieces)
            splits = tf.concat([[0], ends], 0)
            size = tf.size(ends) // count
            texts = []
            for number in range(count):
                text_splits = splits[number * size : (number + 1) * size + 1]
                part = pieces[text_splits[0] : text_splits[-1]]
                texts.append(
                    tf.RaggedTensor.from_row_splits(
                        part, text_splits - text_splits[0], validate=False
                    )
                )
            rows = self.build(*texts)
            return {name: rows[name] for name in self.names}

        specs = [tf.TensorSpec([None], tf.int32, name) for name in ("pieces", "ends")]
        return graph(pack, input_signature=specs, autograph=False)


def code_class(characters: Iterable[str], *, others: bool = False) -> str:
    """Returns characters as a character class of a regular expression, for RE2 and PCRE.

    Args:
        characters: one character or more.
        others: whether to return the class of all other characters instead.

    Example:
        >>> print(code_class("abcé"))
        [\\x{61}-\\x{63}\\x{E9}]
    """
    ranges: list[list[int]] = []
    for code in sorted({ord(x) for x in characters}):
        if ranges and code == ranges[-1][1] + 1:
            ranges[-1][1] = code
        else:
            ranges.append([code, code])
    parts = (f"\\x{{{a:X}}}" if a == b else f"\\x{{{a:X}}}-\\x{{{b:X}}}" for a, b in ranges)
    return f"[{'^' if others else ''}{''.join(parts)}]"


@functools.cache
def word_patterns(words: str) -> tuple[str, str]:
    """Returns the patterns of `kbert.tokenizers.bpe.pre_split`, without named character classes.

    A runtime has other tables for these classes, so they are written as code points.

    Args:
        words: a key of `PATTERNS`.

    Returns:
        A pattern with two groups, between which texts are split first, and the pattern of a word.
        The code points are those that TensorFlow's RE2 matches.
    """
    texts = tf.constant(_CHARACTERS)

    def in_codes(found: re.Match) -> str:
        is_in = tf.strings.regex_full_match(texts, found.group()).numpy()
        is_negated = found.group().startswith("[^")
        named = itertools.compress(_CHARACTERS, ~is_in if is_negated else is_in)
        return code_class(named, others=is_negated)

    cut_pattern, word = (_CLASS.sub(in_codes, pattern) for pattern in PATTERNS[words])
    return cut_pattern, word


def final_sigma(rules: CharacterRules) -> tuple[str, str]:
    """Returns a pattern that finds "Σ" at the end of words, and its replacement in RE2's syntax."""
    cased, ignorable = code_class(rules.cased), code_class(rules.ignorable)
    neither = code_class(rules.cased + rules.ignorable, others=True)
    return rf"({cased}{ignorable}*)Σ({ignorable}*(?:{neither}|$))", r"\1ς\2"
