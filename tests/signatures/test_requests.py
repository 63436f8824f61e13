"""Requests of any size: computed in chunks, they have the answers of what is computed at once."""

import numpy as np
import pytest
import tensorflow as tf

from kbert.core.graphs import graph
from kbert.export import export_saved_model
from kbert.signatures import Signature, requests, text_tokens
from tests.export import session

pytestmark = pytest.mark.tensorflow

TEXT = [tf.TensorSpec([None], tf.string, "text")]
TEXTS = ["a b", "", "one two three four", "x", "a bcd e f g h", "b c", "word " * 30, "y z"] * 3


def split(text):
    """Outputs of every kind: strings, numbers and booleans, of one width and of several."""
    words = tf.strings.split(text)
    dense = words.to_tensor()
    cube = tf.strings.unicode_decode(words, "UTF-8").to_tensor()  # (n, words, characters)
    sizes = tf.strings.length(text)
    return {
        "words": dense,
        "is_word": dense != "",
        "characters": cube,
        "length": sizes,
        "pair": tf.stack([sizes, -sizes], 1),
        "chunk": tf.fill(tf.shape(sizes), tf.size(sizes)),
        "longest": tf.fill(tf.shape(sizes), tf.reduce_max(tf.pad(sizes, [[0, 1]]))),
    }


def ask(signature, *columns):
    run = graph(signature.function, autograph=False, input_signature=list(signature.inputs))
    return {name: x.numpy() for name, x in run(*map(tf.constant, columns)).items()}


def test_chunks_give_what_the_whole_gives(monkeypatch):
    entry = Signature(split, TEXT, text_tokens())
    whole = ask(entry, TEXTS)
    monkeypatch.setattr(requests, "TOKENS_AT_ONCE", 80)
    found = ask(requests.bounded(entry), TEXTS)
    sizes, longest = (found.pop(name) for name in ("chunk", "longest"))
    assert found.keys() == whole.keys() - {"chunk", "longest"}
    for name, x in found.items():
        assert x.dtype == whole[name].dtype
        np.testing.assert_array_equal(x, whole[name])
    # Each chunk is small, or one row; and long texts are with long ones.
    assert all(sizes * (longest + 16) <= 80 | (sizes == 1) * 10_000)
    assert sizes.max() > 2
    assert sizes[6] == 1
    assert (longest[whole["length"] == 0] < 8).all()


@pytest.mark.parametrize("rows", [0, 1])
def test_no_row_and_one(rows, monkeypatch):
    monkeypatch.setattr(requests, "TOKENS_AT_ONCE", 4)  # less than a row is
    entry = Signature(split, TEXT, text_tokens())
    texts = np.array(TEXTS[:rows], object)
    found = ask(requests.bounded(entry), tf.constant(texts, tf.string))
    for name, x in ask(entry, tf.constant(texts, tf.string)).items():
        np.testing.assert_array_equal(found[name], x)


def test_rows_know_their_number(monkeypatch):
    def number(text, row_numbers=None):
        return {"number": tf.range(tf.size(text)) if row_numbers is None else row_numbers}

    entry = requests.bounded(Signature(number, TEXT, text_tokens(), numbered=True))
    for most in (10_000, 40):
        monkeypatch.setattr(requests, "TOKENS_AT_ONCE", most)
        assert ask(entry, TEXTS)["number"].tolist() == list(range(len(TEXTS)))


@pytest.mark.parametrize(
    ("too_long", "found"),
    [
        ("cut", [b"abcd", b"ef", "é".encode() * 2]),
        ("cut_before", [b"bcde", b"ef", b"\xa9 \xc3\xa9"]),
    ],
)
def test_what_is_cut(too_long, found):
    entry = Signature(lambda text: {"text": text}, TEXT, text_tokens(), too_long)
    answer = ask(requests.bounded(entry, max_bytes=4), ["abcde", "ef", "éé é"])
    assert answer["text"].tolist() == found


def test_what_is_refused():
    rows = [tf.TensorSpec([None, None], tf.string, "words")]
    text = requests.bounded(Signature(lambda x: {"y": x}, TEXT, text_tokens()), 5)
    words = requests.bounded(Signature(lambda x: {"y": x}, rows, text_tokens()), 5)
    pair = [*TEXT, tf.TensorSpec([None], tf.string, "other")]
    pairs = requests.bounded(Signature(lambda x, y: {"y": x}, pair, text_tokens()), 5)
    assert ask(text, ["12345", ""])["y"].tolist() == [b"12345", b""]
    assert ask(words, [["12", "3"], ["", ""]])["y"].shape == (2, 2)
    for entry, columns, message in (
        (text, [["", "123456"]], r"text: a text must have at most 5 bytes.*\[6\] \[1\]"),
        (
            words,
            [[["12", "34"]]],
            r"words: the strings of a row together .*at most 5.*\[6\] \[0\]",
        ),
        (
            pairs,
            [["a", "b"], ["c"]],
            r"All inputs must have the same number of rows.*text, other:\] \[2\] \[1\]",
        ),
        (pairs, [["a"], ["much more"]], r"other: a text must have at most 5 bytes.*\[9\] \[0\]"),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            ask(entry, *columns)
    with pytest.raises(ValueError, match=r"`max_bytes` must be at least 1\. Received: max_bytes=0"):
        requests.bounded(text, max_bytes=0)
    with pytest.raises(ValueError, match=r"`too_long` must be one of refused, .*'cut_behind'"):
        Signature(split, TEXT, too_long="cut_behind")


def test_a_tensor_of_another_rank_is_refused(tmp_path, optimized):
    path = export_saved_model(tmp_path, {"split": Signature(split, TEXT, text_tokens())})
    (answer,) = session.ask(path, ("split", {"text": TEXTS}))
    assert answer["words"].shape == (24, 30)
    served = tf.saved_model.load(path).signatures["split"]
    # Called as a server calls it: without Python's own look at the shapes.
    for wrong, shape in ((tf.constant([["a"]]), r"\[1,1\]"), (tf.constant("a"), r"\[\]")):
        message = rf"Shape of tensor .*text.* {shape} is not compatible with expected shape \[\?\]"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            served._call_flat([wrong], served.captured_inputs)
