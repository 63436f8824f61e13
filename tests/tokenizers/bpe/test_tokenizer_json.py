"""What tokenizer.json says besides ModernBERT's pipeline, read by transformers."""

import pytest
from transformers import AutoTokenizer

from kbert.tokenizers import BytePairTokenizer, load_tokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

SPECIALS = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


@pytest.mark.parametrize(
    ("specials", "single", "pair"),
    [
        (SPECIALS, "<s> a </s>", "<s> a </s> </s> b </s>"),
        (["<|endoftext|>"], "a", "a b"),  # GPT-2's inputs are texts alone
    ],
)
def test_what_stands_around_texts(tmp_path, specials, single, pair):
    ours = BytePairTokenizer([*specials, *CHARACTERS], [], normalization="nfc")
    ours.save(tmp_path)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    assert " ".join(theirs.convert_ids_to_tokens(theirs("a").input_ids)) == single
    assert " ".join(theirs.convert_ids_to_tokens(theirs("a", "b").input_ids)) == pair
    assert load_tokenizer(tmp_path).pair_separators == ours.pair_separators


def test_tokens_without_a_normalization_and_with_a_space_before_texts(tmp_path):
    ours = BytePairTokenizer(
        [*SPECIALS, *CHARACTERS, "[unused0]", "Ġa"],
        ["Ġ a"],
        added_tokens=["[unused0]"],
        add_prefix_space=True,
        mask_takes_space=False,
    )
    ours.save(tmp_path)
    assert load_tokenizer(tmp_path).get_config() == ours.get_config()
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = "ae\u0301[unused0]a <mask>"
    *ids, space, mask = theirs(text, add_special_tokens=False).input_ids
    assert ours.encode(text.removesuffix(" <mask>")).numpy().tolist() == ids
    assert (ours.vocabulary[space], mask) == ("Ġ", ours.mask_id)
    assert theirs.decode(ids) == " ae\u0301[unused0] a"
