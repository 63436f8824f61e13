"""Groups of flags for the programs that fine-tune, evaluate and predict."""

from typing import Any

from absl import flags

from kbert import experiments
from kbert.catalog.named_tasks import named_task, task_options, task_table
from kbert.core import late
from kbert.core.options import Options, option
from kbert.data.readers.layouts import layout_table
from kbert.experiments.settings import Settings, settings_of

from . import option_flags


class TextColumnOptions(Options):
    """Options for the column of a CSV, TSV or JSONL file of texts."""

    text_column: str | None = option(None, help="Column of the text. Default: text.")


class ColumnOptions(TextColumnOptions):
    """Options for the columns of a CSV, TSV or JSONL file."""

    pair_columns: tuple[str, ...] | None = option(
        None, help="The two columns of a pair, as first,second, which are also the default."
    )
    label_column: tuple[str, ...] | None = option(
        None,
        help="Column of the label; for tags in CoNLL columns its number from 0, or -1 for the "
        "last. For multilabel also several columns of 0 and 1, separated by commas. Default: "
        "label.",
    )
    choice_columns: tuple[str, ...] | None = option(
        None, help="For choose: the columns of the choices. Default: the column choices, a list."
    )
    columns: tuple[str, ...] = option(
        (),
        help="Other columns, as kbert's name=the file's name, such as "
        "question=query,context=passage.",
    )
    label_separator: str = option(",", help="For multilabel: separator of the labels of a text.")


class DataOptions(ColumnOptions):
    """Options for the data and its columns."""

    train: str | None = option(
        None, help="Training data: a file, a pattern, or tfds:NAME[/CONFIG][:SPLIT]."
    )
    dev: str | None = option(
        None,
        help="Development data, which selects the best checkpoint. Of tfds:NAME the validation "
        "split.",
    )
    dev_share: float | None = option(
        None,
        help="Without --dev: share of --train to hold out as development data.",
        at_least=0,
        at_most=1,
    )
    test: str | None = option(
        None, help="Test data, evaluated at the end; if unlabelled, predicted."
    )
    labels: tuple[str, ...] | None = option(
        None, help="Names of the classes. Default: the benchmark's, or all in --train."
    )
    rows_folder: str | None = option(
        None,
        help="For a --train that is larger than memory: folder for its tokens. The data is read in "
        "parts and tokenised once; every run on the same data trains from this folder.",
    )


class SeriesOptions(Options):
    """Options for a series of runs."""

    seeds: int | None = option(
        None, help="Number of runs that differ only in the seed.", at_least=1
    )
    ensemble: bool = option(
        False,
        help="With --seeds: also write the runs as one model, which averages their probabilities, "
        "to ensemble/, and score it.",
    )
    soup: bool = option(
        False,
        help="With --seeds: also write the mean of the runs' weights, greedy on --dev, to soup/, "
        "and score it.",
    )
    grid: bool = option(False, help="A run for every combination of the paper's settings.")
    grid_learning_rates: tuple[float, ...] = option(
        experiments.LEARNING_RATES, help="The learning rates that --grid tries."
    )
    grid_batch_sizes: tuple[int, ...] = option(
        experiments.BATCH_SIZES, help="The batch sizes that --grid tries."
    )
    grid_epochs: tuple[int, ...] = option(experiments.EPOCHS, help="The epochs that --grid tries.")


def tasks_and_data_sets() -> str:
    """Returns the tables of tasks and of data sets by name, for help pages."""
    title = "Data sets of TensorFlow Datasets, read by name as tfds:NAME[/CONFIG][:SPLIT], by task:"
    return f"{task_table()}\n\n{title}\n\n{layout_table()}"


def data(options: flags.FlagValues) -> dict[str, Any]:
    """Returns the data arguments of `kbert.experiments.Experiment`, except `train`."""
    names = (
        "dev",
        "test",
        "dev_share",
        "labels",
        "label_separator",
        "sample_weight",
        "rows_folder",
    )
    return {**{name: options[name].value for name in names}, "columns": columns(options)}


def columns(options: flags.FlagValues) -> dict[str, str | list[str]]:
    """Returns kbert's name of a column -> the file's name, from the flags.

    Raises:
        ValueError: --columns or --pair_columns has another form.
    """
    file_columns: dict[str, str | list[str]] = {}
    for item in options.columns:
        ours, equals, theirs = item.partition("=")
        if not equals:
            raise ValueError(
                "--columns must be name=column: kbert's name, then the file's. Received: "
                f"--columns={item}"
            )
        file_columns[ours] = theirs
    if options.text_column:
        file_columns["text"] = options.text_column
    if options.pair_columns:
        if len(options.pair_columns) != 2:
            raise ValueError(
                "--pair_columns must be two columns, such as question1,question2. Received: "
                f"--pair_columns={','.join(options.pair_columns)}"
            )
        file_columns["first"], file_columns["second"] = options.pair_columns
    if options.label_column:
        many = options.label_column
        file_columns["label"] = many[0] if len(many) == 1 else many
    if options.choice_columns:
        file_columns["choices"] = options.choice_columns
    return file_columns


def define_task_flag(text: str) -> None:
    """Declares --task, for any task that is registered when the flag is parsed.

    Args:
        text: help of the flag.
    """
    flags.DEFINE(_TaskName(), "task", None, text)


def define_task_module_flag(with_options: bool = True) -> None:
    """Declares --task_module, for the module of a custom task.

    Args:
        with_options: whether the task's settings become flags of the program.
    """
    text = "File (….py) or module of a custom task, imported before other flags are parsed."
    flags.DEFINE(_TaskModule(with_options), "task_module", None, text)


class _TaskName(flags.ArgumentParser):
    """Accepts the names of tasks that are registered when the flag is parsed."""

    def parse(self, argument: str) -> str:
        return named_task(argument).name

    def flag_type(self) -> str:
        return "name of a task"


class _TaskModule(flags.ArgumentParser):
    """Imports the module when the flag is parsed: later flags may be settings of its task."""

    def __init__(self, with_options: bool) -> None:
        self._with_options = with_options

    def parse(self, argument: str) -> str:
        try:
            late.user_module(argument)
        except FileNotFoundError as error:
            raise ValueError(str(error)) from error  # absl reports a ValueError
        if self._with_options:
            define_task_settings()
        return argument


def task_settings() -> list[type[Settings]]:
    """Returns the settings class of a run, and its subclass for each kind of tasks."""
    return [Settings, *map(settings_of, task_options().values())]


def define_task_settings() -> None:
    """Defines a flag for each setting of a run and of any kind of tasks."""
    for settings in task_settings():
        option_flags.define(settings)
    option_flags.define_former()


def settings(options: flags.FlagValues) -> dict[str, Any]:
    """Returns name -> value of the settings of a run and its task whose flags are given."""
    given_settings: dict[str, Any] = {}
    for settings_class in task_settings():
        given_settings |= option_flags.given(settings_class, options)
    return given_settings
