"""The Universal Transformer against adaptive computation time in NumPy, and in training."""

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.configs import UniversalTransformerConfig
from kbert.core.contexts import auxiliary_losses
from kbert.layers.positions import sinusoids
from kbert.models import Encoder, UniversalTransformer, describe
from tests.harness import assert_close, randomise, tiny_inputs, to_numpy

STEPS, WIDTH = 5, 16


def config_of(**changes):
    values = {
        **{"vocabulary_size": 20, "hidden_size": WIDTH, "num_layers": STEPS, "num_heads": 2},
        **{"intermediate_size": 24, "max_positions": 32, "dropout": 0.0, "attention_dropout": 0.0},
    }
    return UniversalTransformerConfig(**{**values, **changes})


def make(**changes):
    """Weights of sigma 0.15; the probabilities to halt lie apart."""
    encoder = Encoder(config_of(**changes))
    randomise(encoder)
    if encoder.halt is not None:
        kernel = np.random.default_rng(7).normal(0, 0.6, (WIDTH, 1))
        encoder.halt.kernel.assign(kernel)
        encoder.halt.bias.assign([-0.5])
    return encoder


def reference(encoder, inputs):
    """Appendix C of the paper, token by token; the block is the encoder's."""
    config = encoder.config
    bias = encoder._layer_biases(inputs, in_blocks=False)[0]
    state = to_numpy(encoder.embeddings(inputs["token_ids"], inputs["segment_ids"]))
    rows, length, _ = state.shape
    table = sinusoids(64, WIDTH)
    kernel, intercept = (to_numpy(x) for x in (encoder.halt.kernel, encoder.halt.bias))
    given, spent = np.zeros_like(state), np.zeros((rows, length))
    steps, remainders = np.zeros((rows, length)), np.zeros((rows, length))
    for step in range(config.num_layers):
        state = state + table[:length] + table[step]
        chance = 1 / (1 + np.exp(-(state.astype("float64") @ kernel + intercept)[..., 0]))
        after = to_numpy(encoder.blocks[0](state, bias)[0])
        for row in range(rows):
            for token in range(length):
                if remainders[row, token] > 0:
                    continue
                steps[row, token] += 1
                weight = chance[row, token]
                if spent[row, token] + weight > config.halting_threshold:
                    weight = remainders[row, token] = 1 - spent[row, token]
                spent[row, token] += weight
                given[row, token] = weight * after[row, token] + (1 - weight) * given[row, token]
        state = after
    return given, steps, remainders


@pytest.mark.jax_slow
@pytest.mark.parametrize("padded", [False, True])
def test_states_steps_and_remainders_are_those_of_the_paper(padded):
    encoder = make()
    inputs = tiny_inputs(encoder.config)
    if not padded:
        inputs["padding_mask"] = np.ones_like(inputs["padding_mask"])
    out = encoder(inputs)
    given, steps, remainders = reference(encoder, inputs)
    assert len(set(steps.ravel())) > 2  # tokens halt after different steps
    assert (remainders > 0).any()
    assert_close(to_numpy(out["sequence"]), given, 2e-5)
    assert_close(to_numpy(out["ponder_time"]), steps + remainders, 1e-5)


def test_without_halting_all_take_all_steps():
    encoder = make(halting=False)
    inputs = tiny_inputs(encoder.config)
    out = encoder(inputs, return_hidden_states=True)
    state = encoder.embeddings(inputs["token_ids"], inputs["segment_ids"])
    bias = encoder._layer_biases(inputs, in_blocks=False)[0]
    table = keras.ops.convert_to_tensor(sinusoids(64, WIDTH))
    for step in range(STEPS):
        state = state + table[: state.shape[1]] + table[step]
        state = encoder.blocks[0](state, bias)[0]
        assert_close(to_numpy(out["hidden_states"][step + 1]), to_numpy(state), 1e-6)
    np.testing.assert_array_equal(to_numpy(out["ponder_time"]), STEPS)
    with auxiliary_losses() as added:
        encoder(inputs)
    assert not added


@pytest.mark.jax_slow
def test_what_it_holds_is_what_is_described(tmp_path):
    for changes in ({}, {"halting": False}, {"pooler_activation": None, "embedding_size": 8}):
        encoder = make(**changes)
        assert describe(encoder.config).held_parameters == encoder.count_params()
        inputs = tiny_inputs(encoder.config)
        encoder.save_to_preset(tmp_path / "preset")
        encoder.save(tmp_path / "model.keras")
        for again in (
            Encoder.from_preset(tmp_path / "preset"),
            keras.saving.load_model(tmp_path / "model.keras"),
        ):
            assert type(again) is UniversalTransformer
            found, expected = (to_numpy(x(inputs)["sequence"]) for x in (again, encoder))
            np.testing.assert_array_equal(found, expected)


