"""Corpora written by hand, in which every token names its own place."""

import os
import types

import numpy as np
import pytest

from kbert.data.corpus import manifest, records

SPECIALS = 5


@pytest.fixture(scope="session")
def tokenizer_of():
    """A stand-in with what the pipeline reads of a tokenizer; ids 0..4 are the specials."""

    def make(
        vocabulary_size: int,
        continuation_share: float = 0.0,
        checksum: str = "0" * 64,
        pair_separators: int = 1,
    ):
        continuation = np.random.default_rng(0).random(vocabulary_size) < continuation_share
        continuation[:SPECIALS] = False
        return types.SimpleNamespace(
            vocabulary_size=vocabulary_size,
            checksum=checksum,
            pad_id=0,
            unk_id=1,
            cls_id=2,
            sep_id=3,
            mask_id=4,
            pair_separators=pair_separators,
            continuation=continuation,
        )

    return make


@pytest.fixture(scope="session")
def write_corpus():
    """Writes documents, given as sentence lengths, into shards; token n of the corpus is id 5 + n.

    So a row's ids tell from where in the corpus they were taken. Returns the bounds of documents
    and of sentences, counted in tokens.
    """

    def write(folder, documents, tokenizer, *, shards=2, block_tokens=40, split="train"):
        os.makedirs(folder, exist_ok=True)
        dtype = records.token_dtype(tokenizer.vocabulary_size)
        lengths = np.concatenate(documents)
        total = int(lengths.sum())
        assert SPECIALS + total <= tokenizer.vocabulary_size
        tokens = np.arange(SPECIALS, SPECIALS + total)
        document_bounds = np.cumsum([0, *(sum(sentences) for sentences in documents)])
        written = []
        for shard, numbers in enumerate(np.array_split(np.arange(len(documents)), shards)):
            path = os.path.join(folder, f"{split}-{shard:05d}-of-{shards:05d}.tfrecord")
            with records.BlockWriter(path, dtype, block_tokens=block_tokens) as writer:
                for n in numbers:
                    span = slice(document_bounds[n], document_bounds[n + 1])
                    writer.add(tokens[span], np.array(documents[n]))
            written.append(
                manifest.Shard(
                    file=os.path.basename(path),
                    index=os.path.basename(records.index_path(path)),
                    bytes=writer.bytes,
                    **writer.totals(),
                )
            )
        manifest.Manifest(
            folder=str(folder),
            vocabulary_sha256=tokenizer.checksum,
            vocabulary_size=tokenizer.vocabulary_size,
            token_dtype=dtype,
            settings={},
            counts={},
            splits={split: manifest.Split.of(written)},
        ).save()
        return document_bounds, np.cumsum([0, *lengths])

    return write
