"""Features against the hidden states of `transformers`, alone and pooled, cut and in windows."""

import itertools

import numpy as np
import pandas as pd
import pytest
import tensorflow as tf

import kbert
from kbert.extraction import features
from kbert.extraction.inputs import as_inputs
from tests.extraction.conftest import PAIRS, TEXTS
from tests.harness import assert_close

CHOICES = {
    "embeddings": lambda states: states[0],
    "last": lambda states: states[5],
    "second_to_last": lambda states: states[4],
    "sum_all": lambda states: states[1:].sum(0),
    "sum_last_four": lambda states: states[2:].sum(0),
    "concat_last_four": lambda states: np.concatenate(list(states[2:]), -1),
    3: lambda states: states[3],
    -2: lambda states: states[4],
    (0, -1): lambda states: np.concatenate([states[0], states[5]], -1),
}
POOLED = {"cls": lambda x: x[0], "mean": lambda x: x.mean(0), "max": lambda x: x.max(0)}


@pytest.mark.parametrize("layers", CHOICES)
def test_tokens_equal_the_reference(encoder, tokenizer, hidden_states, layers):
    for texts in (TEXTS, PAIRS) if layers == "last" else (PAIRS,):
        ours = features(encoder, tokenizer, texts, layers=layers, pooling=None)
        for row, states in zip(ours, hidden_states(texts), strict=True):
            assert row.dtype == np.float32
            assert_close(row, CHOICES[layers](states), 1e-4)


@pytest.mark.parametrize(
    ("pooling", "layers"),
    [
        pytest.param(x, y, marks=() if i == j else pytest.mark.slow)
        for i, x in enumerate(POOLED)
        for j, y in enumerate(["last", "sum_last_four", "concat_last_four"])
    ],
)
def test_pooled_equal_the_reference(encoder, tokenizer, hidden_states, layers, pooling):
    ours = features(encoder, tokenizer, TEXTS, layers=layers, pooling=pooling)
    expected = [POOLED[pooling](CHOICES[layers](states)) for states in hidden_states(TEXTS)]
    assert_close(ours, expected, 1e-4)


@pytest.mark.parametrize(
    ("texts", "pooling"),
    [
        (TEXTS, "mean"),
        pytest.param(TEXTS, "max", marks=pytest.mark.slow),
        pytest.param(PAIRS, "mean", marks=pytest.mark.slow),
        (PAIRS, "max"),
    ],
    ids=["texts-mean", "texts-max", "pairs-mean", "pairs-max"],
)
def test_special_tokens_left_out(encoder, tokenizer, hidden_states, pooling, texts):
    settings = {"special_tokens": False}
    ours = features(encoder, tokenizer, texts, pooling=pooling, **settings)
    rows = features(encoder, tokenizer, texts, pooling=None, **settings)
    for vector, row, states, text in zip(ours, rows, hidden_states(texts), texts, strict=True):
        ids = [tokenizer.encode(x).numpy() for x in (text if isinstance(text, tuple) else [text])]
        places = np.arange(1, 1 + len(ids[0]))
        if len(ids) == 2:
            places = np.append(places, 2 + len(ids[0]) + np.arange(len(ids[1])))
        expected = states[-1][places]
        assert_close(row, expected, 1e-4)
        assert_close(vector, POOLED[pooling](expected) if len(places) else np.zeros(16), 1e-4)


def test_order_and_batches_change_nothing(encoder, tokenizer, hidden_states, monkeypatch):
    whole = features(encoder, tokenizer, TEXTS)
    assert_close(whole, [states[-1].mean(0) for states in hidden_states(TEXTS)], 1e-4)
    monkeypatch.setattr("kbert.extraction.extract.CHUNK", 2)
    assert_close(features(encoder, tokenizer, TEXTS, batch_size=1), whole, 1e-5)
    assert_close(features(encoder, tokenizer, TEXTS[::-1], batch_size=5)[::-1], whole, 1e-5)


def test_every_way_to_give_texts(encoder, tokenizer):
    expected = features(encoder, tokenizer, TEXTS)
    frame = pd.DataFrame({"text": TEXTS, "label": 0})
    bytes_ = [text.encode() for text in TEXTS]
    for given in (frame, frame["text"], np.array(TEXTS), tf.constant(TEXTS), bytes_, iter(TEXTS)):
        np.testing.assert_array_equal(features(encoder, tokenizer, given), expected)
    columns = dict(zip(("first", "second"), map(list, zip(*PAIRS, strict=True)), strict=True))
    np.testing.assert_array_equal(
        features(encoder, tokenizer, columns), features(encoder, tokenizer, PAIRS)
    )
    assert features(encoder, tokenizer, "one text").shape == (1, 16)
    assert features(encoder, tokenizer, []).shape == (0, 16)
    assert features(encoder, tokenizer, [], pooling=None) == []


