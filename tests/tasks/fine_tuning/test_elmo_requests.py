"""Requests without a row to SavedModels of tasks on ELMo's features."""

import pytest
import tensorflow as tf

import kbert
from kbert.tasks import TextClassifier

pytestmark = pytest.mark.tensorflow

CONFIG = kbert.ElmoConfig(
    character_size=4,
    filters=((1, 4), (2, 8)),  # one of another width than the characters
    num_highway=1,
    max_characters=12,
    lstm_size=8,
    projection_size=6,
)


@pytest.mark.parametrize(
    "windows",
    [
        pytest.param({}, id="cut"),
        pytest.param({"max_length": 8, "doc_stride": 4}, id="windows"),
    ],
)
@pytest.mark.slow
def test_no_texts_have_no_labels(windows, tmp_path):
    encoder = kbert.models.ElmoEncoder(kbert.Elmo(CONFIG))
    tokenizer = kbert.CharacterTokenizer(CONFIG.max_characters)
    task = TextClassifier(encoder, tokenizer, ["no", "yes"], **windows)
    entries = tf.saved_model.load(task.export(tmp_path)).signatures
    none, one = tf.constant([], tf.string), tf.constant([""])
    for texts in (none, one):
        for found in (
            entries["classify"](text=texts),
            entries["classify_pairs"](first=texts, second=texts),
        ):
            assert found["label"].shape == found["score"].shape == len(texts)
            assert found["scores"].shape == found["labels"].shape == (len(texts), 2)
