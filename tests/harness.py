"""Claims of equality that every model's tests make, and the random weights they are made on."""

import contextlib
import resource

import keras
import numpy as np

import kbert.configs  # noqa: F401  # registers all kinds
from kbert.configs.encoder import EncoderConfig
from kbert.core import registry

# With weights of 0.02 the forms of GELU and the epsilons of LayerNorm cannot be told apart.
SIGMA = 0.15


def tiny_config(kind="encoder", **changes) -> EncoderConfig:
    """Two layers of width 16; dropout off, so that two calls agree."""
    fields = {
        "vocabulary_size": 40,
        "hidden_size": 16,
        "num_layers": 2,
        "num_heads": 4,
        "intermediate_size": 32,
        "max_positions": 24,
        "dropout": 0.0,
        "attention_dropout": 0.0,
    }
    return registry.get("config", kind)(**{**fields, **changes})


# Changes of a tiny config, by what they are of: of all that an encoder's config can say.
MODERN = {
    "positions": "rotary",
    "rotary_base": 160_000.0,
    "local_rotary_base": 10_000.0,
    "attention_pattern": ("global", 4),
    "num_segments": 0,
    "feed_forward": "gated",
    "norm": "layer_no_bias",
    "block": "pre_norm_except_first",
    "use_bias": False,
    "pooler_norm": True,
    "token_transform": True,
    "pooling": "mean",
}
KINDS = {
    "modern": MODERN,
    "windows in the last layer": {"attention_pattern": (4,), "positions": "rotary"},
    "alibi": {
        "positions": "alibi",
        "attention_pattern": (4, "global"),
        "feed_forward": "gated",
        "bias_exceptions": ("gate",),
    },
    "grouped": {
        "positions": "rotary",
        "num_segments": 0,
        "num_key_value_heads": 2,
        "feed_forward": "gated",
        "norm": "rms",
        "block": "pre_norm",
        "embedding_norm": False,
        "use_bias": False,
        "bias_exceptions": ("heads",),
        "pooling": "late",
        "output": "untied",
    },
    "padding by id": {
        "padding_id": 5,
        "head_activation": "relu",
        "bias_exceptions": ("attention",),
    },
    "sines": {"positions": "sinusoidal", "embedding_size": 8, "use_bias": False},
    "disentangled": {
        "part": {"name": "disentangled", "position_buckets": 8, "max_distance": 10},
        "positions": "none",
        "num_segments": 0,
    },
    "convolution": {
        "part": {"name": "dynamic_convolution", "kernel_size": 5, "num_groups": 2},
        "num_heads": 2,
        "pooler_activation": "gelu",
        "activation": "gelu",
        "embedding_size": 8,
    },
    "grouped products": {"part": {"name": "grouped", "num_groups": 2}},
    "relative bias": {
        "part": {"name": "relative_bias"},
        "num_segments": 0,
    },
    "global tokens": {
        "part": {"name": "global_tokens"},
        "attention_pattern": (4, 8),
        "num_segments": 0,
    },
    "bottleneck": {
        "part": {"name": "bottleneck", "width": 8, "num_feed_forwards": 2},
        "embedding_size": 8,
        "pooler_activation": "identity",
    },
    "shared": {"num_layer_groups": 1, "attention_pattern": ("global", 4), "positions": "none"},
    "xlnet": {"kind": "xlnet", "clamp_length": 6},
}


