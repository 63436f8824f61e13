"""Every masking and every segment scheme through `pretraining_dataset`: exactness and layout."""

import functools
from pathlib import Path

import numpy as np
import pytest

import kbert
from kbert.data.masking.schemes import MASKING_SCHEMES
from kbert.data.pretraining.dataset import pretraining_dataset
from kbert.data.pretraining.segment_schemes import SEGMENT_SCHEMES

ROOT = Path(kbert.__path__[0]).parent
# Every scheme of either kind once.
SCHEMES = [
    *((masking, "pairs") for masking in ("whole_word", "phrase")),
    ("ngram", "halves"),
    ("span", "full_sentences"),
    ("independent", "consecutive"),
    ("token_ngram", "consecutive"),
    ("token", "doc_sentences"),
    ("token", "single"),
    ("permutation", "single"),
]
# Whose rows depend on more: on the batch they continue, and on the files of translations.
TESTED_ELSEWHERE = {"runs": "tests/tasks/pretraining/test_permutation_lm.py",
                    "aligned": "tests/data/pretraining/test_aligned.py"}  # fmt: skip
WORDS = ["ha", "he", "hi", "ho", "##b", "##d", "##g"]
PHRASES = ["ha he", "hi ho ha", "hob hi"]


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    """60 documents of random words."""
    rng = np.random.default_rng(0)
    folder = tmp_path_factory.mktemp("corpus")
    with open(folder / "text.txt", "w") as file:
        for _ in range(60):
            for _ in range(rng.integers(1, 20)):
                words = rng.choice(["ha", "he", "hi", "ho", "hob", "hidg"], rng.integers(1, 15))
                file.write(" ".join(words) + "\n")
            file.write("\n")
    kbert.data.prepare_corpus(str(folder / "text.txt"), folder / "shards", tokenizer)
    return folder / "shards"


def small(corpus, tokenizer, masking, segments, **changes):
    phrases = PHRASES if masking == "phrase" else None
    settings = {"sequence_length": 32, "batch_size": 12, "seed": 3, "phrases": phrases}
    settings |= {"masking": masking, "segments": segments, **changes}
    return pretraining_dataset(corpus, tokenizer, **settings)


@pytest.fixture(scope="module")
def streamed(corpus, tokenizer):
    """(masking, segments) -> the element's specs and the first thirty batches of a stream."""

    @functools.cache
    def streamed(masking, segments):
        dataset = small(corpus, tokenizer, masking, segments)
        return dataset.element_spec, list(dataset.take(30).as_numpy_iterator())

    return streamed


def rows(dataset, take=-1):
    return joined(list(dataset.take(take).as_numpy_iterator()))


def joined(batches):
    return {
        name: np.concatenate([batch[name] for batch in batches])
        for name in batches[0]
        if name != "position"
    }


def assert_equal(one, other):
    assert one.keys() == other.keys()
    for name in one:
        np.testing.assert_array_equal(one[name], other[name], err_msg=name)


def unmasked(found):
    ids, used = found["token_ids"].copy(), found["mask_weights"] > 0
    ids[np.nonzero(used)[0], found["mask_positions"][used]] = found["mask_ids"][used]
    return ids


def test_all_schemes_are_tested():
    assert {masking for masking, _ in SCHEMES} == set(MASKING_SCHEMES)
    here = {segments for _, segments in SCHEMES}
    assert here | TESTED_ELSEWHERE.keys() == set(SEGMENT_SCHEMES)
    for segments, path in TESTED_ELSEWHERE.items():
        assert f'"{segments}"' in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("masking", "segments"),
    [SCHEMES[0], *(pytest.param(*scheme, marks=pytest.mark.slow) for scheme in SCHEMES[1:])],
)
def test_rows_depend_on_nothing_but_the_settings(corpus, tokenizer, streamed, masking, segments):
    """Not on batch size, threads, hosts and where a run was taken up."""
    _, batches = streamed(masking, segments)
    start = batches[2]["position"]
    expected = joined(batches[3:14])
    others = {"batch_size": 40, "num_hosts": 2, "host_index": 1, "threads": 3, "start": start}
    found = rows(small(corpus, tokenizer, masking, segments, **others), take=3)
    share = [n for n in range(120) if n % 40 >= 20]
    assert_equal(found, {name: value[share] for name, value in expected.items()})


