"""Groups of flags that programs share, and their defaults from recipes."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from kbert.catalog.recipe import OBJECTIVES, OPTIMIZER_SETTINGS, Recipe
from kbert.catalog.recipes import RECIPES, recipe
from kbert.core.devices import PRECISIONS, STRATEGIES
from kbert.core.options import Options, option
from kbert.data.pretraining.settings import MaskingSettings
from kbert.tasks.pretraining.options import EMBEDDING_SHARING
from kbert.tasks.settings import (
    DenoisedSettings,
    HybridSettings,
    MixedSettings,
    checkpoint_defaults,
)
from kbert.training.optimization.settings import WARMUP_STEPS, default_warmup
from kbert.training.run.record import recorded_settings

from .option_flags import flag_names, refuse
from .translation_flags import TranslationOptions


class CorpusOptions(Options):
    """Options for the training text."""

    data_dir: str | None = option(
        None,
        help="Folder written by kbert-prepare-corpus. Several folders are mixed by given shares, "
        "as in a:0.7,b:0.3, or, without shares, by size, as in a,b, see --mixture_temperature.",
    )
    mixture_temperature: float = option(
        1.0,
        help="For several folders without shares: they are sampled in proportion to their sizes to "
        "this power. 1: each text equally often; 0: each folder equally often. mBERT uses "
        "0.7, XLM-R 0.3.",
        at_least=0.0,
        at_most=1.0,
    )


class ModelOptions(Options):
    """Options for the model."""

    model: str = option(
        "bert-small",
        help="A size from kbert.family, or a JSON file with a model's config.",
    )
    set: tuple[str, ...] = option(
        (),
        help="Override a field of the config, as field=value; repeat the flag for several fields. "
        "For example --set=num_layers=6 --set=dropout=0.",
        repeated=True,
    )


class ObjectiveOptions(Options):
    """Options for the training objective."""

    objective: str = option(
        "masked_lm",
        help="masked_lm: predict masked tokens. span_boundary: also predict masked spans from "
        "their boundaries. replaced_tokens (ELECTRA): detect the tokens that a generator "
        "replaced. masked_and_causal (GPT-BERT): one model that fills masks and generates "
        "text; a sixteenth of the sequences is causal. unilm: masked tokens, in sequences of four "
        "kinds of attention (--attention_shares). permutation_lm (XLNet): predict tokens "
        "in any order (--masking=permutation). Without masks and segments: language_model "
        "(ELMo): predict the next and the previous word; causal_lm (GPT): predict the next "
        "token; memory_lm (Transformer-XL, ULMFiT): the same, for sequences that continue in the "
        "next batch (--memory_length); denoising (BART, T5, MASS, PEGASUS): an encoder-decoder "
        "restores text that --noise corrupted; translation (Transformer): translate sentence "
        "pairs.",
        choices=OBJECTIVES,
    )
    recipe: str | None = option(
        None,
        help="Settings of a published model, as defaults of the other flags; a given flag "
        "overrides them. Its batch size and steps are meant for a cluster.",
        choices=list(RECIPES),
    )


class NoiseOptions(Options):
    """Options for the objective of BART, T5, MASS and PEGASUS."""

    noise: str = DenoisedSettings.with_default("noise", DenoisedSettings.noise)


class ReplacedTokensOptions(Options):
    """Options for the objective of ELECTRA and DeBERTa-v3."""

    generator_share: float = option(
        0.25, help="Width of ELECTRA's generator relative to the discriminator's.", at_least=0
    )
    generator_depth: float = option(
        1.0, help="Layers of the generator relative to the discriminator's.", at_least=0
    )
    embedding_sharing: str = option(
        "all",
        help="Losses that train the embeddings of generator and discriminator. all: both losses "
        "train shared embeddings (ELECTRA). gradient_disentangled: the generator's loss "
        "trains the shared embeddings, to which the discriminator adds its own (DeBERTa-v3). "
        "separate: nothing is shared.",
        choices=EMBEDDING_SHARING,
    )


class HybridOptions(Options):
    """Options for GPT-BERT's objective."""

    causal_share: float = HybridSettings.with_default("causal_share", 1 / 16)
    z_loss: float = option(
        0.0,
        help="For --objective=masked_and_causal: weight of the z-loss, such as 1e-4.",
        at_least=0,
    )


