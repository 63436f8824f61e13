"""MPNet's vocabulary: BERT's pieces between fairseq's special tokens."""

import numpy as np
import pytest

import kbert
from kbert.tasks import Pretraining
from kbert.tokenizers import WordPieceTokenizer

BERTS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = ["flight", "##less", "bird", "the", "<", ">", "/", "s", "mask", "pen", ".", "[", "]"]
VOCABULARY = ["<s>", "<pad>", "</s>", "<unk>", *BERTS, *WORDS, "<mask>"]
TEXTS = ["The flightless BIRD.", "zebra", "", "the [MASK] pen", "the <s> pen"]


@pytest.fixture(scope="module")
def tokenizer():
    return WordPieceTokenizer(VOCABULARY, special_tokens_in_text=True)


def test_special_tokens_are_fairseq_s(tokenizer):
    named = {role: getattr(tokenizer, f"{role}_id") for role in ("cls", "pad", "sep", "mask")}
    assert named == {"cls": 0, "pad": 1, "sep": 2, "mask": len(VOCABULARY) - 1}
    assert tokenizer.vocabulary[tokenizer.unk_id] == "[UNK]"
    assert tokenizer.pair_separators == 2
    assert WordPieceTokenizer(VOCABULARY[4:-1]).pair_separators == 1  # BERT's


def test_ids_are_those_of_transformers(tokenizer, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert "MPNet" in type(theirs).__name__
    again = kbert.load_tokenizer(tmp_path)
    assert again.get_config() == tokenizer.get_config()
    # In a text <s> is no special token to kbert.
    for text in TEXTS[:4]:
        ids = again.encode(text).numpy().tolist()
        assert theirs(text).input_ids == [again.cls_id, *ids, again.sep_id], text
    one, other = "the flightless bird", "pen."
    features = [again.encode(x).numpy().tolist() for x in (one, other)]
    row = [again.cls_id, *features[0], again.sep_id, again.sep_id, *features[1], again.sep_id]
    assert theirs(one, other).input_ids == row


def test_masks_in_a_text(tokenizer):
    expected = ["the", "<mask>", "<pad>", "pen"]
    ids = tokenizer.encode("the <mask><pad> pen").numpy()
    assert [tokenizer.vocabulary[i] for i in ids] == expected
    spans = tokenizer.encode_with_offsets("the<mask>pen")
    starts, ends = (np.asarray(spans[name]).tolist() for name in ("starts", "ends"))
    assert (starts, ends) == ([0, 3, 9], [3, 9, 12])
    assert tokenizer.encode("a</s>").numpy()[-1] == tokenizer.sep_id


def test_a_vocabulary_without_a_mask_is_refused():
    with pytest.raises(ValueError, match=r"must contain <pad>, .*, <mask>. Received: .* without"):
        WordPieceTokenizer(VOCABULARY[:-1])


def test_a_model_reads_pairs_with_two_separators(tokenizer):
    config = kbert.EncoderConfig(
        vocabulary_size=len(VOCABULARY), hidden_size=16, num_layers=1, num_heads=2,
        intermediate_size=16, max_positions=16, num_segments=0, part={"name": "relative_bias"},
    )  # fmt: skip
    task = Pretraining(kbert.Encoder(config), tokenizer)
    (found,) = task.predict(["the <mask> bird"], top_k=3)
    assert len(found["tokens"][0]) == 3
    texts = [tokenizer.encode([text]) for text in ("the bird", "pen .")]
    features = task.form.build_inputs(*texts, max_length=16)
    ids = np.asarray(features["token_ids"])[0]
    assert ids[np.asarray(features["padding_mask"])[0] > 0].tolist() == [
        tokenizer.token_to_id(x) for x in "<s> the bird </s> </s> pen . </s>".split()
    ]
