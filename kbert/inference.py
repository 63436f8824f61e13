"""From a list of texts to batches of few shapes, and back to one result a text.

Texts are sorted by length, so that a batch holds little padding; rows are padded to a power of
two and columns to a multiple of 16, so that one compiled graph serves every call.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kbert.core.in_memory import each_text
from kbert.core.types import Shape, Tensors
from kbert.finite import refuse_not_finite
from kbert.graphs import (
    graph,
    on_cpu as on_cpu,  # for those who predict
)

BATCH_SIZE = 32
CHUNK = 8192  # texts tokenised at a time: bounds the memory of an endless list

TEXTS = tf.TensorSpec([None], tf.string)
IDS = tf.RaggedTensorSpec([None, None], tf.int32)
ROWS = tf.TensorSpec([None], tf.int64)


class _Forward(keras.Model):
    """A function of layers as a model, for Keras' compiled `predict_on_batch`."""

    def __init__(self, function: Callable, layers: Sequence[keras.layers.Layer]) -> None:
        super().__init__(name="forward")
        self.function = function
        self.parts = list(layers)
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        """Its parts are built already."""

    def call(self, features: Tensors) -> Any:
        return self.function(features)


def _tensorflow_graph(function: Callable, features: Tensors, jit_compile: bool) -> Callable:
    """One graph for all shapes; by XLA one for each."""
    spec = {name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in features.items()}
    shapes = {} if jit_compile else {"input_signature": [spec]}
    run = graph(function, autograph=False, jit_compile=jit_compile or None, **shapes)
    return lambda features: tf.nest.map_structure(lambda x: x.numpy(), run(features))


