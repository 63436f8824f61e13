"""A path with a scheme does what the same path of this machine does, errors included."""

import ast
import gzip
import os
import pathlib
import uuid

import numpy as np
import pytest

from kbert.io import atomic, paths
from kbert.io.paths import Path, RemotePath, cache_folder
from tests.processes import ROOT


@pytest.fixture(params=["local", "ram"])
def folder(request, tmp_path, monkeypatch):
    """An empty folder of this machine, and one of TensorFlow's file system in memory."""
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    if request.param == "local":
        path = Path(tmp_path, "folder")
    else:
        path = Path(f"ram://{uuid.uuid4().hex}/folder")
    path.mkdir(parents=True)
    return path


def names(folder) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_local_path_is_that_of_pathlib():
    assert type(Path("a", "b")) is type(pathlib.Path("a", "b"))
    assert Path("a/b", "c") == pathlib.Path("a/b/c")


@pytest.mark.parametrize("base", ["/b/a", "gs://b/a"])
def test_parts_of_a_path(base):
    path = Path(base, "x.tar.gz")
    assert os.fspath(path) == f"{path}" == f"{base}/x.tar.gz"
    assert (path.name, path.stem, path.suffix) == ("x.tar.gz", "x.tar", ".gz")
    assert path.parent == Path(base) == Path(f"{base}/")
    assert path.with_suffix(".json") == Path(base) / "x.tar.json"
    assert path.resolve() == path
    assert paths.absolute(path) == str(path)
    assert sorted({Path(base) / "2", Path(base) / "1", Path(base) / "1"}) == [
        Path(base) / "1",
        Path(base) / "2",
    ]
    assert Path(path) == path


def test_what_pathlib_has_spoilt_is_refused():
    for use in (Path, paths.exists, paths.is_dir, paths.is_file):
        with pytest.raises(ValueError, match=r"two slashes.*Received: 'gs:/bucket/a'"):
            use(pathlib.Path("gs://bucket/a"))


def test_what_is_there(folder):
    (folder / "deep" / "er").mkdir(parents=True)
    (folder / "deep" / "er" / "a.txt").write_bytes(b"abc")
    (folder / "b.txt").write_bytes(b"")
    assert names(folder) == ["b.txt", "deep"]
    for path, there, is_file in [
        (folder / "b.txt", True, True),
        (folder / "deep", True, False),
        (folder / "none", False, False),
    ]:
        assert (path.exists(), path.is_file(), path.is_dir()) == (there, is_file, there > is_file)
        assert paths.exists(path) == there
        assert (paths.is_file(path), paths.is_dir(path)) == (is_file, there > is_file)
    assert (folder / "deep" / "er" / "a.txt").stat().st_size == 3
    assert (folder / "b.txt").stat().st_size == 0
    assert [path.name for path in folder.glob("*.txt")] == ["b.txt"]
    assert [path.name for path in folder.glob("*/*/*.txt")] == ["a.txt"]
    assert sorted(path.name for path in folder.rglob("*.txt")) == ["a.txt", "b.txt"]
    assert list((folder / "none").glob("*")) == list((folder / "none").rglob("*")) == []
    assert paths.glob(f"{folder}/*.txt") == [f"{folder}/b.txt"]


def test_a_folder_that_can_be_made(folder):
    (folder / "a.txt").write_text("x")
    for path in (folder, folder / "new" / "one"):
        paths.check_folder(path)
    with pytest.raises(NotADirectoryError, match=r"must be a folder.*Received: the file .*a\.txt"):
        paths.check_folder(folder / "a.txt")


def test_a_folder_below_a_file(tmp_path):
    (tmp_path / "a").write_text("x")
    with pytest.raises(NotADirectoryError, match=r"a/b/c must be .*Received: the file .*/a$"):
        paths.check_folder(tmp_path / "a" / "b" / "c")


def test_content(folder):
    path = folder / "a.txt"
    path.write_text("é\r\nz", encoding="utf-8")
    assert path.read_bytes() == "é\r\nz".encode()
    assert path.read_text(encoding="utf-8") == "é\nz"
    with path.open("a", encoding="utf-8") as file:
        file.writelines(["!\n", "?\n"])
    with path.open(encoding="utf-8", newline="") as file:
        assert list(file) == ["é\r\n", "z!\n", "?\n"]
    with path.open("rb") as file:
        assert file.read(2) == "é".encode()
        assert file.tell() == 2
        file.seek(-2, os.SEEK_END)
        assert file.read() == b"?\n"


