"""Functions as TensorFlow graphs, each counted by itself."""

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

TEXTS = tf.TensorSpec([None], tf.string)  # of `on_cpu`


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

    The graph is traced at the first call, and takes a ragged tensor as its parts: to recognise one
    among its arguments costs TensorFlow more than to tokenise a sentence.

    Args:
        function: of tensors.
        *specs: of each argument.

    Example:
        >>> lower = on_cpu(tf.strings.lower, tf.TensorSpec([None], tf.string))
        >>> lower(tf.constant(["ABC"])).numpy().tolist()
        [b'abc']
    """
    flat_specs = tf.nest.flatten(specs, expand_composites=True)

    def placed(*flat: Any) -> Any:
        with tf.device("CPU"):
            return function(*tf.nest.pack_sequence_as(specs, flat, expand_composites=True))

    placed.__name__ = getattr(function, "__name__", "graph")
    traced = graph(placed, input_signature=flat_specs, autograph=False)

    @functools.cache
    def concrete() -> Any:
        return traced.get_concrete_function()

    def call(*arguments: Any) -> Any:
        tf.nest.assert_same_structure(specs, arguments, expand_composites=True)
        flat = tf.nest.flatten(arguments, expand_composites=True)
        return concrete()(*map(tf.convert_to_tensor, flat, (spec.dtype for spec in flat_specs)))

    return call
