"""A part from outside kbert: saved, loaded, exported and described by its name and options."""

import json

import keras
import numpy as np
import pytest
from keras import ops

import kbert
from kbert.core import registry
from kbert.core.options import option
from kbert.layers import Block, SelfAttention
from kbert.models import Encoder, Part, describe
from tests.harness import (
    KINDS,
    assert_close,
    assert_gradients_close,
    layer_gradients,
    randomise,
    tiny_config,
    tiny_inputs,
    to_numpy,
)


class Biased(SelfAttention):
    """Adds what all layers share, times a factor of its own, to its input."""

    def __init__(self, *arguments, factor, **options):
        super().__init__(*arguments, **options)
        self.factor = factor

    def call(self, x, bias=None, training=False, shared=None, **options):
        return super().call(x + self.factor * shared, bias, training, **options)


class Table(keras.layers.Layer):
    """One vector, added everywhere."""

    def build(self, input_shape):
        self.vector = self.add_weight(name="vector", shape=input_shape[-1:])

    def call(self, x, training=False):
        return ops.zeros_like(x) + ops.cast(self.vector, x.dtype)


class SharedVector(Part):
    kind = "test_shared_vector"
    factor: float = option(1.0, help="Of the vector.", above=0)

    def check_config(self, config):
        if config.num_segments:
            raise ValueError(f"It is of models without segments. Received: {config.num_segments}")

    def count_parameters(self, config):
        return config.hidden_size

    def make_shared(self, config, **kwargs):
        return Table(**kwargs)

    def make_attention(self, config, *, layer, **kwargs):
        return Biased(config.num_heads, factor=self.factor / (1 + layer), **kwargs)


class Nothing(keras.layers.Identity):
    """A feed-forward part or dropout that leaves everything as it is."""

    def call(self, x, training=False):
        return x


class AttentionAlone(Part):
    """A block without a feed-forward part and norms."""

    kind = "test_attention_alone"

    def count_parameters(self, config):
        forwarded = 2 * config.hidden_size * config.intermediate_size
        forwarded += config.hidden_size + config.intermediate_size
        return -config.num_layers * (forwarded + 2 * 2 * config.hidden_size)

    def make_block(self, config, *, layer, **kwargs):
        attention = SelfAttention(config.num_heads, name="attention")
        return Block(attention, Nothing(), Nothing(), **kwargs)


SHARED = {"name": "test_shared_vector", "factor": 2.0}
ALONE = {"name": "test_attention_alone"}


def config_of(part=SHARED, **changes):
    return tiny_config(num_segments=0, part=part, **changes)


def test_it_is_said_in_the_config_and_hashed_with_it():
    config = config_of()
    assert config.to_dict()["part"] == SHARED
    assert type(config).from_dict(json.loads(json.dumps(config.to_dict()))) == config
    assert hash(config) == hash(config_of())
    assert config != config_of(part={**SHARED, "factor": 3.0})
    assert config.replace(part=None).part is None


@pytest.mark.parametrize("part", [SHARED, ALONE])
def test_the_description_counts_it(part):
    config = config_of(part)
    assert describe(config).held_parameters == Encoder(config).count_params()


def test_it_computes_with_its_options_and_learns():
    encoder, other = Encoder(config_of()), Encoder(config_of(part={**SHARED, "factor": 1.0}))
    for model in (encoder, other):
        randomise(model)
    inputs = tiny_inputs(encoder.config)
    apart = to_numpy(encoder(inputs)["sequence"]) - to_numpy(other(inputs)["sequence"])
    assert np.abs(apart).max() > 1e-2
    gradients = layer_gradients(encoder, lambda: ops.sum(encoder(inputs)["pooled"] ** 2))
    assert np.abs(gradients["encoder/shared/vector"]).max() > 0


@pytest.mark.jax_slow
@pytest.mark.skipif(keras.backend.backend() == "torch", reason="training runs on the other two")
def test_what_is_shared_has_its_gradient_where_layers_are_recomputed():
    from kbert.core.contexts import recomputation

    encoder = Encoder(config_of())
    randomise(encoder)
    inputs = tiny_inputs(encoder.config)

    def gradients(active):
        def loss():
            with recomputation(active):
                return ops.sum(encoder(inputs, training=True)["pooled"] ** 2)

        return layer_gradients(encoder, loss)

    plain, again = gradients(False), gradients(True)
    names = [name for name in plain if np.abs(plain[name]).max() > 0]
    assert "encoder/shared/vector" in names
    assert_gradients_close({n: again[n] for n in names}, {n: plain[n] for n in names})