def test_other_libraries_read_and_write_open_files(folder):
    with (folder / "a.npy").open("wb") as file:
        np.save(file, np.arange(5))
    with (folder / "a.npy").open("rb") as file:
        assert np.load(file).tolist() == [0, 1, 2, 3, 4]
    text = b"a line\n" * 1_000_000  # several buffers
    with (folder / "a.gz").open("wb") as file, gzip.open(file, "wb") as packed:
        packed.write(text)
    with (folder / "a.gz").open("rb") as file, gzip.open(file) as unpacked:
        assert unpacked.read() == text


def test_errors(folder):
    missing = folder / "none"
    for act in (
        lambda: missing.open("rb"),
        missing.read_text,
        missing.stat,
        missing.unlink,
        lambda: list(missing.iterdir()),
        lambda: missing.replace(folder / "b"),
    ):
        with pytest.raises(FileNotFoundError, match="none"):
            act()
    missing.unlink(missing_ok=True)
    paths.remove_tree(missing)
    with pytest.raises(FileExistsError):
        folder.mkdir(exist_ok=False)
    with atomic.writing(folder / "a") as file:
        file.write(b"a")
    with pytest.raises(OSError, match="not empty"):
        folder.rmdir()


def test_a_scheme_that_nobody_registered():
    with pytest.raises(OSError, match=r"scheme 'nobody' not implemented.*nobody://a"):
        Path("nobody://a").exists()
    with pytest.raises(OSError, match="scheme 'nobody' not implemented"):
        atomic.write("nobody://a/b", b"")


def test_moving_and_removing(folder):
    (folder / "a").write_bytes(b"a")
    (folder / "b").write_bytes(b"b")
    (folder / "a").replace(folder / "b")
    assert names(folder) == ["b"]
    assert (folder / "b").read_bytes() == b"a"
    paths.copy(folder / "b", folder / "c")
    (folder / "deep").mkdir()
    (folder / "deep" / "d").write_bytes(b"d")
    # Not "folder-2": ram:// lists what begins with the name of a folder as if it lay in it.
    other = folder.parent / "other"
    paths.copy_tree(folder, other)
    assert names(other) == ["b", "c", "deep"]
    assert (other / "deep" / "d").read_bytes() == b"d"
    paths.remove_tree(other)
    assert not other.exists()


def test_a_local_copy(folder):
    (folder / "a.npy").write_bytes(b"")
    with (folder / "a.npy").open("wb") as file:
        np.save(file, np.arange(5))
    with paths.local_copy(folder / "a.npy") as path:
        mapped = np.load(path, mmap_mode="r")
        assert os.path.basename(path) == "a.npy"
    assert mapped.tolist() == [0, 1, 2, 3, 4]
    assert os.path.exists(path) == (not paths.is_remote(folder))


def test_refused():
    with pytest.raises(
        ValueError, match=r"`\*\*` is supported in local patterns only.*'ram://a/\*\*/b'"
    ):
        paths.glob("ram://a/**/b")
    assert paths.local_only("a/b", "A page") == "a/b"


def test_files_appear_whole(folder):
    path = folder / "a"
    atomic.write(path, b"one, ", memoryview(b"two"))
    with pytest.raises(TypeError), atomic.writing(path) as file:
        file.writelines([b"half", None])
    assert path.read_bytes() == b"one, two"
    assert names(folder) == ["a"]


def test_files_that_belong_together(folder, monkeypatch):
    weights, config, old = folder / "weights", folder / "config", folder / "old"
    old.write_bytes(b"old")
    atomic.write_together({weights: b"1", config: b"1"})
    done = []
    for kind in {type(folder), RemotePath}:
        replace = kind.replace
        monkeypatch.setattr(
            kind,
            "replace",
            lambda path, to, replace=replace: (
                done.append((names(folder), os.path.basename(to))),
                replace(path, to),
            ),
        )
    atomic.write_together({weights: b"2", config: b"2"}, obsolete=[old])
    assert [to for _, to in done] == ["weights", "config"]
    # When the first is renamed, the one that readers look for is away, and the obsolete one too.
    assert not {"config", "old"} & set(done[0][0])
    assert weights.read_bytes() == config.read_bytes() == b"2"
    assert names(folder) == ["config", "weights"]


