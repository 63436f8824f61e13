"""The preview: real sentences and pieces, and estimates that come near what is then measured."""

import gzip
import os

import numpy as np
import pytest

import kbert
from kbert.data import prepare_corpus, preview_corpus

SENTENCE = "The quick brown fox jumps over the lazy dog by the river. "


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def corpus(tmp_path):
    draw = np.random.default_rng(0)
    texts = [f"{n}. " + SENTENCE * draw.integers(1, 30) for n in range(400)]
    (tmp_path / "a.txt").write_text("\n\n".join(texts[:200]))
    with gzip.open(tmp_path / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(texts[200:]))
    return tmp_path


def test_documents_are_shown_as_sentences_and_pieces(corpus, tokenizer):
    text, _ = preview_corpus(f"{corpus}/*", tokenizer, num_documents=2)
    first, second, table = text.split("\n\n")
    assert first.splitlines()[1:3] == [
        "  0. The quick brown fox jumps over the lazy dog by the river.",
        "    0 . the quick brown fox jumps over the lazy dog by the river .",
    ]
    assert first.startswith("document 1: ")
    assert second.startswith("document 2: ")
    assert "  200. The quick" in second  # the documents of several sources take turns
    assert table.startswith("estimate, num_workers=1:\nsources  2, ")


def test_estimates_against_the_real_thing(corpus, tokenizer, tmp_path):
    _, estimate = preview_corpus(f"{corpus}/*", tokenizer)
    manifest = prepare_corpus(f"{corpus}/*", tmp_path / "out", tokenizer)
    tokens = sum(split.tokens for split in manifest.splits.values())
    size = sum(s.bytes for split in manifest.splits.values() for s in split.shards)
    assert estimate.tokens == pytest.approx(tokens, rel=0.05)
    assert estimate.text_bytes == pytest.approx(manifest.counts["text_bytes"], rel=0.05)
    assert estimate.output_bytes == pytest.approx(size, rel=0.2)
    assert estimate.disk_bytes == sum(os.path.getsize(corpus / n) for n in ("a.txt", "b.txt.gz"))
    assert preview_corpus(f"{corpus}/*", tokenizer, num_workers=2)[1].memory_bytes == (
        2 * estimate.memory_bytes
    )
