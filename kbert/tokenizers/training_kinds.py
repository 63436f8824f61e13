"""Training a tokenizer of any kind."""

from collections.abc import Iterable

from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe import BytePairTokenizer
from kbert.tokenizers.training import train_wordpiece
from kbert.tokenizers.training_bpe import train_byte_pair
from kbert.tokenizers.training_unigram import train_unigram
from kbert.tokenizers.unigram import UnigramTokenizer
from kbert.tokenizers.wordpiece import WordPieceTokenizer

KINDS = ("wordpiece", "bpe", "unigram")


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
        vocabulary_size: how many pieces at most, special tokens included.
        kind: "wordpiece" (BERT, ELECTRA, DistilBERT: [CLS] …), "bpe" (RoBERTa: <s> …) or "unigram"
            (ALBERT: [CLS] …); see `train_wordpiece`, `train_byte_pair` and `train_unigram`.
        lowercase: lower case and no accents. None: true, but for "bpe", which keeps every byte.
        progress: show a progress bar.

    Raises:
        ValueError: no such kind, no lower-casing of that kind, or what the trainer says.

    Example:
        >>> train_tokenizer(["low lower lowest"] * 9, 30, kind="unigram").kind
        'unigram'
    """
    if kind == "wordpiece":
        lowercase = lowercase is not False
        pieces = train_wordpiece(texts, vocabulary_size, lowercase=lowercase, progress=progress)
        return WordPieceTokenizer(pieces, lowercase=lowercase)
    if kind == "unigram":
        lowercase = lowercase is not False
        model = train_unigram(texts, vocabulary_size, lowercase=lowercase, progress=progress)
        return UnigramTokenizer(model, lowercase=lowercase)
    if kind != "bpe":
        raise ValueError(f"kind is one of {', '.join(KINDS)}. Received: {kind!r}")
    if lowercase:
        raise ValueError(
            "Byte-level BPE keeps a text byte for byte. Received: lowercase=True, kind='bpe'"
        )
    # A corpus is encoded sentence by sentence: without a space before each, the last word of one
    # and the first of the next would run together.
    model = train_byte_pair(texts, vocabulary_size, add_prefix_space=True, progress=progress)
    return BytePairTokenizer(*model, add_prefix_space=True)