def test_leftovers(folder):
    Path(atomic.temporary_name(str(folder / "b"))).write_bytes(b"half")
    atomic.remove_leftovers(str(folder))
    assert names(folder) == []


def test_one_process_of_this_machine(folder):
    error = f"Received: {folder}/run, in use by process {os.getpid()}"
    with (
        atomic.refusing_others(folder / "run"),
        pytest.raises(RuntimeError, match=error),
        atomic.refusing_others(folder / "run"),
    ):
        pass
    with atomic.only_one(folder / "run"):
        pass
    assert (folder / "run").is_dir()
    stand_in = atomic.stand_in(str(folder))
    assert paths.is_remote(folder) == stand_in.startswith(cache_folder())


# What opens files of this machine alone: it makes them, maps them into memory or locks them.
LOCAL = {
    "kbert/io/atomic.py",  # locks, and bytes on the disk
    "kbert/serve/demo/assets.py",  # files of the package
    "kbert/doctor.py",  # /proc, /sys, /dev
    "kbert/io/paths.py",
    "kbert/checkpoints/pytorch/file.py",  # a memory map of a local copy
    "kbert/data/corpus/spill.py",  # memory maps, in `atomic.stand_in`
    "kbert/distillation/cache/store.py",  # memory maps, refused elsewhere
    "kbert/extraction/files.py",  # files that grow, refused elsewhere
    "kbert/extraction/write.py",
    "kbert/hub/archive.py",  # the cache folder
    "kbert/hub/snapshot.py",
    "kbert/core/late.py",  # modules
    "kbert/core/registry.py",
    "kbert/io/arrays.py",  # maps a local copy
    "kbert/io/outputs.py",  # files that grow, refused elsewhere
    "kbert/export/folder.py",  # likewise
    "kbert/export/litert.py",  # in a folder that was made here
    "kbert/export/onnx/text.py",  # likewise
    "kbert/export/savedmodel/write.py",  # a folder that is renamed at once
    "kbert/export/text_graphs.py",  # a folder that was made here
    "kbert/export/task.py",  # a folder that was made here
    "kbert/export/tensorflow_copy.py",  # modules
    "kbert/text/documentation.py",  # what Python has installed
    "kbert/tokenizers/unigram/model.py",  # in a folder that was made here
    "kbert/training/run/log.py",  # cuts a local file where another is written again
    "kbert/visualization/attention_page.py",  # files of the package
    "pipelines/answering.py",  # /dev
    "pipelines/quiet.py",  # /dev
    "kbert/word_vectors/fasttext.py",  # memory maps, refused elsewhere
}
CALLS = {
    *("open", "np.memmap", "np.fromfile", "glob.glob", "shutil.rmtree", "shutil.copytree"),
    *(f"os.path.{x}" for x in "exists isfile isdir getsize abspath realpath".split()),
    *(f"os.{x}" for x in "open stat listdir walk makedirs mkdir rmdir remove unlink".split()),
    *("os.rename", "os.replace", "os.truncate"),
}


def local_uses(source: str) -> list[str]:
    """Calls that take a path with a scheme for a local one, and pathlib's Path."""
    nodes = list(ast.walk(ast.parse(source)))
    calls = [ast.unparse(node.func) for node in nodes if isinstance(node, ast.Call)]
    imports = [node.module for node in nodes if isinstance(node, ast.ImportFrom)]
    return sorted({*calls, *filter(None, imports)} & {*CALLS, "pathlib"})


def test_one_module_knows_schemes():
    found = {
        str(path.relative_to(ROOT)): uses
        for folder in ("kbert", "pipelines")
        for path in (ROOT / folder).rglob("*.py")
        if (uses := local_uses(path.read_text(encoding="utf-8")))
    }
    assert {name: uses for name, uses in found.items() if name not in LOCAL} == {}
    assert {*found} == LOCAL  # none that needs no exception any more


def test_a_local_use_would_be_found():
    source = "from pathlib import Path\nimport os\nos.path.exists(open('a').read())"
    assert local_uses(source) == ["open", "os.path.exists", "pathlib"]


def test_the_cache_follows_xdg(monkeypatch):
    monkeypatch.delenv("KBERT_CACHE", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    assert cache_folder() == "/somewhere/kbert"


def test_kbert_s_own_variable_goes_first(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere")
    monkeypatch.setenv("KBERT_CACHE", "/elsewhere")
    assert cache_folder() == "/elsewhere"