def tiny_inputs(config: EncoderConfig, batch=3, length=12, seed=0) -> dict[str, np.ndarray]:
    """Random ids, two segments a row, and padding of another length in each row."""
    rng = np.random.default_rng(seed)
    columns = np.arange(length)
    lengths = np.linspace(length, max(1, length // 3), batch).astype(int)[:, None]
    ids = rng.integers(0, config.vocabulary_size, (batch, length))
    if getattr(config, "padding_id", None) is not None:
        ids[:, 2:4] = config.padding_id  # within the texts
    inputs = {
        "token_ids": ids,
        "padding_mask": np.broadcast_to(columns < lengths, (batch, length)),
    }
    if config.num_segments:
        inputs["segment_ids"] = np.broadcast_to(columns >= lengths // 2, (batch, length))
    if config.part is not None and config.part["name"] == "global_tokens":
        # The first token and some others, one of them in the padding, in each row fewer.
        places = rng.integers(1, length + 1, (batch, 3))
        places = np.where(np.arange(3) < 3 - np.arange(batch)[:, None], places, -1)
        inputs["global_positions"] = np.concatenate([np.zeros((batch, 1)), places], axis=1)
    return {name: np.ascontiguousarray(value, dtype="int32") for name, value in inputs.items()}


def randomise(layer: keras.layers.Layer, sigma: float = SIGMA, seed: int = 0) -> None:
    """Draws every weight anew; scales of normalisation around 1."""
    rng = np.random.default_rng(seed)
    for weight in layer.weights:
        centre = 1.0 if weight.name == "gamma" else 0.0
        weight.assign(rng.normal(centre, sigma, tuple(weight.shape)).astype("float32"))


def to_numpy(structure):
    """A structure of tensors as one of float64 or integer arrays."""
    return keras.tree.map_structure(
        lambda x: np.asarray(keras.ops.convert_to_numpy(keras.ops.cast(x, "float32")), "float64"),
        structure,
    )


def get_values(layer: keras.layers.Layer) -> dict[str, np.ndarray]:
    """path -> value of every weight, in float64."""
    return {weight.path: to_numpy(weight.value) for weight in layer.weights}


def numpy_norm(x, epsilon: float) -> np.ndarray:
    """Zero mean and unit variance over the last axis."""
    x = x - x.mean(-1, keepdims=True)
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon)


def assert_close(actual, expected, atol: float, what: str = "") -> None:
    """Every entry within `atol`; the message names the largest difference."""
    actual, expected = np.asarray(actual, "float64"), np.asarray(expected, "float64")
    assert actual.shape == expected.shape, f"{what}: {actual.shape} is not {expected.shape}"
    worst = np.abs(actual - expected).max(initial=0.0)
    assert worst <= atol, f"{what}: {worst:.3g} apart, {atol:.3g} allowed"


def assert_gradients_close(actual, expected, rtol: float = 1e-4) -> None:
    """Each gradient within `rtol` of the largest entry of its tensor; dicts name -> array."""
    assert actual.keys() == expected.keys()
    for name in expected:
        largest = np.abs(expected[name]).max()
        assert largest > 0, f"{name}: the reference has no gradient here, so this tests nothing"
        assert_close(actual[name], expected[name], rtol * largest, name)


def run_layer_test(layer: keras.layers.Layer, inputs, expected_weights: dict, output_shapes):
    """What every layer must do: names and shapes of weights, eager and symbolic call, bfloat16.

    Args:
        layer: made with dropout 0 and not yet called.
        inputs: what it is called with: a tuple of arrays.
        expected_weights: path -> shape.
        output_shapes: structure of shapes.
    """
    outputs = layer(*inputs)
    assert {weight.path: tuple(weight.shape) for weight in layer.weights} == expected_weights
    assert _shapes(outputs) == output_shapes
    symbolic = layer(*(keras.KerasTensor(x.shape, dtype=str(x.dtype)) for x in inputs))
    assert _shapes(symbolic) == output_shapes
    again = layer(*inputs)
    keras.tree.map_structure(
        lambda a, b: np.testing.assert_array_equal(a, b), to_numpy(outputs), to_numpy(again)
    )


def _shapes(structure):
    return keras.tree.map_structure(lambda x: tuple(x.shape), structure)


def dtype_of(tensor) -> str:
    """Its name, on every backend."""
    return keras.backend.standardize_dtype(tensor.dtype)


def freeze_unread(encoder: keras.Model) -> None:
    """Freezes what no output depends on: XLNet's queries of masked positions, biases of keys.

    A bias of keys adds the same to all scores of a query, which the softmax takes away again.
    """
    if hasattr(encoder, "query"):
        encoder.query.trainable = False
    for weight in encoder.trainable_variables:
        if weight.path.endswith("attention/key/bias"):
            weight.trainable = False


def layer_gradients(layer: keras.layers.Layer, loss) -> dict[str, np.ndarray]:
    """path -> gradient of `loss()`, a scalar, by every trainable weight of a built layer."""
    weights = layer.trainable_variables
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            value = loss()
        found = tape.gradient(value, [weight.value for weight in weights])
        found = [tf.convert_to_tensor(gradient) for gradient in found]  # a lookup's are sparse
    elif keras.backend.backend() == "torch":
        layer.zero_grad()
        loss().backward()
        found = [weight.value.grad for weight in weights]
    else:
        import jax

        def stateless(values):
            with keras.StatelessScope(zip(weights, values, strict=True)):
                return loss()

        found = jax.jit(jax.grad(stateless))([weight.value for weight in weights])
    return {weight.path: to_numpy(g) for weight, g in zip(weights, found, strict=True)}


def numeric_gradients(loss, weights: dict[str, np.ndarray], step=1e-6) -> dict[str, np.ndarray]:
    """path -> gradient of `loss(weights)` by central differences, entry by entry, in float64."""
    gradients = {}
    for name, value in weights.items():
        gradients[name] = np.zeros_like(value)
        for index in np.ndindex(value.shape):
            sides = []
            for shift in (step, -step):
                moved = value.copy()
                moved[index] += shift
                sides.append(loss({**weights, name: moved}))
            gradients[name][index] = (sides[0] - sides[1]) / (2 * step)
    return gradients


def compiled(function):
    """The function by XLA, on TensorFlow and on JAX; on PyTorch as it is."""
    if keras.backend.backend() == "torch":
        return function
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        return tf.function(function, jit_compile=True)
    import jax

    return jax.jit(function)


@contextlib.contextmanager
def files_of_at_most(size: int):
    """The kernel fails every write beyond `size`, as a full disk would: no pretending here."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