class MixedOptions(Options):
    """Options for UniLM's objective."""

    attention_shares: tuple[float, float, float, float] = MixedSettings.with_default(
        "attention_shares", MixedSettings.attention_shares
    )


class PermutationOptions(Options):
    """Options for the objectives of XLNet and Transformer-XL."""

    memory_length: int = option(
        0,
        help="Number of earlier tokens that a sequence attends to as its memory: for "
        "--objective=memory_lm (384 in Transformer-XL's training), and for permutation_lm "
        "(384 in XLNet's), which requires --segments=runs unless it is 0 (no memory).",
        at_least=0,
    )


class VocabularyOptions(Options):
    """Options for the predicted vocabulary."""

    vocabulary_size: int | None = option(
        None,
        help="For --objective=language_model: number of the most frequent words to predict; others "
        "are unknown to the softmax, but are still read by their characters. Default: all "
        "words of the shards. For --objective=translation: size of the vocabulary that both "
        "languages share. Default: 37,000.",
        at_least=4,
    )


class NegativesOptions(Options):
    """Options for ELMo's objective."""

    negatives: int = option(
        8192,
        help="Negative samples of the sampled softmax, if the vocabulary has more words.",
        at_least=1,
    )


# Options of training objectives. Each objective reads some groups and refuses the flags of others.
OBJECTIVE_OPTIONS = (
    *(MaskingSettings, NoiseOptions, ReplacedTokensOptions, HybridOptions, MixedOptions),
    *(PermutationOptions, VocabularyOptions, NegativesOptions, TranslationOptions),
)


class RunOptions(Options):
    """Options for the devices and the output of a run."""

    model_dir: str | None = option(None, help="Folder of the run; the same folder resumes it.")
    precision: str = option(
        "float32",
        help="Precision of the computation; weights are float32. mixed_float16, with loss scaling, "
        "for GPUs before Ampere (T4, V100), which have no bfloat16.",
        choices=list(PRECISIONS),
    )
    strategy: str = option(
        "one_device",
        help="mirrored: all GPUs of this machine. multi_worker: several machines, the same command "
        "on each (docs/cluster.md). tpu: set KERAS_BACKEND=jax. model_parallel: JAX, every layer "
        "split over --model_devices. fully_sharded: JAX, weights and the optimizer's state stored "
        "in parts on all devices (docs/tpu.md).",
        choices=STRATEGIES,
    )
    model_devices: int | None = option(
        None,
        help="With --strategy=model_parallel or fully_sharded: number of devices that compute one "
        "model together; the others share the batch.",
        at_least=1,
    )


class ResumeOptions(Options):
    """Options for resuming a run."""

    allow_changes: tuple[str, ...] = option(
        (),
        help="Names of settings that may differ from those of the run that is resumed, such as "
        "learning_rate,steps. Other changes, and other data, are refused; so is another "
        "batch_size if the run is one of epochs. With steps, the warm-up is unchanged unless "
        "--warmup_steps is given.",
    )


def define_dry_run_flag() -> None:
    """Declares --dry_run, for the programs that train on shards."""
    flags.DEFINE_boolean(
        "dry_run", False, "Show examples and an estimate of memory and time, and exit."
    )


def apply_recipe(options: flags.FlagValues) -> Recipe | None:
    """Sets the values of --recipe as defaults of the other flags; given flags override them.

    A given --sequence_length replaces the recipe's phases.

    Args:
        options: the parsed flags.

    Returns:
        The recipe, or None without one.

    Raises:
        ValueError: neither --steps nor --recipe is given.
    """
    chosen = recipe(options.recipe) if options.recipe else None
    most = WARMUP_STEPS
    if chosen is not None:
        values = chosen.settings()
        most = values.pop("warmup_steps")
        if options["sequence_length"].present:
            del values["phases"]
        values |= _as_flags(chosen)
        if chosen.objective == "translation":  # other objectives use the tokenizer of the shards
            values["tokenizer"] = chosen.tokenizer
        for name, value in values.items():
            if value is not None:  # None: the recipe's objective or optimizer lacks the setting
                options.set_default(name, value)
    if options.steps is None:
        raise ValueError("--steps or --recipe must be given. Received: neither")
    set_default_warmup(options, default_warmup(options.steps, most))
    default_checkpoints(options)
    return chosen


