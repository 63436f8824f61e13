"""The recipe's shares and its uniformity, over more than a million tokens; seeds are fixed.

Every bound is four to five standard deviations of what the recipe promises.
"""

import math

import numpy as np
import pytest

from kbert.data.masking.masking import prediction_counts
from kbert.data.pretraining.dataset import pretraining_dataset

LENGTH = 64
MAX_TOKENS = LENGTH - 3


@pytest.fixture(scope="module")
def tokenizer(tokenizer_of):
    # As many entries as tokens: the share of random tokens that hit their own original is nil.
    return tokenizer_of(1_400_000, continuation_share=0.3)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, write_corpus, tokenizer):
    """1.3 million tokens in 600 documents, and the bounds of documents and sentences."""
    rng = np.random.default_rng(0)
    documents = [rng.geometric(1 / 18, rng.integers(1, 240)).tolist() for _ in range(600)]
    folder = tmp_path_factory.mktemp("corpus")
    return folder, *write_corpus(folder, documents, tokenizer, shards=2, block_tokens=16_000)


def epoch_of(corpus, tokenizer, **settings):
    dataset = pretraining_dataset(
        corpus[0], tokenizer, sequence_length=LENGTH, batch_size=512, epochs=1, seed=11, **settings
    )
    batches = list(dataset.as_numpy_iterator())
    found = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    real = found["padding_mask"][:, 0] > 0
    return {name: value[real] for name, value in found.items()}


@pytest.fixture(scope="module")
def epoch(corpus, tokenizer):
    return epoch_of(corpus, tokenizer)


@pytest.fixture(scope="module")
def whole_words(corpus, tokenizer):
    return epoch_of(corpus, tokenizer, masking="whole_word")


def unmasked(epoch):
    ids = epoch["token_ids"].copy()
    used = epoch["mask_weights"] > 0
    ids[np.nonzero(used)[0], epoch["mask_positions"][used]] = epoch["mask_ids"][used]
    return ids


def segments(epoch):
    """Start and end, in tokens of the corpus, of every row's A and B."""
    ids, length = unmasked(epoch), epoch["padding_mask"].sum(axis=1)
    rows = np.arange(len(ids))
    length_b = epoch["segment_ids"].sum(axis=1) - 1
    length_a = length - length_b - 3
    start_a, start_b = ids[:, 1] - 5, ids[rows, length_a + 2] - 5
    return start_a, start_a + length_a, start_b, start_b + length_b


def assert_share(found, expected, trials):
    assert abs(found - expected) < 4.5 * math.sqrt(expected * (1 - expected) / trials)


def test_there_are_a_million_tokens(epoch):
    assert epoch["padding_mask"].sum() > 1_000_000


def test_unmasking_gives_back_spans_of_the_text(epoch):
    ids, segment_ids, real = unmasked(epoch), epoch["segment_ids"], epoch["padding_mask"] > 0
    start_a, end_a, start_b, end_b = segments(epoch)
    column = np.arange(LENGTH)
    length_a, length_b = (end_a - start_a)[:, None], (end_b - start_b)[:, None]
    length = length_a + length_b + 3
    expected = np.where(segment_ids == 0, start_a[:, None] + column - 1 + 5, 0)
    in_b = start_b[:, None] + column - length_a - 2 + 5
    expected = np.where(segment_ids == 1, in_b, expected)
    expected = np.where((column == length_a + 1) | (column == length - 1), 3, expected)
    expected = np.where(column == 0, 2, expected)
    assert np.array_equal(ids, np.where(real, expected, 0))
    assert np.array_equal(real, column < length)
    assert np.array_equal(segment_ids, (column >= length_a + 2) & (column < length))
    assert length_a.min() >= 1
    assert length_b.min() >= 1
    assert length.max() == LENGTH


def test_actual_next_is_contiguous_and_random_next_is_from_another_document(epoch, corpus):
    _, document_bounds, sentence_bounds = corpus
    start_a, end_a, start_b, end_b = segments(epoch)
    is_random = epoch["next_sentence_labels"] == 1
    document_a = np.searchsorted(document_bounds, start_a, side="right")
    document_b = np.searchsorted(document_bounds, start_b, side="right")
    assert np.array_equal(document_a != document_b, is_random)
    assert np.all(end_a <= document_bounds[document_a])
    assert np.all(end_b <= document_bounds[document_b])
    # Between A and its actual next there is nothing but what truncation took, on either side of
    # a sentence's end; a row that was not truncated is contiguous.
    a, b = end_a[~is_random], start_b[~is_random]
    bound = sentence_bounds[np.searchsorted(sentence_bounds, a)]
    assert np.all((a <= bound) & (bound <= b))
    full = (end_a - start_a + end_b - start_b)[~is_random] == MAX_TOKENS
    assert np.all((a == b) | full)
    assert np.mean(a == b) > 0.1


