"""Output that grows: resumed of the same input with the same settings, or refused by name."""

import json
import os

import numpy as np
import pytest

from kbert.core.contexts import is_repeatable
from kbert.io.formats import Array, Format, JsonLines
from kbert.io.npy import HEADER_BYTES, read_npy
from kbert.io.outputs import GrowingOutput, Output, check_same, write_note

NUMBERS = [3, 0, 2, 5, 1, 4, 2]


class Killed(BaseException):
    """Stands for SIGKILL: nothing handles it."""


def lines(numbers):
    return [json.dumps({"square": n * n}) for n in numbers]


def vectors(numbers):
    return np.array([[n, -n] for n in numbers], "float32")


def ragged(numbers):
    return [np.full((n, 2), n, "float32") for n in numbers]


FORMS = {
    "lines": (lines, JsonLines),
    "vectors": (vectors, lambda: Array(2)),
    "halves": (vectors, lambda: Array(2, dtype="float16")),
    "ragged": (ragged, lambda: Array(2, ragged=True)),
}


def grow(path, form="lines", numbers=NUMBERS, dies_after=None, chunk=2, hidden=False, **identity):
    """The output of all numbers, written chunk by chunk."""
    made, kind = FORMS[form]
    output = GrowingOutput(path, {"form": form, **identity}, kind(), hidden=hidden)
    rest = list(output.rest(numbers, str))
    if output.finished:
        return output
    with output.growing():
        for start in range(0, len(rest), chunk):
            if dies_after is not None and output.records >= dies_after:
                raise Killed
            part = rest[start : start + chunk]
            output.add(made(part), part)
    return output


