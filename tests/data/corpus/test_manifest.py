"""The manifest: round trip, and every way in which a folder can be not what it says."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from kbert.data.corpus import manifest, records
from kbert.data.corpus.manifest import read_manifest, verify_corpus
from kbert.data.corpus.prepare import prepare_corpus
from kbert.tokenizers import (
    UnigramTokenizer,
    WordPieceTokenizer,
    train_unigram,
    train_wordpiece,
)


@pytest.fixture
def tokenizer(tokenizer_of):
    return tokenizer_of(1000)


@pytest.fixture
def folder(tmp_path, write_corpus, tokenizer):
    write_corpus(tmp_path, [[3, 4], [30], [2, 20], [5], [9, 9]], tokenizer, block_tokens=30)
    return tmp_path


def shard(folder, number: int = 0) -> str:
    return read_manifest(folder).shard_paths("train")[number]


def edit(folder, change) -> None:
    path = folder / manifest.FILE_NAME
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def test_round_trip(folder):
    read = read_manifest(folder)
    assert read.splits["train"].documents == 5
    assert read.splits["train"].sentences == 8
    assert read.splits["train"].tokens == 82
    before = (folder / manifest.FILE_NAME).read_bytes()
    read.save()
    assert (folder / manifest.FILE_NAME).read_bytes() == before
    assert verify_corpus(folder) == read


def test_the_index_of_a_split_numbers_its_shards(folder):
    index = read_manifest(folder).index("train")
    assert index[:, 0].tolist() == [0, 0, 1]
    assert index[:, 1].tolist()[0] == index[:, 1].tolist()[2] == 0
    assert index[:, 2:].sum(axis=0).tolist() == [82, 8, 5]


def test_not_a_corpus(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No manifest\.json .*interrupted.*Received: /"):
        read_manifest(tmp_path)


def test_another_format_version(folder):
    edit(folder, lambda content: content.update(format_version=2))
    with pytest.raises(ValueError, match=r"reads format version 1. Received: 2"):
        read_manifest(folder)


def test_an_unknown_split(folder):
    with pytest.raises(ValueError, match=r"has the splits \['train'\]. Received: split='dev'"):
        read_manifest(folder).shard_paths("dev")


def test_another_vocabulary(folder, tokenizer, tokenizer_of):
    read_manifest(folder).check_tokenizer(tokenizer)
    other = tokenizer_of(1001, checksum="f" * 64)
    with pytest.raises(ValueError, match=r"\(1000 entries, sha256 0{12}…\).*of 1001 entries, sha"):
        read_manifest(folder).check_tokenizer(other)


def test_a_truncated_shard_is_seen_when_the_folder_is_opened(folder):
    path = shard(folder)
    size = os.path.getsize(path)
    os.truncate(path, size - 1)
    with pytest.raises(ValueError, match=rf"truncated.* lists {size} bytes. Received: {size - 1}"):
        read_manifest(folder)


def test_a_missing_shard(folder):
    os.remove(shard(folder))
    with pytest.raises(FileNotFoundError, match=r"tfrecord is listed in the manifest but does not"):
        read_manifest(folder)


@pytest.mark.parametrize("position", [3, 40, -3])
def test_a_flipped_byte_is_found_and_located(folder, position):
    path = Path(shard(folder))
    content = bytearray(path.read_bytes())
    content[position] ^= 0xFF
    path.write_bytes(content)
    read_manifest(folder)  # sizes are right
    with pytest.raises(ValueError, match=r"train-00000-of-00002\.tfrecord, record [01] at byte"):
        verify_corpus(folder)


def test_an_index_that_does_not_fit(folder):
    path = records.index_path(shard(folder))
    table = np.load(path)
    np.save(path, table + np.array([0, 1, 0, 0]))
    with pytest.raises(ValueError, match=r"record 0 at byte 0 does not match its index"):
        verify_corpus(folder)
    np.save(path, table[:-1])
    with pytest.raises(ValueError, match=r"index\.npy does not match the manifest.*shape \(1, 4\)"):
        verify_corpus(folder)


def test_ids_outside_the_vocabulary(folder):
    edit(folder, lambda content: content.update(vocabulary_size=50))
    with pytest.raises(
        ValueError, match=r"ids must be from 0 to 49, the size of the vocabulary less one"
    ):
        verify_corpus(folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"lowercase": False}, "lowercase=True, strip_accents=True; .*Received: lowercase=False, "),
        ({"strip_accents": False}, "options, strip_accents=True; .*Received: strip_accents=False"),
        ({"split_chinese": False}, "options, split_chinese=True; .*Received: split_chinese=False"),
    ],
)
def test_the_same_vocabulary_with_other_options(tmp_path, tiny_vocabulary, changes, message):
    (tmp_path / "text.txt").write_text("the red fox.\n\nit was big.\n")
    tokenizer = WordPieceTokenizer(tiny_vocabulary)
    corpus = prepare_corpus(tmp_path / "text.txt", tmp_path / "shards", tokenizer)
    corpus.check_tokenizer(WordPieceTokenizer(tiny_vocabulary, strip_accents=True))
    with pytest.raises(ValueError, match=message):
        corpus.check_tokenizer(WordPieceTokenizer(tiny_vocabulary, **changes))


@pytest.mark.parametrize("options", [{"added_tokens": ["<url>"]}, {"max_word_characters": 2}])
def test_options_that_the_settings_omit(tmp_path, tiny_vocabulary, options):
    """Both ways: a manifest without them stands for their defaults."""
    (tmp_path / "text.txt").write_text("the red <url> fox.\n\nit was big.\n")
    tokenizers = [
        WordPieceTokenizer([*tiny_vocabulary, "<url>"]),
        WordPieceTokenizer([*tiny_vocabulary, "<url>"], **options),
    ]
    for writer, reader in (tokenizers, tokenizers[::-1]):
        folder = tmp_path / f"{writer is tokenizers[0]}"
        corpus = prepare_corpus(tmp_path / "text.txt", folder, writer)
        corpus.check_tokenizer(writer)
        with pytest.raises(ValueError, match=rf"with other options, {next(iter(options))}="):
            corpus.check_tokenizer(reader)


def test_a_manifest_that_is_cut_off_or_incomplete(folder):
    path = folder / manifest.FILE_NAME
    whole = path.read_text()
    for content in ("", whole[: len(whole) // 2]):
        path.write_text(content)
        with pytest.raises(ValueError, match=rf"a corpus must be JSON.*truncated.*ceived: {path}"):
            read_manifest(folder)
    path.write_text("[]")
    with pytest.raises(
        ValueError, match=rf"a corpus must.* contain a JSON object. Received: {path}"
    ):
        read_manifest(folder)
    for missing in ("splits", "token_dtype"):
        path.write_text(whole)
        edit(folder, lambda content, name=missing: content.pop(name))
        with pytest.raises(ValueError, match=rf"{path} is incomplete .*Received: .*{missing}"):
            read_manifest(folder)


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("shard", "file", None),
        ("shard", "file", "../elsewhere.tfrecord"),
        ("shard", "index", "/index.npy"),
        ("shard", "bytes", "104"),
        ("shard", "blocks", -1),
        ("shard", "tokens", True),
        ("manifest", "vocabulary_size", None),
        ("manifest", "token_dtype", None),
        ("manifest", "token_dtype", "string"),
        ("manifest", "settings", []),
    ],
)
def test_a_value_of_another_kind(folder, place, name, value):
    def change(content):
        shard = content["splits"]["train"]["shards"][0]
        (shard if place == "shard" else content)[name] = value

    edit(folder, change)
    with pytest.raises(ValueError, match=rf"was changed: .*Received: TypeError: {name} = "):
        read_manifest(folder)


def test_an_index_that_is_cut_off_empty_or_missing(folder):
    path = records.index_path(shard(folder))
    size = os.path.getsize(path)
    for kept in (size - 8, 20, 0):
        os.truncate(path, kept)
        with pytest.raises(
            ValueError, match=rf"{path} is truncated.*2 rows.*Received: {kept} bytes"
        ):
            read_manifest(folder).index()
    os.remove(path)
    with pytest.raises(FileNotFoundError, match=rf"{path} is listed in the manifest"):
        read_manifest(folder).index()


def test_another_kind_or_preparation_of_text(tmp_path):
    (tmp_path / "text.txt").write_text("the red fox.\n\nit was big.\n")
    lines = ["the red fox was big, it was."] * 9
    model = train_unigram(lines, 40)
    tokenizer = UnigramTokenizer(model)
    corpus = prepare_corpus(tmp_path / "text.txt", tmp_path / "shards", tokenizer)
    corpus.check_tokenizer(UnigramTokenizer(model, special_tokens_in_text=True))
    with pytest.raises(ValueError, match=r"options, lowercase=True; .*Received: lowercase=False"):
        corpus.check_tokenizer(UnigramTokenizer(model, lowercase=False))
    with pytest.raises(
        ValueError, match=r"by a UnigramTokenizer; .*Received: a WordPieceTokenizer"
    ):
        corpus.check_tokenizer(WordPieceTokenizer(train_wordpiece(lines, 60)))