def set_default_warmup(options: flags.FlagValues, usual: int) -> None:
    """Sets the default of --warmup_steps; a run whose length is changed keeps its warm-up.

    Args:
        options: the parsed flags.
        usual: warm-up steps that follow from the length of the run.
    """
    least = 1 if options.decay == "inverse_sqrt" else 0  # this decay is relative to the warm-up
    steps = max(least, usual)
    if options.model_dir and "steps" in options.allow_changes:
        steps = recorded_settings(options.model_dir).get("warmup_steps", steps)
    options.set_default("warmup_steps", steps)


def default_checkpoints(options: flags.FlagValues) -> None:
    """Sets defaults of the checkpoint flags that leave enough for --average_checkpoints."""
    current = {name: options[name].value for name in ("steps", "average_checkpoints")}
    for name, value in checkpoint_defaults(current).items():
        options.set_default(name, value)


def departures(options: flags.FlagValues, chosen: Recipe) -> list[str]:
    """Returns the differences of the flags from the recipe, as `flag=value (recipe's value)`."""
    recipe_values = {**chosen.settings(), **_as_flags(chosen)}
    if options.phases is None:
        recipe_values["sequence_length"] = recipe_values.pop("phases")
    return differences(options, recipe_values)


def differences(options: flags.FlagValues, wanted: Mapping[str, Any]) -> list[str]:
    """Returns the differences of the flags from a recipe, as `flag=value (the recipe's value)`.

    Args:
        options: the parsed flags.
        wanted: name of a flag -> value of the recipe; None is skipped.
    """
    pairs = [(name, options[name].value, value) for name, value in wanted.items()]
    compared = ((name, current, value) for name, current, value in pairs if value is not None)
    return [f"{name}={current} ({value})" for name, current, value in compared if current != value]


def refuse_unread(
    options: flags.FlagValues, reads: Sequence[type[Options]], others: Sequence[str] = ()
) -> None:
    """Raises ValueError if a flag is given that the objective or the optimizer does not read.

    Args:
        options: the parsed flags.
        reads: the groups of `OBJECTIVE_OPTIONS` that the objective reads.
        others: further flags that it does not read.
    """
    names = [*flag_names(*(x for x in OBJECTIVE_OPTIONS if x not in reads)), *others]
    given_flags = [f"--{name}={options[name].value}" for name in names if options[name].present]
    if given_flags:
        raise ValueError(
            f"--objective={options.objective} does not support {', '.join(names)}: leave them "
            f"out. Received: {', '.join(given_flags)}"
        )
    own = OPTIMIZER_SETTINGS[options.optimizer]
    unread = sorted({*itertools.chain(*OPTIMIZER_SETTINGS.values())} - {*own})
    refuse(options, unread, f"with --optimizer={options.optimizer} (it has {', '.join(own)})")


def parse_settings(items: list[str]) -> dict[str, Any]:
    """Parses `field=value` items; a value is JSON if it can be parsed as such, else a string.

    Raises:
        ValueError: an item has no "=".

    Example:
        >>> parse_settings(["num_layers=6", "dropout=0.0", "activation=relu"])
        {'num_layers': 6, 'dropout': 0.0, 'activation': 'relu'}
    """
    settings = {}
    for item in items:
        field, equals, value = item.partition("=")
        if not equals:
            raise ValueError(f"--set must be field=value. Received: --set={item}")
        try:
            settings[field] = json.loads(value)
        except json.JSONDecodeError:
            settings[field] = value
    return settings


def _as_flags(chosen: Recipe) -> dict[str, Any]:
    """Returns flag -> value for the settings of a recipe that flags have in another form."""
    changes, shares = chosen.set, ("replacement", "attention_shares")
    values = {name: getattr(chosen, name) for name in shares}
    return {
        **{name: x and ",".join(map(str, x)) for name, x in values.items()},
        "set": None if changes is None else list(changes),
    }
