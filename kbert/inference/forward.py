"""Compiles a function of layers: arrays in, arrays out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from kbert.core.contexts import is_repeatable
from kbert.core.finite import refuse_not_finite
from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.types import Shape, Tensors

# Most numbers of a feature, and tokens of a row, in a batch that is small. Eager, such a batch
# takes 0.1 s, in a recurrent model two seconds; tracing takes longer.
_SMALL, _SHORT = 1024, 128


class _Forward(keras.Model):
    """A function of layers as a model, for Keras' compiled `predict_on_batch`."""

    def __init__(self, function: Callable, layers: Sequence[keras.layers.Layer]) -> None:
        super().__init__(name="forward")
        self.function = function
        self.parts = list(layers)
        self.build()

    def build(self, input_shape: Shape | None = None) -> None:
        """Does nothing: the layers are built already."""

    def call(self, features: Tensors) -> Any:
        return self.function(features)


def _tensorflow_graph(function: Callable, features: Tensors, jit_compile: bool) -> Callable:
    """Returns a function from arrays to arrays that runs `function` as a TensorFlow graph.

    Args:
        function: function from a dict of tensors to a structure of tensors.
        features: inputs of the first call, for names, types and ranks.
        jit_compile: whether to use XLA, with a graph for each shape; else one graph serves all.
    """
    spec = {name: tf.TensorSpec([None] * x.ndim, x.dtype) for name, x in features.items()}
    shapes = {} if jit_compile else {"input_signature": [spec]}
    run = graph(function, autograph=False, jit_compile=jit_compile or None, **shapes)
    return lambda features: tf.nest.map_structure(lambda x: x.numpy(), run(features))


def _is_small(features: Tensors) -> bool:
    arrays = features.values()
    return all(x.size <= _SMALL and max(x.shape[1:2], default=0) <= _SHORT for x in arrays)


def _eagerly(function: Callable, features: Tensors) -> Any:
    """Runs `function` on TensorFlow without a graph, from arrays to arrays."""
    outputs = function({name: tf.convert_to_tensor(x) for name, x in features.items()})
    return tf.nest.map_structure(lambda x: tf.convert_to_tensor(x).numpy(), outputs)


def is_one_of_several() -> bool:
    """Whether this process is part of a JAX run on several hosts."""
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.process_count() > 1


def _on_this_host(model: keras.Model) -> Callable:
    """Returns a function from features to outputs, NumPy arrays, that runs on this JAX host alone.

    With Keras' `predict`, the features of all hosts would be parts of one batch.
    """
    import jax

    run = jax.jit(lambda trained, others, x: model.stateless_call(trained, others, x)[0])

    def own(variables: Sequence[keras.Variable]) -> list:
        return [variable.value.addressable_data(0) for variable in variables]

    def forward(features: Tensors) -> Any:
        outputs = run(own(model.trainable_variables), own(model.non_trainable_variables), features)
        return jax.tree.map(np.asarray, outputs)

    return forward


def compiled(
    function: Callable,
    *layers: keras.Layer,
    jit_compile: bool = False,
    check: bool = True,
    eager_first: bool = False,
) -> Callable[[dict], Any]:
    """Compiles `function(features)`, which calls `layers` for inference.

    TensorFlow traces one graph at the first call with features of these names, or at the second
    with `eager_first`. With XLA, and on other backends, each new shape is compiled. Functions are
    compiled separately for each named edit of a model (`traced_variant`).

    Args:
        function: function from a dict of tensors to a tensor or a structure of tensors.
        *layers: layers whose weights the function uses.
        jit_compile: whether to compile with XLA on TensorFlow; JAX always does.
        check: whether to raise ValueError if results are not finite; see `kbert.core.finite`.
        eager_first: whether TensorFlow runs the first batch eagerly if it is small: many programs
            predict once, and then need no graph. Its last digits may differ from a graph's; inside
            `kbert.core.contexts.repeatable` there is always a graph.

    Returns:
        A function from a dict of NumPy arrays to NumPy arrays. With `check` it raises ValueError if
        these are not finite. The layers are in a closure, so that a model with this function as an
        attribute does not track them twice.

    Example:
        >>> import numpy as np
        >>> halve = compiled(lambda features: features["x"] / 2)
        >>> halve({"x": np.array([[2.0], [6.0]], "float32")}).tolist()
        [[1.0], [3.0]]
    """
    functions: dict[Any, Callable] = {}
    is_first = True

    def run(features: Tensors) -> Any:
        nonlocal is_first
        names = (frozenset(features), *(getattr(layer, "traced_variant", None) for layer in layers))
        is_eager = eager_first and is_first and not is_repeatable() and _is_small(features)
        is_first = False
        if is_eager and keras.backend.backend() == "tensorflow":
            outputs = _eagerly(function, features)
        else:
            outputs = compiled_for(names, features)(features)
        if check:
            refuse_not_finite(by_path(outputs), "the model's answers")
        return outputs

    def compiled_for(names: tuple, features: Tensors) -> Callable:
        if names not in functions and keras.backend.backend() == "tensorflow":
            functions[names] = _tensorflow_graph(function, features, jit_compile)
        elif names not in functions and is_one_of_several():
            functions[names] = _on_this_host(_Forward(function, layers))
        elif names not in functions:
            functions[names] = _Forward(function, layers).predict_on_batch
        return functions[names]

    return run


def by_path(outputs: Any) -> dict[str, Any]:
    """Returns path -> array of a structure, with "/" in paths; "output" for a single array.

    >>> sorted(by_path({"logits": 1.0, "states": [2.0, 3.0]}))
    ['logits', 'states/0', 'states/1']
    """
    paths = keras.tree.flatten_with_path(outputs)
    return {"/".join(map(str, path)) or "output": x for path, x in paths}


def check_sample(compute: Callable[[], Any], what: str) -> None:
    """Raises ValueError if a model's outputs for a small batch are not finite; names the outputs.

    It does nothing on one of several JAX hosts, where `compute` cannot run on one host alone.

    Args:
        compute: function that returns the outputs.
        what: description of the outputs, for the message.
    """
    if not is_one_of_several():
        outputs = by_path(compute())
        refuse_not_finite({k: keras.ops.convert_to_numpy(x) for k, x in outputs.items()}, what)
