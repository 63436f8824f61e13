"""Vocabularies cut to what a domain or a language uses, and the tables that they index with them.

A multilingual model holds more than half of its weights in the token table; one for two languages
needs a fraction of it (Abdaoui et al. 2020, "Load What You Need", https://arxiv.org/abs/2010.05609).

Shapes: `V` entries before, `W` after.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from kbert.core.types import Arrays
from kbert.edit.pruning.rebuilding import encoder_of, rebuilt
from kbert.tasks import EncoderTask
from kbert.tokenizers import BytePairTokenizer, WordPieceTokenizer
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.batching import batches
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

_CONTINUED = "##"


def prune_vocabulary(
    model: Any,
    tokenizer: Tokenizer | None = None,
    *,
    texts: Iterable[str | bytes] = (),
    keep: Collection[str] = (),
    min_count: int = 1,
    characters: bool = True,
) -> tuple[Any, Tokenizer]:
    """Cuts the tokens that a corpus does not use out of a model and its tokenizer.

    Every text can still be read: special tokens stay, and what any word is made of, single
    characters or bytes. A text whose tokens are all kept is split as before, and the model gives
    the same for it. Words that were unknown may become known: their parts were hidden by longer
    ones. Every axis of the weights that the vocabulary has is cut: the token table, and of heads
    the bias, table and columns of masked words.

    Args:
        model: a `kbert.Encoder`, or a task on one; it stays as it is.
        tokenizer: of an encoder; a task has its own.
        texts: what the model will read, as the tokenizer is given it.
        keep: further tokens that are kept, such as "[unused1]".
        min_count: how often a token is seen in the texts, at least, to be kept.
        characters: of WordPiece, whether all single characters are kept; without it words with
            others than those of the texts become unknown.

    Returns:
        A new encoder or task, not compiled, and its tokenizer. Kept tokens keep their order.

    Raises:
        TypeError: the model is neither, or `texts` is one string.
        ValueError: a kind of tokenizer whose pieces lean on each other in other ways (unigram), a
            token that is not there, neither texts nor tokens, or an encoder with adapters.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "##b", "good", "bad", "day"])
        >>> config = kbert.family("bert-tiny").replace(vocabulary_size=10)
        >>> encoder, small = prune_vocabulary(
        ...     kbert.Encoder(config), tokenizer, texts=["A good day"], keep=["[MASK]"])
        >>> small.vocabulary[5:], encoder.config.vocabulary_size
        (['a', '##b', 'good', 'day'], 9)
    """
    encoder = encoder_of(model)
    tokenizer = _tokenizer_of(model, tokenizer)
    kept = kept_tokens(
        tokenizer, texts=texts, keep=keep, min_count=min_count, characters=characters
    )
    before, after = encoder.config.vocabulary_size, len(kept)
    if tokenizer.vocabulary_size > before:
        raise ValueError(
            "The encoder's token table must have a row for each vocabulary entry. Received: "
            f"vocabulary_size={before}, {tokenizer.vocabulary_size} entries in the tokenizer"
        )

    def cut(arrays: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        # The config changed in nothing else: what axes are shorter are the vocabulary's.
        for name, shape in shapes.items():
            for axis, (old, new) in enumerate(zip(arrays[name].shape, shape, strict=True)):
                if (old, new) == (before, after):
                    arrays[name] = arrays[name].take(kept, axis=axis)
        return arrays

    smaller = _smaller(tokenizer, kept)
    config = encoder.config.replace(vocabulary_size=after)
    if config.padding_id is not None:
        config = config.replace(padding_id=list(kept).index(config.padding_id))
    return rebuilt(model, config, cut, tokenizer=smaller), smaller


def kept_tokens(
    tokenizer: Tokenizer,
    *,
    texts: Iterable[str | bytes] = (),
    keep: Collection[str] = (),
    min_count: int = 1,
    characters: bool = True,
) -> np.ndarray:
    """Ids of the tokens that `prune_vocabulary` keeps, ascending; arguments and errors as there.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"])
        >>> kept_tokens(tokenizer, texts=["good day"]).tolist()
        [0, 1, 2, 3, 4, 5, 7]
    """
    if not isinstance(tokenizer, WordPieceTokenizer | BytePairTokenizer):
        raise ValueError(
            "Tokens are cut out of WordPiece and byte-level BPE vocabularies. A unigram model's "
            "pieces have scores that all splits of a word compare, unknown characters too. "
            f"Received: a {type(tokenizer).__name__}"
        )
    if min_count < 1:
        raise ValueError(f"`min_count` must be at least 1. Received: {min_count}")
    counts = np.zeros(tokenizer.vocabulary_size, np.int64)
    read = False
    for batch in batches(texts):
        read = True
        ids = tokenizer.encode(batch).flat_values.numpy()
        counts += np.bincount(ids, minlength=len(counts))
    if not read and not keep:
        raise ValueError(
            "What a model keeps is said by `texts` or by tokens to `keep`. Received: neither"
        )
    kept = {*np.flatnonzero(counts >= min_count).tolist(), *tokenizer.special_ids}
    kept |= {tokenizer.token_to_id(token) for token in (*keep, *tokenizer.added_tokens)}
    if isinstance(tokenizer, BytePairTokenizer):
        kept |= {tokenizer.token_to_id(token) for token in CHARACTERS}
        kept |= _parts(tokenizer, kept)
    elif characters:
        kept |= {
            number
            for number, piece in enumerate(tokenizer.vocabulary)
            if len(piece.removeprefix(_CONTINUED)) == 1
        }
    return np.array(sorted(kept))


def _parts(tokenizer: BytePairTokenizer, kept: set[int]) -> set[int]:
    """Ids of all pieces that kept ones may be merged of, in every way.

    So of a text whose pieces are kept every merge is kept, and its merges come in the same order.
    """
    made_of: dict[str, set[str]] = {}
    for first, second in tokenizer.merges:
        made_of.setdefault(first + second, set()).update((first, second))
    found: set[str] = set()
    waiting = [tokenizer.id_to_token(number) for number in kept]
    while waiting:
        new = made_of.get(waiting.pop(), set()) - found
        found |= new
        waiting += new
    return {tokenizer.token_to_id(piece) for piece in found}


def _smaller(tokenizer: Tokenizer, kept: np.ndarray) -> Tokenizer:
    """A tokenizer of the same kind and settings with the tokens that are kept."""
    config = tokenizer.get_config()
    config["vocabulary"] = [tokenizer.vocabulary[number] for number in kept]
    if isinstance(tokenizer, BytePairTokenizer):
        there = set(config["vocabulary"])
        config["merges"] = [
            (first, second)
            for first, second in tokenizer.merges
            if there.issuperset((first, second, first + second))
        ]
    return type(tokenizer).from_config(config)


def _tokenizer_of(model: Any, tokenizer: Tokenizer | None) -> Any:
    if isinstance(model, EncoderTask):
        if tokenizer is not None:
            raise ValueError("A task has a tokenizer of its own. Received: another one besides")
        return model.tokenizer
    if tokenizer is None:
        raise ValueError(
            "Of an encoder the vocabulary is that of its `tokenizer`. Received: tokenizer=None"
        )
    return tokenizer
