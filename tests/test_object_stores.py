"""What kbert reads and writes in an object store, on TensorFlow's own `ram://`."""

import gzip
import json
import os
import uuid
from pathlib import Path as LocalPath

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data import prepare_corpus, read_manifest, verify_corpus
from kbert.data.corpus import chunks, records, shards
from kbert.files import Path, copy_tree
from tests.data.corpus.test_prepare import make_texts

pytestmark = pytest.mark.tensorflow


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """The current folder is empty, and no test leaves a folder `gs:` or `ram:` in it."""
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    assert os.listdir(tmp_path / "here") == []


@pytest.fixture
def bucket():
    return Path(f"ram://{uuid.uuid4().hex}")


@pytest.fixture(scope="module")
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


def files(folder) -> dict[str, bytes]:
    folder = Path(folder)
    cut = len(str(folder)) + 1
    return {str(p)[cut:]: p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture
def text(tmp_path):
    texts = make_texts(120)
    folder = tmp_path / "text"
    folder.mkdir()
    (folder / "a.txt").write_text("\n\n".join(texts[:50]))
    with gzip.open(folder / "b.txt.gz", "wt") as file:
        file.write("\n\n".join(texts[50:100]))
    (folder / "c.jsonl").write_text("\n".join(json.dumps({"text": t}) for t in texts[100:]))
    return folder


def test_a_corpus(bucket, text, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 5_000)
    monkeypatch.setattr(shards, "SHARD_TEXT_BYTES", 10_000)
    monkeypatch.setattr(records, "BLOCK_TOKENS", 500)
    copy_tree(text, bucket / "text")
    sources = [f"{bucket}/text/*.txt*", bucket / "text" / "c.jsonl"]

    def stop(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shards, "write_note", stop)
        with pytest.raises(KeyboardInterrupt):
            prepare_corpus(sources, bucket / "shards", tokenizer)
    assert not (bucket / "shards" / "manifest.json").exists()
    done = prepare_corpus(sources, bucket / "shards", tokenizer)
    assert len(done.shard_paths()) > 1
    local = prepare_corpus(str(text / "*"), tmp_path / "shards", tokenizer)
    here, there = files(tmp_path / "shards"), files(bucket / "shards")
    assert there.keys() == here.keys()
    # The plan names the sources.
    assert {n for n in here if here[n] != there[n]} == {"plan.json"}
    assert verify_corpus(bucket / "shards") == read_manifest(str(bucket / "shards")) == done
    assert prepare_corpus(sources, bucket / "shards", tokenizer) == done
    assert done.checksum == local.checksum
    assert list(LocalPath(tmp_path, "cache").rglob("*.spill")) == []
    options = {"sequence_length": 32, "batch_size": 4, "seed": 1}
    loaded = kbert.load_tokenizer(bucket / "shards")
    for folder in (bucket / "shards", str(bucket / "shards")):
        found = kbert.data.pretraining_dataset(folder, loaded, **options)
        expected = kbert.data.pretraining_dataset(tmp_path / "shards", tokenizer, **options)
        for ours, theirs in zip(found.take(3), expected.take(3), strict=True):
            tf.nest.map_structure(np.testing.assert_array_equal, ours, theirs)


def test_a_vocabulary(bucket, text, monkeypatch):
    copy_tree(text, bucket / "text")
    train = kbert.data.train_or_reuse_tokenizer
    first = train(bucket / "shards", bucket / "text" / "a.txt", 60)
    assert sorted(files(bucket / "shards")) == [
        *("tokenizer.origin.json", "tokenizer_config.json", "vocab.txt"),
    ]
    monkeypatch.setattr(kbert.tokenizers, "train_tokenizer", None)
    assert train(bucket / "shards", bucket / "text" / "a.txt", 60).checksum == first.checksum


def test_sources_that_are_not_there(bucket, tokenizer):
    with pytest.raises(FileNotFoundError, match="No file matches. Received: 'ram://.*none.txt'"):
        prepare_corpus(bucket / "none.txt", bucket / "shards", tokenizer)
    with pytest.raises(FileNotFoundError, match="No manifest.json.*Received: ram://"):
        read_manifest(bucket / "shards")
