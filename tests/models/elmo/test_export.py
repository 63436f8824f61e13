"""The exported model: loaded as TensorFlow Serving loads it, asked in text and in words."""

import os

import numpy as np
import pytest
import tensorflow as tf

from kbert import Elmo
from kbert.layers import ScalarMix
from tests.export import session
from tests.harness import assert_close, randomise
from tests.models.elmo.test_elmo import TINY
from tests.tasks.pretraining.test_export import operations

pytestmark = pytest.mark.tensorflow

SENTENCES = [["The", "sun", "shines"], [], ["Größe", "x" * 1000, "<S>", ".", "日本"], ["a"]]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """(model, path of its SavedModel)."""
    elmo = Elmo(TINY, mix=ScalarMix(name="mix"))
    randomise(elmo, sigma=0.5)
    folder = tmp_path_factory.mktemp("export")
    path = elmo.export(folder)
    assert path == str(folder / "1")
    return elmo, path


def check(elmo, answer, sentences):
    embeddings, lengths = np.array(answer["embeddings"]), np.array(answer["lengths"])
    assert lengths.tolist() == [len(words) for words in sentences]
    weights = np.exp(elmo.mix.scalars.numpy())
    weights *= elmo.mix.gamma.numpy() / weights.sum()
    for row, wanted in enumerate(elmo.embed(sentences)):
        size = lengths[row]
        assert_close(embeddings[row, :, :size], wanted, 1e-5)
        assert not embeddings[row, :, size:].any()
        mixed = np.array(answer["mix"])[row]
        assert_close(mixed[:size], np.tensordot(weights, wanted, 1), 1e-5)
        assert not mixed[size:].any()


@pytest.mark.slow
def test_the_session_loader_gives_the_embeddings(exported):
    elmo, path = exported
    widest = max(map(len, SENTENCES))
    matrix = [words + [""] * (widest - len(words)) for words in SENTENCES]
    texts = [" ".join(words) for words in SENTENCES]
    from_text, default, from_words = session.ask(
        path,
        ("embed", {"text": texts}),
        ("serving_default", {"text": texts[:1]}),
        ("embed_words", {"words": matrix}),
    )
    check(elmo, from_text, SENTENCES)
    check(elmo, default, SENTENCES[:1])
    check(elmo, from_words, SENTENCES)


def test_rows_without_words_and_bytes_that_are_no_text(exported):
    elmo, path = exported
    empty, odd, none = session.ask(
        path,
        ("embed", {"text": ["", " "]}),
        ("embed", {"text": [b"\xff\xfe a"]}),
        ("embed", {"text": []}),
    )
    assert empty["embeddings"].shape == (2, 3, 0, 12)
    assert empty["lengths"].tolist() == [0, 0]
    check(elmo, odd, [[b"\xff\xfe", b"a"]])
    assert none["embeddings"].shape == (0, 3, 0, 12)


def test_every_weight_is_stored_once(exported):
    elmo, path = exported
    data = sum(
        os.path.getsize(f"{path}/variables/{name}")
        for name in os.listdir(f"{path}/variables")
        if ".data-" in name
    )
    held = 4 * elmo.count_params()
    assert held <= data < held + 8192  # and the object graph
    stored = [name for name, _ in tf.train.list_variables(f"{path}/variables/variables")]
    assert len(stored) == len(elmo.weights) + 1


def test_no_operation_that_tensorflow_serving_may_lack(exported):
    found = operations(exported[1])
    text = {name for name in found if name.startswith("TFText>")}
    assert text == {"TFText>WhitespaceTokenizeWithOffsetsV2"}  # in the `ops_lib` that it links
    assert not {"PyFunc", "EagerPyFunc"} & found
