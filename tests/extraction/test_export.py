"""The exported features, asked through the session loader."""

import numpy as np
import pytest

from kbert.export import export_features
from kbert.extraction import features
from tests.export.session import ask
from tests.extraction.conftest import PAIRS, TEXTS
from tests.harness import assert_close

pytestmark = pytest.mark.tensorflow


@pytest.mark.slow
def test_vectors_of_texts_and_pairs(encoder, tokenizer, tmp_path):
    settings = {"layers": "concat_last_four", "pooling": "max", "special_tokens": False}
    path = export_features(tmp_path, encoder, tokenizer, **settings)
    first, second = zip(*PAIRS, strict=True)
    strange = [b"\xff\xfe", b"the fox " * 10_000]
    texts, pairs, odd = ask(
        path,
        ("features", {"text": TEXTS}),
        ("pair_features", {"first": first, "second": second}),
        ("serving_default", {"text": strange}),
    )
    assert_close(texts["vectors"], features(encoder, tokenizer, TEXTS, **settings), 1e-4)
    assert_close(pairs["vectors"], features(encoder, tokenizer, PAIRS, **settings), 1e-4)
    assert odd["vectors"].shape == (2, 64)
    assert np.isfinite(odd["vectors"]).all()


@pytest.mark.slow
def test_vectors_of_tokens(encoder, tokenizer, tmp_path):
    path = export_features(tmp_path, encoder, tokenizer, pooling=None, max_length=12)
    (answer,) = ask(path, ("features", {"text": ["the Foxes", "x"]}))
    assert answer["tokens"][0, :6].tolist() == [b"[CLS]", b"the", b"fox", b"##e", b"##s", b"[SEP]"]
    assert answer["counted"].sum(1).tolist() == [6, 3]
    expected = features(encoder, tokenizer, ["the foxes", "x"], pooling=None)
    assert_close(answer["vectors"][0, :6], expected[0], 1e-4)
