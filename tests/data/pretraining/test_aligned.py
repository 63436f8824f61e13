"""Texts beside their translations: from two files to rows of both."""

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.data import prepare_corpus, pretraining_dataset
from kbert.data.masking.hashing import fold
from kbert.data.pretraining.segments import plan_aligned
from kbert.text import read_pairs

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ENGLISH = [f"e{n}" for n in range(30)]
GERMAN = [f"g{n}" for n in range(30)]


@pytest.fixture(scope="module")
def tokenizer():
    return kbert.WordPieceTokenizer([*SPECIALS, *ENGLISH, *GERMAN])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("aligned")
    rng = np.random.default_rng(0)
    sources, targets = [], []
    for _ in range(300):
        words = rng.integers(0, 30, rng.integers(2, 9))
        sources.append(" ".join(ENGLISH[n] for n in words))
        targets.append(" ".join(GERMAN[n] for n in words[::-1][: rng.integers(1, 9)]))
    (folder / "text.en").write_text("\n".join(sources) + "\n")
    (folder / "text.de").write_text("\n".join(targets) + "\n")
    alone = [" ".join(rng.choice(ENGLISH, 12)) + "\n" + " ".join(rng.choice(ENGLISH, 5))
             for _ in range(60)]  # fmt: skip
    (folder / "alone.txt").write_text("\n\n".join(alone))
    return folder


@pytest.fixture(scope="module")
def shards(folder, tokenizer):
    pairs = read_pairs(folder / "text.en", folder / "text.de")
    prepare_corpus(pairs.aligned_documents(), folder / "pairs", tokenizer, held_out_share=0.1)
    prepare_corpus(folder / "alone.txt", folder / "alone", tokenizer)
    return folder / "pairs"


def batches(data, tokenizer, **settings):
    values = {"sequence_length": 24, "batch_size": 8, "segments": "aligned", **settings}
    return pretraining_dataset(data, tokenizer, **values)


def texts_of(batch, tokenizer):
    """Of each row the words of both sides, with what was hidden in its place."""
    ids = batch["token_ids"].copy()
    rows, used = np.nonzero(batch["mask_weights"])
    ids[rows, batch["mask_positions"][rows, used]] = batch["mask_ids"][rows, used]
    for n, row in enumerate(ids):
        length = batch["padding_mask"][n].sum()
        if length:
            assert row[0] == tokenizer.cls_id
            assert row[length - 1] == tokenizer.sep_id
            between = np.flatnonzero(row[1 : length - 1] == tokenizer.sep_id) + 1
            sides = np.split(row[1 : length - 1], between - 1)
            words = [[tokenizer.vocabulary[i] for i in side if i != tokenizer.sep_id]
                     for side in sides]  # fmt: skip
            yield n, [" ".join(side) for side in words], length


def test_a_row_has_a_text_and_its_translation(folder, shards, tokenizer):
    pairs = set(read_pairs(folder / "text.en", folder / "text.de"))
    found = set()
    for split in ("train", "held_out"):
        data = batches(shards, tokenizer, split=split, epochs=1)
        for batch in data.as_numpy_iterator():
            for n, sides, length in texts_of(batch, tokenizer):
                found.add(tuple(sides))
                begin = 2 + len(sides[0].split())
                segments = [0] * begin + [1] * (length - begin) + [0] * (24 - length)
                assert batch["segment_ids"][n].tolist() == segments
                places = [*range(begin), *range(length - begin)] + [0] * (24 - length)
                assert batch["position_ids"][n].tolist() == places
    assert found == pairs


def test_both_sides_are_masked_alike(shards, tokenizer):
    counts = np.zeros((2, 2))
    for batch in batches(shards, tokenizer, epochs=30).as_numpy_iterator():
        rows, used = np.nonzero(batch["mask_weights"])
        side = batch["segment_ids"][rows, batch["mask_positions"][rows, used]]
        counts[0] += np.bincount(side, minlength=2)
        text = (batch["token_ids"] > 3) & (batch["padding_mask"] > 0)
        counts[1] += [np.sum(text & (batch["segment_ids"] == side)) for side in (0, 1)]
    shares = counts[0] / counts[1]
    assert abs(shares[0] - shares[1]) < 0.01
    assert 0.13 < counts[0].sum() / counts[1].sum() < 0.25  # short rows are rounded up


@pytest.mark.slow
def test_packed_rows_hold_the_same(shards, tokenizer):
    def rows(**settings):
        found = []
        for batch in batches(shards, tokenizer, epochs=1, **settings).as_numpy_iterator():
            examples = batch.get("example_ids", batch["padding_mask"])
            for n, numbers in enumerate(examples):
                for number in range(1, numbers.max() + 1):
                    own = numbers == number
                    names = ("token_ids", "segment_ids", "position_ids")
                    found.append(tuple(tuple(batch[name][n][own]) for name in names))
        return sorted(found)

    assert rows() == rows(pack=True)


