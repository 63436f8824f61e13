"""Exact facts from the lectures on fine-tuned models and on BERT as a source of features.

Each test names the slide it comes from; where a slide rounds or leaves something out, the test
says so.
"""

import keras
import numpy as np
import pytest

import kbert
from kbert.core.layer_choice import CHOICES, choose_layers
from kbert.heads import ChoiceHead, SentenceHead, SpanHead, TokenHead
from kbert.tokenizers import SPECIAL_TOKENS
from kbert.tokenizers.packing import build_inputs

WORDS = "a the money free lunch bank river tie win now we went sat on".split()


@pytest.fixture(scope="module")
def tokenizer() -> kbert.WordPieceTokenizer:
    return kbert.WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS])


@pytest.fixture(scope="module")
def encoder(tokenizer) -> kbert.Encoder:
    keras.utils.set_random_seed(3)
    size = {"hidden_size": 16, "num_layers": 3, "num_heads": 2, "intermediate_size": 32}
    config = kbert.EncoderConfig(
        vocabulary_size=tokenizer.vocabulary_size, max_positions=32, initializer_range=0.15, **size
    )
    return kbert.Encoder(config)


# BERT, slide "Fine-tuning": all that is new is one layer. For K classes K x H weights and K biases,
# for questions two vectors S and E, for choices one vector; next to 110 M that is nothing.
@pytest.mark.parametrize(
    ("head", "outputs"),
    [
        (lambda config: SentenceHead(config, 2, name="classifier"), 2),
        (lambda config: TokenHead(config, 9), 9),
        (SpanHead, 2),
        (ChoiceHead, 1),
    ],
    ids=["single sentence or pair", "tagging", "question answering", "choice"],
)
def test_a_fine_tuned_model_adds_one_layer(head, outputs):
    config = kbert.family("bert-base-uncased")
    assert head(config).count_params() == (768 + 1) * outputs


# BERT, slide "Spam or not": logits go through a softmax; 75 % spam and 25 % not spam are logits
# that are log 3 apart, whatever they are.
def test_75_percent_spam_is_a_logit_log_3_higher(encoder, tokenizer):
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["not spam", "spam"])
    task.classifier.dense.kernel.assign(np.zeros((16, 2)))
    task.classifier.dense.bias.assign([-1.0, np.log(3.0) - 1.0])
    answer = task.predict(["win free money now"], verbose=0)[0]
    assert answer["label"] == "spam"
    assert answer["probability"] == pytest.approx(0.75)
    assert answer["probabilities"]["not spam"] == pytest.approx(0.25)


# ELMo and BERT, slide "One vector a word?": before the first layer "bank" is the same at the same
# place of any sentence; behind it, it is not.
def test_one_word_has_many_vectors(encoder, tokenizer):
    ids = tokenizer.encode(["we sat on the bank", "we win the the bank"]).to_tensor()
    states = encoder({"token_ids": ids}, return_hidden_states=True)["hidden_states"]
    states = [keras.ops.convert_to_numpy(state)[:, 4] for state in states]
    # Not to the last bit: on some processors the place in memory decides how a row is summed.
    np.testing.assert_allclose(*states[0], atol=1e-6)
    for state in states[1:]:
        assert np.abs(state[0] - state[1]).max() > 1e-3


# BERT, slide "A question and a paragraph": the answer is a span, so it is words of the paragraph,
# its end not before its start.
def test_an_answer_is_a_piece_of_the_paragraph(encoder, tokenizer):
    task = kbert.tasks.QuestionAnswerer(encoder, tokenizer)
    paragraph = "we went to  the river bank"
    answer = task.predict([("the bank now", paragraph)], verbose=0)[0]
    assert answer["start"] < answer["end"]
    assert answer["answer"] == paragraph[answer["start"] : answer["end"]]


