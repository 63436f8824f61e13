"""Keras arguments that kbert does not accept: each raises an error that names the alternative."""

from collections.abc import Mapping
from typing import Any

import keras

from kbert.core.late import optional

COMPILE = {
    "loss": "a task has losses of its own, and docs/own_task.md shows one with another",
    "loss_weights": "a task has losses of its own, and docs/own_task.md shows one with another",
    "metrics": "a task has values of its own, which fit() and evaluate() give, and a callback may "
    "compute others of what predict() answers",
    "weighted_metrics": "a task has values of its own, which fit() and evaluate() give",
    "steps_per_execution": "every step is a call of its own; leave it out",
    "auto_scale_loss": "a model of mixed_float16 scales its loss by itself; leave it out",
}
# Keras' defaults: passing them explicitly changes nothing, like None for the others.
_DEFAULTS = {"steps_per_execution": 1, "auto_scale_loss": True}
# Positional arguments of Keras' `compile` after the optimizer, in order.
_BY_POSITION = ("loss", "loss_weights", "metrics", "weighted_metrics")

FIT = {
    "y": "the labels come second, as fit(data, labels)",
    "class_weight": 'class_weights={"spam": 3.0}, by name, or class_weights="balanced"',
    "shuffle": "rows come in an order that is drawn from `seed`",
    "initial_epoch": "a run with a `model_dir` resumes where it stopped",
    "steps_per_epoch": "an epoch is all rows; give fewer of them, such as table[:1000]",
    "validation_steps": "held-out data is evaluated whole; give fewer rows of it",
    "validation_batch_size": "held-out data is evaluated with `batch_size`",
    "validation_freq": "evaluate_every=… counts steps between evaluations",
    "sample_weights": "sample_weight=…, an array, or the name of a column",
}
FIT_DATASET = {
    "y": "a batch is one dict, which holds what is to be learned",
    "batch_size": "the dataset's batches have their size already",
    "sample_weight": "a batch holds its weights, such as `mask_weights` or `label_weights`",
    "class_weight": "a batch holds its weights, such as `mask_weights` or `label_weights`",
    "validation_split": "a dataset is not split; pass `validation_data`, another one",
    "shuffle": "batches come in the dataset's own order",
}
EVALUATE = {
    "y": "the labels come second, as evaluate(data, labels)",
    "sample_weight": "scores count every example once; evaluate the parts by themselves",
    "steps": "all rows are answered; give fewer of them",
    "callbacks": "callbacks are of fit()",
    "return_dict": "the values always are a dict; leave it out",
}
PREDICT = {
    "steps": "all rows are answered; give fewer of them",
    "callbacks": "callbacks are of fit()",
}

EXPORT = {
    "input_signature": "a task's export takes text; task.model.export(…) is Keras', of token ids",
    "verbose": "the path that was written is returned; leave it out",
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
        TypeError: fit() takes no `class_weight`: class_weights=…. Received: class_weight={0: 2.0}
    """
    for name, value in given.items():
        if name in ways:
            raise TypeError(
                f"{function}() takes no `{name}`: {ways[name]}. Received: {name}={value!r:.80}"
            )


def refuse_others(given: Mapping[str, Any], ways: Mapping[str, str], function: str) -> None:
    """Like `refuse_arguments`, for a function that accepts no further arguments at all."""
    refuse_arguments(given, ways, function)
    if given:
        raise TypeError(
            f"{function}() has no such argument. "
            f"Received: {', '.join(f'{name}={value!r:.80}' for name, value in given.items())}"
        )


def check_compile(optimizer: Any, positional: tuple[Any, ...], others: Mapping[str, Any]) -> None:
    """Raises TypeError for arguments of Keras' `compile` that kbert does not accept."""
    named = {**dict(zip(_BY_POSITION, positional, strict=False)), **others}
    for name, default in _DEFAULTS.items():
        if named.get(name) == default:
            del named[name]
    named = {name: value for name, value in named.items() if value is not None}
    refuse_others(named, COMPILE, "compile")
    if optimizer is None:
        raise TypeError(
            "compile() takes an optimizer; without a compile() fit() trains by the usual one. "
            "Received: none"
        )


def check_callbacks(model: Any, callbacks: Any, *, in_run: bool) -> None:
    """Raises for Keras callbacks that would fail after an epoch, or have no effect.

    Args:
        model: Model that is trained.
        callbacks: The caller's callbacks, as in Keras: a list, one, None or a `CallbackList`.
        in_run: Whether `kbert.training.run` trains, which resumes and keeps the best weights.

    Raises:
        ImportError: There is a TensorBoard callback, and TensorBoard is not installed.
        ValueError: There is such a callback.
    """
    for callback in keras.tree.flatten(getattr(callbacks, "callbacks", callbacks) or []):
        name = type(callback).__name__
        if in_run and isinstance(callback, keras.callbacks.BackupAndRestore):
            raise ValueError(
                "A run resumes, to the same numbers, from the folder of `model_dir`; "
                f'leave the callback out and pass fit(…, model_dir="run"). Received: {name}'
            )
        if in_run and isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise ValueError(
                "A run evaluates the weights themselves. For their moving average: "
                "compile(kbert.training.AdamW(…, ema=0.999)), and after fit() "
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
                    "ModelCheckpoint must have save_weights_only=True here, with a path that ends "
                    "in .weights.h5, or the run a `model_dir`: a .keras file cannot hold the "
                    f"model. Received: {name} for a {type(model).__name__} ({error})"
                ) from error