@pytest.mark.parametrize("part", [SHARED, ALONE])
def test_presets_and_keras_configs_bring_it_back(part, tmp_path):
    encoder = Encoder(config_of(part))
    randomise(encoder)
    inputs = tiny_inputs(encoder.config)
    encoder.save_to_preset(tmp_path / "preset")
    again = Encoder.from_preset(tmp_path / "preset")
    assert again.config == encoder.config
    revived = Encoder.from_config(encoder.get_config())
    revived.set_weights(encoder.get_weights())
    for model in (again, revived):
        found = to_numpy(model(inputs)["sequence"])
        assert_close(found, to_numpy(encoder(inputs)["sequence"]), 1e-6)
    with pytest.raises(ValueError, match=r"does not support this model: .*part is None in all"):
        encoder.save_to_preset(tmp_path / "there", format="huggingface", architecture="bert")


@pytest.mark.tensorflow
def test_a_task_on_it_is_exported(tmp_path, tiny_vocabulary):
    import tensorflow as tf

    tokenizer = kbert.WordPieceTokenizer(tiny_vocabulary)
    config = config_of(vocabulary_size=tokenizer.vocabulary_size, num_layers=1)
    task = kbert.tasks.TextClassifier(Encoder(config), tokenizer, ["no", "yes"])
    randomise(task)
    task.export(tmp_path)
    served = tf.saved_model.load(str(tmp_path / "1")).signatures["serving_default"]
    texts = ["the quick fox", "a dog"]
    scores = served(text=tf.constant(texts))["score"].numpy()
    answers = [answer["probability"] for answer in task.predict(texts)]
    assert_close(scores, answers, 1e-5)


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"`factor` must be .*above 0.*Received: -1"):
        config_of(part={**SHARED, "factor": -1})
    with pytest.raises(ValueError, match=r"SharedVector has no such field.*factor.*'factr'"):
        config_of(part={"name": "test_shared_vector", "factr": 1})
    with pytest.raises(ValueError, match=r"models without segments. Received: 2"):
        tiny_config(part=SHARED)
    for part in ("test_attention_alone", {"factor": 1}, {"name": 3}):
        with pytest.raises(ValueError, match="must be an object with a `name` and options"):
            config_of(part=part)
    with pytest.raises(ValueError, match="must have a unique name, but 'test_attention_alone'"):

        class Other(Part):
            kind = "test_attention_alone"


@pytest.mark.jax_slow
@pytest.mark.parametrize("kind", ["global tokens", "bottleneck", "convolution"])
def test_parts_that_read_on_take_no_causal_mask(kind):
    encoder = Encoder(tiny_config(**KINDS[kind]))
    inputs = tiny_inputs(encoder.config)
    for name in ("causal_mask", "attention_order"):
        with pytest.raises(ValueError, match=rf"`{name}` is not supported .*: part=.*name"):
            encoder({**inputs, name: inputs["padding_mask"]})


@pytest.mark.tensorflow
def test_a_preset_whose_part_nobody_registered_names_it(tmp_path, monkeypatch):
    Encoder(config_of()).save_to_preset(tmp_path)
    # As in a process that has not imported its module.
    monkeypatch.delitem(registry._CLASSES["part"], "test_shared_vector")
    message = (
        "`part` must be registered: import the module that registers it"
        ".*Received: part='test_shared_vector'"
    )
    with pytest.raises(ValueError, match=message):
        Encoder.from_preset(tmp_path)


@pytest.mark.jax_slow
def test_bottlenecks_compute_in_half_precision():
    config = tiny_config(**KINDS["bottleneck"])
    encoder = Encoder(config, dtype="mixed_bfloat16")
    assert np.isfinite(to_numpy(encoder(tiny_inputs(config))["sequence"])).all()


@pytest.mark.parametrize("kind", ["disentangled", "global tokens", "bottleneck"])
def test_parts_whose_heads_share_no_keys_refuse_it(kind):
    with pytest.raises(ValueError, match="num_key_value_heads"):
        # The config of a part that is not loaded yet is checked when a model is made.
        Encoder(tiny_config(**{**KINDS[kind], "num_key_value_heads": 2}))


def test_an_xlnet_of_odd_width_is_refused():
    with pytest.raises(ValueError, match=r"`hidden_size` must be even: .* Received: 9"):
        tiny_config("xlnet", hidden_size=9, num_heads=3)
