"""Groups of flags that programs share. Each is defined by a call, none at import."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

from kbert.data.masking.masking import MASKING_SCHEMES
from kbert.data.pretraining.segments import SEGMENT_SCHEMES
from kbert.recipes import OBJECTIVES, RECIPES, Recipe, recipe
from kbert.training.optimization.optimizers import OPTIMIZERS
from kbert.training.optimization.schedules import DECAYS, JOINS, WARMUP_STEPS, default_warmup
from kbert.training.strategies import STRATEGIES

PRECISIONS = ("float32", "mixed_bfloat16")


def define_rows_flags() -> None:
    """Which text, in rows and batches of which size."""
    flags.DEFINE_string("data_dir", None, "Folder that kbert-prepare-corpus wrote.")
    flags.DEFINE_integer("batch_size", 256, "Rows of a batch, of all devices together.", 1)
    flags.DEFINE_integer("sequence_length", 128, "Tokens of a row.", 8)
    flags.DEFINE_string(
        "phases",
        None,
        "Lengths in turn with their shares of the steps, as length:share[:batch_size],… "
        "For example 128:0.9:256,512:0.1:64. Takes the place of --sequence_length.",
    )


def define_model_flags() -> None:
    """Which model."""
    flags.DEFINE_string(
        "model", "bert-small", "A size from kbert.family, or a JSON file with a model's config."
    )
    flags.DEFINE_multi_string(
        "set",
        [],
        "Another value for a field of the config, as field=value; repeat it for more. "
        "For example --set=num_layers=6 --set=dropout=0.",
    )


def define_recipe_flag() -> None:
    """A whole set of other values for the other flags."""
    flags.DEFINE_enum(
        "recipe",
        None,
        list(RECIPES),
        "How a published model was trained: sets the default of every flag that it says something "
        "about. A flag that is given wins. Its batch size and steps are a cluster's.",
    )


def apply_recipe(options: flags.FlagValues) -> Recipe | None:
    """Makes the values of --recipe the defaults of the other flags; what was given stays.

    A --sequence_length that is given takes the place of the recipe's phases.

    Args:
        options: the parsed flags.

    Returns:
        The recipe, or None without one.
    """
    chosen = recipe(options.recipe) if options.recipe else None
    most = WARMUP_STEPS
    if chosen is not None:
        values = chosen.settings()
        most = values.pop("warmup_steps")
        if options["sequence_length"].present:
            del values["phases"]
        values["replacement"] = _joined(chosen.replacement)
        if chosen.objective == "translation":  # elsewhere it is the shards'
            values["tokenizer"] = chosen.tokenizer
        for name, value in values.items():
            if value is not None:  # what its objective and its optimizer have not
                options.set_default(name, value)
    if options.train_steps is None:
        raise ValueError("--train_steps must be given, or --recipe. Received: neither")
    least = 1 if options.decay == "inverse_sqrt" else 0  # it is measured from there
    options.set_default("warmup_steps", max(least, default_warmup(options.train_steps, most)))
    default_checkpoints(options)
    return chosen


def default_checkpoints(options: flags.FlagValues) -> None:
    """Makes as many as --average_checkpoints takes, unless it is said how often."""
    averaged = options.average_checkpoints
    if averaged > 1:  # those of the last quarter of the run, unless it is a long one
        every = -(-options.train_steps // (4 * averaged))
        options.set_default("checkpoint_every", min(every, options.checkpoint_every))
        options.set_default("keep_checkpoints", max(averaged, options.keep_checkpoints))


def departures(options: flags.FlagValues, chosen: Recipe) -> list[str]:
    """Where the flags differ from the recipe, each as `flag=value (the recipe's)`."""
    wanted = {**chosen.settings(), "replacement": _joined(chosen.replacement)}
    if options.phases is None:
        wanted["sequence_length"] = wanted.pop("phases")
    return differences(options, wanted)


def differences(options: flags.FlagValues, wanted: Mapping[str, Any]) -> list[str]:
    """Where the flags differ from the values of a recipe; None is no value."""
    pairs = [(name, options[name].value, value) for name, value in wanted.items()]
    said = ((name, now, value) for name, now, value in pairs if value is not None)
    return [f"{name}={now} ({value})" for name, now, value in said if now != value]


def refuse_flags(options: flags.FlagValues, names: Sequence[str]) -> None:
    """Raises where one of these flags is given: the objective would not read it."""
    given = [f"--{name}={options[name].value}" for name in names if options[name].present]
    if given:
        raise ValueError(
            f"--objective={options.objective} does not read {', '.join(names)}: leave them out. "
            f"Received: {', '.join(given)}"
        )


def define_objective_flags() -> None:
    """What is predicted."""
    flags.DEFINE_enum(
        "objective",
        "masked_lm",
        OBJECTIVES,
        "masked_lm: fill the masks. span_boundary: fill masked spans from their ends too. "
        "replaced_tokens: ELECTRA's, tell which tokens a generator replaced. language_model: "
        "ELMo's, the next word and the one before; it has neither masks nor segments, nor have: "
        "causal_lm: GPT's, the next token; translation: the Transformer's, of sentence pairs.",
    )
    flags.DEFINE_float(
        "generator_share", 0.25, "Width of ELECTRA's generator over the discriminator's.", 0.0
    )


def define_masking_flags() -> None:
    """How text becomes rows in which tokens are masked."""
    flags.DEFINE_enum(
        "segments",
        "pairs",
        list(SEGMENT_SCHEMES),
        "How text is laid out in rows. pairs adds next-sentence prediction, halves sentence-order "
        "prediction, the others no sentence objective.",
    )
    flags.DEFINE_float(
        "short_sequence_share", None, "Share of rows cut shorter. Default: the segments'.", 0.0, 1.0
    )
    flags.DEFINE_enum("masking", "token", list(MASKING_SCHEMES), "What is masked together.")
    flags.DEFINE_string(
        "phrases", None, "File of a phrase a line, each masked as a whole with --masking=phrase."
    )
    flags.DEFINE_float("masked_share", 0.15, "Share of the tokens that is predicted.", 0.0, 1.0)
    flags.DEFINE_string(
        "replacement",
        None,
        "Shares of these that become [MASK], and a random token, as 0.8,0.1. Default: the "
        "masking's.",
    )
    flags.DEFINE_integer(
        "static_masks", None, "Masks that a text has in turn. Default: new ones in every epoch.", 1
    )


def define_vocabulary_flags() -> None:
    """Of what is predicted."""
    flags.DEFINE_integer(
        "vocabulary_size",
        None,
        "Of --objective=language_model: words that it predicts, the most frequent ones; others "
        "count as unknown, and are read letter by letter all the same. Default: all of the shards. "
        "Of --objective=translation: entries of the vocabulary that both languages share. Default: "
        "37,000.",
        4,
    )
    flags.DEFINE_integer(
        "negatives",
        8192,
        "Words that each one is told from in training, where the vocabulary has more.",
        1,
    )


def define_optimizer_flags(learning_rate: float | None) -> None:
    """How weights move."""
    flags.DEFINE_enum(
        "optimizer",
        "adamw",
        sorted(OPTIMIZERS),
        "adamw is BERT's, lamb is ALBERT's, adagrad is ELMo's.",
    )
    flags.DEFINE_float("learning_rate", learning_rate, "Highest learning rate, after warm-up.")
    flags.DEFINE_integer(
        "warmup_steps",
        None,
        "Steps of the linear rise from 0. Default: 10,000 or the recipe's, but at most a tenth of "
        "the run.",
        0,
    )
    flags.DEFINE_enum(
        "decay",
        "linear",
        DECAYS,
        "What follows the rise; to 0 unless constant or the Transformer's inverse_sqrt.",
    )
    flags.DEFINE_float("decay_power", 1.0, "Exponent of --decay=polynomial.")
    flags.DEFINE_enum(
        "decay_join",
        "switch",
        JOINS,
        "How rise and decay meet. switch: BERT's, the decay counts from step 0; product: "
        "ELECTRA's, one times the other; after: RoBERTa's, the decay begins at the peak.",
    )
    flags.DEFINE_float("beta_1", 0.9, "Decay of the mean of the gradients.", 0.0)
    flags.DEFINE_float("beta_2", 0.999, "Decay of the mean of their squares; 0.98 is RoBERTa's.")
    flags.DEFINE_float("epsilon", 1e-6, "Added to the root of the second moment.", 0.0)
    flags.DEFINE_boolean("bias_correction", False, "Scale early moments up, as RoBERTa does.")
    flags.DEFINE_float("weight_decay", 0.01, "Not applied to biases and LayerNorm.", 0.0)
    flags.DEFINE_float(
        "initial_accumulator_value", 1.0, "What Adagrad's sums of squares begin with.", 0.0
    )
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
    flags.DEFINE_integer(
        "average_checkpoints",
        1,
        "The model at the end has the mean of the weights of so many of the last checkpoints; as "
        "many are kept, and --checkpoint_every is 1000 or so that they are of the last quarter.",
        1,
    )
    flags.DEFINE_boolean("tensorboard", False, "Write curves to model_dir/tensorboard.")
    flags.DEFINE_boolean(
        "dry_run", False, "Show examples and what the run will take in memory and time, and stop."
    )


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


def _joined(shares: tuple[float, float] | None) -> str | None:
    return None if shares is None else ",".join(map(str, shares))


def parse_shares(text: str | None) -> tuple[float, ...] | None:
    """Reads numbers separated by commas.

    Example:
        >>> parse_shares("0.8,0.1")
        (0.8, 0.1)
    """
    if text is None:
        return None
    try:
        return tuple(float(number) for number in text.split(","))
    except ValueError:
        raise ValueError(
            f"--replacement takes two shares, as 0.8,0.1. Received: --replacement={text}"
        ) from None
