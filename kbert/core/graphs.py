"""Functions as TensorFlow graphs, each with its own count of retracings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kbert.core.late import tf


def graph(function: Callable, **options: Any) -> tf.types.experimental.PolymorphicFunction:
    """Returns a `tf.function` that TensorFlow distinguishes from others with the same code.

    TensorFlow counts tracings per code object and prints a long warning after the fifth. Five
    tasks, or five tokenizers, that share code trace it once each: no reason for a warning. A
    partial function has its own count, so a function that is really retraced is still reported.

    Args:
        function: function that takes and returns tensors.
        **options: arguments of `tf.function`.

    Example:
        >>> double = graph(lambda x: 2 * x, autograph=False)
        >>> double(tf.constant(3)).numpy().item()
        6
    """
    counted: Any = functools.partial(function)
    counted.__name__ = getattr(function, "__name__", "graph")  # names the nodes, in profiles
    return tf.function(counted, **options)


def on_cpu(function: Callable, *specs: Any) -> Callable:
    """Returns `function` as one graph for all shapes, on the CPU, where string ops run.

    The graph is traced at the first call. It takes a ragged tensor as its components, because
    TensorFlow needs longer to recognise a ragged argument than to tokenise a sentence.

    Args:
        function: function that takes and returns tensors.
        *specs: one `tf.TypeSpec` per argument. Default: one argument, texts (B,).

    Example:
        >>> lower = on_cpu(tf.strings.lower)
        >>> lower(tf.constant(["ABC"])).numpy().tolist()
        [b'abc']
    """

    @functools.cache
    def traced() -> tuple[Any, Any, list]:
        structure = specs or (tf.TensorSpec([None], tf.string),)

        def placed(*flat: Any) -> Any:
            with tf.device("CPU"):
                return function(*tf.nest.pack_sequence_as(structure, flat, expand_composites=True))

        placed.__name__ = getattr(function, "__name__", "graph")
        flat_specs = tf.nest.flatten(structure, expand_composites=True)
        compiled = graph(placed, input_signature=flat_specs, autograph=False)
        return compiled.get_concrete_function(), structure, [spec.dtype for spec in flat_specs]

    def call(*arguments: Any) -> Any:
        concrete, structure, dtypes = traced()
        tf.nest.assert_same_structure(structure, arguments, expand_composites=True)
        flat = tf.nest.flatten(arguments, expand_composites=True)
        return concrete(*map(tf.convert_to_tensor, flat, dtypes))

    return call