@pytest.mark.parametrize("hidden", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_killed_anywhere_the_bytes_are_the_same(tmp_path, form, hidden):
    (tmp_path / "whole").mkdir()
    assert grow(tmp_path / "whole" / "a", form, hidden=hidden).records == len(NUMBERS)
    whole = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    assert ("a.state.json" in whole) != hidden
    for dies_after in (0, 2, 4):
        folder = tmp_path / str(dies_after)
        folder.mkdir()
        with pytest.raises(Killed):
            grow(folder / "a", form, dies_after=dies_after, hidden=hidden)
        assert any(folder.iterdir()) == bool(dies_after)  # before the first record nothing is left
        for path in folder.iterdir():
            assert path.name.endswith(".part") == (hidden and "state" not in path.name)
            if "state" not in path.name:
                with path.open("ab") as file:
                    file.write(b"a chunk that was not finished")
        grow(folder / "a", form, hidden=hidden)
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == whole


def test_what_is_added_is_computed_alike_in_every_run(tmp_path):
    """A first batch without a graph has other last digits."""
    output = GrowingOutput(tmp_path / "a.jsonl", {}, JsonLines())
    rest = output.rest([1], str)
    with output.growing():
        assert is_repeatable()
        output.add(["1"], list(rest))
    assert not is_repeatable()


def test_arrays_are_numpy_s_when_they_are_whole(tmp_path):
    with pytest.raises(Killed):
        grow(tmp_path / "a", "ragged", dies_after=2)
    for name in ("a", "a.ends.npy"):
        with pytest.raises(ValueError, match="one complete array of numbers"):
            read_npy(tmp_path / name)
    grow(tmp_path / "a", "ragged")
    ends = read_npy(tmp_path / "a.ends.npy")
    assert ends.tolist() == np.cumsum(NUMBERS).tolist()
    assert read_npy(tmp_path / "a")[:, 1].tolist() == np.repeat(NUMBERS, NUMBERS).tolist()
    grow(tmp_path / "b", "halves")
    assert np.load(tmp_path / "b").dtype == np.float16
    assert (tmp_path / "b").stat().st_size == HEADER_BYTES + 2 * 2 * len(NUMBERS)


def test_killed_between_the_names_of_the_finished_files(tmp_path):
    with pytest.raises(Killed):
        grow(tmp_path / "a", "ragged", dies_after=4, hidden=True)
    os.replace(tmp_path / "a.ends.npy.part", tmp_path / "a.ends.npy")
    grow(tmp_path / "a", "ragged", hidden=True)
    assert len(read_npy(tmp_path / "a.ends.npy")) == len(NUMBERS)
    assert sorted(os.listdir(tmp_path)) == ["a", "a.ends.npy"]


@pytest.mark.parametrize(
    ("numbers", "received"),
    [
        ([3], "1 records, but 2 are already written"),
        ([3, 1, 2, 5], "other records among the first 2"),
    ],
)
@pytest.mark.parametrize("form", ["lines", "ragged"])
def test_another_input_is_refused(tmp_path, form, numbers, received):
    with pytest.raises(Killed):
        grow(tmp_path / "a", form, dies_after=2)
    with pytest.raises(
        ValueError,
        match=rf"made from another input .*and a.state.json to start over. Received: {received}",
    ):
        grow(tmp_path / "a", form, numbers=numbers)


def test_a_finished_output_is_of_all_its_input(tmp_path):
    grow(tmp_path / "a")
    before = (tmp_path / "a").read_bytes()
    assert grow(tmp_path / "a").finished
    with pytest.raises(ValueError, match="Received: more than 7 records"):
        grow(tmp_path / "a", numbers=[*NUMBERS, 9])
    assert (tmp_path / "a").read_bytes() == before
    (tmp_path / "a").write_bytes(before[:-1])
    with pytest.raises(ValueError, match=r"must have the 7 lines .*Received: 6"):
        grow(tmp_path / "a")


def test_an_input_without_records_has_an_empty_output(tmp_path):
    for _ in range(2):
        assert grow(tmp_path / "a", "vectors", numbers=[]).finished
    assert np.load(tmp_path / "a").shape == (0, 2)


def test_a_note_of_before_has_no_checksum(tmp_path):
    with pytest.raises(Killed):
        grow(tmp_path / "a", dies_after=4)
    note = tmp_path / "a.state.json"
    content = json.loads(note.read_text())
    del content["checksum"]
    note.write_text(json.dumps(content))
    assert grow(tmp_path / "a").records == len(NUMBERS)
    assert grow(tmp_path / "a").finished  # it has the checksum of all now


def test_a_file_that_has_lost_bytes_is_refused(tmp_path):
    with pytest.raises(Killed):
        grow(tmp_path / "a", "vectors", dies_after=4)
    with (tmp_path / "a").open("r+b") as file:
        file.truncate(HEADER_BYTES + 8)
    with pytest.raises(ValueError, match=r"must have the 160 bytes .*Received: 136"):
        grow(tmp_path / "a", "vectors")


def test_other_settings_are_named_with_both_values(tmp_path):
    with pytest.raises(Killed):
        grow(tmp_path / "a", dies_after=2, settings={"seed": 1, "words": None})
    grow(tmp_path / "b", settings={"seed": 1})
    for name in "ab":
        with pytest.raises(ValueError, match=r"Received: settings.seed was 1, is 2$"):
            grow(tmp_path / name, settings={"seed": 2})
    assert grow(tmp_path / "a", settings={"seed": 1}).finished


def test_values_are_compared_as_json_has_them_and_told_in_short():
    check_same("out", "note", {"shape": [2, 3]}, {"shape": (2, 3), "new": None})
    with pytest.raises(ValueError, match=r"sources was .'xxx.*xxx…, is") as error:
        check_same("out", "note", {"sources": ["x" * 500]}, {"sources": []})
    assert len(str(error.value)) < 400


def test_the_note_of_a_folder(tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "part.writing-1").touch()  # what a killed process has left counts as nothing
    Output(folder, {"seed": 1}, finished=False).save()
    (folder / "shard").touch()
    assert not Output(folder, {"seed": 1}).finished
    with pytest.raises(ValueError, match="seed was 1, is 2"):
        Output(folder, {"seed": 2})
    os.remove(tmp_path / "out.state.json")
    with pytest.raises(ValueError, match=r"out already exists without out.state.json"):
        Output(folder, {"seed": 1})


def test_an_output_that_is_gone_is_written_again(tmp_path):
    grow(tmp_path / "a")
    os.remove(tmp_path / "a")
    with pytest.warns(UserWarning, match="a no longer exists, but a.state.json lists 7 records"):
        assert grow(tmp_path / "a").records == len(NUMBERS)


def test_a_note_that_is_no_json(tmp_path):
    write_note(tmp_path / "a.state.json", {})
    (tmp_path / "a.state.json").write_text("{")
    with pytest.raises(ValueError, match="note of a must be JSON, as it was written"):
        grow(tmp_path / "a")


def test_a_format_defines_both():
    for call in (lambda form: form.encode([], [0]), lambda form: form.sizes(["a"], 1)):
        with pytest.raises(NotImplementedError, match="Format must define"):
            call(Format())
