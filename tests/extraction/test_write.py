"""Files of features: equal to those in memory, and the same bytes after a kill at any chunk."""

import json
import os

import numpy as np
import pytest

from kbert.edit import adapters
from kbert.extraction import features, read_features, write_features
from tests.extraction.conftest import PAIRS, TEXTS
from tests.harness import assert_close


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr("kbert.extraction.write._TEXTS", 2)


def write(path, encoder, tokenizer, texts=TEXTS, **settings):
    return write_features(path, encoder, tokenizer, texts, verbose=0, **settings)


@pytest.mark.parametrize("texts", [TEXTS, PAIRS], ids=["texts", "pairs"])
def test_an_array(encoder, tokenizer, tmp_path, texts):
    path = tmp_path / "all.npy"
    assert write(path, encoder, tokenizer, texts, layers="sum_all") == len(texts)
    expected = features(encoder, tokenizer, texts, layers="sum_all")
    found = read_features(path)
    assert isinstance(found, np.memmap)
    assert found.dtype == np.float32
    assert_close(found, expected, 1e-5)
    assert os.listdir(tmp_path) == ["all.npy"]


def test_half_the_bytes(encoder, tokenizer, tmp_path):
    write(tmp_path / "half.npy", encoder, tokenizer, dtype="float16")
    found = np.load(tmp_path / "half.npy")
    assert found.dtype == np.float16
    assert_close(found, features(encoder, tokenizer, TEXTS).astype("float16"), 5e-3)


@pytest.mark.parametrize("settings", [{"pooling": None}, {"words": True}])
def test_vectors_of_tokens(encoder, tokenizer, tmp_path, settings):
    write(tmp_path / "tokens.npy", encoder, tokenizer, **settings)
    expected = features(encoder, tokenizer, TEXTS, **settings)
    found = read_features(tmp_path / "tokens.npy")
    assert len(found) == len(TEXTS)
    assert [len(x) for x in found] == [len(x) for x in expected]
    for ours, row in zip(found, expected, strict=True):
        assert_close(ours, row, 1e-5)
    np.testing.assert_array_equal(found[-1], found[len(TEXTS) - 1])
    with pytest.raises(IndexError, match="6 of 6 texts"):
        found[6]


