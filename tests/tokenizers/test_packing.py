import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from kbert.core.ragged import Ragged
from kbert.tokenizers.packing import build_inputs

CLS, SEP, PAD = 2, 3, 0
SPECIALS = {"cls_id": CLS, "sep_id": SEP, "pad_id": PAD}


def ragged(rows):
    return tf.RaggedTensor.from_row_lengths(
        tf.constant([i for row in rows for i in row], tf.int32), [len(row) for row in rows]
    )


def truncate_pair(a, b, budget):
    """run_classifier.py's loop, token by token."""
    a, b = list(a), list(b)
    while len(a) + len(b) > budget:
        (a if len(a) > len(b) else b).pop()
    return a, b


def expected(a, b, max_length):
    if b is None:
        row = [CLS, *a[: max_length - 2], SEP]
        return row, [0] * len(row)
    a, b = truncate_pair(a, b, max_length - 3)
    return [CLS, *a, SEP, *b, SEP], [0] * (len(a) + 2) + [1] * (len(b) + 1)


def check(batch, rows, multiple, max_length):
    longest = max([len(r) for r, _ in rows], default=2)
    width = min(-(-longest // multiple) * multiple, max_length)
    for name in ("token_ids", "segment_ids", "padding_mask"):
        assert batch[name].dtype == tf.int32
    for i, (tokens, segments) in enumerate(rows):
        fill = [0] * (width - len(tokens))
        assert batch["token_ids"][i].numpy().tolist() == tokens + fill
        assert batch["segment_ids"][i].numpy().tolist() == segments + fill
        assert batch["padding_mask"][i].numpy().tolist() == [1] * len(tokens) + fill


ids = st.lists(st.integers(5, 99), max_size=12)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(ids, ids), max_size=4), st.booleans(), st.integers(3, 20))
def test_equals_the_loop(pairs, two, max_length):
    first = ragged([a for a, _ in pairs])
    second = ragged([b for _, b in pairs]) if two else None
    batch = build_inputs(first, second, **SPECIALS, max_length=max_length, multiple=4)
    rows = [expected(a, b if two else None, max_length) for a, b in pairs]
    if rows:
        check(batch, rows, 4, max_length)
    else:
        assert batch["token_ids"].shape == (0, min(4, max_length))


def test_lecture_segments():
    # "I have a pen" / "The pen is red": six zeros, five ones.
    batch = build_inputs(
        ragged([[5, 6, 7, 8]]), ragged([[9, 8, 10, 11]]), **SPECIALS, max_length=512
    )
    assert batch["token_ids"].shape == (1, 16)
    assert batch["segment_ids"][0].numpy().tolist()[:11] == [0] * 6 + [1] * 5
    assert batch["padding_mask"].numpy().sum() == 11


def test_width_is_rounded_but_never_exceeds_the_limit():
    rows = ragged([[9] * 40])
    assert build_inputs(rows, **SPECIALS, max_length=512)["token_ids"].shape == (1, 48)
    assert build_inputs(rows, **SPECIALS, max_length=45)["token_ids"].shape == (1, 45)
    assert build_inputs(rows, **SPECIALS, max_length=20)["token_ids"][0, -1] == SEP


def test_same_in_tf_data():
    rows = [([5, 6], [7]), ([], []), ([8] * 30, [9] * 3)]
    first, second = ragged([a for a, _ in rows]), ragged([b for _, b in rows])
    eager = build_inputs(first, second, **SPECIALS, max_length=24)
    dataset = tf.data.Dataset.from_tensors((first, second))
    graph = next(iter(dataset.map(lambda a, b: build_inputs(a, b, **SPECIALS, max_length=24))))
    for name in eager:
        np.testing.assert_array_equal(eager[name], graph[name])


def test_only_core_operations():
    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32)] * 2)
    def packed(a, b):
        return build_inputs(a, b, **SPECIALS, max_length=24)

    graph = packed.get_concrete_function().graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    assert not [n.op for n in nodes if ">" in n.op]


def test_no_room_for_the_special_tokens():
    with pytest.raises(ValueError, match=r"at least 3 .*Received: max_length=2"):
        build_inputs(ragged([[1]]), ragged([[1]]), **SPECIALS, max_length=2)


def test_two_separators_stand_between_segments_alone():
    first, second = ragged([[7, 8], [5] * 9]), ragged([[9], [6] * 9])
    batch = build_inputs(first, second, **SPECIALS, max_length=12, multiple=1, separators=2)
    assert batch["token_ids"].numpy().tolist() == [
        [2, 7, 8, 3, 3, 9, 3, 0, 0, 0, 0, 0],
        [2, 5, 5, 5, 5, 3, 3, 6, 6, 6, 6, 3],
    ]
    assert batch["segment_ids"][0].numpy().tolist() == [0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0]
    assert batch["padding_mask"][0].numpy().sum() == 7
    single = build_inputs(first, **SPECIALS, max_length=12, multiple=1, separators=2)
    assert single["token_ids"][0, :4].numpy().tolist() == [2, 7, 8, 3]
    with pytest.raises(ValueError, match=r"max_length must be at least 4.*Received: max_length=3"):
        build_inputs(first, second, **SPECIALS, max_length=3, separators=2)


