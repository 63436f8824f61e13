"""Groups of flags of the programs that fine-tune, evaluate and predict."""

from typing import Any

from absl import flags

from kbert import experiments
from kbert.experiments import TASKS, Settings

from .flags import PRECISIONS

# Flags that are fields of kbert.experiments.Settings under the same name.
SETTINGS = (
    *("learning_rate", "batch_size", "epochs", "warmup_share", "weight_decay", "layer_decay"),
    *("freeze", "class_weights", "micro_batches", "metric", "patience", "evaluate_every"),
    *("checkpoint_every", "seed", "precision", "strategy", "max_length", "stride", "pooling"),
    *("dropout", "both_orders", "auxiliary_lm_weight", "tune_threshold"),
)


# What --grid goes through.
GRID = {
    "learning_rates": experiments.LEARNING_RATES,
    "batch_sizes": experiments.BATCH_SIZES,
    "epochs": experiments.EPOCHS,
}


def define_data_flags() -> None:
    """Which data, and what is what in it."""
    flags.DEFINE_string("train", None, "Training data: a file, a pattern, or tfds:NAME.")
    flags.DEFINE_string("dev", None, "Development data; it chooses the best checkpoint.")
    flags.DEFINE_float("dev_share", None, "Without --dev: share of --train kept apart.", 0.0, 1.0)
    flags.DEFINE_string("test", None, "Test data, measured at the end; or answered, if unlabelled.")
    define_column_flags()
    define_labels_flag()


def data(options: flags.FlagValues) -> dict[str, Any]:
    """Arguments of `kbert.experiments.Experiment` about data, but `train`."""
    names = ("dev", "test", "dev_share", "labels", "label_separator")
    return {**{name: options[name].value for name in names}, "columns": columns(options)}


def define_column_flags() -> None:
    """Which column of a CSV, TSV or JSONL file is which."""
    flags.DEFINE_string("text_column", None, "Column of the text. Default: text.")
    flags.DEFINE_list(
        "pair_columns", None, "The two columns of a pair, as first,second. Default: these names."
    )
    flags.DEFINE_list(
        "label_column",
        None,
        "Column of the label; of tags in a file of columns its number from 0, or -1 for the last. "
        "For multilabel also several columns of 0 and 1, by commas. Default: label.",
    )
    flags.DEFINE_list(
        "choice_columns", None, "For choose: the columns of the choices. Default: choices, a list."
    )
    flags.DEFINE_list(
        "columns", [], "Any others, as ours=theirs, such as question=query,context=passage."
    )
    flags.DEFINE_string(
        "label_separator", ",", "For multilabel: what stands between the labels of a text."
    )


def define_labels_flag() -> None:
    """Which classes."""
    flags.DEFINE_list(
        "labels", None, "Names of the classes. Default: the benchmark's, or all in --train."
    )


def columns(options: flags.FlagValues) -> dict[str, str | list[str]]:
    """Our name of a column -> the file's, as the flags say."""
    found: dict[str, str | list[str]] = {}
    for item in options.columns:
        ours, equals, theirs = item.partition("=")
        if not equals:
            raise ValueError(f"--columns takes ours=theirs. Received: --columns={item}")
        found[ours] = theirs
    if options.text_column:
        found["text"] = options.text_column
    if options.pair_columns:
        if len(options.pair_columns) != 2:
            raise ValueError(
                "--pair_columns takes two columns, as question1,question2. Received: "
                f"--pair_columns={','.join(options.pair_columns)}"
            )
        found["first"], found["second"] = options.pair_columns
    if options.label_column:
        many = options.label_column
        found["label"] = many[0] if len(many) == 1 else many
    if options.choice_columns:
        found["choices"] = options.choice_columns
    return found