@pytest.mark.parametrize("pooling", ["mean", None])
def test_records(encoder, tokenizer, tmp_path, pooling):
    write(tmp_path / "all.tfrecord", encoder, tokenizer, pooling=pooling)
    found = list(read_features(tmp_path / "all.tfrecord").as_numpy_iterator())
    for ours, row in zip(found, features(encoder, tokenizer, TEXTS, pooling=pooling), strict=True):
        assert_close(ours, row, 1e-5)


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        pytest.param("a.npy", "mean", marks=pytest.mark.slow),  # tokens have a file more
        *(("a.npy", None), ("a.tfrecord", None)),
    ],
)
@pytest.mark.parametrize("chunks", [pytest.param(0, marks=pytest.mark.slow), 2])
def test_a_killed_run_resumes_to_the_same_bytes(
    encoder, tokenizer, tmp_path, monkeypatch, name, pooling, chunks
):
    settings = {"pooling": pooling}
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole" / name, encoder, tokenizer, **settings)

    from kbert.extraction import extractor

    calls = []
    real = extractor.Extractor.__call__

    def dying(self, texts):
        calls.append(texts)
        if len(calls) > chunks:
            raise Killed
        return real(self, texts)

    monkeypatch.setattr(extractor.Extractor, "__call__", dying)
    path = tmp_path / "killed" / name
    path.parent.mkdir()
    with pytest.raises(Killed):
        write(path, encoder, tokenizer, **settings)
    assert not path.exists()
    with open(f"{path}.part", "ab") as part:
        part.write(b"a chunk that was not finished")
    monkeypatch.setattr(extractor.Extractor, "__call__", real)
    assert write(path, encoder, tokenizer, **settings) == len(TEXTS)
    names = sorted(os.listdir(path.parent))
    assert names == sorted(os.listdir(tmp_path / "whole"))
    for file in names:
        assert (path.parent / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


@pytest.mark.parametrize("renames", [1, 2])
def test_killed_while_the_finished_files_get_their_names(
    encoder, tokenizer, tmp_path, monkeypatch, renames
):
    (tmp_path / "whole").mkdir()
    write(tmp_path / "whole" / "a.npy", encoder, tokenizer, pooling=None)
    from kbert.io import atomic

    path, publish, remove, published = tmp_path / "a.npy", atomic.publish, atomic.remove, []

    def dying(temporary, name):
        if name.endswith(".npy"):
            if len(published) == renames:
                raise Killed
            published.append(name)
        publish(temporary, name)

    def keeping_the_note(name):
        if str(name).endswith("progress.json"):
            raise Killed
        remove(name)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "publish", dying)
        patch.setattr(atomic, "remove", keeping_the_note)
        with pytest.raises(Killed):
            write(path, encoder, tokenizer, pooling=None)
    if renames == 1:
        assert not path.exists()
        write(path, encoder, tokenizer, pooling=None)
    else:
        with pytest.raises(FileExistsError, match="already exists"):
            write(path, encoder, tokenizer, pooling=None)
    names = sorted(os.listdir(tmp_path / "whole"))
    assert sorted(x for x in os.listdir(tmp_path) if x != "whole") == names
    for name in names:
        assert (tmp_path / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_another_run_does_not_resume_the_file(encoder, tokenizer, tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(TypeError, match="Received: 3 as number 3"):
        write(path, encoder, tokenizer, ["a", "b", "c", 3])
    assert json.loads((tmp_path / "a.npy.progress.json").read_text())["records"] == 2
    with pytest.raises(ValueError, match=r"begun.layers was None, is .'sum_all'"):
        write(path, encoder, tokenizer, layers="sum_all")
    with pytest.raises(ValueError, match=r"another input.*Received: 1 records, but 2"):
        write(path, encoder, tokenizer, ["a"])


def test_another_adapter_does_not_resume_the_file(encoder, tokenizer, tmp_path):
    encoder = type(encoder)(encoder.config)
    for name in ("first", "second"):
        adapters.add(encoder, "lora", name=name, rank=2)
    path = tmp_path / "a.npy"
    with pytest.raises(TypeError, match="Received: 3 as number 3"):
        write(path, encoder, tokenizer, ["a", "b", "c", 3])
    adapters.activate(encoder, "first")
    with pytest.raises(ValueError, match=r"begun.adapters.running was 'second', is 'first'"):
        write(path, encoder, tokenizer, ["a", "b", "c"])
    adapters.activate(encoder, "second")
    assert write(path, encoder, tokenizer, ["a", "b", "c"]) == 3


def test_a_half_written_file_of_the_version_before_is_finished(encoder, tokenizer, tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(TypeError, match="Received: 3 as number 3"):
        write(path, encoder, tokenizer, ["a", "b", "c", 3], doc_stride=4)
    note = tmp_path / "a.npy.progress.json"
    state = json.loads(note.read_text())
    state["begun"]["stride"] = state["begun"].pop("doc_stride")
    note.write_text(json.dumps(state))
    with pytest.raises(ValueError, match=r"begun.doc_stride was '4', is '5'"):
        write(path, encoder, tokenizer, list("abcd"), doc_stride=5)
    assert write(path, encoder, tokenizer, list("abcd"), doc_stride=4) == 4


@pytest.mark.parametrize(
    ("texts", "settings", "message"),
    [
        (["a", "b", "c", 3], {}, "texts must be strings. Received: 3 as number 3"),
        (
            [("a", "b")] * 3 + [("a", 3)],
            {},
            "second texts must be .* 3 as number 3",
        ),
        ([("a", "b")] * 3 + [("a",)], {}, r"Received: \('a',\) as number 3"),
        ([["a"], ["b"], ["c"], "d"], {"words": True}, "Received: 'd' as number 3"),
        ([["a"], ["b"], ["c"], ["the"] * 90], {"words": True}, "90 tokens in text number 3"),
        (
            {"words": [["a"], ["b"], ["c"], ["the"] * 90]},
            {"words": True},
            "90 tokens in text number 3",
        ),
        ({"text": ["a", "b", "c", 3]}, {}, r"row 3 of the data: 'text' must .* Received: 3"),
        ([{"text": "a"}] * 3 + [{"body": "d"}], {}, r"row 3 of the data: every row must have"),
    ],
)
def test_a_bad_text_is_named_by_its_place_in_all(
    encoder, tokenizer, tmp_path, texts, settings, message
):
    path = tmp_path / "a.npy"
    for _ in range(2):  # a resumed run counts from the first text too
        with pytest.raises((TypeError, ValueError), match=message):
            write(path, encoder, tokenizer, texts, **settings)


def test_texts_of_files(encoder, tokenizer, tmp_path):
    (tmp_path / "a.txt").write_text("the fox\na dog\n\nthe lazy cat\n")
    (tmp_path / "b.jsonl").write_text('{"text": "a red pen"}\n{"text": "two\\ncats"}\n')
    sources = [tmp_path / "a.txt", tmp_path / "b.jsonl"]
    for unit, texts in (
        ("line", ["the fox", "a dog", "the lazy cat", "a red pen", "two", "cats"]),
        ("document", ["the fox\na dog", "the lazy cat", "a red pen", "two\ncats"]),
    ):
        path = tmp_path / f"{unit}.npy"
        write(path, encoder, tokenizer, None, sources=sources, unit=unit)
        assert_close(read_features(path), features(encoder, tokenizer, texts), 1e-5)


def test_what_cannot_be_written(encoder, tokenizer, tmp_path):
    path = tmp_path / "a.npy"
    with pytest.raises(ValueError, match=r"must end in .npy or .tfrecord"):
        write(tmp_path / "a.csv", encoder, tokenizer)
    with pytest.raises(ValueError, match="Received: both"):
        write(path, encoder, tokenizer, sources=["a.txt"])
    write(path, encoder, tokenizer, ["x"])
    with pytest.raises(FileExistsError, match="already exists"):
        write(path, encoder, tokenizer, ["x"])
    with pytest.raises(ValueError, match=r"must be .npy or .tfrecord"):
        read_features(tmp_path / "a.csv")