def test_tokens_and_where_they_stand(encoder, tokenizer):
    (found,) = features(encoder, tokenizer, ["Foxes, "], pooling=None, with_tokens=True)
    assert found.tokens == ["[CLS]", "fox", "##e", "##s", ",", "[SEP]"]
    assert found.starts.tolist() == [0, 0, 3, 4, 5, 0]
    assert found.ends.tolist() == [0, 3, 4, 5, 6, 0]
    assert found.vectors.shape == (6, 16)
    assert not found.segments.any()
    (pair,) = features(
        encoder, tokenizer, [("a fox", "é!")], pooling=None, with_tokens=True, special_tokens=False
    )
    assert pair.tokens == ["a", "fox", "e", "!"]
    assert pair.segments.tolist() == [0, 0, 1, 1]
    assert (pair.starts.tolist(), pair.ends.tolist()) == ([0, 2, 0, 1], [1, 5, 1, 2])


def test_words_are_their_pieces_merged(encoder, tokenizer):
    words = [["Foxes", "jumped", "", "over", "it's"], [], ["x"]]
    pieces = features(encoder, tokenizer, ["foxes jumped [UNK] over it's"], pooling=None)[0]
    # fox ##e ##s | jumps is no piece of "jumped" | nothing | over | it ' s
    found = features(encoder, tokenizer, words, words=True, merge="first", with_tokens=True)
    assert [len(text.vectors) for text in found] == [5, 0, 1]
    assert found[0].tokens == words[0]
    joined = " ".join(words[0])
    assert [joined[a:b] for a, b in zip(found[0].starts, found[0].ends, strict=True)] == words[0]
    assert len(pieces) > 5
    of_pieces = features(encoder, tokenizer, ["foxes"], pooling=None, special_tokens=False)[0]
    for merge, expected in (("mean", of_pieces.mean(0)), ("first", of_pieces[0])):
        alone = features(encoder, tokenizer, [["foxes"]], words=True, merge=merge)[0]
        assert_close(alone, expected[None], 1e-5)


def test_words_of_strings_are_the_tokenizers(encoder, tokenizer):
    text = "Foxes,  jumping!"
    (found,) = features(encoder, tokenizer, [text], words=True, with_tokens=True)
    assert found.tokens == ["Foxes", ",", "jumping", "!"]
    assert [text[a:b] for a, b in zip(found.starts, found.ends, strict=True)] == found.tokens
    listed = features(encoder, tokenizer, [["foxes", ",", "jumping", "!"]], words=True)[0]
    assert_close(found.vectors, listed, 1e-5)


LONG = " ".join(["the quick brown fox", "a red pen", "two cats"] * 9)


def test_a_long_text_is_truncated_and_counted(encoder, tokenizer, caplog):
    texts = [LONG, "the fox", LONG]
    rows = features(encoder, tokenizer, texts, pooling=None, max_length=12)
    assert [len(row) for row in rows] == [12, 4, 12]
    assert "2 texts are longer than 12 tokens and are truncated" in caplog.text
    (pair,) = features(encoder, tokenizer, [(LONG, "the fox")], pooling=None, max_length=12)
    assert len(pair) == 12


@pytest.mark.parametrize(
    ("pair", "pooling"),
    [
        pytest.param(*x, marks=() if x in ((False, None), (True, "mean")) else pytest.mark.slow)
        for x in itertools.product((False, True), (None, "mean", "cls", "max"))
    ],
)
def test_windows_hold_the_mean_of_each_tokens_vectors(encoder, tokenizer, pooling, pair, caplog):
    size, doc_stride = (10, 4) if not pair else (7, 4)
    text = LONG[:130]
    given = ("the fox", text) if pair else text
    ids = tokenizer.encode(text).numpy()
    head = [2, *tokenizer.encode("the fox").numpy(), 3] if pair else [2]
    sums, counts = np.zeros((len(head) + len(ids) + 1, 16)), np.zeros(len(head) + len(ids) + 1)
    start = 0
    while True:
        part = ids[start : start + size]
        row = np.array([[*head, *part, 3]])
        segments = (np.arange(row.shape[1]) >= len(head)) * pair
        inputs = {"token_ids": row, "segment_ids": segments[None].astype("int32")}
        vectors = np.asarray(encoder(inputs)["sequence"])[0]
        places = [*range(len(head)), *(len(head) + start + np.arange(len(part))), len(sums) - 1]
        sums[places] += vectors
        counts[places] += 1
        if start + size >= len(ids):
            break
        start += doc_stride
    expected = sums / counts[:, None]
    settings = {"max_length": 12, "doc_stride": doc_stride, "pooling": pooling}
    found = features(encoder, tokenizer, [given], **settings)[0]
    if pooling is not None:
        expected = POOLED[pooling](expected)
    assert_close(found, expected, 1e-4)
    assert "truncated" not in caplog.text


