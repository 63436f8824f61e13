"""What WordPiece does to each character of a text, as a table.

Runtimes that have other operators than TensorFlow, and other Unicode tables, build the tokenizer of
it. The table is what this package's own graph does to every character by itself, so its entries are
not a second opinion; only the final sigma needs what is around it.
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

# All that Unicode's tables know but U+0000 and surrogates, which no text holds where this is used:
# planes 4 to 13 are empty, and the private ones are left as they are.
_CODES = [*range(1, 0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xE0200)]
_CHARACTERS = list(map(chr, _CODES))
# A vocabulary that tells by the pieces of "a?b" what the kernel takes "?" for.
_PROBE = ["[UNK]", "a", "b", "##b"]
_SIGMA = "Σ"


@dataclass(frozen=True)
class CharacterRules:
    """What becomes of characters, one by one, before words are looked up.

    Attributes:
        changed: character -> what it becomes; "" where it is dropped, " " for white space.
        alone: characters that are words by themselves: punctuation, Chinese ones.
        cased: characters that make a "Σ" behind them the last of its word, "ς", where no other of
            them follows; none where nothing is lower-cased.
        ignorable: those that may be between them and it, or behind it. "Σ" is looked at before
            anything is changed.
    """

    changed: Mapping[str, str]
    alone: str
    cased: str
    ignorable: str

    def within(self, characters: Container[str]) -> CharacterRules:
        """The rules of texts that have no other characters than these."""
        changed = {x: to for x, to in self.changed.items() if x in characters}
        parts = (self.alone, self.cased, self.ignorable)
        alone, *around = ("".join(x for x in part if x in characters) for part in parts)
        return CharacterRules(changed, alone, *(around if _SIGMA in characters else ("", "")))


@functools.cache
def character_rules(lowercase: bool, strip_accents: bool, split_chinese: bool) -> CharacterRules:
    """The rules for every character of Unicode.

    Args:
        lowercase: as of the tokenizer.
        strip_accents: as of the tokenizer, but not None.
        split_chinese: as of the tokenizer.

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
    last = tf.gather(ids.values, ids.row_limits() - 1).numpy()
    apart = last == _PROBE.index("b")
    spaces = set(itertools.compress(_CHARACTERS, apart & (counts == 2)))
    alone = "".join(itertools.compress(_CHARACTERS, apart & (counts == 3)))

    def become(texts: Iterable[str]) -> list[str]:
        return [x.decode() for x in normal(tf.constant(list(texts))).numpy().tolist()]

    changed = {}
    for before, after in zip(_CHARACTERS, become(_CHARACTERS), strict=True):
        after = "".join(" " if x in spaces else x for x in after)
        if after != before:
            changed[before] = after
    # Whether a "Σ" is the last letter of its word: by the letter before it, past what is ignored.
    direct = [x.endswith("ς") for x in become(f"{x}{_SIGMA}" for x in _CHARACTERS)]
    behind = [x.endswith("ς") for x in become(f"Α{x}{_SIGMA}" for x in _CHARACTERS)]
    cased = "".join(itertools.compress(_CHARACTERS, direct))
    ignored = [two and not one for one, two in zip(direct, behind, strict=True)]
    ignorable = "".join(itertools.compress(_CHARACTERS, ignored))
    return CharacterRules(changed, alone, cased, ignorable)
