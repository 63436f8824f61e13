"""Names of classes: each has one, folders of the version before have others, files are imported."""

import sys

import pytest

from kbert.core import late, registry


def test_a_name_belongs_to_one_class_and_a_cell_may_run_twice():
    def cell():
        class Thing: ...

        Thing.__module__, Thing.__qualname__ = "__main__", "Thing"
        return Thing

    first, again = cell(), cell()
    registry.register("test part", "thing", first)
    registry.register("test part", "thing", again)
    assert registry.find("test part", "thing") is again
    taken = r"'thing' is already registered for __main__.Thing. Received: .*pytest"
    with pytest.raises(ValueError, match=taken):
        registry.register("test part", "thing", pytest.Item)
    assert registry.find("test part", "thing") is again
    assert registry.names("test part") == ["thing"]
    with pytest.raises(ValueError, match=r"A test part must be one of thing. Received: 'think'"):
        registry.get("test part", "think")
    assert registry.find("no such sort", "thing") is None


def test_names_of_the_version_before():
    before = {"kind": "QuestionAnswerer", "doc_stride": 128, "n_best": 20}
    assert registry.current(before) == {**before, "kind": "answer"}
    assert registry.current({}) == {}


def test_modules_by_file_and_by_name(tmp_path, monkeypatch):
    path = tmp_path / "kbert_test_module.py"
    path.write_text("import dataclasses\n@dataclasses.dataclass\nclass A:\n    x: int = 1\n")
    module = late.user_module(str(path))
    assert sys.modules["kbert_test_module"] is module is late.user_module(str(path))
    other = tmp_path / "other" / "kbert_test_module.py"
    other.parent.mkdir()
    other.write_text("")
    with pytest.raises(ValueError, match="must not be that of another module"):
        late.user_module(str(other))
    monkeypatch.delitem(sys.modules, "kbert_test_module")
    with pytest.raises(FileNotFoundError, match=r"No such file.*missing.py"):
        late.user_module(str(tmp_path / "missing.py"))
    with pytest.raises(ValueError, match=r"named as in an import.*'kbert_test_module'"):
        late.user_module("kbert_test_module")
    monkeypatch.syspath_prepend(tmp_path)
    assert late.user_module("kbert_test_module").A().x == 1
    monkeypatch.delitem(sys.modules, "kbert_test_module")
    path.write_text("raise RuntimeError('broken')")
    with pytest.raises(RuntimeError, match="broken"):
        late.user_module(str(path))
    assert "kbert_test_module" not in sys.modules
