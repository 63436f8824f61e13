"""Folders of strangers: time grows with the size of a file and not with its square."""

import json

import pytest

import kbert
from kbert.io.json_file import read_json
from kbert.io.paths import MAX_SETTINGS_BYTES
from kbert.tasks.fine_tuning.labels import Labels, thresholds_of
from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer, folder
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from kbert.tokenizers.lines import read_lines
from kbert.tokenizers.token_segments import check_added_tokens
from kbert.tokenizers.unigram.model import read_model


class Counted(str):
    """A string that counts how often it is compared or hashed."""

    __slots__ = ()
    count = 0

    def __hash__(self) -> int:
        Counted.count += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Counted.count += 1
        return super().__eq__(other)


@pytest.fixture(autouse=True)
def from_zero():
    Counted.count = 0


SIZE = 2000
MOST = 20 * SIZE  # looks at a name, of so many names; the square is 4,000,000


def test_labels():
    names = [Counted(f"l{i}") for i in range(SIZE)]
    labels = Labels(names)
    assert len(labels) == SIZE
    thresholds_of(names, dict.fromkeys(names, 0.5))
    with pytest.raises(ValueError, match=r"must be unique\. Received: \['l5'\] twice"):
        Labels([*names, Counted("l5")])
    assert Counted.count < MOST


def test_added_tokens_are_checked():
    names = [Counted(f"<{i}>") for i in range(SIZE)]
    check_added_tokens(names, [], names, names, None)
    assert Counted.count < MOST


@pytest.mark.parametrize("special", [False, True])
def test_added_tokens_of_a_folder(tmp_path, monkeypatch, special):
    pieces = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *CHARACTERS]
    names = [Counted(f"<x{i}>") for i in range(SIZE)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    added = [
        {"id": i, "content": piece, "special": True, **flags} for i, piece in enumerate(pieces[:5])
    ]
    ids = range(len(pieces), len(pieces) + SIZE)
    added += [
        {"id": i, "content": name, "special": special, **flags}
        for i, name in zip(ids, names, strict=True)
    ]
    words = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    model = {"type": "BPE", "vocab": {x: i for i, x in enumerate(pieces)}, "merges": []}
    content = {"version": "1.0", "added_tokens": added, "pre_tokenizer": words, "model": model}
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    settings = {"tokenizer_class": "RobertaTokenizer"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))

    def read(path):
        found = read_json(path)
        for entry in found.get("added_tokens", []):
            entry["content"] = Counted(entry["content"])
        return found

    monkeypatch.setattr(folder, "read_json", read)
    Counted.count = 0
    tokenizer = kbert.load_tokenizer(tmp_path)
    assert len(tokenizer.vocabulary) == len(pieces) + SIZE
    assert Counted.count < 3 * MOST


def test_added_tokens_of_a_wordpiece():
    names = [Counted(f"<{i}>") for i in range(SIZE)]
    chosen = dict.fromkeys(("normalized_tokens", "single_word_tokens", "added_pieces"), names)
    tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, *names], added_tokens=names, **chosen)
    entries = json.loads(tokenizer.tokenizer_json())["added_tokens"]
    assert all(entry["normalized"] and entry["single_word"] for entry in entries)
    assert Counted.count < 2 * MOST


@pytest.mark.parametrize(
    ("name", "read"),
    [("config.json", read_json), ("vocab.txt", read_lines), ("spiece.model", read_model)],
)
def test_a_file_that_takes_no_space(tmp_path, name, read):
    """It is not read: a sparse file may be larger than memory."""
    with open(tmp_path / name, "wb") as file:
        file.truncate(MAX_SETTINGS_BYTES + 1)
    with pytest.raises(ValueError, match=rf"bytes\. Received: {MAX_SETTINGS_BYTES + 1} in"):
        read(tmp_path / name)
