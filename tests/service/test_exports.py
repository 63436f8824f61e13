"""What tasks export, served: the service gives what the SavedModels give."""

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.extraction import export_features
from kbert.service import Client
from tests.harness import randomise, tiny_config
from tests.service_harness import running, signature

TEXTS = ["the red fox", "", "a quick brown dog jumps over the lazy cat and two men", "sun"]


@pytest.mark.slow
def test_vectors_masks_and_tags(tmp_path, tiny_vocabulary):
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = tiny_config(vocabulary_size=len(tiny_vocabulary), max_positions=64)
    encoder = kbert.Encoder(config)
    pretraining = kbert.tasks.Pretraining(encoder, tokenizer)
    tagger = kbert.tasks.TokenClassifier(encoder, tokenizer, ["A", "B"], max_length=64)
    for task in (pretraining, tagger):
        randomise(task)
    paths = {
        "vectors": export_features(tmp_path / "vectors", encoder, tokenizer),
        "masks": pretraining.export(tmp_path / "masks"),
        "tags": tagger.export(tmp_path / "tags"),
    }
    with running(model=[f"{name}={path}" for name, path in paths.items()]) as service:
        client = Client(service.address)
        wanted = signature(paths["vectors"], "features")(text=tf.constant(TEXTS))["vectors"]
        np.testing.assert_allclose(client.embed(TEXTS), wanted, atol=1e-5)

        texts = ["the [MASK] fox", "no mask", "[MASK] and [MASK]"]
        wanted = signature(paths["masks"], "fill_mask")(text=tf.constant(texts))
        found = client.fill_mask(texts)
        assert [len(masks) for masks in found] == [1, 0, 2]
        for row, masks in enumerate(found):
            for place, best in enumerate(masks):
                tokens = wanted["tokens"][row, place].numpy().tolist()
                assert [each["token"].encode() for each in best] == tokens
                values = [each["probability"] for each in best]
                np.testing.assert_allclose(values, wanted["probabilities"][row, place], atol=1e-5)

        wanted = signature(paths["tags"], "tag")(text=tf.constant(TEXTS))
        rows = client.predict("tags", TEXTS)
        for name, column in wanted.items():
            given = np.array([row[name] for row in rows])
            if column.dtype == tf.string:
                given = np.char.encode(given, "utf-8").astype(object)
                assert given.tolist() == column.numpy().tolist(), name
            else:
                np.testing.assert_allclose(given, column, atol=1e-5)
