"""The training step: one update from one global batch, the same on one device or many.

Keras' own step divides by local sums, clips before it reduces and does not run on several hosts.
`TrainStep` replaces only the step of `fit`. On every engine a step has these parts, in order:

1. the denominators of the *whole* batch are summed over all replicas: each loss is divided once;
2. forward and backward run micro-batch by micro-batch, summing gradients and pairs;
3. gradients become dense and are summed over the replicas, which also exchange a task's state of
   each row (`row_state`);
4. the gradients are clipped by the norm of that sum;
5. the optimizer updates the weights. If losses or gradients are not finite, weights and optimizer
   stay unchanged. The sums for the logs and the data position are stored.

The engine follows Keras' backend: `step.tensorflow` (`tf.distribute`) or `step.jax`
(`keras.distribution.DataParallel`).
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import keras
from keras import ops

from kbert.core.contexts import auxiliary_losses, fusion, recomputation
from kbert.core.in_memory import is_dataset
from kbert.core.late import tf
from kbert.core.types import Pair, PathLike, Tensor, Tensors
from kbert.training.step.keras_arguments import (
    callback_list,
    check_callbacks,
    check_compile,
    check_optimizer,
    check_trainable,
    check_weights,
)
from kbert.training.step.loss_scale import LossScale
from kbert.training.step.ratios import DataPosition, Ratios, divide
from kbert.training.step.state import (
    SCALE_TERMS,
    UPDATE_TERMS,
    DerivedMetrics,
    Replicas,
    StepState,
    replicas_of,
)
from kbert.training.step.verbosity import keras_verbosity

# Private members of Keras that the engines override or read; a test checks each.
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
    from kbert.training.step import tensorflow as engine
elif keras.backend.backend() == "jax":
    from kbert.training.step import jax as engine  # type: ignore[no-redef]
else:
    raise ImportError(
        "Training requires KERAS_BACKEND=tensorflow or jax. "
        f"Received: KERAS_BACKEND={keras.backend.backend()}"
    )

# For type checkers: the class that the mixin precedes in a subclass's bases, and calls.
if TYPE_CHECKING:
    from keras import Model as _Base
else:
    _Base = object


class TrainStep(_Base):
    """Mixin before `keras.Model` that replaces the step of `fit` and `evaluate`.

    A subclass defines `loss_terms(batch, training)`, which returns two dicts name → (numerator,
    denominator). It may set `derived_metrics`, name → (source, function of the source's value).
    Logs have `loss` (the sum of the losses), every term, the derived metrics, and for the update
    `gradient_norm` before clipping and `learning_rate`. During an epoch these are the values of the
    step, at its end those over everything counted. If a batch has `position`, it is stored in
    `step_state.position`. Layers must be built in the constructor. Dropout must fold the replica's
    id into its seed itself, as `kbert.layers.Dropout` does.

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

    derived_metrics: ClassVar[DerivedMetrics] = {}
    # Whether weights may have the same path, such as heads of several tasks. Then a checkpoint
    # distinguishes them by their order, which must follow from the run's settings.
    repeats_paths: ClassVar[bool] = False
    # Names of the logged values that a progress line shows besides the loss.
    shown_metrics: tuple[str, ...] = ()

    def loss_terms(self, batch: Tensors, training: bool) -> tuple[dict[str, Pair], dict[str, Pair]]:
        """Returns the losses and the metrics of a batch, as sums.

        Args:
            batch: A batch of the dataset, batch-first tensors. It may be only a part (a replica's
                rows, a micro-batch), so nothing may be averaged here.
            training: Whether dropout is on.

        Returns:
            Two dicts, name → (numerator, denominator), scalars summed over `batch`. A loss's
            denominator depends only on the batch, never on the weights. The loss of a step is the
            sum over the losses of numerator / denominator of the whole global batch.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `loss_terms`.")

    def loss_denominators(self, batch: Tensors) -> Tensor:
        """Returns the denominators of the L losses, (L,) float32; a step sums them over replicas.

        Called where the forward pass sees a part of the global batch: a micro-batch, a replica's
        rows. A graph computes only the denominators and prunes the rest of `loss_terms`. Writes to
        variables are not pruned, so a task whose `loss_terms` has some must override this.
        """
        losses, _ = self._all_terms(batch, training=False)
        return ops.stack([ops.cast(pair[1], "float32") for pair in losses.values()])

    def before_gradients(self, batch: Tensors, replicas: Replicas) -> Tensors:
        """Hook on every replica before forward and backward, outside XLA-compiled code.

        For losses that compare rows of the whole global batch.

        Args:
            batch: the replica's rows, not yet split into micro-batches.
            replicas: access to the rows of the other replicas.

        Returns:
            The batch, possibly with more features, batch-first.
        """
        return batch

    def between_replicas(self, total: Callable[[Tensor], Tensor]) -> None:
        """Hook on every replica after forward and backward, outside XLA-compiled code.

        For a task's state of each row of the global batch (see `row_state`). Only TensorFlow has
        replicas; JAX computes with whole batches and does not call it.

        Args:
            total: function that sums a tensor over all replicas.
        """

    def compile(
        self,
        optimizer: keras.optimizers.Optimizer | str | dict[str, Any] | None = None,
        *positional: Any,
        micro_batches: int = 1,
        clip_norm: float | None = 1.0,
        recompute: bool = False,
        jit_compile: bool | str = "auto",
        run_eagerly: bool = False,
        **others: Any,
    ) -> None:
        """Prepares the model for `fit`.

        Args:
            optimizer: A Keras optimizer, its name or its config, without its own clipping or
                accumulation.
            micro_batches: Number of parts in which a device computes its share of the batch, one
                after the other (gradient accumulation). The update is that of the whole batch.
            clip_norm: Largest global norm of the summed gradients; `None` = no clipping.
            recompute: Whether each block keeps only its input for the backward pass, which computes
                the rest again, with the same dropout: less memory, more time.
            jit_compile: Whether XLA compiles forward and backward; `"auto"`: if there is a GPU.
            run_eagerly: Whether to run op by op, for debugging.
            *positional: Not supported: Keras' further positional arguments raise, like `others`.
            **others: Not supported: Keras' `loss`, `metrics` and so on raise an error by name.

        Raises:
            TypeError: A Keras argument is given that kbert does not accept.
            ValueError: A setting contradicts the step.
        """
        check_compile(optimizer, positional, others)
        optimizer = keras.optimizers.get(optimizer)
        check_optimizer(optimizer)
        if micro_batches < 1:
            raise ValueError(f"`micro_batches` must be at least 1. Received: {micro_batches}")
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(
                f"`clip_norm` must be positive, or None for no clipping. Received: {clip_norm}"
            )
        self._check_precision()
        self.micro_batches = micro_batches
        self.clip_norm = clip_norm
        self.recompute = recompute
        self.step_state = StepState()
        super().compile(
            optimizer=optimizer,
            jit_compile=jit_compile,
            run_eagerly=run_eagerly,
            auto_scale_loss=False,
        )
        engine.after_compile(self)

    def compile_by_default(self, optimizer: keras.optimizers.Optimizer, **settings: Any) -> None:
        """Compiles for a `fit` of a model that the user did not compile; the next may do so again.

        Args:
            optimizer: optimizer of this `fit`.
            **settings: further arguments of `compile`.
        """
        self.compile(optimizer, **settings)
        self.step_state.by_default = True

    @property
    def compiled_by_user(self) -> bool:
        """Whether the user called `compile`, rather than `fit`."""
        return self.compiled and not self.step_state.by_default

    def _check_precision(self) -> None:
        """Raises ValueError if weights are bfloat16 or float16."""
        policy = self.dtype_policy
        dtypes = {policy.variable_dtype, *(v.dtype for v in self.trainable_variables)}
        if narrow_dtypes := sorted(dtypes & {"bfloat16", "float16"}):
            raise ValueError(
                "Weights must be float32 for training: with the 8 bits of bfloat16 most updates "
                "round to 0, and Adam's second moment never changes, since 1 - 0.999 rounds to 0. "
                "The dtype policies mixed_bfloat16 and mixed_float16 keep weights in float32. "
                f"Received: dtype policy {policy.name}, weights in {', '.join(narrow_dtypes)}"
            )

    def fit(
        self, x: Any = None, *args: Any, verbose: str | int = "auto", **kwargs: Any
    ) -> keras.callbacks.History:
        """Like Keras' `fit`; a dataset keeps its order.

        `verbose="auto"` is a progress bar in a terminal or notebook, else one line per epoch.
        """
        check_callbacks(self, kwargs.get("callbacks"), in_run=False)
        check_trainable(self)
        if is_dataset(x) or isinstance(x, Generator):
            kwargs.setdefault("shuffle", False)  # else Keras warns that it cannot
        try:
            with _to_the_end(kwargs.get("steps_per_epoch")):
                return super().fit(x, *args, verbose=keras_verbosity(verbose), **kwargs)
        except BaseException:
            _release(kwargs.get("callbacks"))
            raise

    def evaluate(
        self, x: Any = None, *args: Any, verbose: str | int = "auto", **kwargs: Any
    ) -> Any:
        """Like Keras' `evaluate`.

        `verbose="auto"` is a progress bar in a terminal or notebook, else one line.
        """
        with _to_the_end(kwargs.get("steps")):
            return super().evaluate(x, *args, verbose=keras_verbosity(verbose), **kwargs)

    def save(self, filepath: PathLike, *args: Any, **kwargs: Any) -> None:
        """Like Keras' `save`; a model without a config raises before a file is opened."""
        self.get_config()
        super().save(filepath, *args, **kwargs)

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """Metrics of the step: the sums behind the logs, the data position and the loss scale."""
        state = getattr(self, "step_state", None)
        if state is None or state.ratios is None:
            return []
        metrics = [state.ratios, state.position]
        return metrics if state.loss_scale is None else [*metrics, state.loss_scale]

    def get_metrics_result(self) -> dict[str, Tensor]:
        """Returns the logs, name → value, over everything counted since the last reset."""
        counted = self.step_state.ratios.counted()
        ratios = self.step_state.ratios.result()
        # An evaluation counts none of these.
        skipped = [name for name in (*UPDATE_TERMS, *SCALE_TERMS) if not counted.get(name, True)]
        return self._values({k: v for k, v in ratios.items() if k not in skipped})

    def prepare(self, spec: Mapping[str, tf.TensorSpec]) -> None:
        """Creates the state of a step; `fit` does it, but loading a checkpoint needs it earlier.

        Args:
            spec: The `element_spec` of the dataset, or a batch.

        Raises:
            ValueError: The names of losses and metrics are not distinct, or are reserved.
        """
        with engine.scope(self):
            if not self.metrics:
                losses, metrics = engine.term_names(self, spec)
                names = [*losses, *metrics, *self.derived_metrics]
                reserved = {*UPDATE_TERMS, *SCALE_TERMS} | (
                    {"loss"} if losses != ["loss"] else set()
                )
                if len(set(names)) < len(names) or reserved & set(names):
                    raise ValueError(
                        "Losses and metrics must have distinct names, none of them "
                        f"{sorted(reserved)}. Received: {names}"
                    )
                self.step_state.loss_names = tuple(losses)
                needs_loss_scale = any(x.compute_dtype == "float16" for x in self._flatten_layers())
                update_terms = (*UPDATE_TERMS, *SCALE_TERMS) if needs_loss_scale else UPDATE_TERMS
                self.step_state.ratios = Ratios([*losses, *metrics, *update_terms])
                self.step_state.num_terms = len(losses) + len(metrics)
                self.step_state.position = DataPosition()
                if needs_loss_scale:
                    self.step_state.loss_scale = LossScale()
            if not self.optimizer.built:
                self.optimizer.build(self.trainable_variables)

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        # Only once: a second time would consume a batch of a generator.
        if not (self.metrics and self.optimizer.built):
            self.prepare(engine.spec_of(self, iterator, data_batch))

    _symbolic_build = _maybe_symbolic_build  # its name in Keras on JAX

    train_step = engine.train_step
    test_step = engine.test_step

    def make_train_function(self, force: bool = False) -> Any:
        """Returns the function that Keras calls for each training step; `force` makes it anew.

        On TensorFlow it runs `train_step` on every replica. It is also made anew if the function
        of earlier steps trains other weights, or has another edit of the model.

        Raises:
            ValueError: the optimizer was built for other weights than those that are trained now.
        """
        weights = self.trainable_variables
        force |= self.step_state.is_new("train", self._active_edits(), weights)
        if self.optimizer.built:
            check_weights(self.optimizer, weights)
        return engine.make_train_function(self, force, super().make_train_function)

    def _active_edits(self) -> list[Any]:
        return [getattr(layer, "traced_variant", None) for layer in self._flatten_layers()]

    def make_test_function(self, force: bool = False) -> Any:
        """Returns the function that Keras calls for each evaluation step; `force` makes it anew.

        It is also made anew if the function of earlier steps has another edit of the model.
        """
        force |= self.step_state.is_new("test", self._active_edits(), [])
        return engine.make_test_function(self, force, super().make_test_function)

    def _trace_anew(self) -> None:
        """Drops the graphs of the steps, if any: also in the middle of `fit`, by a callback."""
        if self.train_function is not None:
            self.make_train_function(force=True)
        if self.test_function is not None:
            self.make_test_function(force=True)

    @property
    def _num_terms(self) -> int:
        return self.step_state.num_terms

    def _values(self, ratios: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Returns the logs: the total loss, the quotients `ratios` by name, the derived metrics."""
        values = {"loss": sum(ratios[name] for name in self.step_state.loss_names)}
        values |= {name: value for name, value in ratios.items() if name != "loss"}
        for name, (source, function) in self.derived_metrics.items():
            values[name] = function(values[source])
        return values

    def _step_values(self, pairs: Tensor, update: Sequence[Tensor] = ()) -> dict[str, Tensor]:
        """Returns the logs of one step by name.

        Args:
            pairs: (K, 2) sums (numerator, denominator) of losses and metrics of the global batch.
            update: values of `_after_update`; () in evaluation.
        """
        names = self.step_state.ratios.names
        ratios = {names[i]: divide(pairs[i, 0], pairs[i, 1]) for i in range(pairs.shape[0])}
        return self._values(ratios | dict(zip(names[self._num_terms :], update, strict=False)))

    @staticmethod
    def _total_loss(
        losses: dict[str, Pair], denominators: Tensor | None, loss_scale: Tensor | None
    ) -> Tensor:
        """Returns the sum of the losses: numerator / denominator of the global batch, in order.

        Args:
            losses: the losses of a part of the global batch.
            denominators: (L,) of the global batch; None if the part is the global batch.
            loss_scale: factor of the sum; None = 1.
        """
        numerators, own = zip(*losses.values(), strict=True)
        if denominators is None:
            denominators = ops.stack([ops.cast(x, "float32") for x in own])
            denominators = ops.stop_gradient(denominators)
        divisors = denominators if loss_scale is None else denominators / loss_scale
        return sum(divide(ops.cast(x, "float32"), divisors[i]) for i, x in enumerate(numerators))

    @staticmethod
    def _pairs(losses: dict[str, Pair], metrics: dict[str, Pair]) -> Tensor:
        """Stacks the pairs (numerator, denominator), losses first, to (K, 2) float32."""
        terms = [*losses.values(), *metrics.values()]
        return ops.stack([ops.stack([ops.cast(x, "float32") for x in pair]) for pair in terms])

    def _all_terms(self, batch: Tensors, training: bool) -> tuple[dict[str, Pair], dict[str, Pair]]:
        """Returns the losses and metrics of `loss_terms`, and as losses those that layers added."""
        with auxiliary_losses() as added_losses:
            losses, metrics = self.loss_terms(batch, training=training)
        return {**losses, **added_losses}, metrics

    def _training_terms(self, batch: Tensors) -> tuple[dict[str, Pair], dict[str, Pair]]:
        """Returns the losses and metrics with dropout, for gradients.

        With `recompute`, blocks keep only their inputs for the backward pass; ValueError if the
        model has no blocks.
        """
        with recomputation(self.recompute) as layers, fusion(self.step_state.fused):
            terms = self._all_terms(batch, training=True)
        if self.recompute and not layers:
            raise ValueError(
                "`recompute` requires blocks of an encoder or decoder: leave it out. "
                f"Received: recompute=True for a {type(self).__name__} without any"
            )
        return terms

    def _count(self, pairs: Tensor, update: Sequence[Tensor] = ()) -> None:
        """Adds the values of a step to the sums behind the logs.

        For a step that loss scaling skipped, the losses, metrics and gradient norm are left out.

        Args:
            pairs: (K, 2) sums (numerator, denominator) of losses and metrics.
            update: values of `_after_update`; () in evaluation.
        """
        rows = [ops.stack([x, ops.ones_like(x)]) for x in update]
        rows = rows or [ops.zeros(2)] * (len(self.step_state.ratios.names) - self._num_terms)
        if len(update) > len(UPDATE_TERMS):
            is_skipped = update[-1] > 0
            pairs = ops.where(is_skipped, ops.zeros_like(pairs), pairs)
            rows[0] = ops.where(is_skipped, ops.zeros_like(rows[0]), rows[0])
        self.step_state.ratios.update_state(ops.concatenate([pairs, ops.stack(rows)]))

    def _store_position(self, batch: Tensors) -> None:
        """Stores the position that came with the batch; it is the same in every row."""
        if isinstance(batch, Mapping) and "position" in batch:
            self.step_state.position.update_state(batch["position"][0])

    def _loss_scale(self) -> Tensor | None:
        """Returns the current loss scale; None without loss scaling."""
        scale = self.step_state.loss_scale
        # A product, so that the result is a tensor whose value the update does not change.
        return None if scale is None else scale.value * 1.0

    def _norm(
        self, gradients: list[Tensor], loss_scale: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the global norm of the unscaled gradients, and the factor to apply them with.

        The factor limits the norm to `clip_norm` and removes the loss scale; None = 1.

        Args:
            gradients: gradients of the loss times `loss_scale`, summed over the replicas.
            loss_scale: factor of the loss; None = 1.
        """
        # Not `sum`: TensorFlow adds a chain of scalars in an order that differs from run to run.
        norm = ops.sqrt(ops.sum(ops.stack([engine.sum_of_squares(g) for g in gradients])))
        factor = None
        if loss_scale is not None:
            norm, factor = norm / loss_scale, 1.0 / loss_scale
        if self.clip_norm is None:
            return norm, factor
        clip = self.clip_norm / ops.maximum(norm, self.clip_norm)
        return norm, clip if factor is None else clip * factor

    def _after_update(
        self, norm: Tensor, rate: Tensor, loss_scale: Tensor | None, finite: Tensor
    ) -> tuple[Tensor, ...]:
        """Updates the loss scale; returns the values of the update that are logged.

        Args:
            norm: global norm of the gradients.
            rate: learning rate.
            loss_scale: factor of the loss in this step; None = 1.
            finite: whether losses and gradients are finite.

        Returns:
            The norm and the rate; with loss scaling also the scale, and 1.0 or 0.0 for whether the
            step was skipped.
        """
        state = self.step_state.loss_scale
        if state is None or loss_scale is None:
            return norm, rate
        state.update_state(finite)
        # A scale of 1 cannot be halved: an overflow is then an error, as in float32.
        is_skipped = ops.logical_and(ops.logical_not(finite), loss_scale > 1.0)
        return norm, rate, loss_scale, ops.cast(is_skipped, "float32")

    def _is_finite(self, norm: Tensor, pairs: Tensor) -> Tensor:
        """Whether a step may update weights: gradients and losses of the global batch are finite.

        Args:
            norm: norm of the gradients, which are summed over the replicas.
            pairs: (K, 2) sums of the global batch, losses first.
        """
        losses = pairs[: len(self.step_state.loss_names), 0]
        return ops.logical_and(ops.isfinite(norm), ops.all(ops.isfinite(losses)))

    def _split(self, batch: Tensors) -> Tensors:
        """Splits every tensor (B, …) into micro-batches (B / M, M, …); micro-batch i is [:, i].

        Rows are dealt in turn, so that on JAX each device keeps its own rows.
        """

        def split(x: Tensor) -> Tensor:
            rows, parts = x.shape[0], self.micro_batches
            if rows is not None and rows % parts:
                raise ValueError(
                    "The rows of a batch on each device must be divisible by `micro_batches`. "
                    f"Received: {rows} rows, micro_batches={parts}"
                )
            return ops.reshape(x, (-1, parts, *ops.shape(x)[1:]))

        return keras.tree.map_structure(split, batch)


def _release(callbacks: Any) -> None:
    """Undoes what callbacks changed in the model: after an error Keras calls no `on_train_end`.

    Args:
        callbacks: the argument of `fit`, or a `keras.callbacks.CallbackList`.
    """
    for callback in callback_list(callbacks):
        if hasattr(callback, "release"):
            callback.release()


@contextlib.contextmanager
def _to_the_end(steps: int | None) -> Iterator[None]:
    """Context without Keras' warning that a dataset has ended, if `steps` is None."""
    with warnings.catch_warnings():
        if steps is None:
            warnings.filterwarnings("ignore", message="Your input ran out of data")
        yield


def check_compares_whole_batches(task: TrainStep, micro_batches: int) -> None:
    """Raises ValueError for a task within another model whose loss would see only partial batches.

    Trained by itself, a task whose loss compares rows sees the global batch (`before_gradients`).

    Args:
        task: task whose losses another model trains.
        micro_batches: number of micro-batches of the other model.
    """
    compares = type(task).before_gradients is not TrainStep.before_gradients
    if compares and micro_batches * replicas_of(task) > 1:
        raise ValueError(
            "A task that compares the rows of a batch must be trained alone, or on one device "
            f"and without micro-batches. Received: a {type(task).__name__} in another model, "
            f"micro_batches={micro_batches}, {replicas_of(task)} devices"
        )
