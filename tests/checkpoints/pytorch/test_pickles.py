"""Pickles of weights: what they name is never looked up, and what they ask for is small."""

import argparse
import collections
import copyreg
import os
import pickle
import tracemalloc

import pytest

from kbert.checkpoints.pytorch.pickles import Record, read_pickle

PLAIN = {"a": [1, -(2**31), 2**40, 1.5, None, True, False], "b": (), "c": ((1,), (1, 2), (1, 2, 3))}


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_plain_values_are_those_of_python(protocol):
    value = PLAIN | {"d": b"bytes", "long": "é" * 300, "again": PLAIN["a"]}
    if protocol == 2:
        del value["d"]  # bytes are a call of a codec there
    content = pickle.dumps(value, protocol)
    found = read_pickle(content + b"more", "memory")
    assert found.value == value
    assert found.length == len(content)
    assert found.value["again"] is found.value["a"]


def test_what_python_2_wrote():
    # {"é": ["x"]}, as its cPickle wrote texts: in one byte of length, and in four.
    content = b"\x80\x02}q\x00U\x02\xc3\xa9q\x01]q\x02T\x01\x00\x00\x00xas."
    assert read_pickle(content, "memory").value == {"é": ["x"]}
    with pytest.raises(ValueError, match=r"a text that is not UTF-8.*Received: byte 2 of memory"):
        read_pickle(b"\x80\x02U\x01\xff.", "memory")


def test_dicts_in_order_and_settings_are_inert():
    ordered = collections.OrderedDict([("b", 1), ("a", 2)])
    ordered._metadata = {"version": 1}  # as state_dict() has it
    value = {"args": argparse.Namespace(layers=2), "model": ordered}
    found = read_pickle(pickle.dumps(value, 2), "memory").value
    assert type(found["model"]) is dict
    assert list(found["model"].items()) == [("b", 1), ("a", 2)]
    assert found["args"] == Record("argparse.Namespace", {"layers": 2})


class Reduced:
    """Whose unpickling makes a file."""

    def __init__(self, function, *arguments):
        self.told = (function, arguments)

    def __reduce__(self):
        return self.told


def protocols(value):
    return [pickle.dumps(value, protocol) for protocol in range(6)]


def test_no_code_is_run(tmp_path, monkeypatch):
    """Names by every opcode that gives one: each refused by its name, and nothing made."""
    made = tmp_path / "made"
    text = f"open({str(made)!r}, 'w')"
    evil = [
        *protocols(Reduced(eval, text)),
        *protocols(Reduced(os.mkdir, str(made))),
        *protocols({"weight": [Reduced(exec, text)]}),
        *protocols(collections.OrderedDict(a=Reduced(os.system, f"touch {made}"))),
        f"(S'touch {made}'\nios\nsystem\n.".encode(),  # INST
        f"(cos\nsystem\nS'touch {made}'\no.".encode(),  # OBJ
        b"\x80\x02\x82\x01(X\x04\x00\x00\x00timetR.",  # EXT1
        b"\x80\x04\x8c\x05posix\x8c\x06system\x93\x8c\x01x\x85R.",
        b"ctorch._utils\n_rebuild_tensor_v2.__globals__\n.",
        b"ctorch\nload\n(X\x01\x00\x00\x00xtR.",
        b"ckbert.checkpoints.pytorch.pickles\nGlobal\n.",
    ]
    monkeypatch.setitem(copyreg._inverted_registry, 1, ("os", "mkdir"))
    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, None)
    for content in evil:
        with pytest.raises(ValueError, match=r"only.*Received: .* at byte [\d,]+ of memory"):
            read_pickle(content, "memory")
    assert not made.exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"cos\nsystem\n.", "nothing else is looked up.*Received: os.system at byte 0 of memory"),
        (b"\x80\x02N(\x81.", "a value is missing"),
        (b"\x80\x02I1\n.", "plain containers. Received: INT at byte 2 of memory"),
        (b"", r"truncated or not one of weights .*Received: byte 0 of memory"),
        (b"\x80\x02N", "pickle exhausted before seeing STOP"),
        (b"\x80\x02.", "more or less than one value"),
        (b"\x80\x02NN.", "more or less than one value"),
        (b"\x80\x02(.", "more or less than one value"),
        (b"\x80\x02h\x07.", "value 7, to be repeated, is missing.*Received: byte 2 of memory"),
        (b"\x80\x02t.", "a mark is missing"),
        (b"\x80\x02a.", "a value is missing"),
        (b"\x80\x02N(a.", "a value is missing"),
        (b"\x80\x02NNa.", "what is appended to is None"),
        (b"\x80\x02}(Nu.", "a key without a value"),
        (b"\x80\x02})Ns.", "the key of a dict is a tuple"),
        (b"\x80\x02NNs.", "a value is missing"),
        (b"\x80\x02NNNs.", "what gets items is None"),
        (b"\x80\x02N)R.", "what is called is None"),
        (b"ctorch\nFloatStorage\n)R.", "a call of torch.FloatStorage"),
        (b"ctorch\nSize\n)R.", "torch.Size with 0 arguments"),
        (b"ctorch\nSize\nN\x85R.", "a shape is None"),
        (b"ccollections\nOrderedDict\nN\x85R.", "the content of a dict is None"),
        (b"ccollections\nOrderedDict\n]Na\x85R.", "the content of a dict is not pairs"),
        (b"\x80\x02NNb.", "what gets attributes is None"),
        (b"\x80\x02NQ.", "a storage's description is None"),
        (b"\x80\x02X\x06\x00\x00\x00module\x85Q.", "a persistent id that is not a storage's"),
        (b"\x80\x02\x8a\x11" + b"\x7f" * 17 + b".", "more than 128 bits"),
        (b"\x80\x02\x8b\x01\x00\x00\x00\x01.", "Received: LONG4"),
        (b"\x80\x02X\xff\xff\xff\x7fx.", "expected 2147483647 bytes"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"x.", "damaged"),
        (b"\x80\x05\x96\x01" + b"\x00" * 7 + b"x.", "Received: BYTEARRAY8"),
    ],
)
def test_what_is_no_pickle_of_weights(content, message):
    with pytest.raises(ValueError, match=message):
        read_pickle(content, "memory")


