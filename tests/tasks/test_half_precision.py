"""Every task in half precision: it answers, and a version of it answers in the same dtypes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert import tasks

pytestmark = pytest.mark.tensorflow

TEXTS = ["the quick fox", "a dog"]
SIZES = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}


def on_encoder(kind, *arguments, **settings):
    def make(config, tokenizer, dtype):
        return kind(kbert.Encoder(config, dtype=dtype), tokenizer, *arguments, **settings)

    return make


def causal(config, tokenizer, dtype):
    sizes = {**SIZES, "vocabulary_size": tokenizer.vocabulary_size, "max_positions": 40}
    return tasks.CausalLM(
        kbert.Decoder(kbert.family("gpt2").replace(**sizes), dtype=dtype), tokenizer
    )


def translator(config, tokenizer, dtype):
    sizes = {**SIZES, "vocabulary_size": tokenizer.vocabulary_size}
    made = kbert.family("transformer-tiny").replace(**sizes)
    return tasks.Translator(kbert.Seq2Seq(made, dtype=dtype), tokenizer)


MAKE = {
    "classes": (on_encoder(tasks.TextClassifier, ["no", "yes"]), TEXTS),
    "labels": (on_encoder(tasks.TextClassifier, ["no", "yes"], multi_label=True), TEXTS),
    "windows": (on_encoder(tasks.TextClassifier, ["no", "yes"], max_length=8, doc_stride=4), TEXTS),
    "numbers": (on_encoder(tasks.TextRegressor), TEXTS),
    "tags": (on_encoder(tasks.TokenClassifier, ["O", "B-X"]), {"words": [["fox", "dog"], ["a"]]}),
    "answers": (
        on_encoder(tasks.QuestionAnswerer),
        {"question": ["what ?", "who ?"], "context": TEXTS},
    ),
    "choices": (
        on_encoder(tasks.MultipleChoice),
        {"context": TEXTS, "choices": [["a", "dog"], ["fox", "the"]]},
    ),
    "vectors": (on_encoder(tasks.TextEmbedder), TEXTS),
    "restored texts": (on_encoder(tasks.TextDenoiser), TEXTS),
    "neighbours": (on_encoder(tasks.SkipThought), TEXTS),
    "masks": (on_encoder(tasks.Pretraining), ["the [MASK]", "a [MASK]"]),
    "replaced": (on_encoder(tasks.ReplacedTokenDetection), TEXTS),
    "continuations": (causal, TEXTS),
    "translations": (translator, TEXTS),
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", MAKE)
@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_float16", "float16"])
def test_a_version_answers_in_the_dtypes_of_float32(config, tokenizer, tmp_path, kind, dtype):
    """Weights in half precision made heads give it, and requests of such a version failed."""
    make, data = MAKE[kind]
    dtypes = {}
    for name in ("float32", dtype):
        keras.utils.set_random_seed(1)
        task = make(config, tokenizer, name)
        assert len(task.predict(data)) == 2
        # Written, it has answered every entry point's request.
        entries = tf.saved_model.load(task.export(tmp_path / name)).signatures
        dtypes[name] = {
            entry: {key: x.dtype.name for key, x in function.structured_outputs.items()}
            for entry, function in entries.items()
        }
        sample = task.sample_outputs()
        assert sample
        assert all(np.isfinite(np.asarray(x, "float32")).all() for x in sample.values())
    assert dtypes[dtype] == dtypes["float32"]
