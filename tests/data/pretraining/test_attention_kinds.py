"""UniLM's four kinds of rows: their layout, masks and shares, and the same rows in every way."""

import io
import re
import types

import numpy as np
import pytest

from kbert.data.pretraining.attention_kinds import KIND_OF_SEGMENT, KINDS
from kbert.data.pretraining.examples import show_examples
from tests.data.pretraining.test_dataset import (  # noqa: F401  # fixtures
    assert_equal,
    corpus,
    small,
    tokenizer,
)
from tests.packed import taken_apart

UNILM = {
    **{"segments": "consecutive", "masking": "token_ngram", "attention_shares": (2, 2, 1, 1)},
    "short_sequence_share": 0.0,
}
ALONE = {
    "bidirectional": (1, 0, 0, 0),
    "seq2seq": (0, 1, 0, 0),
    "left_to_right": (0, 0, 1, 0),
    "right_to_left": (0, 0, 0, 1),
}


def batches(corpus, tokenizer, take=8, **changes):  # noqa: F811
    dataset = small(corpus, tokenizer, **{**UNILM, **changes})
    return list(dataset.take(take).as_numpy_iterator())


def joined(found):
    return {name: np.concatenate([batch[name] for batch in found]) for name in found[0]}


def kinds_of(rows):
    """(N,) the kind of each row: that of its segments, which all tell the same."""
    table = np.array(KIND_OF_SEGMENT)
    for ids, mask in zip(rows["segment_ids"], rows["padding_mask"], strict=True):
        assert len({*table[ids[mask > 0]].tolist()}) <= 1
    return table[rows["segment_ids"].max(1)]


def seen_of(kind, length, source, width):
    """(T, T) what sees what in a row of `length` tokens, `source` of them before the target."""
    seen = np.zeros((width, width), bool)
    for query in range(length):
        for key in range(length):
            seen[query, key] = {
                "bidirectional": True,
                "left_to_right": key <= query,
                "right_to_left": key >= query,
                "seq2seq": key < source or source <= key <= query,
            }[KINDS[kind]]
    return seen


def seen_by_order(row):
    order, real = row["attention_order"], row["padding_mask"] > 0
    return (order[None] <= order[:, None]) & real[None] & real[:, None]


def test_the_order_is_the_mask_of_each_kind(corpus, tokenizer):  # noqa: F811
    rows = joined(batches(corpus, tokenizer))
    kinds = kinds_of(rows)
    assert {*kinds.tolist()} == {0, 1, 2, 3}
    for number, kind in enumerate(kinds):
        row = {name: x[number] for name, x in rows.items()}
        length = row["padding_mask"].sum()
        ids, segments = row["token_ids"], row["segment_ids"]
        second = np.flatnonzero((segments == (1 if kind == 0 else 5)) & (row["padding_mask"] > 0))
        source = second[0] if len(second) else length
        np.testing.assert_array_equal(seen_by_order(row), seen_of(kind, length, source, 32))
        separators = np.flatnonzero(ids == tokenizer.sep_id).tolist()
        assert ids[0] == tokenizer.cls_id
        assert separators == ([source - 1, length - 1] if len(second) else [length - 1])
        if KINDS[kind] == "seq2seq":
            assert len(second) > 0
            assert segments[0] == 4
        elif kind > 1:
            assert {*segments[:length].tolist()} == {kind}
        assert not row["attention_order"][length:].any()
        assert not segments[length:].any()


def test_the_text_is_that_without_kinds(corpus, tokenizer):  # noqa: F811
    """All kinds have the text of the same plan, and every token once in an epoch."""
    plain = joined(batches(corpus, tokenizer, attention_shares=None, take=-1, epochs=1))
    mixed = joined(batches(corpus, tokenizer, take=-1, epochs=1))

    def texts(rows):
        ids = rows["token_ids"].copy()
        for row, (places, old) in enumerate(
            zip(rows["mask_positions"], rows["mask_ids"], strict=True)
        ):
            used = rows["mask_weights"][row] > 0
            ids[row, places[used]] = old[used]
        special = (tokenizer.cls_id, tokenizer.sep_id, tokenizer.pad_id)
        return [row[~np.isin(row, special)].tolist() for row in ids]

    assert texts(mixed) == texts(plain)


@pytest.mark.parametrize("kind", ALONE)
def test_one_kind_alone(corpus, tokenizer, kind):  # noqa: F811
    rows = joined(batches(corpus, tokenizer, attention_shares=ALONE[kind]))
    assert {KINDS[number] for number in kinds_of(rows)} == {kind}
    if kind == "seq2seq":  # rows whose plan has one segment are split
        assert (rows["segment_ids"] == 5).any(1).all()


@pytest.mark.parametrize("pack", [False, True], ids=["rows", "packed"])
def test_a_stream_resumes(corpus, tokenizer, pack):  # noqa: F811
    whole = batches(corpus, tokenizer, take=12, pack=pack)
    start = whole[6]["position"]
    again = batches(corpus, tokenizer, take=5, pack=pack, start=start)
    for one, other in zip(whole[7:], again, strict=True):
        assert_equal(one, other)