def test_words_of_a_long_text_need_a_stride(encoder, tokenizer):
    words = [LONG.split()]
    with pytest.raises(
        ValueError, match=r"pass `doc_stride`. Received: 90 tokens in text number 0"
    ):
        features(encoder, tokenizer, words, words=True)
    assert features(encoder, tokenizer, words, words=True, doc_stride=20)[0].shape == (81, 16)


def test_half_precision_gives_float32_near_the_full_one(encoder, tokenizer):
    half = kbert.Encoder(encoder.config, dtype="mixed_bfloat16")
    half.set_weights(encoder.get_weights())
    ours = features(half, tokenizer, TEXTS, layers="sum_all")
    full = features(encoder, tokenizer, TEXTS, layers="sum_all")
    assert ours.dtype == np.float32
    assert 0 < np.abs(ours - full).max() < 0.05 * np.abs(full).max()


def test_byte_level_words_come_without_their_space(encoder):
    from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS

    tokens = ["<pad>", "<unk>", "<s>", "</s>", "<mask>"]
    tokenizer = kbert.BytePairTokenizer([*tokens, *CHARACTERS, "lo", "Ġlo"], ["l o", "Ġ lo"])
    config = encoder.config.replace(vocabulary_size=300, num_segments=0)
    small = kbert.Encoder(config)
    (found,) = features(small, tokenizer, ["lo lo"], words=True, with_tokens=True)
    assert found.tokens == ["lo", "lo"]
    assert (found.starts.tolist(), found.ends.tolist()) == ([0, 3], [2, 5])
    pair = features(small, tokenizer, [("lo", "lo")], pooling=None, with_tokens=True)[0]
    assert pair.tokens == ["<s>", "lo", "</s>", "</s>", "lo", "</s>"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"layers": "sum"}, "layers must be one of embeddings, last"),
        ({"layers": "mix_all"}, "use a task with `feature_layers`.*Received: layers='mix_all'"),
        ({"layers": 6}, "5 layers, 0 .* to 5. Received: 6"),
        ({"layers": []}, "at least one hidden state"),
        ({"layers": [1.5]}, "must be an integer. Received: 1.5"),
        ({"pooling": "sum"}, "pooling must be one of cls, mean, max"),
        ({"pooling": "cls", "special_tokens": False}, "requires special_tokens=True"),
        ({"words": True, "merge": "last"}, "merge must be one of mean, first"),
        ({"max_length": 41}, "between 5 and 40"),
        ({"doc_stride": 0}, "doc_stride must be at least 1"),
        ({"with_tokens": True}, "pooling=None or words=True"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"verbose": "yes"}, "verbose must be"),
    ],
)
def test_settings_out_of_range(encoder, tokenizer, settings, message):
    with pytest.raises(ValueError, match=message):
        features(encoder, tokenizer, ["the fox"], **settings)


def test_texts_that_are_none(encoder, tokenizer):
    with pytest.raises(TypeError, match="Received: 3 as number 1"):
        features(encoder, tokenizer, ["a", 3])
    with pytest.raises(ValueError, match=r"require words=True\). Received: .* as number 0"):
        features(encoder, tokenizer, [["a", "b", "c"]])
    with pytest.raises(ValueError, match=r"pairs of strings .* as number 0"):
        features(encoder, tokenizer, [tf.constant("a")])
    with pytest.raises(TypeError, match=r"pairs or lists of words. Received: None"):
        features(encoder, tokenizer, None)
    with pytest.raises(ValueError, match="as number 1, after lists of words"):
        features(encoder, tokenizer, [["a"], "b"], words=True)
    with pytest.raises(ValueError, match="Word vectors require single texts"):
        features(encoder, tokenizer, {"first": ["a"], "second": ["b"]}, words=True)


def test_a_preset_is_loaded_before(encoder, tokenizer):
    with pytest.raises(TypeError, match="Received: 'bert-base-uncased' and <"):
        features("bert-base-uncased", tokenizer, ["x"])
    with pytest.raises(TypeError, match="and 'bert-base-uncased'"):
        features(encoder, "bert-base-uncased", ["x"])


def test_few_layers_have_no_last_four(tokenizer, tiny_vocabulary, encoder):
    config = encoder.config.replace(num_layers=2)
    with pytest.raises(ValueError, match="'sum_last_four' requires an encoder with more layers"):
        features(kbert.Encoder(config), tokenizer, ["x"], layers="sum_last_four")


def test_texts_without_an_order_are_refused():
    with pytest.raises(ValueError, match=r"texts must have an order.*Received: a frozenset"):
        as_inputs(frozenset(["a", "b"]))


def test_an_argument_that_is_none_is_refused(encoder, tokenizer):
    with pytest.raises(TypeError, match="unexpected keyword argument 'strides'"):
        features(encoder, tokenizer, [LONG], strides=4)