STORAGE = (
    b"(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x06t"
)
BUILT = b"ctorch._utils\n_rebuild_tensor_v2\n(%bQ%bNN\x89NtR."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (BUILT % (STORAGE, b"K\x00"), "a tensor's shape or strides is None"),
        (b"ctorch._utils\n_rebuild_tensor_v2\n(NK\x00))\x89NtR.", "a tensor's storage is None"),
        (b"ctorch._utils\n_rebuild_parameter\nNNN\x87R.", "a parameter's data is None"),
        (STORAGE.replace(b"FloatStorage", b"float32") + b"Q.", "a storage's class is torch.float3"),
        (STORAGE.replace(b"K\x06", b"\x88") + b"Q.", "a storage's lengths are not sizes"),
        (STORAGE.replace(b"K\x06", b"J\xff\xff\xff\xff") + b"Q.", "lengths are not sizes"),
        (STORAGE.replace(b"K\x06", b"K\x06K\x01\x85") + b"Q.", "not a key, start and length"),
        (
            STORAGE + b"Q" + STORAGE.replace(b"FloatStorage", b"LongStorage") + b"Q.",
            "storage '0' has two types or lengths",
        ),
        (STORAGE.replace(b"X\x01\x00\x00\x000", b"K\x00") + b"Q.", "a storage's key is 0"),
    ],
)
def test_tensors_that_are_none(content, message):
    with pytest.raises(ValueError, match=message):
        read_pickle(content, "memory")


@pytest.mark.parametrize(
    ("offset", "shape", "strides", "message"),
    [
        (b"J\xff\xff\xff\xff", b")", b")", "are not sizes"),
        (b"K\x00", b"\x88\x85", b"K\x01\x85", "are not sizes"),
        (b"K\x00", b"K\x02\x85", b"J\xff\xff\xff\xff\x85", "are not sizes"),
        (b"K\x00", b"K\x02\x85", b")", "have different lengths"),
        (b"K\x00", b"N", b")", "shape or strides is None"),
        (b"K\x00", b"(%bt" % (b"K\x01" * 33), b"(%bt" % (b"K\x01" * 33), "more than 32 axes"),
    ],
)
def test_shapes_that_are_none(offset, shape, strides, message):
    content = b"ctorch._utils\n_rebuild_tensor_v2\n(" + STORAGE + b"Q" + offset + shape + strides
    with pytest.raises(ValueError, match=message):
        read_pickle(content + b"\x89NtR.", "memory")


@pytest.mark.parametrize(
    "content",
    [
        b"\x80\x02" + b")" + b"\x85" * 50_000 + b".",  # a tuple in a tuple in …
        b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        b"\x80\x02]q\x00" + b"h\x00a" * 50_000 + b".",  # a list of itself
        # 2 ** 20_000 leaves for whoever walks them.
        b"\x80\x02)" + b"q\x00h\x00\x86" * 20_000 + b".",
    ],
)
def test_nesting_costs_what_it_is_long(content):
    tracemalloc.start()
    try:
        assert read_pickle(content, "memory").length == len(content)
        assert tracemalloc.get_traced_memory()[1] < 200e6
    finally:
        tracemalloc.stop()


def test_longer_than_any_pickle_of_weights():
    with pytest.raises(ValueError, match="more opcodes than any file of weights has"):
        read_pickle(b"\x80\x02" + b"}" * (1 << 21) + b".", "memory")


def test_one_text_of_gigabytes_is_not_read():
    content = b"\x80\x02X" + (1 << 24).to_bytes(4, "little") + bytes(1 << 24) + b"."
    with pytest.raises(ValueError, match=r"damaged.*longer than those of weights"):
        read_pickle(content, "memory")
