"""Checks of the pooling of tokens, and merging of subwords into one vector per word.

Shapes: `T` tokens, `D` width, `W` words.
"""

import numpy as np

POOLINGS = ("cls", "mean", "max")
MERGES = ("mean", "first")


def check_pooling(pooling: str | None, special_tokens: bool, has_cls: bool) -> None:
    """Raises ValueError if the pooling is unknown or needs special tokens that are left out.

    `has_cls` says whether the rows have a [CLS] or another token for the whole text.
    """
    if pooling is not None and pooling not in POOLINGS:
        raise ValueError(
            f"pooling must be one of {', '.join(POOLINGS)}, or None for a vector per token. "
            f"Received: {pooling!r}"
        )
    if pooling == "cls" and not special_tokens:
        raise ValueError(
            'pooling="cls" uses the vector of a special token, so it requires '
            "special_tokens=True. Received: special_tokens=False"
        )
    if pooling == "cls" and not has_cls:
        raise ValueError(
            'pooling="cls" requires rows with a special token for the whole text, which the rows '
            'of this model lack: use "mean" or "max". Received: pooling=\'cls\''
        )


def merge_pieces(
    vectors: np.ndarray, word_of: np.ndarray, num_words: int, merge: str
) -> np.ndarray:
    """Merges the vectors of subwords into one vector per word.

    Args:
        vectors: vectors of the tokens (T, D).
        word_of: (T,), the number of each token's word, in ascending order; -1 for tokens outside of
            words.
        num_words: number of words, W.
        merge: "mean" of a word's subwords, or the "first" one.

    Returns:
        (W, D); zeros for a word without a token.

    Example:
        >>> vectors = np.array([[0.0], [2.0], [4.0], [7.0]])
        >>> merge_pieces(vectors, np.array([-1, 0, 0, 2]), 3, "mean").tolist()
        [[3.0], [0.0], [7.0]]
    """
    merged = np.zeros((num_words, vectors.shape[1]), vectors.dtype)
    pieces = np.flatnonzero(word_of >= 0)
    words, first, counts = np.unique(word_of[pieces], return_index=True, return_counts=True)
    if merge == "first":
        merged[words] = vectors[pieces[first]]
    elif len(words):
        sums = np.add.reduceat(vectors[pieces], first, axis=0)
        merged[words] = sums / counts[:, None].astype(vectors.dtype)
    return merged
