"""Vocabulary pruning: keeps the tokens that a domain or language uses, and their embeddings.

More than half of the weights of a multilingual model are in the token table. A model for two
languages needs a fraction of it (Abdaoui et al. 2020, "Load What You Need",
https://arxiv.org/abs/2010.05609).

Shapes: `V` entries before, `W` after.
"""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from kbert.core.types import Arrays
from kbert.edit.pruning.rebuilding import encoder_of, rebuilt
from kbert.tasks import Task
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
    """Removes the tokens that a corpus does not use from a model and its tokenizer.

    Every text can still be tokenized: special tokens stay, and so do the single characters or bytes
    that words are made of. A text whose tokens are all kept is tokenized as before, and the model's
    outputs for it are the same. Unknown words may become known: longer subwords that hid their
    parts are gone. All weight axes of the vocabulary's size are pruned: the token table, and the
    bias, table and columns of masked-word heads.

    Args:
        model: a `kbert.Encoder` or `kbert.Decoder`, or a task on one; it is not changed.
        tokenizer: tokenizer of the model; not allowed for a task, which has one.
        texts: typical texts for the model, in the form that the tokenizer expects.
        keep: additional tokens to keep, such as "[unused1]".
        min_count: minimum number of occurrences in the texts for a token to be kept.
        characters: whether all single characters of a WordPiece vocabulary are kept; otherwise
            words with characters that are not in the texts become unknown.

    Returns:
        A new encoder or task, not compiled, and its tokenizer. Kept tokens keep their order.

    Raises:
        TypeError: the model is no encoder, decoder or task on one, or `texts` is a single string.
        ValueError: the tokenizer is not WordPiece or byte-level BPE (subwords of a unigram model
            depend on each other differently), a token to keep does not exist, there are neither
            texts nor tokens, or the encoder has adapters or a `padding_id` that the tokenizer
            lacks.

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
    kept_ids = kept_tokens(
        tokenizer, texts=texts, keep=keep, min_count=min_count, characters=characters
    )
    old_size = encoder.config.vocabulary_size
    padding_id = getattr(encoder.config, "padding_id", None)  # a decoder has none
    if tokenizer.vocabulary_size > old_size:
        raise ValueError(
            "The encoder's token table must have a row for each vocabulary entry. Received: "
            f"vocabulary_size={old_size}, {tokenizer.vocabulary_size} entries in the tokenizer"
        )
    if padding_id is not None:
        if padding_id >= tokenizer.vocabulary_size:
            raise ValueError(
                "The encoder's `padding_id` must be an id of the tokenizer. Received: "
                f"padding_id={padding_id}, {tokenizer.vocabulary_size} entries in the tokenizer"
            )
        kept_ids = np.union1d(kept_ids, padding_id)
    new_size = len(kept_ids)

    def cut(arrays: dict[str, np.ndarray], shapes: Mapping[str, tuple[int, ...]]) -> Arrays:
        # Nothing else in the config changed: axes that are shorter now are the vocabulary's.
        for name, shape in shapes.items():
            for axis, (old, new) in enumerate(zip(arrays[name].shape, shape, strict=True)):
                if (old, new) == (old_size, new_size):
                    arrays[name] = arrays[name].take(kept_ids, axis=axis)
        return arrays

    new_tokenizer = _smaller(tokenizer, kept_ids)
    changes = {"vocabulary_size": new_size}
    if padding_id is not None:
        changes["padding_id"] = list(kept_ids).index(padding_id)
    config = encoder.config.replace(**changes)
    return rebuilt(model, config, cut, tokenizer=new_tokenizer), new_tokenizer


def kept_tokens(
    tokenizer: Tokenizer,
    *,
    texts: Iterable[str | bytes] = (),
    keep: Collection[str] = (),
    min_count: int = 1,
    characters: bool = True,
) -> np.ndarray:
    """Returns the ids of the tokens that `prune_vocabulary` keeps, ascending.

    Arguments and errors are those of `prune_vocabulary`.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad", "day"])
        >>> kept_tokens(tokenizer, texts=["good day"]).tolist()
        [0, 1, 2, 3, 4, 5, 7]
    """
    if not isinstance(tokenizer, WordPieceTokenizer | BytePairTokenizer):
        raise ValueError(
            "Vocabularies can be pruned only for WordPiece and byte-level BPE. A unigram model "
            "compares the scores of its pieces in all splits of a word, also with unknown "
            f"characters. Received: a {type(tokenizer).__name__}"
        )
    if min_count < 1:
        raise ValueError(f"`min_count` must be at least 1. Received: {min_count}")
    counts = np.zeros(tokenizer.vocabulary_size, np.int64)
    has_texts = False
    for batch in batches(texts):
        has_texts = True
        ids = tokenizer.encode(batch).flat_values.numpy()
        counts += np.bincount(ids, minlength=len(counts))
    if not has_texts and not keep:
        raise ValueError("Pass `texts` or `keep` to choose the vocabulary. Received: neither")
    kept_ids = {*np.flatnonzero(counts >= min_count).tolist(), *tokenizer.special_ids}
    kept_ids |= {tokenizer.token_to_id(token) for token in (*keep, *tokenizer.added_tokens)}
    if isinstance(tokenizer, BytePairTokenizer):
        kept_ids |= {tokenizer.token_to_id(token) for token in CHARACTERS}
        kept_ids |= _parts(tokenizer, kept_ids)
    elif characters:
        kept_ids |= {
            number
            for number, piece in enumerate(tokenizer.vocabulary)
            if len(piece.removeprefix(_CONTINUED)) == 1
        }
    return np.array(sorted(kept_ids))


def _parts(tokenizer: BytePairTokenizer, kept: set[int]) -> set[int]:
    """Returns the ids of all subwords that occur in a merge tree of a kept subword.

    All ways to merge it count. So if the subwords of a text are kept, all of its merges are kept,
    in the same order. `kept` are ids.
    """
    parts_of: dict[str, set[str]] = {}
    for first, second in tokenizer.merges:
        parts_of.setdefault(first + second, set()).update((first, second))
    part_tokens: set[str] = set()
    pending = [tokenizer.id_to_token(number) for number in kept]
    while pending:
        new_parts = parts_of.get(pending.pop(), set()) - part_tokens
        part_tokens |= new_parts
        pending += new_parts
    return {tokenizer.token_to_id(piece) for piece in part_tokens}


def _smaller(tokenizer: Tokenizer, kept: np.ndarray) -> Tokenizer:
    """Returns a tokenizer of the same class and settings with the kept tokens only.

    `kept` (W,) are their ids, ascending. Merges of a byte-level BPE stay if both parts and the
    result are kept.
    """
    config = tokenizer.get_config()
    config["vocabulary"] = [tokenizer.vocabulary[number] for number in kept]
    if isinstance(tokenizer, BytePairTokenizer):
        kept_vocabulary = set(config["vocabulary"])
        config["merges"] = [
            (first, second)
            for first, second in tokenizer.merges
            if kept_vocabulary.issuperset((first, second, first + second))
        ]
    return type(tokenizer).from_config(config)


def _tokenizer_of(model: Any, tokenizer: Tokenizer | None) -> Any:
    """Returns the tokenizer of a task, or the given one of an encoder.

    Raises:
        ValueError: a tokenizer is given for a task, or none for an encoder.
    """
    if isinstance(model, Task):
        if tokenizer is not None:
            raise ValueError(
                "`tokenizer` must be left out for a task, which has its own. Received: a task and "
                "a tokenizer"
            )
        return model.tokenizer
    if tokenizer is None:
        raise ValueError("Pass the `tokenizer` of the encoder. Received: tokenizer=None")
    return tokenizer
