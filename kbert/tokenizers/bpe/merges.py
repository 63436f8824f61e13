"""Byte-level BPE as a SentencePiece model, so that TensorFlow has a kernel for it.

SentencePiece's BPE merges two neighbours whenever their concatenation is in the vocabulary; GPT-2's
merges only the pairs in its table. Both are the same algorithm on the right vocabulary: the *live*
pieces. A piece is live if GPT-2's merges turn its text into that piece.

Why: when a piece is made within a word, no earlier merge has crossed its borders. So inside them
everything happened as on the text of the piece alone. Hence a piece that is not live is never made
and can be omitted. Now suppose that SentencePiece were the first to deviate from GPT-2, by joining
neighbours to a live piece although their pair is not in the table. Then GPT-2, on the text of that
piece alone, would reach the same two neighbours and stop there, so the piece would not be live.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from kbert.tokenizers.bpe.byte_alphabet import IN_UTF8, piece_bytes

Pair = tuple[str, str]

# SentencePiece's normalisation map: a double-array trie of 256 units without entries (the label of
# the first unit is 1, so that U+0000 does not lead back to it), and no texts. Without a map the
# result would be the same, but SentencePiece would log a warning.
_NO_CHANGES = (1024).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(1020) + b"\0"
# A separator in texts for a model of bytes: no text contains this byte, and the model drops it.
CUT = b"\xff"
_UNKNOWN = "<unk>"  # bytes are never unknown


def merge(piece: str, ranks: Mapping[Pair, int]) -> tuple[list[str], int | None]:
    """Applies GPT-2's merges to one word: the best pair first, the leftmost of equal pairs.

    Args:
        piece: text of the word, in the alphabet of `byte_alphabet`.
        ranks: pair -> its rank in the table of merges.

    Returns:
        The remaining parts, and the rank of the last merge (None without any merge).

    Example:
        >>> merge("lower", {("l", "o"): 0, ("e", "r"): 1, ("lo", "w"): 2})
        (['low', 'er'], 2)
    """
    parts, last = list(piece), None
    while len(parts) > 1:
        pairs = enumerate(itertools.pairwise(parts))
        rank, i = min(((ranks[pair], i) for i, pair in pairs if pair in ranks), default=(None, 0))
        if rank is None:
            break
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
        last = rank
    return parts, last


def _ranks(merges: Iterable[Pair]) -> dict[Pair, int]:
    """Returns pair -> rank; the last rank of a duplicate pair counts, as in Hugging Face's code."""
    return {pair: rank for rank, pair in enumerate(merges)}


def live_merges(merges: Iterable[Pair]) -> tuple[list[str], list[Pair]]:
    """Returns the tokens that can occur, bytes first, and the merges that can occur, in order.

    Example:
        >>> made, merges = live_merges([("a", "b"), ("ab", "c"), ("x", "yz")])
        >>> made[243:], merges
        (['ab', 'abc'], [('a', 'b'), ('ab', 'c')])
    """
    merges = list(merges)
    tokens = [*IN_UTF8, *live_pieces(merges)]
    ranks, token_set = _ranks(merges), set(tokens)
    possible_merges = (pair for pair in ranks if token_set.issuperset([*pair, "".join(pair)]))
    return tokens, sorted(possible_merges, key=ranks.__getitem__)


def live_pieces(merges: Iterable[Pair]) -> dict[str, int]:
    """Returns each token that merges can make -> the rank of the merge that makes it.

    Example:
        >>> live_pieces([("b", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")])
        {'bc': 0, 'ab': 1, 'abc': 3}
    """
    ranks = _ranks(merges)
    live: dict[str, int] = {}
    for first, second in ranks:
        parts, last = merge(first + second, ranks)
        if len(parts) == 1 and last is not None:
            live[first + second] = last
    return live


def _from_bytes() -> bytes:
    """Returns a SentencePiece normalisation map from each byte to its character in ISO-8859-1.

    Its keys are single bytes, which SentencePiece matches before it decodes characters. ASCII needs
    no entries, and `CUT` is dropped. The trie has units of 32 bits. Its root leads to unit
    256 + byte, and that to unit 512 + byte, which contains the offset of the byte's text after the
    trie.
    """
    units = [0] * 768
    units[0] = 256 << 10
    units[256] = 1  # a label that U+0000 is not
    texts = b""
    for byte in range(0x80, 0x100):
        units[256 + byte] = 768 << 10 | 1 << 8 | byte  # 768 is the exclusive or of the two places
        units[512 + byte] = 1 << 31 | len(texts)
        texts += (b"" if byte == ord(CUT) else chr(byte).encode()) + b"\0"
    trie = b"".join(unit.to_bytes(4, "little") for unit in units)
    return len(trie).to_bytes(4, "little") + trie + texts


def sentencepiece_model(
    merges: Iterable[Pair], *, from_bytes: bool = False
) -> tuple[bytes, list[str]]:
    """Builds a SentencePiece BPE model over bytes that are written as characters of ISO-8859-1.

    Args:
        merges: pairs of tokens, in the order of merging.
        from_bytes: whether the model reads the bytes themselves (except U+0000).

    Returns:
        The serialised model, and its pieces except the first, the unknown piece.
    """
    scores = dict.fromkeys(IN_UTF8, 0) | {p: -rank for p, rank in live_pieces(merges).items()}
    latin1_scores = {piece_bytes(piece).decode("latin-1"): score for piece, score in scores.items()}
    return bpe_model(latin1_scores, _from_bytes() if from_bytes else _NO_CHANGES), list(scores)


def bpe_model(scores: Mapping[str, int], normalization: bytes = _NO_CHANGES) -> bytes:
    """Builds a SentencePiece BPE model.

    Args:
        scores: piece -> score, with the highest score for the first merge; includes single
            characters. Ids follow this order from 1; 0 is the unknown piece.
        normalization: normalisation map of the model, see `_NO_CHANGES`.

    Returns:
        The serialised model.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2  # its classes are created at import

    model = proto.ModelProto()
    model.trainer_spec.model_type = proto.TrainerSpec.BPE
    rules = model.normalizer_spec
    rules.name = "identity"
    rules.precompiled_charsmap = normalization
    rules.add_dummy_prefix = rules.remove_extra_whitespaces = rules.escape_whitespaces = False

    model.pieces.add(piece=_UNKNOWN, score=0.0, type=proto.ModelProto.SentencePiece.UNKNOWN)
    for piece, score in scores.items():
        model.pieces.add(piece=piece, score=score)
    return model.SerializeToString()