@pytest.mark.parametrize(
    ("masking", "segments"),
    [*SCHEMES[:4], *(pytest.param(*x, marks=pytest.mark.slow) for x in SCHEMES[4:])],
)
def test_targets_are_text_and_inputs_say_what_was_asked(tokenizer, streamed, masking, segments):
    shapes, batches = streamed(masking, segments)
    found = joined(batches)
    used = found["mask_weights"] > 0
    ids, real = unmasked(found), found["padding_mask"] > 0
    assert found["mask_ids"][used].min() >= 5
    assert not found["mask_ids"][~used].any()
    assert not ids[~real].any()
    assert np.all(ids[real] != tokenizer.mask_id)
    chosen = found["mask_positions"][used]
    assert chosen.min() >= 1
    assert np.all(real[np.nonzero(used)[0], chosen])
    seen = found["token_ids"][np.nonzero(used)[0], chosen]
    share = MASKING_SCHEMES[masking].replacement[0]
    assert np.mean(seen == tokenizer.mask_id) == pytest.approx(share, abs=0.06)
    # ELECTRA has four columns for the 4.8 of a full row.
    assert used.sum() / real.sum() == pytest.approx(0.15, abs=0.03)
    assert all(spec.shape.is_fully_defined() for spec in shapes.values())
    labels = {SEGMENT_SCHEMES[segments].label} - {None}
    spans = {"span_starts", "span_ends"} if masking == "span" else set()
    common = {"token_ids", "segment_ids", "padding_mask", "mask_positions", "mask_ids",
              "mask_weights", "position"}  # fmt: skip
    order = {"order_ids"} if masking == "permutation" else set()
    assert set(shapes) == common | labels | spans | order


def test_spans_are_runs_replaced_alike(streamed):
    found = joined(streamed("span", "full_sentences")[1])
    kinds = {}
    ids, used = unmasked(found), found["mask_weights"] > 0
    for row, slot in zip(*np.nonzero(used), strict=True):
        position = found["mask_positions"][row, slot]
        first, last = found["span_starts"][row, slot], found["span_ends"][row, slot]
        assert first <= position <= last
        span = set(range(first, last + 1))
        assert span <= set(found["mask_positions"][row, used[row]].tolist())
        seen = found["token_ids"][row, position]
        kind = "masked" if seen == 4 else "kept" if seen == ids[row, position] else "random"
        kinds.setdefault((row, first), set()).add(kind)
    # A random token may be [MASK] or the token itself: one in twelve.
    mixed = np.mean(["masked" in kind and "kept" in kind for kind in kinds.values()])
    assert len(kinds) > 200
    assert mixed < 0.05
    assert not found["span_starts"][~used].any()
    assert not found["span_ends"][~used].any()


def test_swapped_halves_are_consecutive_text(tmp_path_factory, write_corpus, tokenizer_of):
    folder = tmp_path_factory.mktemp("halves")
    tokenizer = tokenizer_of(40_000)
    rng = np.random.default_rng(0)
    documents = [rng.integers(1, 9, rng.integers(2, 60)).tolist() for _ in range(120)]
    bounds, _ = write_corpus(folder, documents, tokenizer, block_tokens=2000)
    found = rows(
        pretraining_dataset(folder, tokenizer, segments="halves", sequence_length=64, batch_size=8,
                            epochs=1, drop_remainder=True)
    )  # fmt: skip
    ids, label = unmasked(found) - 5, found["sentence_order_labels"]
    length, length_b = found["padding_mask"].sum(1), found["segment_ids"].sum(1) - 1
    length_a, row = length - length_b - 3, np.arange(len(ids))
    start_a, start_b = ids[:, 1], ids[row, length_a + 2]
    document_a, document_b = (np.searchsorted(bounds, x, side="right") for x in (start_a, start_b))
    assert label.mean() == pytest.approx(0.5, abs=0.1)
    assert len(ids) > 150
    assert np.all((start_a < start_b)[label == 0])
    assert np.all(document_a[label == 0] == document_b[label == 0])
    same = (label == 1) & (document_a == document_b)
    assert np.all((start_b < start_a)[same])
    assert same.sum() > 0.9 * label.sum()
    # What truncation left whole is contiguous, in the one order or the other.
    whole = length < 64
    assert np.all((start_a + length_a == start_b)[whole & (label == 0)])
    assert np.all((start_b + length_b == start_a)[whole & same])