def define_settings_flags() -> None:
    """How a model is fine-tuned; a flag that is not given has the default of the task."""
    base = Settings()
    flags.DEFINE_float("learning_rate", None, "Highest, after the warm-up. Default: 5e-5.", 0.0)
    flags.DEFINE_integer("batch_size", None, "Examples of an update. Default: 32.", 1)
    flags.DEFINE_float("weight_decay", base.weight_decay, "Not of biases and LayerNorm.", 0.0)
    flags.DEFINE_integer(
        "micro_batches",
        base.micro_batches,
        "Parts of a batch, one after the other: less memory.",
        1,
    )
    flags.DEFINE_integer("evaluate_every", None, "Steps; default: once an epoch.", 1)
    flags.DEFINE_integer("checkpoint_every", base.checkpoint_every, "Steps.", 1)
    flags.DEFINE_integer("seed", base.seed, "Of the head, of dropout and of the order.")
    flags.DEFINE_enum("precision", base.precision, PRECISIONS, "Weights are float32.")
    flags.DEFINE_enum(
        "strategy", base.strategy, ["one_device", "mirrored"], "mirrored: all GPUs of this machine."
    )
    define_fine_tuning_flags()


def define_fine_tuning_flags() -> None:
    """Those of them that pretraining has not."""
    base = Settings()
    flags.DEFINE_integer("epochs", None, "Passes over the training data. Default: 3.", 1)
    flags.DEFINE_float(
        "warmup_share", base.warmup_share, "Share of the steps with a rising rate.", 0.0, 1.0
    )
    flags.DEFINE_float(
        "layer_decay",
        None,
        "Factor of the learning rate from each layer to the one below, such as ELECTRA's 0.8.",
        0.0,
        1.0,
    )
    flags.DEFINE_list(
        "freeze",
        [],
        "Weights that stay, by patterns: encoder/embeddings/*,encoder/layers_0/*, or encoder/*.",
    )
    flags.DEFINE_list(
        "class_weights",
        None,
        "Weights of the classes in the loss, as spam=3,ham=1, or balanced: by their rarity.",
    )
    flags.DEFINE_string("metric", None, "Which chooses the best checkpoint. Default: the task's.")
    flags.DEFINE_integer("patience", None, "Evaluations without a better one to stop after.", 1)
    flags.DEFINE_integer("max_length", None, "Tokens of a row. Default: the task's.", 4)
    flags.DEFINE_integer(
        "stride", None, "Read longer texts in windows, each this many tokens after the last.", 1
    )
    flags.DEFINE_enum("pooling", None, ["mean", "max"], "How windows become one answer.")
    flags.DEFINE_boolean(
        "both_orders",
        None,
        "Of a decoder, which reads from left to right: read pairs in both orders, as GPT does to "
        "tell whether texts are alike (mrpc, qqp). Default: for numbers of pairs (stsb).",
    )
    flags.DEFINE_float(
        "auxiliary_lm_weight",
        None,
        "Of a decoder: weight of its own loss on the texts. Default: 0.5.",
        0.0,
    )
    flags.DEFINE_boolean(
        "tune_threshold",
        None,
        "Set the threshold of no answer, or of any number of labels, by the development data. "
        "Default: for squad2 and multilabel.",
    )
    flags.DEFINE_float("dropout", None, "Before the head. Default: the encoder's.", 0.0, 1.0)


def define_series_flags() -> None:
    """How many runs."""
    flags.DEFINE_integer("seeds", None, "Runs that differ in the seed.", 1)
    flags.DEFINE_boolean("grid", False, "A run for every combination of the paper's settings.")
    for name, values in GRID.items():
        tried = f"The {name.replace('_', ' ')} that --grid tries."
        flags.DEFINE_list(f"grid_{name}", [f"{value:g}" for value in values], tried)


def settings(options: flags.FlagValues) -> dict:
    """Fields of Settings that are given."""
    given = {name: options[name].value for name in SETTINGS if options[name].present}
    if "class_weights" in given:
        given["class_weights"] = parse_class_weights(given["class_weights"])
    return given


def parse_class_weights(items: list[str]) -> dict[str, float] | str:
    """Reads `label=weight` items, or the word "balanced".

    Example:
        >>> parse_class_weights(["spam=3", "ham=1"])
        {'spam': 3.0, 'ham': 1.0}
    """
    if items == ["balanced"]:
        return "balanced"
    weights = {}
    for item in items:
        label, _, weight = item.rpartition("=")
        try:
            weights[label] = float(weight)
        except ValueError:
            label = ""
        if not label:
            raise ValueError(
                "--class_weights takes label=weight, or balanced. Received: "
                f"--class_weights={','.join(items)}"
            )
    return weights


def define_task_flag(default: str | None, text: str) -> None:
    """Which task."""
    flags.DEFINE_enum("task", default, list(TASKS), text)
