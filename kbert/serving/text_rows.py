"""Texts to the rows of a model: what a tokenizer inside a runtime has to compute.

Shapes: B texts or pairs, T tokens of the longest row, P pieces of all texts together.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kbert.graphs import graph
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.wordpiece.characters import CharacterRules
from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer

# The input of a graph by how many texts a row has: strings (B,) or (B, 2).
INPUTS = {1: "text", 2: "pairs"}
# Texts, or pairs of texts.
Batch = Sequence[str] | Sequence[tuple[str, str]]


class NotInside(Exception):
    """The runtime has no exact tokenizer for this one; the message says why."""


def wordpiece(tokenizer: Tokenizer, package: str) -> WordPieceTokenizer:
    """The tokenizer, if it is of the kind that the runtimes have.

    Raises:
        NotInside: it is not.
    """
    if not isinstance(tokenizer, WordPieceTokenizer):
        raise NotInside(f"{package} has no {type(tokenizer).__name__} that is exact")
    if tokenizer.special_tokens_in_text:
        raise NotInside(f"{package} has no special tokens in texts, special_tokens_in_text=True")
    return tokenizer


@dataclass(frozen=True)
class TextRows:
    """The way from texts to the rows that a model reads.

    Args:
        tokenizer: splits the texts.
        build: ragged ids, (B, None) of each text of a row -> features (B, T), by their names.
        names: the features that the model reads.

    Example:
        >>> from kbert.data.tables.inputs import build_inputs
        >>> from kbert.tokenizers import WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pen"])
        >>> special = {"cls_id": 2, "sep_id": 3, "pad_id": 0, "max_length": 8, "multiple": 1}
        >>> rows = TextRows(tokenizer, lambda *ids: build_inputs(*ids, **special), ["token_ids"])
        >>> rows.run(["a pen", ""])["token_ids"].tolist()
        [[2, 1, 5, 3], [2, 3, 0, 0]]
    """

    tokenizer: Tokenizer
    build: Callable[..., Mapping[str, tf.Tensor]]
    names: Sequence[str]

    def run(self, batch: Batch) -> dict[str, np.ndarray]:
        """The rows of texts or of pairs, by TensorFlow."""
        texts = np.array(batch, object)
        columns = [texts] if texts.ndim == 1 else list(texts.T)
        ids = [self.tokenizer.encode(tf.constant(x.tolist(), tf.string)) for x in columns]
        rows = self.build(*ids)
        return {name: rows[name].numpy() for name in self.names}

    def packing(self, count: int) -> Any:
        """What comes behind the pieces, for the converters of the runtimes.

        Args:
            count: how many texts a row has.

        Returns:
            A `tf.function` that gives the rows for `pieces`, (P,) int32, the ids of all texts, and
            for where those of each end, `ends`, (B,) int32, or (2 B,), all first texts before all
            second ones.
        """

        def pack(pieces: tf.Tensor, ends: tf.Tensor) -> dict[str, tf.Tensor]:
            splits = tf.concat([[0], ends], 0)
            size = tf.size(ends) // count
            texts = []
            for number in range(count):
                own = splits[number * size : (number + 1) * size + 1]
                ids = pieces[own[0] : own[-1]]
                texts.append(tf.RaggedTensor.from_row_splits(ids, own - own[0], validate=False))
            rows = self.build(*texts)
            return {name: rows[name] for name in self.names}

        specs = [tf.TensorSpec([None], tf.int32, name) for name in ("pieces", "ends")]
        return graph(pack, input_signature=specs, autograph=False)


def code_class(characters: Iterable[str], *, others: bool = False) -> str:
    """Characters as a class of a regular expression, of RE2's and of PCRE's.

    Args:
        characters: one or more.
        others: the class of all others.

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


def final_sigma(rules: CharacterRules) -> tuple[str, str]:
    """A pattern that finds "Σ" at the end of words, and what each is replaced by in RE2's way."""
    cased, ignorable = code_class(rules.cased), code_class(rules.ignorable)
    neither = code_class(rules.cased + rules.ignorable, others=True)
    return rf"({cased}{ignorable}*)Σ({ignorable}*(?:{neither}|$))", r"\1ς\2"
