"""A masked share that changes over the run: a function of the batch's number, and of nothing else.

Every batch of a schedule equals the batch of the same place in a stream of that constant share.
"""

import numpy as np
import pytest

from kbert.data.masking.schemes import MASKING_SCHEMES
from tests.data.pretraining.test_dataset import (  # noqa: F401  # fixtures
    assert_equal,
    corpus,
    small,
    tokenizer,
)

STEPS, BEGIN, END = 20, 0.3, 0.15
SCHEDULE = {"masked_share": BEGIN, "final_masked_share": END, "share_steps": STEPS}


def batches(dataset, take):
    return list(dataset.take(take).as_numpy_iterator())


@pytest.fixture(scope="module")
def whole(corpus, tokenizer):  # noqa: F811
    return batches(small(corpus, tokenizer, **SCHEDULE), 24)


@pytest.fixture(scope="module")
def at_the_end(corpus, tokenizer):  # noqa: F811
    """Batches of the share at which the schedule ends."""
    return batches(small(corpus, tokenizer, masked_share=END), STEPS + 1)


def share(number):
    return BEGIN + (END - BEGIN) * min(number, STEPS) / STEPS


def test_each_batch_is_that_of_its_share(corpus, tokenizer, whole, at_the_end):  # noqa: F811
    counts = [batch["mask_weights"].sum() for batch in whole]
    falling = batches(small(corpus, tokenizer, masked_share=share(7)), 8)
    assert share(20) == END
    for number, lone in ((7, falling[7]), (20, at_the_end[20])):
        here = whole[number]
        assert here["mask_positions"].shape == (12, 11)  # of the largest share
        used = lone["mask_weights"].shape[1]
        for name in lone:
            cut = here[name][:, :used] if name.startswith("mask_") else here[name]
            np.testing.assert_array_equal(cut, lone[name], err_msg=name)
        assert not here["mask_weights"][:, used:].any()
    assert counts[0] > 1.7 * counts[23]


def test_the_share_falls_as_it_is_said(whole):
    lengths = np.array([batch["padding_mask"].sum() for batch in whole])
    found = np.array([batch["mask_weights"].sum() for batch in whole]) / lengths
    expected = np.array([share(number) for number in range(len(whole))])
    # Short rows predict a token at least, and rounding is to whole tokens.
    assert np.abs(found - expected).max() < 0.04
    assert abs(np.mean(found - expected)) < 0.01


@pytest.mark.parametrize("pack", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize("number", [pytest.param(1, marks=pytest.mark.slow), 13])
def test_a_stream_resumes_with_the_share_it_had(corpus, tokenizer, number, pack):  # noqa: F811
    before = batches(small(corpus, tokenizer, pack=pack, **SCHEDULE), number + 5)
    again = small(
        *(corpus, tokenizer),
        pack=pack,
        start=before[number - 1]["position"],
        first_step=number,
        **SCHEDULE,
    )
    for one, other in zip(before[number:], batches(again, 5), strict=True):
        assert_equal(one, other)


@pytest.mark.slow
def test_hosts_and_threads_change_nothing(corpus, tokenizer, whole):  # noqa: F811
    hosts = [
        batches(small(corpus, tokenizer, num_hosts=2, host_index=n, threads=n + 1, **SCHEDULE), 15)
        for n in range(2)
    ]
    for number in range(15):
        parts = [host[number] for host in hosts]
        joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        assert_equal(whole[number], joined)


@pytest.mark.parametrize(
    "masking",
    [
        pytest.param(name, marks=[] if name == "span" else pytest.mark.slow)
        for name in MASKING_SCHEMES
        if name != "phrase"
    ],
)
def test_every_scheme_takes_a_schedule(corpus, tokenizer, masking):  # noqa: F811
    found = batches(small(corpus, tokenizer, masking=masking, **SCHEDULE), 21)
    first, last = (found[n]["mask_weights"].sum() for n in (0, 20))
    assert first > 1.5 * last


@pytest.mark.slow
def test_packed_rows_are_the_same_at_every_share(corpus, tokenizer):  # noqa: F811
    found = batches(small(corpus, tokenizer, pack=True, **SCHEDULE), 22)
    steady = batches(small(corpus, tokenizer, pack=True, masked_share=BEGIN), 22)
    for one, other in zip(found, steady, strict=True):
        for name in ("example_ids", "segment_ids", "next_sentence_labels", "position"):
            np.testing.assert_array_equal(one[name], other[name])
    assert_equal(found[0], steady[0])
    assert found[21]["mask_weights"].sum() < 0.6 * steady[21]["mask_weights"].sum()


def test_a_share_that_stays_is_a_stream_without_a_schedule(
    corpus,  # noqa: F811
    tokenizer,  # noqa: F811
    at_the_end,
):
    steady = {"masked_share": END, "final_masked_share": END, "share_steps": 3}
    scheduled = batches(small(corpus, tokenizer, **steady), 10)
    for one, other in zip(scheduled, at_the_end[:10], strict=True):
        assert_equal(one, other)


def test_what_does_not_fit_is_refused(corpus, tokenizer):  # noqa: F811
    with pytest.raises(ValueError, match=r"pass both or neither.*final_masked_share=0.1"):
        small(corpus, tokenizer, final_masked_share=0.1)
    with pytest.raises(ValueError, match=r"leave out `final_masked_share`.*static_masks=2"):
        small(corpus, tokenizer, static_masks=2, **SCHEDULE)
    with pytest.raises(ValueError, match=r"`first_step` must not be negative. Received: -1"):
        small(corpus, tokenizer, first_step=-1)