def test_joined_documents_have_a_separator_between_them(tokenizer, streamed):
    found = joined(streamed("span", "full_sentences")[1])
    ids, length = unmasked(found), found["padding_mask"].sum(axis=1)
    inner = [np.sum(row[1 : n - 1] == tokenizer.sep_id) for row, n in zip(ids, length, strict=True)]
    assert max(inner) >= 1
    assert np.all(ids[np.arange(len(ids)), length - 1] == tokenizer.sep_id)
    single = joined(streamed("token", "doc_sentences")[1])
    assert length.mean() > single["padding_mask"].sum(axis=1).mean()
    assert not found["segment_ids"].any()


def test_two_separators_between_segments(tmp_path, write_corpus, tokenizer_of):
    tokenizer = tokenizer_of(4000, pair_separators=2)
    write_corpus(tmp_path, [[7, 5, 4, 8] * 5] * 12, tokenizer)
    found = rows(pretraining_dataset(tmp_path, tokenizer, sequence_length=32, batch_size=8), take=3)
    length = found["padding_mask"].sum(axis=1)
    assert length.max() == 32
    for row, segments, n in zip(unmasked(found), found["segment_ids"], length, strict=True):
        (middle,) = np.flatnonzero((row[1 : n - 1] == 3) & (row[2:n] == 3))
        assert np.sum(row == 3) == 3
        assert row[n - 1] == 3
        assert np.array_equal(np.flatnonzero(segments), np.arange(middle + 3, n))
    lone = rows(
        pretraining_dataset(
            tmp_path, tokenizer, segments="single", sequence_length=32, batch_size=8
        ),
        take=3,
    )
    assert np.all(np.sum(unmasked(lone) == 3, axis=1) == 1)


@pytest.mark.parametrize(
    "segments", ["pairs", pytest.param("full_sentences", marks=pytest.mark.slow)]
)
def test_static_masks_come_in_turn(corpus, tokenizer, segments):
    epochs = {}
    settings = {"epochs": 5, "batch_size": 1, "static_masks": 2}
    for batch in small(corpus, tokenizer, "token", segments, **settings).as_numpy_iterator():
        row = batch["token_ids"].tobytes(), batch["mask_positions"].tobytes()
        epochs.setdefault(int(batch["position"][0, 0]), []).append(row)
    assert epochs[0] == epochs[2] == epochs[4]
    assert epochs[1] == epochs[3]
    assert len(set(epochs[0]) & set(epochs[1])) < 0.02 * len(epochs[0])


def test_replacement_shares_are_those_asked_for(corpus, tokenizer):
    found = rows(small(corpus, tokenizer, "token", "pairs", replacement=(1.0, 0.0)), take=5)
    used = found["mask_weights"] > 0
    seen = found["token_ids"][np.nonzero(used)[0], found["mask_positions"][used]]
    assert np.all(seen == tokenizer.mask_id)


@pytest.mark.parametrize("masking", ["span", pytest.param("phrase", marks=pytest.mark.slow)])
def test_an_epochs_rows_do_not_depend_on_the_masking(corpus, tokenizer, streamed, masking):
    expected = unmasked(joined(streamed("token", "doc_sentences")[1][:4]))
    found = unmasked(rows(small(corpus, tokenizer, masking, "doc_sentences"), take=4))
    assert np.array_equal(found, expected)
