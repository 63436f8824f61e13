"""Groups of flags that programs share. Each is defined by a call, none at import."""

import json
from typing import Any

from absl import flags

from kbert.training.optimizers import OPTIMIZERS
from kbert.training.schedules import DECAYS
from kbert.training.strategies import STRATEGIES

PRECISIONS = ("float32", "mixed_bfloat16")


def define_model_flags() -> None:
    """Which encoder."""
    flags.DEFINE_string(
        "model", "bert-small", "A size from kbert.family, or a JSON file with an encoder's config."
    )
    flags.DEFINE_multi_string(
        "set",
        [],
        "Another value for a field of the config, as field=value; repeat it for more. "
        "For example --set=num_layers=6 --set=dropout=0.",
    )


def define_optimizer_flags(learning_rate: float) -> None:
    """How weights move."""
    flags.DEFINE_enum(
        "optimizer", "adamw", sorted(OPTIMIZERS), "adamw is BERT's, lamb is ALBERT's."
    )
    flags.DEFINE_float("learning_rate", learning_rate, "Highest learning rate, after warm-up.")
    flags.DEFINE_integer(
        "warmup_steps",
        None,
        "Steps of the linear rise from 0. Default: 10,000, but at most a tenth of the run.",
        0,
    )
    flags.DEFINE_enum("decay", "linear", DECAYS, "What follows the rise; to 0 unless constant.")
    flags.DEFINE_float("decay_power", 1.0, "Exponent of --decay=polynomial.")
    flags.DEFINE_float("weight_decay", 0.01, "Not applied to biases and LayerNorm.", 0.0)
    flags.DEFINE_float("clip_norm", 1.0, "Largest norm of all gradients; 0 clips nothing.", 0.0)
    flags.DEFINE_integer(
        "micro_batches",
        1,
        "Parts a device's share of a batch is computed in, one after the other: the same update "
        "in less memory.",
        1,
    )


def define_run_flags() -> None:
    """Where and how a run computes and what it writes."""
    flags.DEFINE_string(
        "model_dir", None, "Folder of the run; the same folder goes on with the same run."
    )
    flags.DEFINE_integer("train_steps", None, "Updates of the whole run.", 1)
    flags.DEFINE_integer("seed", 0, "Of weights, dropout, order and masks.", 0)
    flags.DEFINE_enum(
        "precision", "float32", PRECISIONS, "Of the computation; weights are float32."
    )
    flags.DEFINE_boolean("xla", None, "Compile with XLA. Default: where there is a GPU.")
    flags.DEFINE_enum(
        "strategy",
        "one_device",
        STRATEGIES,
        "mirrored: all GPUs of this machine. multi_worker: several machines, the same command on "
        "each, told of each other by TF_CONFIG. tpu: set KERAS_BACKEND=jax.",
    )
    flags.DEFINE_integer(
        "evaluate_every", None, "Steps between evaluations; the end is always evaluated.", 1
    )
    flags.DEFINE_integer("evaluation_steps", None, "Batches of an evaluation; default all.", 1)
    flags.DEFINE_integer("checkpoint_every", 1000, "Steps between checkpoints.", 1)
    flags.DEFINE_float("checkpoint_minutes", None, "Minutes between checkpoints.", 0.0)
    flags.DEFINE_integer("keep_checkpoints", 3, "How many of the newest are kept.", 1)
    flags.DEFINE_boolean("tensorboard", False, "Write curves to model_dir/tensorboard.")
    flags.DEFINE_boolean(
        "dry_run", False, "Show examples and what the run will take in memory and time, and stop."
    )
    flags.mark_flags_as_required(["model_dir", "train_steps"])


def parse_settings(items: list[str]) -> dict[str, Any]:
    """Reads `field=value` items; a value is JSON where it can be, else a string.

    Example:
        >>> parse_settings(["num_layers=6", "dropout=0.0", "activation=relu"])
        {'num_layers': 6, 'dropout': 0.0, 'activation': 'relu'}
    """
    settings = {}
    for item in items:
        field, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--set takes field=value. Received: --set={item}")
        try:
            settings[field] = json.loads(value)
        except json.JSONDecodeError:
            settings[field] = value
    return settings
