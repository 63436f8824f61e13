"""Byte-level BPE as a SentencePiece model, so that TensorFlow has a kernel for it.

SentencePiece's BPE merges two neighbours whenever the vocabulary holds what they make together;
GPT-2's merges only the pairs in its table. The two are the same algorithm on the right vocabulary:
the *live* pieces, those that GPT-2's merges make of their own text.

Why: when a piece is made within a word, no earlier merge has crossed its borders, so inside them
everything happened as it does on the piece's text alone. Hence a piece that is not live is never
made, and can be left out. And suppose SentencePiece were the first to leave GPT-2's path, by
joining neighbours whose pair is not in the table to a live piece: then GPT-2, on that piece's text
alone, would come to the same two neighbours and stop there, so that the piece would not be live.
"""

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

from kbert.tokenizers.bpe.byte_alphabet import IN_UTF8, piece_bytes

Pair = tuple[str, str]

# SentencePiece's map of normalisations: a double-array trie of 256 units that leads nowhere (the
# first unit's label is 1, so that U+0000 does not lead back to it), and no texts. Without any map
# it would do the same, and log a warning.
_NO_CHANGES = (1024).to_bytes(4, "little") + (1).to_bytes(4, "little") + bytes(1020) + b"\0"
# In texts for a model that reads bytes: no text holds this byte, and the model drops it.
CUT = b"\xff"
_UNKNOWN = "<unk>"  # which bytes never are


def merge(piece: str, ranks: Mapping[Pair, int]) -> tuple[list[str], int | None]:
    """GPT-2's merges of one word: the best pair first, of equal ones the leftmost.

    Args:
        piece: in the alphabet of `byte_alphabet`.
        ranks: pair -> its place in the table.

    Returns:
        What is left, and the rank of the last merge (None where there was none).

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
    """Of a pair that occurs twice the last counts, as in Hugging Face's code."""
    return {pair: rank for rank, pair in enumerate(merges)}


def live_merges(merges: Iterable[Pair]) -> tuple[list[str], list[Pair]]:
    """The pieces that can be made, bytes among them, and the merges that can happen, in order.

    Example:
        >>> made, merges = live_merges([("a", "b"), ("ab", "c"), ("x", "yz")])
        >>> made[243:], merges
        (['ab', 'abc'], [('a', 'b'), ('ab', 'c')])
    """
    merges = list(merges)
    made = [*IN_UTF8, *live_pieces(merges)]
    ranks, known = _ranks(merges), set(made)
    happen = (pair for pair in ranks if known.issuperset([*pair, "".join(pair)]))
    return made, sorted(happen, key=ranks.__getitem__)


def live_pieces(merges: Iterable[Pair]) -> dict[str, int]:
    """The pieces that can be made -> the rank of the merge that makes them.

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
    """SentencePiece's map of normalisations that makes of each byte its character in ISO-8859-1.

    Its keys are single bytes, which SentencePiece looks for before it reads characters. ASCII needs
    none, and `CUT` becomes nothing. In the trie, of units of 32 bits, the root leads to unit
    256 + byte and that one to unit 512 + byte, which holds the place of the byte's text behind it.
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
    """A SentencePiece BPE model over bytes that are written as the characters of ISO-8859-1.

    Args:
        merges: pairs, the first to be merged first.
        from_bytes: it reads the bytes themselves, U+0000 not among them.

    Returns:
        The serialised model; its pieces, but for the first, which is for what is unknown to it.
    """
    scores = dict.fromkeys(IN_UTF8, 0) | {p: -rank for p, rank in live_pieces(merges).items()}
    written = {piece_bytes(piece).decode("latin-1"): score for piece, score in scores.items()}
    return bpe_model(written, _from_bytes() if from_bytes else _NO_CHANGES), list(scores)


def bpe_model(scores: Mapping[str, int], normalization: bytes = _NO_CHANGES) -> bytes:
    """A SentencePiece BPE model.

    Args:
        scores: piece -> score, that of the first merge being the highest; characters among them.
            The ids are 1 and so on, in this order; 0 is for what is unknown to the model.
        normalization: its map, see `_NO_CHANGES`.

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
