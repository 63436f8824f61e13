import hypothesis
import hypothesis.strategies as st
import numpy as np
import tensorflow as tf

from kbert.data.tables.windows import pair_windows, text_windows, window_counts
from kbert.tokenizers.packing import build_inputs

TEXTS = st.lists(st.integers(0, 30), min_size=1, max_size=6)
SETTINGS = hypothesis.settings(max_examples=40, deadline=None)


def ragged(lengths, first_id=100):
    """Every token another id, so that each can be found again."""
    ids = tf.range(first_id, first_id + sum(lengths))
    return tf.RaggedTensor.from_row_lengths(ids, tf.constant(lengths, tf.int64))


@SETTINGS
@hypothesis.given(TEXTS, st.integers(1, 12), st.integers(1, 15))
def test_windows_hold_every_token_in_order(lengths, budget, stride):
    ids = ragged(lengths)
    windows, counts = text_windows(ids, budget, stride)
    assert counts.numpy().tolist() == window_counts(lengths, budget, stride).numpy().tolist()
    windows = iter(windows.to_list())
    for row, count in zip(ids.to_list(), counts.numpy(), strict=True):
        parts = [next(windows) for _ in range(count)]
        step = min(stride, budget)
        assert parts == [row[i * step : i * step + budget] for i in range(count)]
        assert parts[-1] == row[-len(parts[-1]) :] if row else parts == [[]]
        assert count == 1 or (count - 1) * step + budget >= len(row) > (count - 2) * step + budget
    assert next(windows, None) is None


@SETTINGS
@hypothesis.given(TEXTS, st.integers(2, 16), st.integers(1, 20), st.randoms())
def test_pairs_slide_over_the_longer_text(lengths, budget, stride, random):
    others = [random.randrange(30) for _ in lengths]
    first, second = ragged(lengths), ragged(others, 1000)
    a, b, counts = pair_windows(first, second, budget, stride)
    rows = zip(first.to_list(), second.to_list(), counts.numpy(), strict=True)
    pairs = iter(zip(a.to_list(), b.to_list(), strict=True))
    for one, two, count in rows:
        parts = [next(pairs) for _ in range(count)]
        assert all(len(x) + len(y) <= budget for x, y in parts)
        longer, shorter = (0, 1) if len(one) > len(two) else (1, 0)
        whole = (one, two)
        seen = {token for part in parts for token in part[longer]}
        assert seen == set(whole[longer])  # nothing of the longer text is passed over
        kept = parts[0][shorter]
        assert all(part[shorter] == kept for part in parts)
        half = budget - budget // 2 if shorter == 0 else budget // 2
        assert kept == whole[shorter] or len(kept) == half
        assert (count == 1) == (len(one) + len(two) <= budget) or len(kept) < len(whole[shorter])
    assert next(pairs, None) is None


def test_the_first_window_of_a_pair_is_what_truncation_leaves():
    first, second = ragged([9, 2, 8, 0]), ragged([3, 12, 8, 20], 1000)
    options = {"cls_id": 1, "sep_id": 2, "pad_id": 0, "max_length": 13, "multiple": 1}
    cut = build_inputs(first, second, **options)["token_ids"].numpy()
    a, b, counts = pair_windows(first, second, budget=10, doc_stride=3)
    windows = build_inputs(a, b, **options)["token_ids"].numpy()
    firsts = np.cumsum([0, *counts.numpy()[:-1]])
    np.testing.assert_array_equal(windows[firsts], cut)


def test_in_a_graph_and_without_texts():
    spec = tf.RaggedTensorSpec([None, None], tf.int32)
    graph = tf.function(lambda x: text_windows(x, 3, 2)[0], input_signature=[spec])
    assert graph(ragged([5])).to_list() == [[100, 101, 102], [102, 103, 104]]
    assert graph(ragged([5])[:0]).to_list() == []
