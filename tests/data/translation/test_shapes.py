"""The plan of shapes: few of them, little padding, every pair in one place."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from kbert.data.tables.bucketing import BUCKET
from kbert.data.translation.shapes import plan_batches


def random_lengths(count=20_000, seed=0):
    """Like those of a corpus: sources of about 25 tokens, targets about as long."""
    rng = np.random.default_rng(seed)
    source = np.clip(np.exp(rng.normal(3.2, 0.6, count)), 2, 250).astype(int)
    target = np.clip(source * np.exp(rng.normal(0, 0.2, count)), 2, 250).astype(int)
    return source, target


def plan_of(lengths, **options):
    return plan_batches(*lengths, **{"max_tokens": 4096, "max_length": 256, **options})


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(1, 30)), min_size=1, max_size=200),
    st.integers(1, 3),
    st.integers(1, 12),
)
def test_batches_hold_every_pair_once_and_are_wide_enough(lengths, multiple, num_shapes):
    source, target = np.array(lengths).T
    plan = plan_of(
        (source, target),
        max_tokens=100,
        max_length=30,
        row_multiple=multiple,
        num_shapes=num_shapes,
    )
    assert 1 <= len(set(plan.shapes)) == len(plan.shapes) <= num_shapes
    assert sorted(plan.layout) == list(range(len(lengths)))
    assert plan.batch_pairs.min() > 0
    order = np.argsort(plan.parts, kind="stable")[plan.layout]
    ends = np.cumsum(plan.batch_pairs)
    for number, pairs in enumerate(np.split(order, ends[:-1])):
        shape = plan.shapes[plan.batch_shapes[number]]
        assert source[pairs].max() <= shape.source
        assert target[pairs].max() <= shape.target
        assert len(pairs) <= shape.rows
        assert shape.rows % multiple == 0
        assert shape.rows * max(shape[:2]) <= 100
    assert set(plan.batch_shapes) == set(range(len(plan.shapes)))
    assert plan.pair_tokens == source.sum() + target.sum()
    assert 0 <= plan.padding < 1


def test_little_padding_in_few_shapes():
    lengths = random_lengths()
    paddings = [plan_of(lengths, num_shapes=n).padding for n in (1, 8, 24, 64)]
    assert paddings == sorted(paddings, reverse=True)
    assert paddings[0] > 0.8
    assert paddings[2] < 0.18
    assert paddings[3] < 0.12
    plan = plan_of(lengths)
    rows = np.array([shape.rows for shape in plan.shapes])[plan.batch_shapes]
    # Hardly a batch is filled up with empty rows.
    assert np.sum(plan.batch_pairs < rows) <= 6
    assert len(rows) > 150


def test_few_pairs_make_few_batches():
    plan = plan_of(random_lengths(count=300))
    tokens = plan.pair_tokens / 2
    assert len(plan.batch_shapes) <= 2 * tokens / 4096 + 2


def test_widths_are_steps_up_to_the_longest():
    plan = plan_of((np.array([1, 5, 30]), np.array([4, 9, 30])), max_length=30, max_tokens=64)
    assert [shape[:2] for shape in plan.shapes][-1] == (30, 30)
    assert all(width % BUCKET == 0 or width == 30 for shape in plan.shapes for width in shape[:2])


@pytest.mark.parametrize("scale", [1, 3])
def test_the_plan_depends_on_nothing_but_lengths(scale):
    lengths = random_lengths(2000)
    again = plan_of([side.copy() for side in lengths], max_tokens=1024 * scale)
    plan = plan_of(lengths, max_tokens=1024 * scale)
    assert plan.shapes == again.shapes
    for name in ("parts", "layout", "batch_shapes", "batch_pairs"):
        np.testing.assert_array_equal(getattr(plan, name), getattr(again, name))
