import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

import kbert
from kbert.tasks.pretraining import fill_mask
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS


def test_masks_stand_where_the_text_has_them(tokenizer):
    texts = ["the red [MASK]", "", "[MASK]", "[MASK][MASK] fox", "no mask", "a[MASK]b"]
    mask, word = tokenizer.mask_id, tokenizer.token_to_id
    assert fill_mask.encode_with_masks(tokenizer, texts).to_list() == [
        [word("the"), word("red"), mask],
        [],
        [mask],
        [mask, mask, word("fox")],
        tokenizer.encode(["no mask"])[0].numpy().tolist(),
        [word("a"), mask, word("b")],
    ]


def test_other_special_tokens_in_a_text_stay_text(tokenizer):
    ids = fill_mask.encode_with_masks(tokenizer, ["fox [SEP] [CLS] [PAD]"])
    assert not set(ids.flat_values.numpy()) & {tokenizer.sep_id, tokenizer.cls_id, tokenizer.pad_id}


def test_a_mask_takes_the_space_before_it():
    vocabulary = ["<s>", "<pad>", "</s>", "<unk>", *CHARACTERS, "Ġa", "<mask>"]
    tokenizer = kbert.BytePairTokenizer(vocabulary, ["Ġ a"])
    ids = fill_mask.encode_with_masks(tokenizer, ["x <mask> a<mask> ", "<mask>"]).to_list()
    pieces = [[vocabulary[i] for i in row] for row in ids]
    assert pieces == [["x", "<mask>", "Ġa", "<mask>", "Ġ"], ["<mask>"]]


def test_no_texts(tokenizer):
    ids = fill_mask.encode_with_masks(tokenizer, tf.constant([], tf.string))
    assert ids.shape[0] == 0
    positions, found = fill_mask.find_masks(tf.zeros([0, 16], tf.int32), tokenizer.mask_id)
    assert positions.shape == (0, 0)
    assert found.shape == (0,)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.sampled_from([4, 7]), min_size=5, max_size=5), min_size=1, max_size=4))
def test_find_masks_finds_each(rows):
    positions, found = fill_mask.find_masks(tf.constant(rows), 4)
    for row, columns, count in zip(rows, positions.numpy(), found.numpy(), strict=True):
        assert columns[:count].tolist() == [i for i, token in enumerate(row) if token == 4]
        assert not columns[count:].any()


def test_best_breaks_ties_by_id():
    rng = np.random.default_rng(0)
    for _ in range(200):
        values, k = rng.integers(0, 4, 30) / 4, int(rng.integers(1, 31))
        wanted = np.argsort(-values, kind="stable")[:k]
        assert fill_mask.best(values, k).tolist() == wanted.tolist()


@pytest.mark.parametrize("k", [1, 3, 50])
def test_best_equals_a_full_sort(k):
    values = np.random.default_rng(0).permutation(50).astype("float32")
    assert fill_mask.best(values, k).tolist() == np.argsort(-values)[:k].tolist()


def test_candidates_are_vocabulary_entries(tokenizer):
    ids = fill_mask.candidate_ids(tokenizer, ["fox", "##ing", "Fox"])
    assert [tokenizer.vocabulary[i] for i in ids] == ["fox", "##ing", "fox"]
    for wrong, shown in (("foxing", "fox ##ing"), ("red fox", "red fox"), ("", "nothing")):
        with pytest.raises(ValueError, match=f"one vocabulary entry.*which is {shown}"):
            fill_mask.candidate_ids(tokenizer, [wrong])
    with pytest.raises(ValueError, match=r"which is \[UNK\]"):
        fill_mask.candidate_ids(tokenizer, ["猫"])