def test_packed_rows_have_the_same_examples(corpus, tokenizer):  # noqa: F811
    names = ("token_ids", "segment_ids", "attention_order", "mask_positions", "mask_ids")

    def keys(rows):
        real = rows["padding_mask"].any(1)
        return sorted(
            tuple(np.concatenate([rows[n][i] for n in names])) for i in np.flatnonzero(real)
        )

    rows = joined(batches(corpus, tokenizer, take=-1, epochs=1))
    packed = joined(batches(corpus, tokenizer, take=-1, epochs=1, pack=True))
    assert len(packed["token_ids"]) < len(rows["token_ids"])
    assert keys(taken_apart(packed)) == keys(rows)


@pytest.mark.slow
def test_hosts_threads_and_batches_change_nothing(corpus, tokenizer):  # noqa: F811
    whole = joined(batches(corpus, tokenizer, take=4))
    for changes in ({"threads": 1}, {"batch_size": 4, "take": 12}):
        other = joined(batches(corpus, tokenizer, **{"take": 4, **changes}))
        for name in set(whole) - {"position"}:
            np.testing.assert_array_equal(whole[name], other[name], err_msg=name)
    hosts = [batches(corpus, tokenizer, take=4, num_hosts=2, host_index=host) for host in (0, 1)]
    pairs = [joined(pair) for pair in zip(*hosts, strict=True)]
    for name in set(whole) - {"position"}:
        found = np.concatenate([pair[name] for pair in pairs])
        np.testing.assert_array_equal(whole[name], found, err_msg=name)


def test_shares_of_kinds_and_masks(tmp_path, write_corpus, tokenizer_of):
    """Over more than 100,000 tokens, within four standard deviations."""
    rng, large = np.random.default_rng(1), tokenizer_of(150_000)
    documents = [rng.integers(5, 30, 40).tolist() for _ in range(200)]
    write_corpus(tmp_path, documents, large, shards=1, block_tokens=20_000)
    settings = {"sequence_length": 64, "batch_size": 64, "epochs": 1, "take": -1, "seed": 5}
    rows = joined(batches(tmp_path, large, **settings))
    real = rows["padding_mask"].any(1)
    rows = {name: x[real] for name, x in rows.items()}
    lengths = rows["padding_mask"].sum(1)
    assert lengths.sum() > 100_000

    kinds, count = kinds_of(rows), len(lengths)
    for number, share in enumerate((1 / 3, 1 / 3, 1 / 6, 1 / 6)):
        found = (kinds == number).mean()
        assert abs(found - share) < 4 * np.sqrt(share * (1 - share) / count)
    used = rows["mask_weights"] > 0
    np.testing.assert_array_equal(used.sum(1), np.maximum(1, np.rint(0.15 * lengths)))
    for number in range(4):
        mine = kinds == number
        assert used[mine].sum() / lengths[mine].sum() == pytest.approx(0.15, abs=0.01)
    ids = np.take_along_axis(rows["token_ids"], rows["mask_positions"], axis=1)
    predicted = used.sum()
    masked = (ids == large.mask_id)[used].mean()
    kept = (ids == rows["mask_ids"])[used].mean()
    assert abs(masked - 0.8) < 4 * np.sqrt(0.8 * 0.2 / predicted)
    assert abs(kept - 0.1) < 4 * np.sqrt(0.1 * 0.9 / predicted)

    # Of the grams 80 % are one token, 10 % two and 10 % three: more predictions have a neighbour
    # than of tokens drawn one by one.
    alone = joined(batches(tmp_path, large, **settings, masking="token"))
    neighbours = []
    for drawn in (rows, alone):
        places = np.where(drawn["mask_weights"] > 0, drawn["mask_positions"], 0)
        neighbours.append((np.diff(np.sort(places, 1), axis=1) == 1).sum() / predicted)
    # Independent draws: about 0.15. Grams: (0.1 + 2 * 0.1) / 1.3 inside them, and between them.
    assert neighbours[1] == pytest.approx(0.15, abs=0.02)
    assert 0.23 < neighbours[0] < 0.37


def test_shown_examples_say_their_kind(corpus, tokenizer):  # noqa: F811
    speaking = types.SimpleNamespace(**vars(tokenizer), id_to_token=str)
    for pack in (False, True):
        file = io.StringIO()
        show_examples(small(corpus, tokenizer, **UNILM, pack=pack), speaking, n=12, file=file)
        shown = {*re.findall(rf"kept; ({'|'.join(KINDS)})", file.getvalue())}
        assert shown == {*KINDS}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_shares": (0, 0, 0, 0)}, r"must be above 0. Received: attention_shares"),
        ({"attention_shares": (1, 1, 1)}, r"`attention_shares` must be a sequence of 4"),
        ({"attention_shares": (1, -1, 1, 1)}, r"`attention_shares` must be"),
        ({"segments": "single"}, r'requires segments="consecutive".*segments=.single'),
        ({"segments": "pairs"}, r'requires segments="consecutive".*segments=.pairs'),
        ({"causal_share": 0.5}, r"exclude `causal_share`.*causal_share=0.5"),
        ({"masking": "permutation"}, r"exclude `causal_share` and masking=.permutation"),
    ],
    ids=["none", "three", "negative", "single", "pairs", "causal", "permutation"],
)
def test_what_does_not_fit_is_refused(corpus, tokenizer, changes, message):  # noqa: F811
    with pytest.raises(ValueError, match=message):
        small(corpus, tokenizer, **{**UNILM, **changes})