def test_other_text_is_mixed_in_as_single_segments(folder, shards, tokenizer):
    data = batches({str(shards): 0.5, str(folder / "alone"): 0.5}, tokenizer, epochs=1)
    kinds = {1: 0, 2: 0}
    for batch in data.as_numpy_iterator():
        for n, sides, length in texts_of(batch, tokenizer):
            kinds[len(sides)] += 1
            if len(sides) == 1:  # a document of two sentences, but no pair
                assert batch["position_ids"][n, :length].tolist() == list(range(length))
    assert min(kinds.values()) > 40


@hypothesis.given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 20)), min_size=1, max_size=9),
    st.integers(2, 14),
)
@hypothesis.settings(max_examples=60, deadline=None)
def test_long_pairs_lose_their_ends(pairs, max_tokens):
    tokens, sentences = [], []
    for one, other in pairs:
        tokens += [9] * one + [3] + [8] * other
        sentences += [one + 1, other]
    plan = plan_aligned(
        *(tf.constant(sentences), tf.fill([len(pairs)], 2), fold(0, 0)),
        max_tokens=max_tokens, tokens=tf.constant(tokens), sep_id=3,
    ).numpy()  # fmt: skip
    plan = plan[np.argsort(plan[:, 0])]
    at = 0
    for (start, kept, second, rest, _), (one, other) in zip(plan.tolist(), pairs, strict=True):
        assert (start, second) == (at, at + one + 1)
        assert kept + rest == min(one + other, max_tokens)
        assert kept in (one, max_tokens - other) or kept == max_tokens // 2
        assert min(kept, rest) >= min(one, other, max_tokens // 2)
        at += one + other + 1


def test_what_is_no_pair_or_no_corpus_of_pairs_is_refused(folder, shards, tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"texts with their translations in .*segments='pairs'"):
        batches(shards, tokenizer, segments="pairs")
    with pytest.raises(ValueError, match=r"no texts with translations in .*segments='aligned'"):
        batches(folder / "alone", tokenizer)
    with pytest.raises(ValueError, match=r"texts with their translations in .*segments=None"):
        kbert.data.causal_dataset(shards, tokenizer, sequence_length=8, batch_size=2)
    pairs = read_pairs(folder / "text.en", folder / "text.de").aligned_documents()
    with pytest.raises(ValueError, match=r"for all texts or for none.*2 sources, 1 of them"):
        prepare_corpus([pairs, folder / "alone.txt"], tmp_path / "both", tokenizer)
    (tmp_path / "short.de").write_text("g1\n")
    uneven = read_pairs(folder / "text.en", tmp_path / "short.de").aligned_documents()
    with pytest.raises(ValueError, match=r"short\.de"):
        prepare_corpus(uneven, tmp_path / "uneven", tokenizer)
    with pytest.raises(
        ValueError, match=r"contains a corpus that was prepared with other settings"
    ):
        prepare_corpus(folder / "text.en", shards, tokenizer, held_out_share=0.1)


def test_replaced_bytes_are_counted(tmp_path, tokenizer):
    (tmp_path / "a").write_bytes(b"e1 e2\ne3 \xff\n")
    (tmp_path / "b").write_text("g1\ng3 g4\n")
    pairs = read_pairs(tmp_path / "a", tmp_path / "b", on_bad_utf8="replace")
    corpus = prepare_corpus(
        pairs.aligned_documents(), tmp_path / "shards", tokenizer, held_out_share=0
    )
    assert corpus.counts["replaced_characters"] == 1


def test_a_pair_with_a_side_of_no_token_is_left_out(tmp_path, tokenizer):
    (tmp_path / "a").write_text("e1 e2\ne3\n\u0301\ne5\n")
    (tmp_path / "b").write_text("g1\ng3 g4\ng2\ng5\n")
    pairs = read_pairs(tmp_path / "a", tmp_path / "b").aligned_documents()
    done = prepare_corpus(pairs, tmp_path / "shards", tokenizer, held_out_share=0)
    assert done.splits["train"].documents == 3
    assert done.counts["empty_documents"] == 1
    rows = [sides for batch in batches(tmp_path / "shards", tokenizer, epochs=1).as_numpy_iterator()
            for _, sides, _ in texts_of(batch, tokenizer)]  # fmt: skip
    assert sorted(rows) == [["e1 e2", "g1"], ["e3", "g3 g4"], ["e5", "g5"]]