@pytest.mark.jax_slow
def test_packed_rows_are_their_examples():
    encoder = make()
    ids = np.array([[4, 7, 9, 5, 6, 8, 3, 2]], "int32")
    examples = np.array([[1, 1, 1, 2, 2, 2, 2, 2]], "int32")
    places = np.array([[0, 1, 2, 0, 1, 2, 3, 4]], "int32")
    packed = encoder(
        {
            **{"token_ids": ids, "example_ids": examples, "position_ids": places},
            **{"segment_ids": np.zeros_like(ids), "cls_positions": np.array([[0, 3]], "int32")},
        }
    )
    for part in (slice(0, 3), slice(3, 8)):
        one = encoder({"token_ids": ids[:, part], "segment_ids": np.zeros_like(ids[:, part])})
        for name in ("sequence", "ponder_time"):
            assert_close(to_numpy(packed[name][:, part]), to_numpy(one[name]), 1e-5, name)


@pytest.mark.tensorflow
def test_the_gradient_reaches_what_halts():
    """By the steps' weights and by the ponder loss, against differences."""
    import tensorflow as tf

    encoder = make()
    inputs = tiny_inputs(encoder.config)
    direction = np.random.default_rng(3).normal(size=(*inputs["token_ids"].shape, WIDTH))

    def loss():
        with auxiliary_losses() as added:
            out = encoder(inputs)["sequence"]
        total, count = added["ponder_loss"]
        return ops.sum(out * direction.astype("float32")) + 30.0 * total / count

    with tf.GradientTape() as tape:
        value = loss()
    (gradient,) = tape.gradient(value, [encoder.halt.bias.value])
    size, before = 1e-3, float(encoder.halt.bias[0])
    values = []
    for sign in (1, -1):
        encoder.halt.bias.assign([before + sign * size])
        values.append(float(loss()))
    assert float(gradient[0]) == pytest.approx((values[0] - values[1]) / (2 * size), rel=0.02)


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "dtype", ["float32", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)]
)
def test_compiled_and_in_half_precision(dtype):
    import tensorflow as tf

    encoder = make(num_layers=3)
    inputs = tiny_inputs(encoder.config)
    expected = {name: to_numpy(x) for name, x in encoder(inputs).items()}
    other = Encoder(encoder.config, dtype=dtype)
    other.set_weights(encoder.get_weights())
    found = tf.function(other, jit_compile=True)(inputs)
    if dtype == "float32":
        for name, values in expected.items():
            assert_close(to_numpy(found[name]), values, 1e-5, name)
    else:  # where a token halts may turn on a rounding
        assert found["ponder_time"].dtype == tf.float32
        apart = np.abs(to_numpy(found["sequence"]) - expected["sequence"])
        assert np.median(apart) < 0.03
    symbolic = other.compute_output_spec({k: keras.KerasTensor(x.shape, "int32")
                                          for k, x in inputs.items()})  # fmt: skip
    assert {k: tuple(x.shape) for k, x in symbolic.items()} == {
        k: tuple(x.shape) for k, x in found.items()
    }


@pytest.mark.slow
@pytest.mark.tensorflow
def test_a_task_pays_for_its_steps(tiny_vocabulary, tmp_path):
    """A dear step is saved: `ponder_loss` is logged and falls."""
    keras.utils.set_random_seed(0)
    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = config_of(vocabulary_size=tokenizer.vocabulary_size, ponder_weight=0.5)
    encoder = Encoder(config)
    encoder.halt.bias.assign([-0.8])  # halts in the fourth step
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    words = tokenizer.vocabulary[5:9]
    texts = [f"{words[i % 4]} {words[i // 4]}" for i in range(16)]
    table = {"text": texts, "label": ["yes" if i % 4 < 2 else "no" for i in range(16)]}
    history = task.fit(table, epochs=12, batch_size=8, learning_rate=2e-2, verbose=0).history
    assert history["ponder_loss"][-1] < 0.7 * history["ponder_loss"][0]
    assert history["ponder_loss"][-1] >= 0.5
    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert type(again.encoder) is UniversalTransformer
    assert again.predict(texts[:2]) == task.predict(texts[:2])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_layer_groups": 1}, "does not support `num_layer_groups`"),
        ({"block": "pre_norm"}, "does not support `block`"),
        ({"positions": "rotary"}, "does not support `positions`"),
        ({"halting_threshold": 0}, "above 0 and at most 1.*: 0"),
        ({"ponder_weight": -1}, "0 or more.*: -1"),
        ({"halting": 1}, "`halting` must be True or False"),
    ],
)
def test_configs_that_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        config_of(**changes)
