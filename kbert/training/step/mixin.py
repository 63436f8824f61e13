"""The training step: one update from one global batch, the same on one device or many.

Keras' own step divides by local sums, clips before it reduces and does not run on several hosts.
`TrainStep` replaces the step and nothing else of `fit`. On every engine a step does, in order:

1. the denominators of the *whole* batch, over all replicas, are summed: each loss is divided once;
2. forward and backward, micro-batch by micro-batch, summing gradients and pairs;
3. gradients become dense, and are summed over the replicas; what a task keeps of each row
   (`row_state`) is exchanged between them;
4. they are clipped by the norm of that sum;
5. the optimizer updates the weights, unless the losses or the gradients are not finite: such a step
   leaves weights and optimizer as they are. The sums for the logs and the data position are stored.

The engine follows Keras' backend: `step.tensorflow` (`tf.distribute`) or `step.jax`
(`keras.distribution.DataParallel`).
"""

import keras

# What the engines override of Keras that is not public, and what they read; a test checks each.
KERAS_HOOKS = {
    "tensorflow": {
        "Model": ("_maybe_symbolic_build", "_flatten_layers", "distribute_strategy"),
        "Optimizer": (
            "_all_reduce_sum_gradients",
            "_backend_update_step",
            "_get_variable_index",
        ),
    },
    "jax": {
        "Model": ("_symbolic_build", "_flatten_layers", "jax_state_sync"),
        "Optimizer": ("_get_variable_index", "stateless_apply"),
    },
}

if keras.backend.backend() == "tensorflow":
    from kbert.training.step.tensorflow import TensorFlowStep as Engine
elif keras.backend.backend() == "jax":
    from kbert.training.step.jax import JaxStep as Engine
else:
    raise ImportError(
        "Training runs with KERAS_BACKEND=tensorflow or jax. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}"
    )


class TrainStep(Engine):
    """Mixin before `keras.Model` that gives `fit` and `evaluate` a right step.

    A subclass defines `loss_terms(batch, training)`, two dicts name → (numerator, denominator),
    and may set `derived_metrics`, name → (source, function of the source's value). Logs hold
    `loss` (the sum of the losses), every term, the derived metrics and, of the update,
    `gradient_norm` before clipping and `learning_rate`: during an epoch this step's values, at
    its end the values over everything counted. If a batch holds `position`, it is stored in
    `data_position`. Layers must be built in the constructor. Dropout must fold the replica's id
    into its seed itself, as `kbert.layers.Dropout` does.

    Example:
        >>> import keras, numpy as np
        >>> from keras import ops
        >>> class Line(TrainStep, keras.Model):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = keras.layers.Dense(1, kernel_initializer="zeros")
        ...         self.dense.build((None, 1))
        ...         self.built = True
        ...     def loss_terms(self, batch, training):
        ...         error = ops.square(self.dense(batch["x"]) - batch["y"])
        ...         return {"squared_error": (ops.sum(error), ops.size(error))}, {}
        >>> line = Line()
        >>> line.compile(keras.optimizers.SGD(0.25), clip_norm=None)
        >>> x = np.array([[1.0], [-1.0]], "float32")
        >>> history = line.fit({"x": x, "y": 3 * x}, epochs=2, verbose=0, shuffle=False)
        >>> [round(loss, 3) for loss in history.history["loss"]]
        [9.0, 2.25]
    """