def test_share_of_random_next(epoch, corpus):
    _, _, sentence_bounds = corpus
    start_a, end_a, _start_b, _end_b = segments(epoch)
    is_random = epoch["next_sentence_labels"] == 1
    # A lone sentence is always random next, so the share lies above one half; the rule itself is
    # tested on plans, where chunks can be told apart.
    one = np.searchsorted(sentence_bounds, end_a - 1, side="right") == np.searchsorted(
        sentence_bounds, start_a, side="right"
    )
    assert 0.5 < is_random.mean() < 0.6
    assert is_random[one].mean() > 0.52 > 0.51 > is_random[~one].mean()


def test_counts_are_exact_in_every_row(epoch):
    lengths = epoch["padding_mask"].sum(axis=1)
    counts = epoch["mask_weights"].sum(axis=1)
    assert np.array_equal(counts, prediction_counts(lengths))
    # Weights come first, then unused slots: position 0, id 0.
    assert np.all(np.diff(epoch["mask_weights"], axis=1) <= 0)
    unused = epoch["mask_weights"] == 0
    assert not epoch["mask_positions"][unused].any()
    assert not epoch["mask_ids"][unused].any()


@pytest.mark.parametrize("kind", ["epoch", "whole_words"])
def test_specials_are_never_targets(kind, request):
    found = request.getfixturevalue(kind)
    used = found["mask_weights"] > 0
    assert found["mask_ids"][used].min() >= 5
    rows = np.nonzero(used)[0]
    positions = found["mask_positions"][used]
    assert np.all(found["padding_mask"][rows, positions] == 1)


@pytest.mark.parametrize("kind", ["epoch", "whole_words"])
def test_shares_of_masked_random_and_kept(kind, request, tokenizer):
    found = request.getfixturevalue(kind)
    used = found["mask_weights"] > 0
    seen = found["token_ids"][np.nonzero(used)[0], found["mask_positions"][used]]
    target = found["mask_ids"][used]
    masked, kept = seen == tokenizer.mask_id, seen == target
    random = ~masked & ~kept
    for share, expected in [(masked, 0.8), (kept, 0.1), (random, 0.1)]:
        assert_share(share.mean(), expected, len(seen))
    # A random token is any of the vocabulary, each as likely.
    counts, _ = np.histogram(seen[random], bins=50, range=(0, tokenizer.vocabulary_size))
    assert np.all(np.abs(counts - counts.mean()) < 5 * math.sqrt(counts.mean()))


def chi_square_z(counts, expected, correction=1.0):
    """Chi-square in standard deviations from its mean (Wilson and Hilferty's cube root)."""
    freedom = len(counts) - 1
    statistic = np.sum((counts - expected) ** 2 / expected) / correction
    scale = 2 / (9 * freedom)
    return ((statistic / freedom) ** (1 / 3) - (1 - scale)) / math.sqrt(scale)


def test_masked_positions_are_uniform(epoch):
    full = epoch["padding_mask"].all(axis=1)
    positions = epoch["mask_positions"][full]
    length_a = LENGTH - 2 - epoch["segment_ids"][full].sum(axis=1)
    # [SEP] lies elsewhere in each row: count the text's tokens.
    used = epoch["mask_weights"][full] > 0
    slots = (positions - 1 - (positions > length_a[:, None]))[used]
    counts = np.bincount(slots, minlength=MAX_TOKENS)
    per_row = used[0].sum()
    # Drawn without replacement, cells vary less than independent draws would.
    correction = 1 - (per_row - 1) / (MAX_TOKENS - 1)
    assert len(counts) == MAX_TOKENS
    assert counts.sum() > 100_000
    assert abs(chi_square_z(counts, counts.mean(), correction)) < 4


def test_whole_words_are_masked_whole(whole_words, tokenizer):
    ids, real = unmasked(whole_words), whole_words["padding_mask"] > 0
    text = real & (ids >= 5)
    before = np.pad(text[:, :-1], [[0, 0], [1, 0]])
    continues = text & before & tokenizer.continuation[ids]
    target = np.zeros_like(text)
    used = whole_words["mask_weights"] > 0
    target[np.nonzero(used)[0], whole_words["mask_positions"][used]] = True
    # A piece that continues a word is predicted exactly if the piece before it is.
    row, column = np.nonzero(continues)
    assert np.array_equal(target[row, column], target[row, column - 1])
    assert len(row) > 100_000
    counts = used.sum(axis=1)
    limit = prediction_counts(real.sum(axis=1)).numpy()
    assert np.all(counts <= limit)
    assert np.mean(counts == limit) > 0.98


def test_whole_word_masking_favours_no_place(whole_words):
    full = whole_words["padding_mask"].all(axis=1)
    positions = whole_words["mask_positions"][full]
    halves = np.mean(positions[positions > 0] < LENGTH / 2)
    assert halves == pytest.approx(0.5, abs=0.01)
