"""One SavedModel of many tasks: the base once, an answer of each."""

import os

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.edit import adapters
from tests.edit.adapters.conftest import make_encoder, reviews
from tests.edit.adapters.test_folder import draw, make, probabilities
from tests.harness import assert_close
from tests.tasks.pretraining.test_export import serve

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]


def size(path):
    return sum(
        os.path.getsize(os.path.join(at, f)) for at, _, files in os.walk(path) for f in files
    )


@pytest.mark.slow
def test_each_task_has_its_signature_and_the_base_is_there_once(tokenizer, tmp_path):
    encoder = make_encoder(tokenizer, hidden_size=128, intermediate_size=512)
    tasks = {}
    for n, (kind, options) in enumerate((("lora", {}), ("houlsby", {"size": 8}), ("bitfit", {}))):
        tasks[kind] = make(tokenizer, encoder, kind, f"own_{n}", **options)
        draw(tasks[kind], seed=n)
    texts = [*reviews(5)[0], "", "nothing that is known"]
    path = adapters.export(tasks, tmp_path / "many")
    loaded = tf.saved_model.load(path)
    for name, task in tasks.items():
        found = loaded.signatures[f"{name}_classify"](text=tf.constant(texts))
        assert_close(found["scores"].numpy(), probabilities(task, texts), 1e-5)
    single = tasks["lora"].export(tmp_path / "one")
    assert size(path + "/variables") < 1.3 * size(single + "/variables")
    (answer,) = serve(path, ("houlsby_classify", {"text": texts}))
    assert_close(answer["scores"], probabilities(tasks["houlsby"], texts), 1e-5)


def test_tasks_on_several_encoders_or_without_adapters_are_refused(tokenizer, tmp_path):
    one, other = make(tokenizer), make(tokenizer)
    with pytest.raises(ValueError, match="2 tasks on 2 encoders"):
        adapters.export({"one": one, "other": other}, tmp_path)
    plain = kbert.tasks.TextClassifier(one.encoder, tokenizer, ["no", "yes"])
    with pytest.raises(ValueError, match="without one: plain"):
        adapters.export({"one": one, "plain": plain}, tmp_path)
    assert not np.any(list(tmp_path.iterdir()))
