"""Runs of tasks that the user compiled: they ignore the optimizer settings of `fit`."""

import json
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from kbert.core.options import Options
from kbert.training.step.mixin import TrainStep


def check_compiled(options: type[Options], given: Mapping[str, Any]) -> None:
    """Raises for given settings that a compiled task ignores; logs the names of such settings.

    Args:
        options: class of the settings of `fit`.
        given: settings that the user passed, by name.

    Raises:
        ValueError: one of them is a compile-time setting.
    """
    unused = [name for name in options.names() if options.details(name).compiled]
    if refused := [f"{name}={given[name]!r}" for name in unused if name in given]:
        raise ValueError(
            "The task was compiled with its own optimizer, so these settings would be ignored: "
            "pass them to the optimizer or to compile(), or leave compile() out. "
            f"Received: {', '.join(refused)}"
        )
    logging.info("compile() was called, so these settings are ignored: %s", ", ".join(unused))


def settings_in_use(options: Options, model: TrainStep, record: Mapping[str, Any]) -> dict:
    """Returns the settings that identify a run.

    For a model that the user compiled, its optimizer replaces the compile-time settings.

    Args:
        options: settings of `fit`.
        model: model that is trained.
        record: settings as JSON-serialisable values.
    """
    if not model.compiled_by_user:
        return dict(record)
    optimizer = keras.optimizers.serialize(model.optimizer)
    del optimizer["config"]["name"]  # it contains a counter of the optimizers made in this process
    return {
        **{name: x for name, x in record.items() if not options.details(name).compiled},
        "optimizer": json.loads(json.dumps(optimizer, default=str)),
        "micro_batches": model.micro_batches,
        "clip_norm": model.clip_norm,
    }
