"""Features of an encoder-decoder's encoder: the states of transformers, in rows of its own form."""

import numpy as np
import pytest

import kbert
from kbert.extraction import write_features
from kbert.models import DecoderEncoder
from tests.harness import assert_close, randomise
from tests.tasks.generation import test_text_to_text_folders, test_text_to_text_languages

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

SOURCES = ["the cat sat", "a man with a hat reads a book", "dogs", ""]
FOLDERS = {
    **dict.fromkeys(("bart", "t5"), test_text_to_text_folders),
    **dict.fromkeys(("marian", "mbart", "mbart50"), test_text_to_text_languages),
}

SLOW = ("marian", "mbart50")  # their rows have the forms of T5 and BART


@pytest.fixture
def task():
    """A new translator, whose sources end in [SEP] and begin with no token."""
    tokenizer = kbert.WordPieceTokenizer(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "red", "fox", "##es", "a", "dog"]
    )
    config = kbert.Seq2SeqConfig(
        vocabulary_size=11, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24,
        max_positions=12,
    )  # fmt: skip
    task = kbert.Translator(kbert.Seq2Seq(config), tokenizer)
    randomise(task.seq2seq)
    return task


def states_of(task, text):
    ids = np.array([[*task.tokenizer.encode([text]).to_list()[0], task.tokenizer.sep_id]])
    return [np.asarray(x)[0] for x in task.seq2seq.encode(ids)]


@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=pytest.mark.slow if x in SLOW else ()) for x in FOLDERS]
)
def test_states_equal_transformers(kind, tmp_path):
    model, _ = FOLDERS[kind].folder_of(kind, tmp_path / "theirs")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "theirs")
    inputs = theirs(SOURCES, return_tensors="pt", padding=True)
    with torch.no_grad():
        outputs = model.get_encoder()(
            input_ids=inputs["input_ids"],
            attention_mask=inputs["attention_mask"],
            output_hidden_states=True,
        )
    task = kbert.TextToText.from_preset(tmp_path / "theirs")
    for layer in (0, 1, -1):
        wanted = outputs.hidden_states[layer].numpy()
        found = kbert.features(task, task.tokenizer, SOURCES, layers=layer, pooling=None)
        for row, states, mask in zip(found, wanted, inputs["attention_mask"], strict=True):
            assert_close(row, states[mask.numpy() > 0], 1e-4)
    described = kbert.features(task, task.tokenizer, SOURCES, pooling=None, with_tokens=True)
    for text, ids, mask in zip(
        described, inputs["input_ids"], inputs["attention_mask"], strict=True
    ):
        assert text.tokens == theirs.convert_ids_to_tokens(ids[mask > 0])


def test_pooling_and_words_leave_out_the_end(task):
    text = "the red foxes"
    last, tokenizer = states_of(task, text)[-1], task.tokenizer
    assert last.shape == (5, 16)
    assert_close(kbert.features(task, tokenizer, [text]), last.mean(0)[None], 1e-5)
    inner = kbert.features(task, tokenizer, [text], special_tokens=False)
    assert_close(inner, last[:4].mean(0)[None], 1e-5)
    (words,) = kbert.features(task, tokenizer, [text], words=True)
    assert_close(words, np.stack([last[0], last[1], last[2:4].mean(0)]), 1e-5)
    (listed,) = kbert.features(task, tokenizer, [text.split()], words=True)
    assert_close(listed, words, 1e-5)


def test_long_sources_are_cut_or_read_in_windows(task):
    text = " ".join(["a red fox the dog"] * 4)
    (cut,) = kbert.features(task, task.tokenizer, [text], pooling=None)
    assert cut.shape == (12, 16)
    assert_close(cut, states_of(task, " ".join(text.split()[:11]))[-1], 1e-5)
    (whole,) = kbert.features(task, task.tokenizer, [text], pooling=None, doc_stride=11)
    assert whole.shape == (21, 16)
    assert_close(whole[:11], cut[:11], 1e-5)
    assert_close(whole[11:20], states_of(task, " ".join(text.split()[11:]))[-1][:9], 1e-5)


