"""The lock-step plans against the plain loop of create_pretraining_data.py, draw for draw."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

from kbert.data.masking.hashing import fold
from kbert.data.pretraining.pairs import plan_consecutive, plan_pairs

WORD = 2**64
# As in a pipeline: where a plan takes hundreds of steps, much faster.
traced_pairs = tf.function(plan_pairs, autograph=False)


def draw(key: int, *numbers: int) -> int:
    for number in numbers:
        bits = (key + (number + 1) * 0x9E3779B97F4A7C15) % WORD
        bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9 % WORD
        bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB % WORD
        key = bits ^ (bits >> 31)
    return key


def below(bits: int, limit: int) -> int:
    return (bits >> 32) * limit >> 32


def chance(bits: int, share: float) -> bool:
    return bits >> 32 < round(share * 2**32)


def google_pairs(documents, key, max_tokens, short_share, swap=False):
    """`create_instances_from_document` of BERT, or (`swap`) ALBERT, for each document.

    Tokens are their own positions.
    """
    walk, text = draw(key, 0), draw(key, 1)
    tokens = iter(range(sum(map(sum, documents))))
    documents = [[[next(tokens) for _ in range(n)] for n in document] for document in documents]
    found = []
    for home, document in enumerate(documents):
        round_, i = 0, 0
        while i < len(document):
            bits = [draw(walk, home, round_, n) for n in range(4)]
            target = max_tokens
            if chance(bits[0], short_share):
                target = 2 + below(bits[1], max_tokens - 1)
            chunk = []
            start = i
            while i < len(document):
                chunk.append(document[i])
                i += 1
                if sum(map(len, chunk)) >= target:
                    break
            a_end = 1 + below(bits[2], len(chunk) - 1) if len(chunk) >= 2 else 1
            coin = chance(bits[3], 0.5)
            is_random = len(chunk) == 1 or (coin and not swap)
            is_swapped = swap and coin and not is_random
            if is_random:
                i -= len(chunk) - a_end
            found.append((round_, home, start, chunk, a_end, is_random, is_swapped, target))
            round_ += 1
    rows = []
    # Rows are numbered round by round: that number is the key of their random text.
    for number, row in enumerate(sorted(found, key=lambda row: row[:2])):
        _, home, _, chunk, a_end, is_random, is_swapped, target = row
        a = [token for sentence in chunk[:a_end] for token in sentence]
        b = [token for sentence in chunk[a_end:] for token in sentence]
        if is_random:
            b = []
            other = below(draw(text, number, 0), len(documents) - 1)
            other += other >= home
            for sentence in documents[other][below(draw(text, number, 1), len(documents[other])) :]:
                b.extend(sentence)
                if len(b) >= target - len(a):
                    break
        if is_swapped:
            a, b = b, a
        coins = [
            [draw(text, number, stream, w) >> bit & 1 for w in range(4) for bit in range(64)]
            for stream in (2, 3)
        ]
        while len(a) + len(b) > max_tokens:
            longer, tosses = (a, coins[0]) if len(a) > len(b) else (b, coins[1])
            if tosses.pop(0):
                del longer[0]
            else:
                longer.pop()
        rows.append((a, b, int(is_random or is_swapped)))
    return rows


def spans(plan):
    return [
        (list(range(a, a + la)), list(range(b, b + lb)), random) for a, la, b, lb, random in plan
    ]


@pytest.mark.parametrize(
    ("max_tokens", "swap"),
    [(5, True), (13, False), (61, True)]
    + [pytest.param(*x, marks=pytest.mark.slow) for x in ((5, False), (13, True), (61, False))],
)
@pytest.mark.parametrize("seed", [0, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 2))])
def test_pairs_are_those_of_googles_loop(max_tokens, seed, swap):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(1, 25, size=rng.integers(1, 30)).tolist() for _ in range(40)]
    plan = traced_pairs(
        tf.constant(np.concatenate(documents), tf.int32),
        tf.constant([len(document) for document in documents]),
        fold(seed, 0),
        max_tokens=max_tokens,
        short_share=0.3,
        swap=swap,
    )
    expected = google_pairs(documents, draw(seed, 0), max_tokens, 0.3, swap)
    assert sorted(spans(plan.numpy().tolist())) == sorted(expected)


@hypothesis.settings(max_examples=15, deadline=None)
@hypothesis.given(
    documents=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=12), min_size=2),
    max_tokens=st.integers(5, 40),
    seed=st.integers(0, 2**63 - 1),
)
def test_pairs_of_any_documents_are_those_of_googles_loop(documents, max_tokens, seed):
    plan = plan_pairs(
        tf.constant(np.concatenate(documents), tf.int32),
        tf.constant([len(document) for document in documents]),
        fold(seed, 0),
        max_tokens=max_tokens,
    )
    expected = google_pairs(documents, draw(seed, 0), max_tokens, 0.1)
    assert sorted(spans(plan.numpy().tolist())) == sorted(expected)


def test_half_of_the_chunks_get_a_random_next_and_lone_sentences_always():
    documents = tf.fill([200], 1000)
    two_or_more = traced_pairs(tf.ones([200_000], tf.int32), documents, fold(0, 0), max_tokens=21)
    share = float(tf.reduce_mean(tf.cast(two_or_more[:, 4], tf.float32)))
    assert abs(share - 0.5) < 4.5 * 0.5 / len(two_or_more) ** 0.5
    # Sentences longer than any target: every chunk is of one.
    lone = traced_pairs(tf.fill([2000], 30), tf.fill([20], 100), fold(0, 0), max_tokens=21)
    assert len(lone) == 2000
    assert bool(tf.reduce_all(lone[:, 4] == 1))


def test_rows_are_in_random_order():
    sentences, documents = tf.fill([4000], 10), tf.fill([20], 200)
    plan = plan_pairs(sentences, documents, fold(0, 0), max_tokens=61).numpy()
    assert abs(np.corrcoef(plan[:, 0], np.arange(len(plan)))[0, 1]) < 0.1


def test_another_key_gives_another_plan():
    sentences, documents = tf.fill([200], 10), tf.fill([20], 10)
    plans = [
        plan_pairs(sentences, documents, fold(0, n), max_tokens=61).numpy().tolist()
        for n in (0, 1, 0)
    ]
    assert plans[0] == plans[2] != plans[1]


@pytest.mark.parametrize("documents", [[[1], [1]], [[3000], [1]], [[1, 1], [400, 2, 400]]])
def test_extreme_documents(documents):
    plan = plan_pairs(
        tf.constant(np.concatenate(documents), tf.int32),
        tf.constant([len(document) for document in documents]),
        fold(1, 0),
        max_tokens=13,
    ).numpy()
    assert np.all(plan[:, [1, 3]] > 0)
    assert np.all(plan[:, 1] + plan[:, 3] <= 13)
    total = sum(map(sum, documents))
    assert np.all(plan[:, 0] + plan[:, 1] <= total)
    assert np.all(plan[:, 2] + plan[:, 3] <= total)


def test_a_long_document_is_walked_in_stretches_that_miss_no_text():
    # Sentences of one token fill rows of 5 without truncation. A stretch has 1,280 tokens.
    sentences, documents = tf.ones([40_000], tf.int32), tf.constant([39_990, 10])
    plan = traced_pairs(sentences, documents, fold(1, 0), max_tokens=5, short_share=0.0).numpy()
    seen = np.zeros(40_000, bool)
    for a, length_a, b, length_b, random_next in plan.tolist():
        seen[a : a + length_a] = True
        if not random_next:
            seen[b : b + length_b] = True
    assert seen.all()
    is_random = plan[:, 4] == 1
    assert np.all((plan[is_random, 0] < 39_990) != (plan[is_random, 2] < 39_990))


def test_a_sentence_longer_than_a_stretch():
    sentences = tf.constant([2, 9000, 3, 4, 1])
    plan = plan_pairs(sentences, tf.constant([4, 1]), fold(1, 0), max_tokens=5).numpy()
    assert np.any(plan[:, 0] >= 9002)
    assert np.all(plan[:, [1, 3]] > 0)


@pytest.mark.parametrize("short_share", [0.0, 0.1, 1.0])
@pytest.mark.slow
def test_share_of_short_rows(short_share):
    # Sentences of one token: rows reach their target exactly.
    sentences, documents = tf.ones([40_000], tf.int32), tf.fill([4], 10_000)
    plan = plan_pairs(
        sentences, documents, fold(4, 0), max_tokens=21, short_share=short_share
    ).numpy()
    lengths = (plan[:, 1] + plan[:, 3])[plan[:, 4] == 0]
    # Of the short targets 2..21, one in twenty is the full length.
    assert np.mean(lengths < 21) == pytest.approx(short_share * 0.95, abs=0.01)
    if short_share == 1.0:
        counts = np.bincount(lengths, minlength=22)[2:]
        assert counts.min() > 0.75 * counts.mean()
        assert lengths.min() == 2


def test_half_of_the_halves_are_swapped_and_lone_sentences_get_a_random_next():
    documents = tf.fill([20], 2000)
    sentences = tf.ones([40_000], tf.int32)
    plan = traced_pairs(sentences, documents, fold(0, 0), max_tokens=21, short_share=0.0, swap=True)
    start_a, length_a, start_b, length_b, label = plan.numpy().T
    assert abs(label.mean() - 0.5) < 4.5 * 0.5 / len(plan) ** 0.5
    # Sentences of one token leave nothing to cut off: the halves meet, in the text's order or not.
    in_order, swapped = start_a + length_a == start_b, start_b + length_b == start_a
    assert np.all(in_order[label == 0])
    assert np.mean(swapped[label == 1]) > 0.98
    lone = traced_pairs(
        tf.fill([2000], 30), tf.fill([20], 100), fold(0, 0), max_tokens=21, swap=True
    ).numpy()
    assert np.all(lone[:, 4] == 1)
    assert np.all(lone[:, 0] // 3000 != lone[:, 2] // 3000)  # a document has 3000 tokens


def electra_rows(documents, key, max_tokens, short_share, lone_share):
    """`ExampleBuilder` for each document, with targets and order as `plan_consecutive` says."""
    walk, tokens = draw(key, 0), iter(range(sum(map(sum, documents))))
    rows = []
    for home, document in enumerate(documents):
        sentences = [[next(tokens) for _ in range(n)] for n in document]
        round_ = 0
        while sentences:
            bits = [draw(walk, home, round_, n) for n in range(4)]
            target = max_tokens
            if chance(bits[0], short_share):
                target = 2 + below(bits[1], max_tokens - 1)
            chunk = []
            while sentences and sum(map(len, chunk)) < target:
                chunk.append(sentences.pop(0))
            aim = 100_000 if chance(bits[3], lone_share) else target // 2
            a, b = [], []
            for sentence in chunk:
                coin = not b and len(a) < aim and chance(bits[2], 0.5)
                if not b and (not a or len(a) + len(sentence) < aim or coin):
                    a = a + sentence
                else:
                    b = b + sentence
            a = a[:max_tokens]
            rows.append((a, b[: max_tokens - len(a)], 0))
            round_ += 1
    return rows


@pytest.mark.parametrize("max_tokens", [5, 13, 61])
@pytest.mark.parametrize("seed", [0, *(pytest.param(x, marks=pytest.mark.slow) for x in (1, 2))])
def test_consecutive_segments_are_those_of_electras_builder(max_tokens, seed):
    rng = np.random.default_rng(seed)
    documents = [rng.integers(1, 25, size=rng.integers(1, 30)).tolist() for _ in range(40)]
    plan = plan_consecutive(
        tf.constant(np.concatenate(documents), tf.int32),
        tf.constant([len(document) for document in documents]),
        fold(seed, 0),
        max_tokens=max_tokens,
        short_share=0.3,
        lone_share=0.2,
    )
    expected = electra_rows(documents, draw(seed, 0), max_tokens, 0.3, 0.2)
    assert sorted(spans(plan.numpy().tolist())) == sorted(expected)


def test_shares_of_consecutive_rows():
    sentences, documents = tf.ones([200_000], tf.int32), tf.fill([40], 5000)
    plan = plan_consecutive(sentences, documents, fold(0, 0), max_tokens=100).numpy()
    lone, length = plan[:, 3] == 0, plan[:, 1] + plan[:, 3]
    assert np.mean(lone) == pytest.approx(0.1, abs=0.02)
    # Of 40 documents' last rows some are short, too.
    assert np.mean(length < 100) == pytest.approx(0.05, abs=0.02)
    full = plan[~lone & (length == 100)]
    assert np.all(np.isin(full[:, 1], [49, 50]))
    assert full[:, 1].mean() == pytest.approx(49.5, abs=0.1)
    assert np.array_equal(full[:, 0] + full[:, 1], full[:, 2])
