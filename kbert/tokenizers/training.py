"""Training of tokenizers of any kind."""

from collections.abc import Iterable
from typing import Any

from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer
from kbert.tokenizers.bpe.training import train_byte_pair
from kbert.tokenizers.kinds import KINDS
from kbert.tokenizers.unigram.tokenizer import UnigramTokenizer
from kbert.tokenizers.unigram.training import train_unigram
from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer
from kbert.tokenizers.wordpiece.training import train_wordpiece
from kbert.tokenizers.words.tokenizer import WordTokenizer
from kbert.tokenizers.words.training import train_words

# Kinds that keep a text unchanged, and have no sentinels.
_CASED = ("bpe", "words")


def train_tokenizer(
    texts: Iterable[str | bytes],
    vocabulary_size: int,
    *,
    kind: str = "wordpiece",
    lowercase: bool | None = None,
    num_sentinels: int = 0,
    progress: bool = False,
) -> Tokenizer:
    """Trains and returns a tokenizer, with the special tokens of the models that use its kind.

    Args:
        texts: lines or documents, UTF-8.
        vocabulary_size: maximum number of tokens, including special tokens. For "words" 0 = all.
        kind: "wordpiece" (BERT, ELECTRA, DistilBERT: [CLS] …), "bpe" (RoBERTa: <s> …), "unigram"
            (ALBERT: [CLS] …) or "words" (ELMo: </S> …); see `train_wordpiece`, `train_byte_pair`,
            `train_unigram` and `train_words`.
        lowercase: whether to lower-case texts and strip accents; False keeps both. None = True,
            except for "bpe" and "words", which keep a text unchanged.
        num_sentinels: number of sentinels for T5's noise: "<extra_id_0>", … of "unigram",
            "[unused0]", … of "wordpiece"; other kinds have none.
        progress: whether to show a progress bar.

    Raises:
        ValueError: an unknown kind, a kind that cannot lower-case or has no sentinels, or an error
            of the trainer.

    Example:
        >>> train_tokenizer(["low lower lowest"] * 9, 30, kind="unigram").kind
        'unigram'
    """
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}. Received: {kind!r}")
    if lowercase and kind in _CASED:
        raise ValueError(
            f"Tokenizers of the kinds {' and '.join(_CASED)} do not support lowercase: they keep "
            f"a text as it is. Received: lowercase=True, kind={kind!r}"
        )
    if num_sentinels and kind in _CASED:
        raise ValueError(
            f"Tokenizers of the kinds {' and '.join(_CASED)} have no sentinels: use wordpiece or "
            f"unigram. Received: num_sentinels={num_sentinels}, kind={kind!r}"
        )
    if kind == "wordpiece":
        lowercase = lowercase is not False
        pieces = train_wordpiece(
            *(texts, vocabulary_size),
            lowercase=lowercase,
            num_unused=num_sentinels,
            progress=progress,
        )
        return WordPieceTokenizer(pieces, lowercase=lowercase)
    if kind == "unigram":
        lowercase = lowercase is not False
        settings: dict[str, Any] = {"lowercase": lowercase, "keep_accents": not lowercase}
        model = train_unigram(
            texts, vocabulary_size, **settings, num_sentinels=num_sentinels, progress=progress
        )
        return UnigramTokenizer(model, **settings)
    if kind == "words":
        return WordTokenizer(train_words(texts, vocabulary_size, progress=progress))
    # A corpus is encoded sentence by sentence: without a space before each sentence, its first word
    # would be joined to the last word of the previous sentence.
    vocabulary, merges = train_byte_pair(
        texts, vocabulary_size, add_prefix_space=True, progress=progress
    )
    return BytePairTokenizer(vocabulary, merges, add_prefix_space=True)