def test_files_and_pipelines(task, tmp_path):
    texts = ["the red fox", "a dog"]
    wanted = kbert.features(task, task.tokenizer, texts)
    write_features(tmp_path / "cove.npy", task, task.tokenizer, texts, verbose=0)
    np.testing.assert_array_equal(np.load(tmp_path / "cove.npy"), wanted)
    step = kbert.TextFeatures(task, task.tokenizer)
    assert_close(step.transform(texts), wanted, 1e-6)
    assert len(step.get_feature_names_out()) == 16


@pytest.fixture(scope="module")
def decoder():
    config = kbert.DecoderConfig(
        vocabulary_size=11, hidden_size=16, num_layers=2, num_heads=2, intermediate_size=24,
        max_positions=16, dropout=0.0, attention_dropout=0.0,
    )  # fmt: skip
    decoder = kbert.Decoder(config)
    randomise(decoder)
    return decoder


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_texts_alone_have_no_special_tokens_to_leave_out(task, decoder, pooling):
    """Of 8 tokens, a multiple of the columns; of the most that fit; and of more."""
    encoder, tokenizer = DecoderEncoder(decoder, input_tokens=False), task.tokenizer
    texts = [" ".join((["a", "red", "fox", "the"] * 5)[:number]) for number in (7, 8, 16, 17)]
    vectors = kbert.features(encoder, tokenizer, texts, pooling=None, verbose=0)
    assert [len(x) for x in vectors] == [7, 8, 16, 16]
    for special_tokens in (True, False):
        settings = {"pooling": pooling, "special_tokens": special_tokens}
        for text, tokens in zip(texts, vectors, strict=True):
            (pooled,) = kbert.features(encoder, tokenizer, [text], **settings, verbose=0)
            assert_close(pooled, getattr(tokens, pooling)(0), 1e-5)


@pytest.mark.parametrize("special_tokens", [True, False])
def test_pairs_of_texts_alone_have_no_separator(task, decoder, special_tokens):
    encoder, tokenizer = DecoderEncoder(decoder, input_tokens=False), task.tokenizer
    settings = {"pooling": None, "special_tokens": special_tokens, "verbose": 0}
    for first, second in (("a red fox", "the dog"), ("a red fox the dog", "the a fox")):
        (joined,) = kbert.features(encoder, tokenizer, [f"{first} {second}"], **settings)
        (pair,) = kbert.features(encoder, tokenizer, [(first, second)], **settings)
        assert_close(pair, joined, 1e-6)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("the red", "[start] the red [extract]"),
        (("the red", "fox"), "[start] the red [delimiter] fox [extract]"),
        ("a " * 20, "[start] " + "a " * 14 + "[extract]"),
    ],
)
def test_tokens_of_a_decoder_s_rows(task, decoder, text, tokens):
    settings = {"pooling": None, "with_tokens": True, "verbose": 0}
    encoder = DecoderEncoder.extend(decoder)
    (row,) = kbert.features(encoder, task.tokenizer, [text], **settings)
    assert row.tokens == tokens.split()
    assert len(row.vectors) == len(row.tokens)
    bare = DecoderEncoder(decoder, input_tokens=False)
    (row,) = kbert.features(bare, task.tokenizer, ["the red"], **settings)
    assert row.tokens == ["the", "red"]


def test_refused(task, decoder):
    tokenizer = task.tokenizer
    for model in (task, DecoderEncoder(decoder, input_tokens=False)):
        with pytest.raises(ValueError, match=r'"cls" requires rows .* rows of this model lack'):
            kbert.features(model, tokenizer, ["a"], pooling="cls")
    with pytest.raises(TypeError, match=r"require its kbert.TextToText.*Received: a Seq2Seq"):
        kbert.features(task.seq2seq, tokenizer, ["a"])
    with pytest.raises(ValueError, match=r"max_length must be between 5 and 12"):
        kbert.features(task, tokenizer, ["a"], max_length=13)
