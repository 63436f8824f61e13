"""The answers of a task equal those of transformers on the same folder."""

import keras
import numpy as np
import pytest

import kbert

pytestmark = pytest.mark.slow

TEXTS = ["the quick [MASK] fox!", "[MASK] jumps over the [MASK] dog.", "Is it a [MASK]?"]
PAIRS = [("the red pen", "it is day."), ("a fox jumps over the tree", "the moon, the sun")]


@pytest.fixture(scope="module")
def folder(config, tokenizer, tmp_path_factory):
    keras.utils.set_random_seed(3)
    encoder = kbert.Encoder(config.replace(activation="gelu"))
    path = tmp_path_factory.mktemp("huggingface")
    kbert.tasks.Pretraining(encoder, tokenizer).save_to_preset(path, format="huggingface")
    return path


def test_fill_mask_equals_the_pipeline(folder):
    transformers = pytest.importorskip("transformers")
    pipeline = transformers.pipeline("fill-mask", model=str(folder), tokenizer=str(folder))
    answers = kbert.tasks.Pretraining.from_preset(folder).predict(TEXTS, top_k=4)
    for text, answer in zip(TEXTS, answers, strict=True):
        wanted = pipeline(text, top_k=4)
        wanted = [wanted] if isinstance(wanted[0], dict) else wanted  # one mask: not nested
        for mask, best in enumerate(wanted):
            assert answer["tokens"][mask] == [entry["token_str"] for entry in best]
            scores = [entry["score"] for entry in best]
            np.testing.assert_allclose(answer["probabilities"][mask], scores, atol=1e-5)


def test_next_sentence_equals_the_model(folder):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.BertForNextSentencePrediction.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    first, second = zip(*PAIRS, strict=True)
    inputs = tokenizer(list(first), list(second), padding=True, return_tensors="pt")
    with torch.no_grad():
        wanted = model(**inputs).logits.softmax(-1)[:, 0].numpy()
    found = kbert.tasks.Pretraining.from_preset(folder).predict_next_sentence(PAIRS)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
