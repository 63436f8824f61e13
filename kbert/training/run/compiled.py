"""Where the user has called `compile`, a run trains with that, and not by `fit`'s settings."""

import json
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging

from kbert.core.options import Options
from kbert.training.step.mixin import TrainStep


def check_compiled(options: type[Options], given: Mapping[str, Any]) -> None:
    """Refuses what would be passed over; says what is.

    Args:
        options: the settings of `fit`.
        given: those of them that the user gave.

    Raises:
        ValueError: one of them is a setting of what was compiled.
    """
    unused = [name for name in options.names() if options.details(name).compiled]
    if refused := [f"{name}={given[name]!r}" for name in unused if name in given]:
        raise ValueError(
            "The task was compiled with an optimizer of its own, which these are no settings of: "
            "give them to the optimizer or to compile(), or leave compile() out. "
            f"Received: {', '.join(refused)}"
        )
    logging.info("compile() was called: not used are %s", ", ".join(unused))


def settings_in_use(options: Options, model: TrainStep, record: Mapping[str, Any]) -> dict:
    """The settings that a run is known by: of a compiled model, the optimizer in their place.

    Args:
        options: the settings of `fit`.
        model: what takes the steps.
        record: the settings as JSON can hold them.
    """
    if not model.compiled_by_user:
        return dict(record)
    made = keras.optimizers.serialize(model.optimizer)
    del made["config"]["name"]  # it counts the optimizers that the process has made
    return {
        **{name: x for name, x in record.items() if not options.details(name).compiled},
        "optimizer": json.loads(json.dumps(made, default=str)),
        "micro_batches": model.micro_batches,
        "clip_norm": model.clip_norm,
    }
