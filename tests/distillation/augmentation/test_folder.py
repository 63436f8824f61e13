import json

import pytest

from kbert.data import Table
from kbert.distillation.augmentation import (
    AugmentationSettings,
    Augmenter,
    augment,
    read_augmented,
    write_augmented,
)

SETTINGS = {"copies": 4, "candidates": 3}


@pytest.fixture(scope="module")
def table():
    texts = [f"the {a} fox and the {b}" for a in ("red", "big", "old") for b in ("dog", "cat")]
    return Table({"id": list("abcdef"), "text": texts, "label": ["x", "y"] * 3})


@pytest.fixture(scope="module")
def made(table, model):
    return Augmenter(table, model, AugmentationSettings(**SETTINGS))


def content(folder):
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.jsonl")))


def test_shards_hold_the_same_lines_whatever_their_number(made, table, model, tmp_path):
    manifests = {n: write_augmented(tmp_path / str(n), made, shards=n) for n in (1, 4, 6)}
    assert len({content(tmp_path / str(n)) for n in manifests}) == 1
    assert sorted(path.name for path in (tmp_path / "4").iterdir()) == [
        *(f"augmented-0000{n}-of-00004.jsonl" for n in range(4)),
        "manifest.json",
    ]
    whole = augment(table, model, **SETTINGS)
    read = read_augmented(tmp_path / "4")
    assert read.columns == whole.columns
    assert list(read.columns) == ["id", "text", "label"]
    counts = manifests[4]["counts"]
    assert counts == {"rows": 6, "copies": len(whole) - 6, "lines": len(whole)}
    assert read.place(0).endswith("augmented-00000-of-00004.jsonl, line 1")
    again = augment(table, model, tmp_path / "4", shards=4, **SETTINGS)  # finished: read
    assert again.columns == whole.columns


def test_it_resumes_where_it_was_interrupted(made, tmp_path, monkeypatch):
    write_augmented(tmp_path / "whole", made, shards=3)
    broken = tmp_path / "broken"
    versions = Augmenter.versions

    def interrupted(self, row):
        if row.number == 3:
            raise KeyboardInterrupt
        return versions(self, row)

    with monkeypatch.context() as patch:
        patch.setattr(Augmenter, "versions", interrupted)
        with pytest.raises(KeyboardInterrupt):
            write_augmented(broken, made, shards=3)
    first = broken / "augmented-00000-of-00003.jsonl"
    assert sorted(path.name for path in broken.iterdir()) == [first.name, "manifest.json"]
    assert json.loads((broken / "manifest.json").read_text())["finished"] is False
    with pytest.raises(ValueError, match=r"must be complete to be read.*the same command again"):
        read_augmented(broken)
    # What a killed process leaves.
    (broken / "augmented-00001-of-00003.jsonl.writing-1").write_text('{"text": "the r')
    before = first.stat().st_mtime_ns
    write_augmented(broken, made, shards=3)
    assert first.stat().st_mtime_ns == before
    for name in ("manifest.json", *(path.name for path in broken.glob("*.jsonl"))):
        assert (broken / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert len(list(broken.iterdir())) == 4
    monkeypatch.setattr(Augmenter, "rows", None)  # a finished folder is only read
    assert write_augmented(broken, made, shards=3)["finished"]


def test_a_folder_of_something_else_is_refused(made, table, model, tmp_path):
    write_augmented(tmp_path, made, shards=2)
    changed = AugmentationSettings(**{**SETTINGS, "copies": 5}, seed=7)
    other = Augmenter(table, model, changed, stop_words={"red"})
    with pytest.raises(
        ValueError, match=r"other settings.*copies was 4, is 5; settings.seed was 0"
    ):
        write_augmented(tmp_path, other, shards=2)
    with pytest.raises(ValueError, match="shards was 2, is 3"):
        write_augmented(tmp_path, made, shards=3)
    rows = Augmenter(table.take([0, 1]), model, AugmentationSettings(**SETTINGS))
    with pytest.raises(ValueError, match=r"data was '6 rows, checksum .*, is '2 rows"):
        write_augmented(tmp_path, rows, shards=2)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").touch()
    with pytest.raises(ValueError, match=r"thesis already exists without manifest.json"):
        write_augmented(tmp_path / "thesis", made)
    with pytest.raises(ValueError, match=r"between 1 and 6 .* Received: shards=7"):
        write_augmented(tmp_path / "many", made, shards=7)


def test_damaged_folders_are_told(made, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"No manifest.json in the folder"):
        read_augmented(tmp_path)
    folder = tmp_path / "out"
    write_augmented(folder, made, shards=2)
    shard = folder / "augmented-00001-of-00002.jsonl"
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-9])
    with pytest.raises(ValueError, match=f"00001-of-00002.jsonl is truncated.*{len(whole)} bytes"):
        read_augmented(folder)
    shard.unlink()
    with pytest.raises(FileNotFoundError, match="is named in the manifest but does not exist"):
        read_augmented(folder)
    manifest = json.loads((folder / "manifest.json").read_text())
    (folder / "manifest.json").write_text(json.dumps({**manifest, "format_version": 2}))
    with pytest.raises(ValueError, match=r"format_version must be 1. Received: 2"):
        read_augmented(folder)


def test_values_that_json_cannot_hold(model, tmp_path):
    made = Augmenter(Table({"text": ["a fox"], "when": [object()]}), model)
    with pytest.raises(ValueError, match="row 0 of the data: columns must be texts, numbers"):
        write_augmented(tmp_path / "out", made)