def is_one_of_several() -> bool:
    """Whether this process is one of a run on several hosts on JAX."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.process_count() > 1


def _on_this_host(model: keras.Model) -> Callable:
    """Runs a model by itself on each host: Keras would take the features as parts of one batch."""
    import jax

    run = jax.jit(lambda trained, others, x: model.stateless_call(trained, others, x)[0])

    def own(variables: Sequence[keras.Variable]) -> list:
        return [variable.value.addressable_data(0) for variable in variables]

    def forward(features: Tensors) -> Any:
        found = run(own(model.trainable_variables), own(model.non_trainable_variables), features)
        return jax.tree.map(np.asarray, found)

    return forward


def compiled(
    function: Callable, *layers: keras.Layer, jit_compile: bool = False, check: bool = True
) -> Callable[[dict], Any]:
    """Compiles `function(features)`, which calls `layers` for inference.

    TensorFlow makes one graph at the first call with features of these names; elsewhere, and by
    XLA, each new shape is compiled. Each adapter of the layers that have such has functions of its
    own (`variant` of a model that takes them).

    Args:
        function: of a dict of arrays, a tensor or a structure of tensors.
        *layers: the layers whose weights it uses.
        jit_compile: whether XLA compiles on TensorFlow; JAX always does.
        check: whether results that are not finite are refused, by name; see `kbert.finite`.

    Returns:
        A function from a dict of NumPy arrays to NumPy arrays, which raises ValueError where these
        are not finite. It holds the layers in a closure: a model that keeps it does not count them
        twice.

    Example:
        >>> import numpy as np
        >>> halve = compiled(lambda features: features["x"] / 2)
        >>> halve({"x": np.array([[2.0], [6.0]], "float32")}).tolist()
        [[1.0], [3.0]]
    """
    made: dict[Any, Callable] = {}

    def run(features: Tensors) -> Any:
        names = (frozenset(features), *(getattr(layer, "variant", None) for layer in layers))
        if names not in made and keras.backend.backend() == "tensorflow":
            made[names] = _tensorflow_graph(function, features, jit_compile)
        elif names not in made and is_one_of_several():
            made[names] = _on_this_host(_Forward(function, layers))
        elif names not in made:
            made[names] = _Forward(function, layers).predict_on_batch
        found = made[names](features)
        if check:
            refuse_not_finite(by_path(found), "the model's answers")
        return found

    return run


def by_path(outputs: Any) -> dict[str, Any]:
    """The arrays of a structure by their names in it.

    >>> sorted(by_path({"logits": 1.0, "states": [2.0, 3.0]}))
    ['logits', 'states/0', 'states/1']
    """
    paths = keras.tree.flatten_with_path(outputs)
    return {"/".join(map(str, path)) or "output": x for path, x in paths}


def check_sample(compute: Callable[[], Any], what: str) -> None:
    """Raises ValueError where what a model gives for a small batch is not finite, by name.

    Not on one of several hosts on JAX, which cannot compute by itself so.

    Args:
        compute: gives the outputs.
        what: whose they are, for the message.
    """
    if not is_one_of_several():
        found = by_path(compute())
        refuse_not_finite({k: keras.ops.convert_to_numpy(x) for k, x in found.items()}, what)


def as_texts(texts: Any, what: str = "texts", start: int = 0) -> list[str | bytes]:
    """A list of strings from one string, a list, an array, or the column `text` of other data.

    Args:
        texts: one string, or what `kbert.core.in_memory.each_text` takes.
        what: what an error calls them.
        start: the number of the first in an error.

    Raises:
        TypeError: if an element is not a string.
        ValueError: for a set, which has no order, and for data that is of no kind that is known.
    """
    if isinstance(texts, str | bytes):
        return [texts]
    return list(each_text(texts, what, start))


def check_batch_size(batch_size: Any) -> None:
    """Raises ValueError unless the batch size is a whole number from 1."""
    if not isinstance(batch_size, int | np.integer) or batch_size < 1:
        raise ValueError(
            "batch_size must be a whole number, 1 or more: the texts that go through the model "
            f"together. Received: batch_size={batch_size!r}"
        )


def chunks(items: Sequence) -> Iterator[tuple[int, Sequence]]:
    """Consecutive slices of at most `CHUNK` items, each with the number of its first."""
    return ((i, items[i : i + CHUNK]) for i in range(0, len(items), CHUNK))


def by_length(lengths: np.ndarray, batch_size: int) -> Iterator[np.ndarray]:
    """Row numbers in batches of neighbours in length, the longest first.

    The longest first, because memory then fails at once or not at all.
    """
    order = np.argsort(-np.asarray(lengths), kind="stable")
    return (order[i : i + batch_size] for i in range(0, len(order), batch_size))


def as_ragged(rows: Sequence[np.ndarray]) -> tf.RaggedTensor:
    """Ids of texts, a row each, one at least."""
    lengths = np.array([len(row) for row in rows], np.int64)
    ids = np.concatenate(rows).astype(np.int32)
    return tf.RaggedTensor.from_row_lengths(ids, lengths, validate=False)


def as_rows(ragged: tf.RaggedTensor) -> list[np.ndarray]:
    """The rows of a ragged tensor as arrays.

    >>> [row.tolist() for row in as_rows(as_ragged([np.array([1, 2]), np.array([3])]))]
    [[1, 2], [3]]
    """
    if not ragged.nrows():
        return []
    return np.split(ragged.flat_values.numpy(), ragged.row_splits.numpy()[1:-1])


def next_power_of_two(n: int) -> int:
    """1, 2, 4, 8, …: the smallest that is not below n."""
    return 1 << max(int(n) - 1, 0).bit_length()


def pad(features: dict[str, Any]) -> dict[str, np.ndarray]:
    """The features as arrays of few shapes.

    Rows are padded to a power of two with copies of the last one, and the columns of
    `mask_positions` to a power of two with zeros.
    """
    arrays = {name: np.asarray(value) for name, value in features.items()}
    rows = len(next(iter(arrays.values())))
    extra = next_power_of_two(rows) - rows
    if extra:
        copies = {name: np.repeat(x[-1:], extra, axis=0) for name, x in arrays.items()}
        arrays = {name: np.concatenate([x, copies[name]]) for name, x in arrays.items()}
    if "mask_positions" in arrays:
        places = arrays["mask_positions"].shape[1]
        extra = next_power_of_two(places) - places
        arrays["mask_positions"] = np.pad(arrays["mask_positions"], [(0, 0), (0, extra)])
    return arrays
