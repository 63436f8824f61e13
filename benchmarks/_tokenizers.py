"""Tokenizers of one kind and one vocabulary, side by side: kbert's and its peers'.

Each contender takes a `Batch` as it likes it best, string tensors or lists of str, and hands out
ids (and offsets) as it always does.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import tensorflow as tf

from kbert.tokenizers import (
    BytePairTokenizer,
    Tokenizer,
    UnigramTokenizer,
    WordPieceTokenizer,
    load_tokenizer,
    read_vocabulary,
    train_byte_pair,
    train_unigram,
    train_wordpiece,
)

ONE_BATCH = [tf.TensorSpec([None], tf.string)]
Contender = tuple[str, Callable[["Batch"], Any]]


class Batch:
    """The same lines as each contender takes them."""

    def __init__(self, lines: list[str]):
        self.lines = lines
        self.tensor = tf.constant(lines)
        self.megabytes = sum(len(line.encode()) for line in lines) / 1e6


class Field(NamedTuple):
    """The contenders of one kind, kbert's first in both lists."""

    ids: list[Contender]
    offsets: list[Contender]


def _field(
    tokenizer: Tokenizer, hub: Any, rust: Any, more: tuple[tuple[str, Tokenizer], ...] = ()
) -> Field:
    """One of kbert's, KerasHub's and Hugging Face `tokenizers`', and more of kbert's."""
    hub_graph = tf.function(hub.tokenize, input_signature=ONE_BATCH)

    def rust_ids(batch: Batch) -> list[list[int]]:
        # The other call, `encode_batch`, also works out offsets.
        rows = rust.encode_batch_fast(batch.lines, add_special_tokens=False)
        return [row.ids for row in rows]

    def rust_offsets(batch: Batch) -> list[tuple]:
        rows = rust.encode_batch(batch.lines, add_special_tokens=False)
        return [(row.ids, row.offsets) for row in rows]

    own = [
        (name, lambda batch, own=own: own.encode(batch.tensor))
        for name, own in (("kbert", tokenizer), *more)
    ]
    peers = [
        (f"KerasHub {type(hub).__name__}", lambda batch: hub_graph(batch.tensor)),
        ("Hugging Face tokenizers", rust_ids),
    ]
    offsets = [
        ("kbert, characters", lambda b: tokenizer.encode_with_offsets(b.tensor, "character")),
        ("kbert, bytes", lambda b: tokenizer.encode_with_offsets(b.tensor, "byte")),
        ("Hugging Face tokenizers", rust_offsets),
    ]
    return Field([*own, *peers], offsets)


def wordpiece(lines: list[str], size: int, path: Path | None) -> Field:
    """BERT's kind, uncased; the vocabulary of a vocab.txt, or learned from the lines."""
    import keras_hub
    from tokenizers import BertWordPieceTokenizer

    vocabulary = read_vocabulary(path) if path else train_wordpiece(lines, size)
    rust = BertWordPieceTokenizer({piece: i for i, piece in enumerate(vocabulary)})
    hub = keras_hub.models.BertTokenizer(vocabulary, lowercase=True)
    return _field(WordPieceTokenizer(vocabulary), hub, rust._tokenizer)


def byte_pair(lines: list[str], size: int, path: Path | None) -> Field:
    """GPT-2's and RoBERTa's kind; of a folder of vocab.json and merges.txt, or learned."""
    import keras_hub
    from tokenizers import ByteLevelBPETokenizer

    tokenizer = load_tokenizer(path) if path else BytePairTokenizer(*train_byte_pair(lines, size))
    ids = {piece: i for i, piece in enumerate(tokenizer.vocabulary)}
    rust = ByteLevelBPETokenizer(ids, tokenizer.merges)
    merges = [" ".join(pair) for pair in tokenizer.merges]
    hub = keras_hub.tokenizers.BytePairTokenizer(ids, merges)
    return _field(tokenizer, hub, rust._tokenizer)


def unigram(lines: list[str], size: int, path: Path | None) -> Field:
    """SentencePiece's kind, of a .model or learned.

    The peers do nothing to a text before the model, and so does kbert's first; its second lowers
    case and drops accents as ALBERT's does.
    """
    import keras_hub
    from sentencepiece import sentencepiece_model_pb2
    from tokenizers import Regex, Tokenizer as RustTokenizer, models, normalizers, pre_tokenizers

    if path:
        model = path.read_bytes()
    else:
        model = train_unigram(lines, size, preparation=False, user_defined=())
    proto = sentencepiece_model_pb2.ModelProto.FromString(model)
    unknown = next(i for i, p in enumerate(proto.pieces) if p.type == p.UNKNOWN)
    rust = RustTokenizer(models.Unigram([(p.piece, p.score) for p in proto.pieces], unknown))
    rust.normalizer = normalizers.Sequence(
        [
            normalizers.Precompiled(proto.normalizer_spec.precompiled_charsmap),
            normalizers.Strip(),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    rust.pre_tokenizer = pre_tokenizers.Metaspace()
    return _field(
        UnigramTokenizer(model, preparation=False),
        keras_hub.tokenizers.SentencePieceTokenizer(model),
        rust,
        more=(("kbert, ALBERT's texts", UnigramTokenizer(model)),),
    )


def training(size: int) -> dict[str, list[Contender]]:
    """Kind -> what learns `size` pieces from a batch."""
    from tokenizers import (
        BertWordPieceTokenizer,
        ByteLevelBPETokenizer,
        SentencePieceUnigramTokenizer,
    )

    def learned_by(kind: type) -> Callable[[Batch], None]:
        def learn(batch: Batch) -> None:
            kind().train_from_iterator(iter(batch.lines), size, show_progress=False)

        return learn

    trainers = {
        "WordPiece": (train_wordpiece, BertWordPieceTokenizer),
        "byte-level BPE": (train_byte_pair, ByteLevelBPETokenizer),
        "unigram": (train_unigram, SentencePieceUnigramTokenizer),
    }
    return {
        kind: [
            ("kbert", lambda batch, learn=learn: learn(batch.lines, size)),
            ("Hugging Face tokenizers", learned_by(peer)),
        ]
        for kind, (learn, peer) in trainers.items()
    }
