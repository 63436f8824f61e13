"""Training a tokenizer of any kind."""

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

# Those that keep a text as it is.
_CASED = ("bpe", "words")


def train_tokenizer(
    texts: Iterable[str | bytes],
    vocabulary_size: int,
    *,
    kind: str = "wordpiece",
    lowercase: bool | None = None,
    progress: bool = False,
) -> Tokenizer:
    """A tokenizer learned from texts, with the special tokens of the models that use its kind.

    Args:
        texts: lines or documents, UTF-8.
        vocabulary_size: how many pieces at most, special tokens included. For "words" 0 is all.
        kind: "wordpiece" (BERT, ELECTRA, DistilBERT: [CLS] …), "bpe" (RoBERTa: <s> …), "unigram"
            (ALBERT: [CLS] …) or "words" (ELMo: </S> …); see `train_wordpiece`, `train_byte_pair`,
            `train_unigram` and `train_words`.
        lowercase: lower case and no accents; false keeps both. None: true, but for "bpe" and
            "words", which keep a text as it is.
        progress: show a progress bar.

    Raises:
        ValueError: no such kind, no lower-casing of that kind, or what the trainer says.

    Example:
        >>> train_tokenizer(["low lower lowest"] * 9, 30, kind="unigram").kind
        'unigram'
    """
    if kind not in KINDS:
        raise ValueError(f"kind is one of {', '.join(KINDS)}. Received: {kind!r}")
    if lowercase and kind in _CASED:
        raise ValueError(
            f"Tokenizers of the kinds {' and '.join(_CASED)} keep a text as it is. Received: "
            f"lowercase=True, kind={kind!r}"
        )
    if kind == "wordpiece":
        lowercase = lowercase is not False
        pieces = train_wordpiece(texts, vocabulary_size, lowercase=lowercase, progress=progress)
        return WordPieceTokenizer(pieces, lowercase=lowercase)
    if kind == "unigram":
        lowercase = lowercase is not False
        settings: dict[str, Any] = {"lowercase": lowercase, "keep_accents": not lowercase}
        model = train_unigram(texts, vocabulary_size, **settings, progress=progress)
        return UnigramTokenizer(model, **settings)
    if kind == "words":
        return WordTokenizer(train_words(texts, vocabulary_size, progress=progress))
    # A corpus is encoded sentence by sentence: without a space before each, the last word of one
    # and the first of the next would run together.
    vocabulary, merges = train_byte_pair(
        texts, vocabulary_size, add_prefix_space=True, progress=progress
    )
    return BytePairTokenizer(vocabulary, merges, add_prefix_space=True)
