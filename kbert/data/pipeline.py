"""Conventions for `tf.data`: pipeline stages, and the options that a pipeline runs with."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from kbert.core.late import tf


def stage(function: Callable, *arguments: Any, **options: Any) -> Callable:
    """Returns `function` for `Dataset.map`, with its first arguments and its options bound.

    It runs without AutoGraph, which would double the start-up time.

    >>> next(iter(tf.data.Dataset.range(3, 9).map(stage(lambda offset, x: x + offset, 4)))).numpy()
    np.int64(7)
    """
    bound = functools.partial(function, *arguments, **options)
    return tf.autograph.experimental.do_not_convert(lambda *elements: bound(*elements))


def exact_options(threads: int | None = None) -> tf.data.Options:
    """Options that keep elements in order and give every host the whole dataset.

    Automatic sharding is off: each host selects its own share.

    Args:
        threads: size of the dataset's private thread pool; None leaves it to TensorFlow.

    Example:
        >>> dataset = tf.data.Dataset.range(3).with_options(exact_options(threads=2))
        >>> dataset.options().threading.private_threadpool_size
        2
    """
    options = tf.data.Options()
    options.deterministic = True
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    # The operations are small: parallel map calls are faster than threads inside an operation.
    options.threading.max_intra_op_parallelism = 1
    if threads is not None:
        options.threading.private_threadpool_size = threads
    # A dataset of datasets that is dropped waits for the thread that tunes it, which sleeps for up
    # to a minute (TensorFlow 2.21): `fit` on a table ended with such a pause.
    options.autotune.enabled = False
    return options
