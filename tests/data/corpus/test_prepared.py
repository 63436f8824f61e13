"""Text handed to `pretraining_dataset` in place of shards."""

import os

import numpy as np
import pytest

import kbert
from kbert.data.corpus import manifest, prepare
from kbert.data.corpus.prepared import prepared_folder
from kbert.data.pretraining.dataset import pretraining_dataset


@pytest.fixture
def tokenizer(tiny_vocabulary):
    return kbert.WordPieceTokenizer(tiny_vocabulary)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("\n\n".join(f"the red fox {n}.\nit was big." for n in range(30)))
    return path


def test_text_is_prepared_once(text, tokenizer, tmp_path):
    cache = tmp_path / "cache"
    folder = prepared_folder(str(text), tokenizer, cache)
    assert os.path.dirname(folder) == str(cache)
    written = os.stat(os.path.join(folder, "manifest.json")).st_mtime_ns
    assert prepared_folder([text], tokenizer, cache) == folder
    assert os.stat(os.path.join(folder, "manifest.json")).st_mtime_ns == written
    assert kbert.load_tokenizer(folder).vocabulary == tokenizer.vocabulary


def test_other_text_or_another_tokenizer_is_prepared_again(
    text, tokenizer, tiny_vocabulary, tmp_path
):
    folder = prepared_folder(text, tokenizer, tmp_path)
    cased = kbert.WordPieceTokenizer(tiny_vocabulary, lowercase=False)
    other = prepared_folder(text, cased, tmp_path)
    with open(text, "a") as file:
        file.write("\n\none two three.\n")
    assert len({folder, other, prepared_folder(text, tokenizer, tmp_path)}) == 3


def test_another_kbert_or_format_is_prepared_again(text, tokenizer, tmp_path, monkeypatch):
    folders = {prepared_folder(text, tokenizer, tmp_path)}
    monkeypatch.setattr(prepare, "__version__", "99")
    folders.add(prepared_folder(text, tokenizer, tmp_path))
    monkeypatch.setattr(manifest, "FORMAT_VERSION", 99)
    folders.add(prepared_folder(text, tokenizer, tmp_path))
    monkeypatch.setattr(prepare.text_source, "MAX_DOCUMENT_BYTES", 1 << 19)
    folders.add(prepared_folder(text, tokenizer, tmp_path))
    assert len(folders) == 4


def test_a_folder_is_taken_as_it_is(tokenizer, tmp_path):
    assert prepared_folder(tmp_path, tokenizer) == str(tmp_path)


def test_the_cache_folder_can_be_chosen(text, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "mine"))
    assert prepared_folder(text, tokenizer).startswith(str(tmp_path / "mine"))


def test_batches_straight_from_text(text, tokenizer, tmp_path):
    dataset = pretraining_dataset(
        text, tokenizer, sequence_length=16, batch_size=4, cache_dir=tmp_path / "cache"
    )
    batch = next(dataset.as_numpy_iterator())
    fox = tokenizer.token_to_id("fox")
    assert np.any(batch["token_ids"] == fox)
    assert np.all(batch["token_ids"][:, 0] == tokenizer.cls_id)


def test_text_that_is_not_there(tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing_here"):
        pretraining_dataset(str(tmp_path / "nothing_here.txt"), tokenizer)
