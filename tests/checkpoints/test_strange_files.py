"""Files of every format, damaged in many ways: what was there is read, or one line says why not."""

import json
import shutil

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.tasks import Task
from kbert.tokenizers import load_tokenizer
from tests.checkpoints.folders import WRITERS


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Format -> a folder of it, whole."""
    base = tmp_path_factory.mktemp("whole")
    for name, write in WRITERS.items():
        write(base / name)
    return base


FORMATS = tuple(WRITERS)


def files_of(folder):
    return sorted(p.name for p in folder.iterdir())


def load(folder):
    return read_checkpoint(folder), load_tokenizer(folder)


# Files that only tokenizers are made of; the others are the model's.
OF_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")


def assert_same(found, wanted):
    (checkpoint, tokenizer), (whole, its_tokenizer) = found, wanted
    assert checkpoint.config == whole.config
    assert checkpoint.labels == whole.labels
    assert checkpoint.arrays.keys() == whole.arrays.keys()
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
    assert tokenizer.get_config() == its_tokenizer.get_config()


def refusal(folder, file=None):
    """The message with which a folder is refused; None where it loads. Of one file, if it is."""
    loaders = {None: load, True: load_tokenizer, False: read_checkpoint}
    try:
        loaders[None if file is None else file in OF_TOKENIZERS](folder)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return None


def assert_clear(message, folder, file):
    assert "Received: " in message
    assert str(folder) in message, message
    assert len(message.splitlines()) == 1 or "do not fit the model" in message
    assert len(message) < 1500, f"{file}: {message[:300]}"


@pytest.fixture
def copy_of(folders, tmp_path):
    def make(name):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        return shutil.copytree(folders / name, tmp_path / name)

    return make


BROKEN = {
    "empty": b"",
    "a null byte": b"\0",
    "no UTF-8": b"\xff\xfe{}",
    "nested brackets": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "a long number": b'{"hidden_size": ' + b"9" * 100_000 + b"}",
    "a list": b"[]",
    "cut short": b'{"hidden_size": 3',
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("damage", BROKEN)
def test_json_that_is_none_is_refused_with_its_name(copy_of, name, damage):
    folder = copy_of(name)
    for file in files_of(folder):
        if not file.endswith(".json"):
            continue
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(BROKEN[damage])
        message = refusal(folder)
        assert message is not None, f"{file} was taken"
        assert_clear(message, folder, file)
        assert file in message
        (folder / file).write_bytes(whole)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_file_is_none(copy_of, name):
    """A folder in its place, a link to itself, a link to nothing: as if it were missing."""
    folder = copy_of(name)
    for file in files_of(folder):
        path, kept = folder / file, folder.parent / "kept"
        path.rename(kept)
        missing = refusal(folder)
        for target in (None, path, folder / "nowhere"):
            path.mkdir() if target is None else path.symlink_to(target)
            message = refusal(folder)
            assert (message is None) == (missing is None), f"{file}: {message}"
            if message is not None:
                assert_clear(message, folder, file)
            path.rmdir() if target is None else path.unlink()
        kept.rename(path)


@pytest.mark.parametrize("name", FORMATS)
def test_marks_and_ends_of_lines_of_other_systems(copy_of, folders, name):
    """A byte order mark before JSON and vocabularies, and lines that end as in Windows."""
    folder, wanted = copy_of(name), load(folders / name)
    for file in files_of(folder):
        if file.endswith((".json", ".txt")):
            whole = (folder / file).read_bytes()
            (folder / file).write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n"))
    assert_same(load(folder), wanted)


VALUES = (None, True, -1, 0, 10**30, float("nan"), float("inf"), "maybe", [], {}, [[]], ["a"])


def places(content, path=()):
    """Where a value stands: keys from the outermost to its own."""
    for key, value in content.items():
        yield (*path, key)
        if isinstance(value, dict) and len(path) < 2:
            yield from places(value, (*path, key))


def changed(content, place, value):
    key, *rest = place
    return {**content, key: changed(content[key], rest, value) if rest else value}


@pytest.mark.parametrize("name", FORMATS)
def test_values_of_another_kind(copy_of, name):
    """Each value of each JSON file in turn: the model is still one, or the message is clear."""
    folder = copy_of(name)
    for file in files_of(folder):
        if not file.endswith(".json") or file == "vocab.json":
            continue
        whole = (folder / file).read_text()
        content = json.loads(whole)
        for place in places(content):
            for value in VALUES:
                (folder / file).write_text(json.dumps(changed(content, place, value)))
                try:
                    message = refusal(folder, file)
                except Exception as error:
                    raise AssertionError(f"{file}: {place} = {value!r}: {error!r}") from error
                if message is not None:
                    assert_clear(message, folder, f"{file}: {place} = {value!r}")
        (folder / file).write_text(whole)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": None}, "must have a `kind`. Received: none in"),
        ({"oc_stride": 3}, "must be arguments of TextClassifier: .*'oc_stride' Received:"),
    ],
)
def test_a_task_with_strange_settings(copy_of, changes, message):
    folder = copy_of("kbert")
    content = json.loads((folder / "kbert.json").read_text())
    content["task"].update(changes)
    (folder / "kbert.json").write_text(json.dumps(content))
    with pytest.raises(ValueError, match=rf"{message} {folder}"):
        Task.from_preset(folder)


@pytest.mark.parametrize("name", FORMATS)
def test_files_cut_short_or_with_bytes_between(copy_of, folders, name):
    """Weights and vocabularies: refused, or the very same arrays."""
    folder, wanted = copy_of(name), load(folders / name)
    for file in files_of(folder):
        if file.endswith((".json", ".txt")) or file == "checkpoint":
            continue
        whole = (folder / file).read_bytes()
        for share in (0, 1, 8, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            (folder / file).write_bytes(whole[:share])
            message = refusal(folder)
            assert message is not None, f"{file}: {share} of {len(whole)} bytes were taken"
            assert_clear(message, folder, file)
        (folder / file).write_bytes(whole)
    assert_same(load(folder), wanted)
