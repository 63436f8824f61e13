"""Damaged files: each reader gives an answer or one clear error. `make fuzz` draws many more."""

import pytest

from kbert.core import late
from kbert.data import readers
from tests.fuzz.damage import apply
from tests.fuzz.readers import READERS, Reader
from tests.fuzz.run import examine, one_round, workplace

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("name", READERS)
def test_damaged(name):
    with workplace(READERS[name]) as folder:
        READERS[name].read(folder / "whole")
        one_round(READERS[name], folder, examples=8, number=0)


@pytest.mark.slow
@pytest.mark.parametrize("name", READERS)
def test_damaged_more(name):
    with workplace(READERS[name]) as folder:
        one_round(READERS[name], folder, examples=200, number=1)


def test_every_reader_is_there():
    modules = late.TABLE["checkpoint format"].values()
    formats = {module.split(".")[2] for module in modules} - {"preset"} | {"kbert"}
    assert {f"{name} folder" for name in formats} <= set(READERS)
    found = {name for name in readers.__all__ if name.startswith("read_")}
    found -= {"read_tfds"}  # tensorflow-datasets reads its files
    assert found == {name.split()[0] for name in READERS if name.startswith("read_")}


@pytest.mark.parametrize(
    ("edit", "damaged"),
    [
        (("replace", 1, b"xy"), b"axyd"),
        (("insert", 1, b"xy"), b"axybcd"),
        (("remove", 1, 2), b"ad"),
        (("repeat", 1, 2), b"abcbcbcd"),
        (("cut", 1, None), b"a"),
        (("flip", 0, 1), b"cbcd"),
        (("flip", 4, 1), b"abcd"),
        (("forget", 0, None), b""),
    ],
)
def test_edits(edit, damaged):
    assert apply(b"abcd", edit) == damaged


def test_edits_of_json():
    assert apply(b'{"a": [1, 2]}', ("value", 2, None)) == b'{"a": [1, null]}'
    assert apply(b'{"a": [1, 2]}', ("forget", 0, None)) == b"{}"


@pytest.mark.parametrize(
    ("read", "message"),
    [
        (lambda folder: {}["a"], "KeyError"),
        (
            lambda folder: int("a" * ((folder / "a").read_text() != "abc")),
            "refused without a message",
        ),
        (lambda folder: sum(range(10**7)), "s for a"),
    ],
)
def test_what_is_no_refusal_fails(read, message):
    def quiet(folder):
        try:
            return read(folder)
        except ValueError:
            raise ValueError from None

    reader = Reader(lambda folder: (folder / "a").write_text("abc"), quiet, seconds=0.01)
    with workplace(reader) as folder:
        with pytest.raises((KeyError, AssertionError)) as caught:
            examine(reader, folder, (0, [("cut", 1, None)]))
        assert message in repr(caught.value)
