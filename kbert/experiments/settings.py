"""Settings of fine-tuning; the defaults are those of BERT's paper, appendix A.3.

The defaults are also close to GPT's (openai/finetune-transformer-lm, train.py), which has a
learning rate of 6.25e-5 and a warm-up of 0.002 of the steps.
"""

import dataclasses
import functools
import typing
from typing import Any

from kbert.core.devices import PRECISIONS, STRATEGIES
from kbert.core.options import Options, option
from kbert.tasks.fine_tuning.settings import FitSettings

# BERT, appendix A.3: "the following range of possible values to work well across all tasks".
LEARNING_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
BATCH_SIZES = (16, 32)
EPOCHS = (2, 3, 4)


class Settings(FitSettings):
    """Settings of one fine-tuning run: the arguments of `fit`, precision and devices.

    `settings_of` adds the settings of a kind of tasks.

    Args:
        {options}

    Raises:
        ValueError: a number is out of range.

    Example:
        >>> Settings(epochs=4).learning_rate
        5e-05
    """

    checkpoint_every: int = FitSettings.with_default("checkpoint_every", 500)
    precision: str = option(
        "float32",
        help="Precision of the computation; weights are float32.",
        choices=tuple(PRECISIONS),
    )
    strategy: str = option(
        "one_device",
        help="mirrored: all GPUs of this machine; multi_worker: several hosts, each started with "
        "the same command (docs/cluster.md). tpu: set KERAS_BACKEND=jax. model_parallel: JAX, "
        "every layer split over --model_devices. fully_sharded: JAX, weights and the optimizer's "
        "state stored in parts on all devices (docs/tpu.md).",
        choices=STRATEGIES,
        changes_numbers=False,
    )
    model_devices: int | None = option(
        None,
        help="With --strategy=model_parallel or fully_sharded: number of devices that compute one "
        "model together; the others share the batch.",
        at_least=1,
        changes_numbers=False,
    )
    adapter: str | None = option(
        None,
        help="Train an adapter instead of the encoder's weights: houlsby, pfeiffer, lora, bitfit, "
        "prefix or pal, with its options after a colon, as lora:rank=16,alpha=32. It is also "
        "written to adapter/ and has its own default of --learning_rate.",
    )
    quantization_aware: bool = option(
        False,
        help="Quantization-aware training for 8 bits (Q8BERT): the inputs and weights of dense "
        "layers are rounded as by kbert-export --precision=int8.",
    )
    prune_weights: str | None = option(
        None,
        help="Prune weights during training: set an increasing share to zero, by magnitude or "
        "movement, with settings after a colon, as "
        "movement:sparsity=0.85,begin_step=0.1,end_step=0.7 (docs/pruning.md). Steps below 1 "
        "are shares of the run.",
    )
    tune_threshold: bool = option(
        False,
        help="Tune the threshold of no answer, or of any number of labels, on the development "
        "data. Default: for squad2 and multilabel.",
        by_task=True,
    )

    def training(self) -> dict[str, Any]:
        """Returns the arguments of a task's `fit`."""
        return self.arguments(of=FitSettings)


@functools.cache
def settings_of(options: Any) -> type[Settings]:
    """Makes a subclass of `Settings` with the settings of a kind of tasks.

    These added settings are None by default, which means the task's own default.

    Args:
        options: class of the settings of this kind of tasks.

    Raises:
        TypeError: a setting of the task has the same name as a field of `Settings`.

    Example:
        >>> from kbert.tasks import MultipleChoice
        >>> settings_of(MultipleChoice.options)(epochs=4, max_length=64).max_length
        64
    """
    return extended(Settings, options)


def extended(base: type[Options], options: type[Options]) -> Any:
    """Returns a subclass of the options `base` with the settings of a kind of tasks.

    The added settings are None by default. A setting that `base` has raises TypeError.
    """
    names, kind = flag_options(options), options.__name__.removesuffix("Options")
    if clashing_names := [name for name in names if name in base.names()]:
        raise TypeError(
            "Settings of a task must not have the name of a run's setting. Received: "
            f"{', '.join(clashing_names)} of {kind}"
        )
    hints = typing.get_type_hints(options)
    fields = {name: _optional(options, name) for name in names}
    annotations = {name: hints[name] | None for name in names}
    content = {"__annotations__": annotations, "__module__": __name__, **fields}
    return type(f"{kind}{base.__name__}", (base,), content)


def flag_options(options: type[Options]) -> list[str]:
    """Returns the names of a task's settings that a run may choose, in order."""
    return [name for name in options.names() if options.details(name).flag]


def _optional(options: type[Options], name: str) -> Any:
    """Returns a copy of a task's field with the default None; its help has the task's default."""
    details, default = options.details(name), options.field_of(name).default
    text = details.help
    if default not in (None, dataclasses.MISSING):
        text = f"{text} Default: {default}."
    metadata = {"details": dataclasses.replace(details, help=text)}
    return dataclasses.field(default=None, metadata=metadata, kw_only=True)
