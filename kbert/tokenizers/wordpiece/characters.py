"""WordPiece's treatment of each character of a text, as a table.

Runtimes with other operators than TensorFlow and other Unicode tables build the tokenizer from it.
The table is computed with this package's graph, which runs on every character separately, so the
two cannot differ. Only the final sigma depends on the characters around it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from kbert.core.graphs import on_cpu
from kbert.core.late import tf
from kbert.tokenizers.normalization import normalize
from kbert.tokenizers.wordpiece.kernel import WordPieceKernel

# All of Unicode except U+0000 and surrogates, which do not occur where this is used. Planes 4 to 13
# are empty, and private characters do not change.
_CODES = [*range(1, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE0200)]
_CHARACTERS = list(map(chr, _CODES))
# With this vocabulary the tokens of "a?b" show how the kernel treats "?".
_PROBE = ["[UNK]", "a", "b", "##b"]
_SIGMA = "Σ"


@dataclass(frozen=True)
class CharacterRules:
    """Rules for single characters that apply before words are looked up.

    Attributes:
        changed: character -> its replacement; "" if it is dropped, " " for white space.
        alone: characters that are separate words: punctuation and Chinese characters.
        cased: characters that count as letters for the final sigma. A "Σ" after one of them, with
            none of them following, becomes "ς". Empty if texts are not lower-cased.
        ignorable: characters that are skipped in this rule, between letter and "Σ" or after it. The
            rule applies to "Σ" before any other change.
    """

    changed: Mapping[str, str]
    alone: str
    cased: str
    ignorable: str

    def within(self, characters: Container[str]) -> CharacterRules:
        """Returns the rules that apply to texts made of `characters` only."""
        changed = {x: replacement for x, replacement in self.changed.items() if x in characters}
        parts = (self.alone, self.cased, self.ignorable)
        alone, *around = ("".join(x for x in part if x in characters) for part in parts)
        return CharacterRules(changed, alone, *(around if _SIGMA in characters else ("", "")))


@functools.cache
def character_rules(lowercase: bool, strip_accents: bool, split_chinese: bool) -> CharacterRules:
    """Returns the rules for every character of Unicode.

    Args:
        lowercase: whether the tokenizer lower-cases texts.
        strip_accents: whether the tokenizer strips accents; not None.
        split_chinese: whether every Chinese character is a separate word.

    Example:
        >>> rules = character_rules(True, True, True)
        >>> rules.changed["É"], rules.changed["\\u200b"], rules.changed["\\u00a0"]
        ('e', '', ' ')
        >>> "!" in rules.alone, "東" in rules.alone, "é" in rules.alone
        (True, True, False)
    """
    kernel = WordPieceKernel(_PROBE, 0, split_chinese)

    def pieces(texts: tf.Tensor) -> tf.RaggedTensor:
        return kernel(texts)[0]

    def normal(texts: tf.Tensor) -> tf.Tensor:
        return normalize(texts, lowercase=lowercase, strip_accents=strip_accents)

    texts = tf.TensorSpec([None], tf.string)
    split, normal = on_cpu(pieces, texts), on_cpu(normal, texts)
    ids = split(tf.constant([f"a{x}b" for x in _CHARACTERS]))
    counts = ids.row_lengths().numpy()
    last_ids = tf.gather(ids.values, ids.row_limits() - 1).numpy()
    apart = last_ids == _PROBE.index("b")
    spaces = set(itertools.compress(_CHARACTERS, apart & (counts == 2)))
    alone = "".join(itertools.compress(_CHARACTERS, apart & (counts == 3)))

    def become(texts: Iterable[str]) -> list[str]:
        return [x.decode() for x in normal(tf.constant(list(texts))).numpy().tolist()]

    changed = {}
    for character, replacement in zip(_CHARACTERS, become(_CHARACTERS), strict=True):
        replacement = "".join(" " if x in spaces else x for x in replacement)
        if replacement != character:
            changed[character] = replacement
    # Whether "Σ" ends a word depends on the letter before it, skipping ignorable characters.
    direct = [x.endswith("ς") for x in become(f"{x}{_SIGMA}" for x in _CHARACTERS)]
    behind = [x.endswith("ς") for x in become(f"Α{x}{_SIGMA}" for x in _CHARACTERS)]
    cased = "".join(itertools.compress(_CHARACTERS, direct))
    ignored = [is_final and not is_cased for is_cased, is_final in zip(direct, behind, strict=True)]
    ignorable = "".join(itertools.compress(_CHARACTERS, ignored))
    return CharacterRules(changed, alone, cased, ignorable)
