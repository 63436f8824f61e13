"""What all kinds of noise share: flags, framing, and moving tokens inside rows."""

import numpy as np
import pytest
import tensorflow as tf

from kbert.core import registry
from kbert.data.denoising.bart import Bart
from kbert.data.denoising.gap_sentences import GapSentences
from kbert.data.denoising.noise import compact, frame, make_noise
from kbert.data.denoising.rows import gather_text, join_text, mark_sentences
from kbert.data.masking.hashing import fold


@pytest.mark.parametrize("kind", registry.names("noise"))
def test_a_kind_is_its_flag(kind):
    noise = make_noise(kind)
    assert (noise.kind, noise.to_text()) == (kind, kind)


def test_changed_options_are_in_the_flag():
    noise = Bart(masking="tokens", masked_share=0.25, targets_begin=False)
    assert noise.to_text() == "bart:masking=tokens,masked_share=0.25,targets_begin=false"
    assert make_noise(noise.to_text()) == noise
    noise = GapSentences(sentence_mask="<mask_1>", max_targets=99)
    assert noise.to_text() == "pegasus:sentence_mask=<mask_1>,max_targets=99"
    assert make_noise(noise.to_text()) == noise


@pytest.mark.parametrize("token", ["a,b", "7", "a+b"])
def test_an_option_that_no_flag_expresses_is_refused(token):
    with pytest.raises(
        ValueError, match=r"must be writable as name=value.*Received: .*sentence_mask"
    ):
        GapSentences(sentence_mask=token).to_text()


@pytest.mark.parametrize("cls_id", [None, 2])
@pytest.mark.parametrize("width", [3, 6, 12])
def test_framed_rows_are_those_of_a_loop(cls_id, width):
    ids = np.arange(10, 34).reshape(4, 6)
    lengths = [0, 2, 5, 6]
    rows, counts = frame(
        tf.constant(ids, tf.int32), tf.constant(lengths), width, pad_id=1, sep_id=3, cls_id=cls_id
    )
    for row, length, found, count in zip(ids, lengths, rows.numpy(), counts.numpy(), strict=True):
        first = [] if cls_id is None else [cls_id]
        expected = [*first, *row[:length].tolist(), 3][:width]
        assert count == len(expected)
        assert found.tolist() == expected + [1] * (width - len(expected))


def test_compacted_rows_are_those_of_a_loop():
    rng = np.random.default_rng(0)
    ids, keep = rng.integers(1, 99, (50, 9)), rng.random((50, 9)) < rng.random((50, 1))
    for width in (3, 9, 12):
        rows, counts = compact(tf.constant(ids, tf.int32), tf.constant(keep), width)
        for row, is_kept, found, count in zip(ids, keep, rows.numpy(), counts.numpy(), strict=True):
            assert count == is_kept.sum()
            expected = row[is_kept].tolist()[:width]
            assert found.tolist() == expected + [0] * (width - len(expected))


def test_sentences_are_read_from_marks_of_any_id():
    sentences = np.array([1, 4, 2, 3])
    tokens = np.array([0, 2**16, 2**30 - 1, 5, 6, 7, 8, 9, 10, 11])
    marked = mark_sentences(tf.constant(tokens, tf.int32), tf.constant(sentences, tf.int32))
    text = gather_text(marked, tf.constant([[0, 10], [2, 5], [0, 0]]), 10, marked=True)
    assert text.ids[0].numpy().tolist() == tokens.tolist()
    assert text.length.numpy().tolist() == [10, 5, 0]
    assert np.flatnonzero(text.begins[0]).tolist() == [0, 1, 5, 7]
    assert np.flatnonzero(text.begins[1]).tolist() == [0, 3]
    assert not text.begins[2].numpy().any()


def test_joined_text_has_every_document_once_in_another_order():
    sentences, documents = [3, 4, 5, 6, 2, 9], [2, 1, 3]
    orders = set()
    for seed in range(20):
        text, rows = join_text(
            *(tf.range(29), tf.constant(sentences), tf.constant(documents)),
            *(fold(seed, 0), 8),
        )
        text = text.numpy().tolist()
        documents_of_text = {tuple(range(7)): 0, tuple(range(7, 12)): 1, tuple(range(12, 29)): 2}
        order, at = [], 0
        while at < len(text):
            document = next(d for d in documents_of_text if d[0] == text[at])
            assert tuple(text[at : at + len(document)]) == document
            order.append(documents_of_text[document])
            at += len(document)
        assert sorted(order) == [0, 1, 2]
        orders.add(tuple(order))
        assert sorted(rows.numpy()[:, :2].tolist()) == [[0, 8], [8, 8], [16, 8], [24, 5]]
    assert len(orders) == 6
