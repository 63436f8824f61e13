"""Keras arguments that kbert does not accept: each raises an error that names the alternative."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import keras

from kbert.core.late import optional

F = TypeVar("F", bound=Callable)

COMPILE = {
    "loss": "a task defines its own losses, and docs/own_task.md shows a task with another loss",
    "loss_weights": "a task defines its own losses, and docs/own_task.md shows a task with another "
    "loss",
    "metrics": "a task defines its own metrics, which fit() and evaluate() return, and a callback "
    "can compute others from the results of predict()",
    "weighted_metrics": "a task defines its own metrics, which fit() and evaluate() return",
    "steps_per_execution": "every step is a separate call; leave it out",
    "auto_scale_loss": "a model in mixed_float16 always scales its loss; leave it out",
}
# Keras' defaults: passing them explicitly changes nothing, like None for the others.
_DEFAULTS = {"steps_per_execution": 1, "auto_scale_loss": True}
# Positional arguments of Keras' `compile` after the optimizer, in order.
_BY_POSITION = ("loss", "loss_weights", "metrics", "weighted_metrics")

FIT = {
    "y": "the labels are the second argument, as in fit(data, labels)",
    "class_weight": 'use class_weights={"spam": 3.0}, by name, or class_weights="balanced"',
    "shuffle": "rows are always in a random order, from `seed`",
    "initial_epoch": "a run with a `model_dir` resumes where it stopped",
    "steps_per_epoch": "an epoch covers all rows; pass fewer rows, such as table[:1000]",
    "validation_steps": "all held-out data is evaluated; pass fewer rows of it",
    "validation_batch_size": "held-out data is evaluated with `batch_size`",
    "validation_freq": "use evaluate_every=…, the steps between evaluations",
    "sample_weights": "use sample_weight=…, an array or the name of a column",
}
FIT_DATASET = {
    "y": "a batch is one dict, which includes the labels",
    "batch_size": "the dataset is already batched",
    "sample_weight": "a batch includes its weights, such as `mask_weights` or `label_weights`",
    "class_weight": "a batch includes its weights, such as `mask_weights` or `label_weights`",
    "validation_split": "a dataset cannot be split; pass another one as `validation_data`",
    "shuffle": "batches are used in the dataset's order",
}
EVALUATE = {
    "y": "the labels are the second argument, as in evaluate(data, labels)",
    "sample_weight": "scores count every example once; evaluate the parts separately",
    "steps": "all rows are used; pass fewer rows",
    "callbacks": "callbacks are supported by fit() only",
    "return_dict": "the values are always a dict; leave it out",
}
PREDICT = {
    "steps": "all rows are used; pass fewer rows",
    "callbacks": "callbacks are supported by fit() only",
}

EXPORT = {
    "input_signature": "a task's export reads text; use Keras' task.model.export(…) for token ids",
    "verbose": "the written path is returned; leave it out",
}


def refuse_arguments(given: Mapping[str, Any], ways: Mapping[str, str], function: str) -> None:
    """Raises TypeError if an argument of Keras is given that has an alternative in kbert.

    Args:
        given: Arguments by name.
        ways: Name of a Keras argument -> the alternative, for the message.
        function: Name of the function, for the message.

    Example:
        >>> refuse_arguments({"class_weight": {0: 2.0}}, {"class_weight": "class_weights=…"}, "fit")
        Traceback (most recent call last):
        TypeError: fit() does not support `class_weight`: class_weights=…. Received: \
class_weight={0: 2.0}
    """
    for name, value in given.items():
        if name in ways:
            raise TypeError(
                f"{function}() does not support `{name}`: {ways[name]}. "
                f"Received: {name}={value!r:.80}"
            )


def refuse_others(given: Mapping[str, Any], ways: Mapping[str, str], function: str) -> None:
    """Raises TypeError if any argument is given; arguments as those of `refuse_arguments`."""
    refuse_arguments(given, ways, function)
    if given:
        raise TypeError(
            f"{function}() has no such argument. "
            f"Received: {', '.join(f'{name}={value!r:.80}' for name, value in given.items())}"
        )


def refusing_x(method: F) -> F:
    """Makes a method refuse Keras' argument `x`: the method's first argument has another name.

    Python's own error would only say that the first argument is missing.

    Example:
        >>> class Task:
        ...     @refusing_x
        ...     def predict(self, data): ...
        >>> Task().predict(x=["a"])
        Traceback (most recent call last):
        TypeError: predict() does not support `x`: use its first argument, `data`. Received: x=['a']
    """
    _, first, *_ = inspect.signature(method).parameters
    ways = {"x": f"use its first argument, `{first}`"}

    @functools.wraps(method)
    def checked(self: Any, *args: Any, **kwargs: Any) -> Any:
        refuse_arguments(kwargs, ways, method.__name__)
        return method(self, *args, **kwargs)

    return cast(F, checked)


def refuse_schedule(settings: Mapping[str, Any]) -> None:
    """Raises TypeError if the `learning_rate` of `fit` is a schedule, which `compile` accepts."""
    rate = settings.get("learning_rate")
    if callable(rate):
        raise TypeError(
            "fit() requires a number as `learning_rate`; for a schedule, first call "
            "task.compile(keras.optimizers.AdamW(schedule)). "
            f"Received: learning_rate={rate!r:.80}"
        )


def check_compile(optimizer: Any, positional: tuple[Any, ...], others: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments of Keras' `compile` that kbert does not accept.

    Args:
        optimizer: first argument; None raises too.
        positional: positional arguments after the optimizer.
        others: arguments by name. None and Keras' defaults are accepted.
    """
    arguments = {**dict(zip(_BY_POSITION, positional, strict=False)), **others}
    for name, default in _DEFAULTS.items():
        if arguments.get(name) == default:
            del arguments[name]
    arguments = {name: value for name, value in arguments.items() if value is not None}
    refuse_others(arguments, COMPILE, "compile")
    if optimizer is None:
        raise TypeError(
            "compile() requires an optimizer; without compile(), fit() uses the default one. "
            "Received: none"
        )


