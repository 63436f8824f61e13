"""Training of byte-level BPE: our graph counts words, Hugging Face's trainer merges."""

from __future__ import annotations

import functools
import json
from collections import Counter
from collections.abc import Iterable, Sequence

from kbert.core.late import tf
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS, spell
from kbert.tokenizers.bpe.pre_split import prefix_space, split_words
from kbert.tokenizers.normalization import drop_invalid
from kbert.tokenizers.word_counts import count, repeated

# RoBERTa's special tokens in the order of its ids (there the mask comes after all other tokens).
ROBERTA_SPECIAL_TOKENS = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")


def train_byte_pair(
    texts: Iterable[str | bytes],
    vocabulary_size: int,
    *,
    special_tokens: Sequence[str] = ROBERTA_SPECIAL_TOKENS,
    add_prefix_space: bool = False,
    words: str = "gpt2",
    min_frequency: int = 2,
    progress: bool = False,
) -> tuple[list[str], list[str]]:
    """Trains a vocabulary and merges for `BytePairTokenizer` on texts.

    The texts are streamed once: memory grows with the number of distinct words only. Equal texts
    give equal lists, on any number of threads and in any order of the texts.

    Args:
        texts: lines or documents, UTF-8.
        vocabulary_size: maximum number of tokens; a small corpus yields fewer.
        special_tokens: special tokens, which get the first ids. For GPT-2: ["<|endoftext|>"].
        add_prefix_space: whether the tokenizer will put a space before each text.
        words: kind of word splitting of the tokenizer, "gpt2" or "llama3".
        min_frequency: minimum count of a pair of subwords; rarer pairs are not merged.
        progress: whether to show a progress bar.

    Returns:
        The vocabulary: special tokens, the 256 bytes, then merged tokens, frequent ones first. And
        the merges: two tokens separated by a space.

    Raises:
        TypeError: `texts` is one string, or an item is neither str nor bytes.
        ValueError: no words in the texts, or a `vocabulary_size` too small for special tokens and
            bytes.

    Example:
        >>> from kbert.tokenizers import BytePairTokenizer
        >>> vocabulary, merges = train_byte_pair(["low lower lowest"] * 9, 270)
        >>> merges[:3]
        ['l o', 'lo w', 'Ġ low']
        >>> tokenizer = BytePairTokenizer(vocabulary, merges)
        >>> [vocabulary[i] for i in tokenizer.encode("low lowest")]
        ['low', 'Ġlowest']
    """
    base = [*special_tokens, *sorted(CHARACTERS)]
    if vocabulary_size < len(base):
        raise ValueError(
            f"vocabulary_size must be at least {len(base)}: {len(special_tokens)} special tokens "
            f"and 256 bytes. Received: {vocabulary_size}"
        )
    counts = count_byte_words(
        texts, add_prefix_space=add_prefix_space, words=words, progress=progress
    )
    if not counts:
        raise ValueError("Training a vocabulary requires texts with words. Received: none.")
    merges = _merge(counts, vocabulary_size - len(special_tokens), min_frequency, progress)
    # A token that two merges make occurs once.
    merged_tokens = dict.fromkeys("".join(pair) for pair in merges)
    return [*base, *merged_tokens], [" ".join(pair) for pair in merges]


def count_byte_words(
    texts: Iterable[str | bytes],
    *,
    add_prefix_space: bool = False,
    words: str = "gpt2",
    progress: bool = False,
) -> Counter[str]:
    """Counts words as the tokenizer will see them, in the alphabet of bytes.

    Args:
        texts: lines or documents, UTF-8.
        add_prefix_space: whether the tokenizer will put a space before each text.
        words: kind of word splitting of the tokenizer, "gpt2" or "llama3".
        progress: whether to show a progress bar.

    Returns:
        Word -> its count.

    Example:
        >>> sorted(count_byte_words(["one one"]).items())
        [('one', 1), ('Ġone', 1)]
    """
    spaced = _divide_with_space if add_prefix_space else _divide
    divide = functools.partial(spaced, words=words)
    return count(texts, divide, spell, progress=progress)


def _divide(texts: tf.Tensor, words: str) -> tf.RaggedTensor:
    return split_words(drop_invalid(texts), words)


def _divide_with_space(texts: tf.Tensor, words: str) -> tf.RaggedTensor:
    return split_words(prefix_space(drop_invalid(texts))[0], words)


def _merge(
    counts: Counter[str], size: int, min_frequency: int, progress: bool
) -> list[tuple[str, str]]:
    """Trains on `counts` (word -> count); returns the merges in order.

    `size` is the maximum number of bytes and merged tokens; rarer pairs than `min_frequency` are
    not merged.
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    trainer = trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=min_frequency,
        initial_alphabet=CHARACTERS,
        show_progress=progress,
    )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.CharDelimiterSplit(" ")
    tokenizer.train_from_iterator(repeated(counts), trainer)
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    return [(first, second) for first, second in merges]