def test_pairs_with_one_text_missing():
    ids = tf.ragged.constant([[7], [8]], dtype=tf.int32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Every pair must have two texts"):
        build_inputs(ids, ids[:1], cls_id=2, sep_id=3, pad_id=0, max_length=8)


@pytest.mark.parametrize("two", [False, True], ids=["texts", "pairs"])
def test_a_token_of_several_numbers_is_packed_as_one_of_one(two):
    """As ELMo's words, of which each is a row of characters."""
    table = np.random.default_rng(0).integers(0, 262, (100, 7)).astype("int32")
    first, second = ragged([[5, 6, 7], [], [8] * 30]), ragged([[9], [10], [11] * 9])
    texts = [first, second] if two else [first]
    numbers = build_inputs(*texts, **SPECIALS, max_length=24)
    vectors = {name: table[token] for name, token in SPECIALS.items()}
    texts = [ids.with_flat_values(tf.gather(table, ids.flat_values)) for ids in texts]
    batch = build_inputs(*texts, **vectors, max_length=24)
    np.testing.assert_array_equal(batch["token_ids"], table[numbers.pop("token_ids")])
    for name, x in numbers.items():
        np.testing.assert_array_equal(batch[name], x)


def test_a_token_of_its_own_ends_a_row():
    first, second = ragged([[7, 8], []]), ragged([[9], [5, 6, 7, 8]])
    options = {**SPECIALS, "last_id": 4, "max_length": 6, "multiple": 1}
    single, pair = build_inputs(first, **options), build_inputs(first, second, **options)
    assert single["token_ids"].numpy().tolist() == [[CLS, 7, 8, 4], [CLS, 4, PAD, PAD]]
    assert pair["token_ids"].numpy().tolist() == [[CLS, 7, 8, SEP, 9, 4], [CLS, SEP, 5, 6, 7, 4]]
    usual = build_inputs(first, second, **{**options, "last_id": None})
    for name in ("segment_ids", "padding_mask"):
        np.testing.assert_array_equal(pair[name], usual[name])


def test_texts_alone_without_special_tokens():
    bare = {"cls_id": None, "sep_id": None, "pad_id": 0, "multiple": 4}
    first, second = ragged([[5, 6, 7], [], [8]]), ragged([[9], [], [5, 6, 7, 8]])
    batch = build_inputs(first, max_length=8, **bare)
    assert batch["token_ids"].numpy().tolist() == [[5, 6, 7, 0], [0, 0, 0, 0], [8, 0, 0, 0]]
    assert batch["padding_mask"].numpy().sum(1).tolist() == [3, 0, 1]
    assert not batch["segment_ids"].numpy().any()
    batch = build_inputs(first, second, max_length=4, **bare)
    assert batch["token_ids"].numpy().tolist() == [[5, 6, 7, 9], [0, 0, 0, 0], [8, 5, 6, 7]]
    assert batch["segment_ids"].numpy().tolist() == [[0, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1]]
    assert build_inputs(ragged([[5, 6, 7]]), max_length=2, **bare)[
        "token_ids"
    ].numpy().tolist() == [[5, 6]]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.lists(st.tuples(ids, ids), max_size=4),
    is_pair=st.booleans(),
    max_length=st.integers(5, 24),
    multiple=st.sampled_from([1, 4, 16]),
    separators=st.sampled_from([1, 2]),
    last=st.sampled_from(["sep", "own", "cls last", "alone"]),
)
def test_arrays_are_what_tensors_are(rows, is_pair, max_length, multiple, separators, last):
    """Of a `Ragged` the same batch, in NumPy."""
    options = {**SPECIALS, "separators": separators, "max_length": max_length, "multiple": multiple}
    options |= {"own": {"last_id": 4}, "cls last": {"cls_last": True}}.get(last, {})
    if last == "alone":
        options |= {"cls_id": None, "sep_id": None}
    columns = [[row[i] for row in rows] for i in range(1 + is_pair)]
    wanted = build_inputs(*map(ragged, columns), **options)
    found = build_inputs(*map(Ragged.of, columns), **options)
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        assert found[name].dtype == np.int32
        np.testing.assert_array_equal(found[name], values, err_msg=name)


def test_arrays_of_pairs_without_a_second_text_are_refused():
    with pytest.raises(ValueError, match=r"two texts.* Received: 2 and 1"):
        build_inputs(Ragged.of([[5], [6]]), Ragged.of([[7]]), **SPECIALS, max_length=9)
