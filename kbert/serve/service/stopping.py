"""Runs of TensorFlow functions that can be stopped while they run.

TensorFlow looks between the turns of a loop whether a run was cancelled, and an export computes
long requests in such turns. Its own context manager for this is one for all threads of a process,
so a function is called here as its `__call__` does it, with a `CancellationManager` of the run.
"""

import threading
from collections.abc import Mapping
from typing import Any


class Stop:
    """Stops the runs that it is handed to; may be used by several threads.

    Attributes:
        is_set: whether the runs were stopped.

    Example:
        >>> stop = Stop()
        >>> stop.set()
        >>> stop.is_set
        True
    """

    def __init__(self) -> None:
        self.is_set = False
        self._lock = threading.Lock()
        self._managers: set[Any] = set()  # one for each run: a run that fails cancels its own

    def set(self) -> None:
        """Lets the runs end with `tf.errors.CancelledError` at their next turn."""
        with self._lock:
            self.is_set = True
            for manager in self._managers:
                manager.start_cancel()

    def check(self) -> None:
        """Raises RuntimeError where the runs were stopped: for what computes without TensorFlow."""
        if self.is_set:
            raise RuntimeError("The run was stopped")

    def run(self, function: Any, inputs: Mapping[str, Any]) -> Any:
        """The outputs of a concrete function of named tensors.

        Args:
            function: a signature of a SavedModel, or a concrete function whose arguments are named.
            inputs: a tensor for each argument.

        Raises:
            tf.errors.OpError: what the function raises, or `CancelledError`.
        """
        import tensorflow as tf
        from tensorflow.python.eager import cancellation, context, execute

        with self._lock:
            if self.is_set:
                raise tf.errors.CancelledError(None, None, "The run was stopped before it began")
            manager = cancellation.CancellationManager()
            self._managers.add(manager)
        scope = context.context()
        options = scope.function_call_options.as_attrs()
        try:
            outputs = execute.execute_with_cancellation(
                function.name.decode(),
                num_outputs=len(function.outputs),
                inputs=[*(inputs[name] for name in sorted(inputs)), *function.captured_inputs],
                attrs=tuple(x for item in options.items() for x in item),
                ctx=scope,
                cancellation_manager=manager,
            )
        finally:
            with self._lock:
                self._managers.discard(manager)
        return tf.nest.pack_sequence_as(function.structured_outputs, outputs)