def check_optimizer(optimizer: keras.optimizers.Optimizer) -> None:
    """Raises ValueError for an optimizer that contradicts the step, or that Keras gets wrong.

    Args:
        optimizer: the one that `compile` was given.

    Example:
        >>> check_optimizer(keras.optimizers.AdamW(clipnorm=2.0))
        Traceback (most recent call last):
        ValueError: The optimizer must not clip or accumulate gradients, since the training step \
does so itself, after summing over the replicas: pass `clip_norm` and `micro_batches` to compile() \
instead. Received: AdamW with {'clipnorm': 2.0}
    """
    names = ("clipnorm", "clipvalue", "global_clipnorm", "gradient_accumulation_steps")
    if found := {
        name: getattr(optimizer, name) for name in names if getattr(optimizer, name, None)
    }:
        raise ValueError(
            "The optimizer must not clip or accumulate gradients, since the training step does "
            "so itself, after summing over the replicas: pass `clip_norm` and `micro_batches` "
            f"to compile() instead. Received: {type(optimizer).__name__} with {found}"
        )
    schedule_free = keras.optimizers.ScheduleFreeAdamW
    # It keeps a variable, not its value, and reads it after the update: tests/training/step.
    if keras.backend.backend() == "tensorflow" and (
        getattr(type(optimizer), "update_step", None) is schedule_free.update_step
    ):
        raise ValueError(
            "Keras' ScheduleFreeAdamW computes wrong updates on TensorFlow (Keras 3.15): weights "
            "hardly move after some hundred steps. Use another optimizer, or KERAS_BACKEND=jax. "
            f"Received: {type(optimizer).__name__}"
        )


def check_weights(optimizer: keras.optimizers.Optimizer, weights: Sequence[keras.Variable]) -> None:
    """Raises ValueError if a built optimizer has no state for the weights that are trained now.

    JAX passes its state by position, so there the weights must be the same.
    """
    built = optimizer._trainable_variables
    known = set(map(id, built))
    others = [weight.path for weight in weights if id(weight) not in known]
    if keras.backend.backend() == "jax" and not others and len(weights) < len(built):
        ids = set(map(id, weights))
        others = [weight.path for weight in built if id(weight) not in ids]
    if others:
        raise ValueError(
            "The optimizer was built for other weights than those that are trained now, such as "
            "before an edit or with another `freeze`: call `compile` again, with a new optimizer. "
            f"Received: {len(others)} weights that differ, such as {others[0]}"
        )


def check_trainable(model: keras.Model) -> None:
    """Raises ValueError if all weights of a model are frozen: a run would change nothing."""
    if model.built and model.weights and not model.trainable_variables:
        raise ValueError(
            "Training requires trainable weights: thaw some, or leave out `freeze`. "
            f"Received: a {type(model).__name__} whose {len(model.weights)} weights are all frozen"
        )


def callback_list(callbacks: Any) -> list[keras.callbacks.Callback]:
    """Returns callbacks as a list.

    Args:
        callbacks: Callbacks as in Keras: a list, one, None or a `CallbackList`.

    Example:
        >>> callback_list(None), len(callback_list(keras.callbacks.Callback()))
        ([], 1)
    """
    return keras.tree.flatten(getattr(callbacks, "callbacks", callbacks) or [])


def check_callbacks(model: Any, callbacks: Any, *, in_run: bool) -> None:
    """Raises for Keras callbacks that would fail after an epoch, or have no effect.

    Args:
        model: Model that is trained.
        callbacks: The caller's callbacks, as `callback_list` takes them.
        in_run: Whether a `kbert.training.Run` trains, which resumes and keeps the best weights.

    Raises:
        ImportError: There is a TensorBoard callback, and TensorBoard is not installed.
        ValueError: There is a `BackupAndRestore` or a `SwapEMAWeights` in a run, or a
            `ModelCheckpoint` that saves a whole model that has no config.
    """
    for callback in callback_list(callbacks):
        name = type(callback).__name__
        if in_run and isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "A run resumes from its `model_dir`, with the same results: leave the callback "
                f'out and pass fit(…, model_dir="run"). Received: {name}'
            )
        if in_run and isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise ValueError(
                "A run evaluates the weights themselves. For their moving average, "
                "compile(kbert.training.AdamW(…, ema=0.999)), and after fit() call "
                f"kbert.training.use_moving_average(task). Received: {name}"
            )
        if isinstance(callback, keras.callbacks.TensorBoard):
            optional("tensorboard", "tensorboard", f"keras.callbacks.{name}")
        is_checkpoint = isinstance(callback, keras.callbacks.ModelCheckpoint)
        if is_checkpoint and not callback.save_weights_only:
            try:
                model.get_config()
            except (NotImplementedError, ValueError) as error:
                raise ValueError(
                    "ModelCheckpoint must have save_weights_only=True here and a path that ends in "
                    ".weights.h5 (or use the `model_dir` of fit()): a .keras file cannot contain "
                    f"the model. Received: {name} for a {type(model).__name__} ({error})"
                ) from error
