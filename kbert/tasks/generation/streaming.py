"""Streams a model's tokens one by one; prefill and step are compiled once."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.graphs import graph
from kbert.decoding import stream


class TokenStream:
    """Function that yields the new tokens of a task one by one, for its `stream`.

    Args:
        task: a `GenerationTask`.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        self._steps: dict[tuple, Callable] = {}
        self._prefills: dict[tuple, Callable] = {}

    def __call__(
        self,
        features: Mapping[str, np.ndarray],
        *,
        max_new_tokens: int,
        jit_compile: bool = False,
        **settings: Any,
    ) -> Iterator[int]:
        """Returns an iterator over the token ids of one text, stop token included.

        Args:
            features: inputs of the task's `prefill`, one row each.
            max_new_tokens: most new tokens.
            jit_compile: whether XLA compiles on TensorFlow; JAX always does.
            **settings: other arguments of `kbert.decoding.stream`.
        """
        options: dict[str, Any] = {"jit_compile": jit_compile}
        model = self._task.model
        step_key = (jit_compile, getattr(model, "traced_variant", None))
        if step_key not in self._steps:
            self._steps[step_key] = tensor_function(model.step, model, **options)
        key = (max_new_tokens, *step_key)
        if key not in self._prefills:
            self._prefills[key] = tensor_function(
                lambda inputs: self._task.prefill(inputs, max_new_tokens), model, **options
            )
        inputs = {name: ops.convert_to_tensor(x) for name, x in features.items()}
        logits, cache = self._prefills[key](inputs)
        step = self._steps[step_key]
        tokens = stream(step, logits, cache, max_new_tokens=max_new_tokens, **settings)
        return (int(ids[0]) for ids in tokens)


def tensor_function(
    function: Callable, *layers: keras.Layer, jit_compile: bool = False
) -> Callable:
    """Compiles a function of tensors that calls `layers`; its results stay on the device.

    Args:
        function: function of structures of tensors.
        *layers: layers whose weights the function reads.
        jit_compile: whether XLA compiles on TensorFlow; JAX always does.

    Returns:
        The compiled function, which is traced or compiled for each new shape. On a backend other
        than TensorFlow and JAX, `function` itself.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow" and jit_compile:
        return graph(function, autograph=False, jit_compile=True)
    if backend == "tensorflow":
        return graph(function, autograph=False, reduce_retracing=True)
    if backend != "jax":
        return function
    import jax

    weights = [weight for layer in layers for weight in layer.variables]

    @jax.jit
    def run(values: Sequence[Any], *args: Any) -> Any:
        with keras.StatelessScope(zip(weights, values, strict=True)):
            return function(*args)

    return lambda *args: run([weight.value for weight in weights], *args)
