"""Runs TensorFlow functions so that they can be stopped while they run.

TensorFlow checks for cancellation between the iterations of a loop, and an export computes long
requests in such a loop. TensorFlow's own context manager for this applies to all threads of a
process. So a function is called here in the way of its `__call__`, with one `CancellationManager`
for each run.
"""

import threading
from collections.abc import Mapping
from typing import Any


class Stop:
    """Stops the runs that it is passed to; thread-safe.

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
        self._managers: set[Any] = set()  # one per run: a run that fails cancels its manager

    def set(self) -> None:
        """Makes the runs end with `tf.errors.CancelledError` at their next loop iteration."""
        with self._lock:
            self.is_set = True
            for manager in self._managers:
                manager.start_cancel()

    def check(self) -> None:
        """Raises RuntimeError if the runs were stopped; for runtimes other than TensorFlow."""
        if self.is_set:
            raise RuntimeError("The run was stopped")

    def run(self, function: Any, inputs: Mapping[str, Any]) -> Any:
        """Computes the outputs of a concrete function.

        Args:
            function: signature of a SavedModel, or a concrete function with named arguments.
            inputs: name -> tensor of each argument.

        Returns:
            The outputs in the function's structure, such as name -> tensor.

        Raises:
            tf.errors.OpError: error of the function, or `CancelledError`.
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
