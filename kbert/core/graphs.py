"""Functions as TensorFlow graphs, each counted by itself."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kbert.core.late import tf


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
        made = graph(placed, input_signature=flat_specs, autograph=False)
        return made.get_concrete_function(), structure, [spec.dtype for spec in flat_specs]

    def call(*arguments: Any) -> Any:
        concrete, structure, dtypes = traced()
        tf.nest.assert_same_structure(structure, arguments, expand_composites=True)
        flat = tf.nest.flatten(arguments, expand_composites=True)
        return concrete(*map(tf.convert_to_tensor, flat, dtypes))

    return call
