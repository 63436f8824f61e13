"""Functions as TensorFlow graphs, each counted by itself."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf


def graph(function: Callable, **options: Any) -> tf.types.experimental.PolymorphicFunction:
    """A `tf.function` that TensorFlow distinguishes from others of the same code.

    TensorFlow counts how often functions are traced by their code, and warns in a screen of text
    after the fifth time. Five tasks, or five tokenizers, trace the code that they share once each,
    which is as it should be; a partial function has a count of its own, so that one which is really
    traced again and again is still reported.

    Args:
        function: of tensors.
        **options: as for `tf.function`.

    Example:
        >>> double = graph(lambda x: 2 * x, autograph=False)
        >>> double(tf.constant(3)).numpy().item()
        6
    """
    counted: Any = functools.partial(function)
    counted.__name__ = getattr(function, "__name__", "graph")  # of the nodes, in profiles
    return tf.function(counted, **options)


def on_cpu(function: Callable, *specs: Any) -> Callable:
    """`function` as one graph for all shapes, on the CPU, where TensorFlow's work on strings is.

    Args:
        function: of tensors.
        *specs: of each argument.

    Example:
        >>> lower = on_cpu(tf.strings.lower, tf.TensorSpec([None], tf.string))
        >>> lower(tf.constant(["ABC"])).numpy().tolist()
        [b'abc']
    """

    def placed(*tensors: Any) -> Any:
        with tf.device("CPU"):
            return function(*tensors)

    placed.__name__ = getattr(function, "__name__", "graph")
    return graph(placed, input_signature=specs, autograph=False)
