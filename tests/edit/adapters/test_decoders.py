"""Tasks on decoders with adapters: trained, asked, kept in folders."""

import keras
import numpy as np
import pytest

import kbert
from kbert.edit import adapters
from kbert.edit.adapters.base import base_weights
from kbert.models import Decoder, DecoderEncoder
from kbert.tasks import CausalLM, TextClassifier
from kbert.training import AdamW
from tests.edit.adapters.conftest import reviews
from tests.harness import to_numpy
from tests.tasks.generation import writing

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
PROMPTS = ["a b c", "c d", ""]
HOW = {"max_new_tokens": 6, "verbose": 0}
LETTERS = [3, *range(5, 13)]


def fit_to_the_alphabet(task, steps=40):
    rows = np.array([np.resize(np.roll(LETTERS, n), 13) for n in range(9)], "int32")
    batch = {"token_ids": rows[:, :-1], "targets": rows[:, 1:]}
    batch["weights"] = np.ones(batch["targets"].shape, "float32")
    task.compile(AdamW(2e-2, weight_decay=0.0, bias_correction=True), jit_compile=False)
    task.fit(writing.dataset([batch] * steps), verbose=0)


@pytest.mark.slow
def test_a_language_model_writes_with_its_adapter(tmp_path):
    task = writing.causal_lm()
    before, base = task.predict(PROMPTS, **HOW), task.decoder.get_weights()
    streamed = "".join(task.stream("a b c", max_new_tokens=6))
    task.save_to_preset(tmp_path / "base")
    adapters.add(task, "lora", rank=4, targets=("query", "key", "value", "intermediate", "output"))
    assert task.predict(PROMPTS, **HOW) == before  # nothing is changed at the start
    fit_to_the_alphabet(task)
    after = task.predict(PROMPTS, **HOW)
    assert after != before
    for weight, was in zip(base_weights(task.decoder), base, strict=True):
        np.testing.assert_array_equal(to_numpy(weight.value), was)
    # Streams too are of the one that runs, whatever was traced before.
    assert "".join(task.stream("a b c", max_new_tokens=6)) == after[0]
    adapters.activate(task, None)
    assert task.predict(PROMPTS, **HOW) == before
    assert "".join(task.stream("a b c", max_new_tokens=6)) == streamed == before[0]
    adapters.activate(task, "lora")
    # Kept whole, alone, and merged.
    task.save_to_preset(tmp_path / "whole")
    adapters.save(task, tmp_path / "alone")
    assert kbert.tasks.Task.from_preset(tmp_path / "whole").predict(PROMPTS, **HOW) == after
    shared = Decoder.from_preset(tmp_path / "base")
    again = adapters.load_task(shared, tmp_path / "alone", tokenizer=task.tokenizer)
    assert again.decoder is shared
    assert again.predict(PROMPTS, **HOW) == after
    adapters.merge(task)
    assert task.predict(PROMPTS, **HOW) == after


@pytest.fixture(scope="module")
def base(tokenizer, tmp_path_factory):
    keras.utils.set_random_seed(1)
    config = kbert.DecoderConfig(
        vocabulary_size=tokenizer.vocabulary_size,
        max_positions=32,
        initializer_range=0.15,
        **writing.SIZES,
    )
    folder = tmp_path_factory.mktemp("base")
    CausalLM(Decoder(config), tokenizer).save_to_preset(folder)
    return folder


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.slow
def test_a_classifier_on_a_decoder_keeps_its_adapter(base, tmp_path, bare, tokenizer):
    if bare:
        encoder = DecoderEncoder(Decoder.from_preset(base), input_tokens=False)
        task = TextClassifier(encoder, tokenizer, ["no", "yes"])
    else:
        task = TextClassifier.from_preset(base, labels=["no", "yes"], new_head=True)
    adapters.add(task, "lora", name="reviews", targets=("query", "value", "intermediate", "output"))
    texts, labels = reviews(64)
    task.fit(texts, labels, epochs=12, batch_size=16, learning_rate=1e-2, verbose=0)
    held_out = reviews(32, 1)
    assert task.evaluate(*held_out, verbose=0)["accuracy"] > 0.9
    adapters.save(task, tmp_path / "adapter")
    keras.utils.set_random_seed(7)  # the three tokens are drawn anew
    again = adapters.load_task(base, tmp_path / "adapter")
    assert again.encoder.has_input_tokens is not bare
    task.save_to_preset(tmp_path / "whole")
    whole = kbert.tasks.Task.from_preset(tmp_path / "whole")
    found, loaded, expected = (
        np.array([list(x["probabilities"].values()) for x in one.predict(held_out[0])])
        for one in (again, whole, task)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    # A task computes its first answers eagerly, later ones in a graph, which rounds otherwise.
    np.testing.assert_allclose(loaded, expected, atol=1e-5)
    # On a decoder that has adapters already, whose tokens have other vectors.
    other = TextClassifier.from_preset(base, labels=["no", "yes"], new_head=True)
    adapters.add(other, "lora", name="other")
    message = r"where the model has \(3, 32\)" if bare else r"share .* embeddings.*other on the dec"
    with pytest.raises(ValueError, match=message):
        adapters.load(other, tmp_path / "adapter")
