"""Training of WordPiece vocabularies: our graph counts words, Hugging Face's trainer merges."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterable

import numpy as np

from kbert.core.graphs import on_cpu
from kbert.core.late import tf
from kbert.tokenizers.batching import batches, with_progress
from kbert.tokenizers.normalization import normalize
from kbert.tokenizers.word_counts import limited, repeated
from kbert.tokenizers.wordpiece.kernel import MAX_WORD_CHARACTERS, space_words
from kbert.tokenizers.wordpiece.vocab_txt import MAX_PIECE_BYTES, SPECIAL_TOKENS, check_vocabulary


def train_wordpiece(
    texts: Iterable[str | bytes],
    vocabulary_size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
    min_frequency: int = 2,
    character_coverage: float = 0.9999,
    num_unused: int = 0,
    progress: bool = False,
) -> list[str]:
    """Trains a vocabulary for `WordPieceTokenizer` on texts.

    The texts are streamed once: memory grows with the number of distinct words only. Equal texts
    give the same list, on any number of threads and in any order of the texts.

    Args:
        texts: lines or documents, UTF-8.
        vocabulary_size: maximum number of tokens; a small corpus yields fewer.
        lowercase: whether the tokenizer will lower-case texts.
        strip_accents: whether the tokenizer will strip accents; None = the value of `lowercase`.
        split_chinese: whether the tokenizer will split Chinese characters into separate words.
        min_frequency: minimum count of a pair of subwords; rarer pairs are not merged.
        character_coverage: share of the characters of the texts that the alphabet covers. Words
            with rarer characters become [UNK].
        num_unused: number of "[unused0]", "[unused1]", … to reserve for words of a later domain.
        progress: whether to show a progress bar.

    Returns:
        Special tokens, unused tokens, the alphabet, its "##" forms, then merges, frequent ones
        first.

    Raises:
        TypeError: `texts` is one string, or an item is neither str nor bytes.
        ValueError: no words in the texts, a `vocabulary_size` too small for the alphabet, or a
            `character_coverage` that is not in (0, 1].

    Example:
        >>> train_wordpiece(["low lower lowest"] * 9, 20)[5:]  # doctest: +ELLIPSIS
        ['e', 'l', 'o', 'r', 's', 't', 'w', '##e', '##o', ..., '##w', '##ow', 'low']
    """
    if not 0 < character_coverage <= 1:
        raise ValueError(f"character_coverage must be in (0, 1]. Received: {character_coverage}")
    counts = count_words(
        texts,
        lowercase=lowercase,
        strip_accents=strip_accents,
        split_chinese=split_chinese,
        progress=progress,
    )
    if not counts:
        raise ValueError("Training a vocabulary requires texts with words. Received: none.")
    counts, initial, inner = _cover(counts, character_coverage)
    base = [
        *SPECIAL_TOKENS,
        *(f"[unused{i}]" for i in range(num_unused)),
        *initial,
        *("##" + character for character in inner),
    ]
    if vocabulary_size < len(base):
        raise ValueError(
            f"vocabulary_size must be at least {len(base)}: special tokens, {len(initial)} "
            f"characters and {len(inner)} of them inside words. Raise it, or lower "
            f"character_coverage ({character_coverage}). Received: {vocabulary_size}"
        )
    merges = _merge(counts, initial, inner, vocabulary_size - len(base), min_frequency, progress)
    vocabulary = [*base, *merges]
    check_vocabulary(vocabulary)
    return vocabulary


def count_words(
    texts: Iterable[str | bytes],
    *,
    lowercase: bool = True,
    strip_accents: bool | None = None,
    split_chinese: bool = True,
    progress: bool = False,
) -> Counter[str]:
    """Counts words as the tokenizer will see them: normalised, with punctuation split off.

    Args:
        texts: lines or documents, UTF-8.
        lowercase: whether to lower-case texts.
        strip_accents: whether to strip accents; None = the value of `lowercase`.
        split_chinese: whether every Chinese character is a word.
        progress: whether to show a progress bar.

    Returns:
        Word -> its count.

    Example:
        >>> sorted(count_words(["Un café, un thé!"]).items())
        [('!', 1), (',', 1), ('cafe', 1), ('the', 1), ('un', 2)]
    """
    spaced = _spacing_graph(lowercase, strip_accents, split_chinese)
    counts: Counter[str] = Counter()
    for batch in batches(with_progress(texts, "counting words") if progress else texts):
        counts.update(spaced(tf.constant(batch)).numpy().decode().split())
        counts = limited(counts)
    return counts


@functools.cache
def _spacing_graph(
    lowercase: bool, strip_accents: bool | None, split_chinese: bool
) -> Callable[[tf.Tensor], tf.Tensor]:
    """Returns a graph from texts (B,) to one string of all their words, separated by spaces.

    It is traced once in a process.
    """

    def spaced(batch: tf.Tensor) -> tf.Tensor:
        batch = normalize(batch, lowercase=lowercase, strip_accents=strip_accents)
        return tf.strings.reduce_join(space_words(batch, split_chinese), separator=" ")

    return on_cpu(spaced, tf.TensorSpec([None], tf.string))


def _cover(counts: Counter[str], coverage: float) -> tuple[dict[str, int], list[str], list[str]]:
    """Chooses the most frequent characters that cover a share `coverage` of all characters.

    Returns word -> count for the words that this alphabet can spell, the alphabet, and those of its
    characters that occur inside words. Words above 200 characters are ignored.
    """
    words = [word for word in counts if len(word) <= MAX_WORD_CHARACTERS]
    if not words:
        raise ValueError(
            f"Training a vocabulary requires words of at most {MAX_WORD_CHARACTERS} characters. "
            f"Received: {len(counts)} longer words only, such as {next(iter(counts))[:40]!r}…"
        )
    repeats = np.array([counts[word] for word in words], np.int64)
    lengths = np.array([len(word) for word in words])
    codes = np.frombuffer("".join(words).encode("utf-32-le"), np.uint32)
    starts = np.cumsum(lengths) - lengths

    char_counts = np.bincount(codes, weights=np.repeat(repeats, lengths))
    order = np.argsort(-char_counts, kind="stable")  # ties by code point
    covered = np.cumsum(char_counts[order])
    size = np.searchsorted(covered, coverage * covered[-1]) + 1
    in_alphabet = np.zeros(len(char_counts), bool)
    in_alphabet[order[:size]] = True
    in_alphabet &= char_counts > 0

    spelled = np.logical_and.reduceat(in_alphabet[codes], starts)
    is_inner = np.repeat(spelled, lengths)
    is_inner[starts] = False
    spelled_counts = {words[i]: int(repeats[i]) for i in np.flatnonzero(spelled)}
    inner = np.unique(codes[is_inner])
    return spelled_counts, [chr(c) for c in np.flatnonzero(in_alphabet)], [chr(c) for c in inner]


def _merge(
    counts: dict[str, int],
    initial: list[str],
    inner: list[str],
    num_merges: int,
    min_frequency: int,
    progress: bool,
) -> list[str]:
    """Returns at most `num_merges` subwords that merging adds, in the order of the merges.

    `counts`: word -> count; `initial`: the alphabet; `inner`: its characters that occur inside
    words. Rarer pairs than `min_frequency` are not merged; too long subwords are omitted.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    # The trainer numbers "##" characters in the order of a randomly seeded hash table and breaks
    # ties between pairs by these numbers. As special tokens they get fixed numbers.
    fixed = ["[UNK]", *("##" + character for character in inner)]
    trainer = trainers.WordPieceTrainer(
        vocab_size=len(fixed) + len(initial) + num_merges,
        min_frequency=min_frequency,
        special_tokens=fixed,
        initial_alphabet=initial,
        limit_alphabet=len(initial),
        show_progress=progress,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    tokenizer.train_from_iterator(repeated(counts), trainer)
    vocabulary = tokenizer.get_vocab()
    for piece in itertools.chain(fixed, initial):
        del vocabulary[piece]
    merges = sorted(vocabulary, key=vocabulary.__getitem__)
    # Lines of hundreds of box-drawing characters would be merged to very long tokens.
    return [p for p in merges if len(p.removeprefix("##").encode()) <= MAX_PIECE_BYTES]