# BERT, slide "Tagging": a label goes to the first piece of a word.
def test_the_first_piece_of_a_word_has_its_label(encoder):
    pieces = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, *WORDS[:-1], "##s"])
    task = kbert.tasks.TokenClassifier(encoder, pieces, ["noun", "verb"])
    table = kbert.data.as_table(
        {"words": [["banks", "win", "money"]], "labels": [["noun", "verb", "noun"]]}
    )
    rows = task.tokenize(table, labelled=True)
    batch = task.assemble(rows.gather([0]))
    assert batch["label_weights"].numpy()[0, :6].tolist() == [0, 1, 0, 1, 1, 0]  # bank ##s win …
    assert batch["labels"].numpy()[0, [1, 3, 4]].tolist() == [0, 1, 0]


SST2 = {
    "a stirring , funny and finally transporting re imagining of beauty and the beast and 1930s "
    "horror films": [101, 1037, 18385, 1010, 6057, 1998, 2633, 18276],
    "apparently reassembled from the cutting room floor of any given daytime soap": [
        *(101, 4593, 2128, 27241, 23931, 2013, 1996, 6276),
    ],
    "they presume their audience wo n't sit still for a sociology lesson": [
        *(101, 2027, 3653, 23545, 2037, 4378, 24185, 1050),
    ],
    "this is a visually stunning rumination on love , memory , history and the war between art and "
    "commerce": [101, 2023, 2003, 1037, 17453, 14726, 19379],
    "jonathan parker 's bartleby should have been the be all end all of the modern office anomie "
    "films": [101, 5655, 6262, 1005, 1055, 12075, 2571, 3762],
}


# BERT, slide "A sentence as numbers": the first rows of SST-2 as ids, padded with 0 to the longest.
# The slide cuts the ids off; of the third it shows "10…", which is the 1050 of "wo n't".
def test_ids_of_five_sentences_of_sst2(uncased):
    specials = {name: getattr(uncased, name) for name in ("cls_id", "sep_id", "pad_id")}
    ids = uncased(list(SST2))
    packed = build_inputs(ids, **specials, max_length=512, multiple=1)
    rows, lengths = packed["token_ids"].numpy(), ids.row_lengths().numpy() + 2
    assert rows.shape == (5, max(lengths))
    for row, length, first in zip(rows, lengths, SST2.values(), strict=True):
        assert row[: len(first)].tolist() == first
        assert row[length - 1] == 102
        assert not row[length:].any()
        assert row[:length].all()


# BERT, slide "DistilBERT as a source of features": 2,000 sentences, of which the longest has 66
# tokens, are a table (2000, 66); the encoder makes (2000, 66, 768) of it, of which the vectors at
# [CLS] (2000, 768) are the features.
def test_shapes_of_two_thousand_sentences(uncased):
    texts = ["love " * (1 + n % 64) for n in range(2000)]
    specials = {name: getattr(uncased, name) for name in ("cls_id", "sep_id", "pad_id")}
    packed = build_inputs(uncased(texts), **specials, max_length=512, multiple=1)
    assert packed["token_ids"].shape == (2000, 66)
    config = kbert.family("distilbert-base-uncased").replace(num_layers=1, vocabulary_size=100)
    spec = {
        name: keras.KerasTensor(packed[name].shape, "int32")
        for name in ("token_ids", "padding_mask")
    }
    sequence = kbert.Encoder(config).compute_output_spec(spec)["sequence"]
    assert sequence.shape == (2000, 66, 768)
    assert sequence[:, 0].shape == (2000, 768)


# BERT, section 5.3 and Table 7: six choices of layers as features; the last four side by side are
# 3,072 wide, and come within 0.3 F1 of fine-tuning (96.1 and 96.4 on CoNLL-2003's dev set).
def test_six_choices_of_features():
    widths = {name: choose_layers(name, 12).num_joined * 768 for name in CHOICES}
    assert widths == {
        **dict.fromkeys(CHOICES, 768),
        "concat_last_four": 3_072,
    }
    assert choose_layers("concat_last_four", 12).indices == (9, 10, 11, 12)
