r"""Prunes a model: removes layers, attention heads, neurons and tokens of the vocabulary.

  kbert-prune --model=out/preset --heads=0.4 --data=train.csv --output_dir=small
  kbert-prune --model=out/preset --layers=bottom:6 --neurons=0.5 --output_dir=small
  kbert-prune --model=bert-base-multilingual-cased --vocabulary='texts/*.txt' --output_dir=german

Kernels and tables become smaller, so the model needs less time and memory. It is pruned in this
order:

  --vocabulary  removes the tokens that these texts do not use; keeps single characters or bytes
  --layers      numbers of the layers to keep, from 0, as 0,2,4; or bottom:N, top:N, alternate:N
  --heads       share of the attention heads to remove: those that the loss on --data depends on
                least
  --neurons     share of the feed-forward neurons to remove: likewise; without --data those with the
                smallest weights

--data are labelled examples of the fine-tuned task. The model is also evaluated on them before and
after pruning; if it was trained on them, these scores are too good. Then train the small model
further (kbert-finetune --preset=small), so that it adapts to the missing parts.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from absl import flags

import kbert
from kbert import experiments
from kbert.edit import pruning
from kbert.io import atomic
from kbert.io.paths import Path

from . import command, option_flags
from .task_flags import ColumnOptions, columns, define_task_flag, define_task_module_flag


def define_flags() -> None:
    """Declares the flags; called when the program starts, never on import."""
    flags.DEFINE_string("model", None, "Model to prune: a folder, zip file or name.")
    flags.DEFINE_string("output_dir", None, "Folder for the small model, new or empty.")
    flags.DEFINE_list(
        "vocabulary",
        None,
        "Prune the vocabulary to the tokens of these texts: files or patterns, as for "
        "kbert-prepare-corpus.",
    )
    flags.DEFINE_integer("min_count", 1, "With --vocabulary: minimum count of a token to keep.", 1)
    flags.DEFINE_list("keep", [], "With --vocabulary: further tokens to keep.")
    flags.DEFINE_list("layers", None, "Layers to keep, see above.")
    flags.DEFINE_float("heads", None, "Share of the heads to prune.", 0.0, 1.0)
    flags.DEFINE_float("neurons", None, "Share of the neurons to prune.", 0.0, 1.0)
    flags.DEFINE_string(
        "data", None, "Labelled data: a file, a pattern, tfds:NAME, or GLUE's folder."
    )
    define_task_module_flag(with_options=False)
    define_task_flag("Format of the data. Default: as the model's kind.")
    option_flags.define(ColumnOptions)
    flags.DEFINE_integer("batch_size", 32, "Rows per forward pass.", 1)
    command.define_ignore_flag()
    flags.mark_flags_as_required(["model", "output_dir"])


def _prune(options: flags.FlagValues) -> None:
    """Prunes the model, prints its sizes and scores before and after, and writes it."""
    if all(options[name].value is None for name in ("vocabulary", "layers", "heads", "neurons")):
        raise ValueError(
            "At least one of --vocabulary, --layers, --heads and --neurons must be given"
        )
    if options.heads is not None and options.data is None:
        raise ValueError("--heads requires --data, on which the importance of heads is measured")
    if options.vocabulary is None:
        option_flags.refuse(options, ("min_count", "keep"), "without --vocabulary")
    if options.data is None:
        names = ("task", "batch_size", *option_flags.flag_names(ColumnOptions))
        option_flags.refuse(options, names, "without --data")
    target = Path(options.output_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ValueError(f"--output_dir must be new or empty. Received: {target}")
    model, tokenizer = _read(options.model)
    table = _table(model, options) if options.data else None
    sizes_before = _measured(model, table, options)
    if options.vocabulary is not None:
        texts = (
            text for x in kbert.text.open_sources(options.vocabulary) for text in x.documents()
        )
        own_tokenizer = None if isinstance(model, kbert.tasks.Task) else tokenizer
        cut = {"texts": texts, "keep": options.keep, "min_count": options.min_count}
        model, tokenizer = pruning.prune_vocabulary(model, own_tokenizer, **cut)
    if options.layers is not None:
        model = pruning.keep_layers(model, *_layers(options.layers))
    if options.heads is not None:
        importance = pruning.head_importance(model, table, batch_size=options.batch_size)
        model = pruning.prune_heads(model, pruning.least_important(importance, options.heads))
    if options.neurons is not None:
        if table is None:
            importance = pruning.neuron_magnitudes(model)
        else:
            importance = pruning.neuron_importance(model, table, batch_size=options.batch_size)
        model = pruning.prune_neurons(model, pruning.least_important(importance, options.neurons))
    sizes_after = _measured(model, table, options)
    for name, value in sizes_before.items():
        print(f"{name:20}{value} -> {sizes_after[name]}")
    with atomic.together():
        model.save_to_preset(target)
        if tokenizer is not None and not isinstance(model, kbert.tasks.Task):
            tokenizer.save(target)
    print(f"written to {target}")


def _read(path: str) -> tuple[Any, Any]:
    """Loads the model to prune.

    Args:
        path: folder, zip file or name of the model.

    Returns:
        The task, or the encoder if there is no task; and the tokenizer, None if there is none.
    """
    folder = kbert.hub.locate(path)
    if kbert.checkpoints.read_checkpoint(folder).task is not None:
        task = kbert.tasks.Task.from_preset(folder)
        return task, task.tokenizer
    try:
        tokenizer = kbert.load_tokenizer(folder)
    except FileNotFoundError:
        tokenizer = None  # the folder holds only an encoder
    return kbert.Encoder.from_preset(folder), tokenizer


def _table(model: Any, options: flags.FlagValues) -> Any:
    """Reads --data as a table; ValueError if the model is not a fine-tuned task."""
    if not isinstance(model, kbert.tasks.FineTuningTask):
        raise ValueError(
            f"--data requires a fine-tuned task. Received: a {type(model).__name__} in "
            f"{options.model}"
        )
    named = experiments.task_for(model, options.task)
    return experiments.read(
        named,
        options.data,
        split="dev",
        columns=columns(options),
        label_separator=options.label_separator,
    )


def _layers(given: Sequence[str]) -> tuple[Any, ...]:
    """Parses --layers to the arguments of `keep_layers`: ["0", "2"] or ["bottom:6"].

    Example:
        >>> _layers(["0", "2"]), _layers(["bottom:6"])
        (([0, 2],), ('bottom', 6))
    """
    name, colon, number = given[0].partition(":")
    try:
        if len(given) == 1 and colon:
            return name, int(number)
        return ([int(layer) for layer in given],)
    except ValueError as error:
        raise ValueError(
            "--layers must be numbers, such as 0,2,4, or bottom:N, top:N or alternate:N. "
            f"Received: --layers={','.join(given)}"
        ) from error


def _measured(model: Any, table: Any, options: flags.FlagValues) -> Mapping[str, str]:
    """Returns the sizes, and with a table the scores, of a model as text by name.

    Args:
        model: task or encoder.
        table: labelled examples, or None.
        options: the parsed flags.
    """
    config = getattr(model, "encoder", model).config
    sizes = {
        "parameters": f"{model.count_params():,}",
        "vocabulary": f"{config.vocabulary_size:,}",
        "layers": f"{config.num_layers}",
        "edits": f"{[dict(edit) for edit in config.edits]}",
    }
    if table is None:
        return sizes
    scores = model.evaluate(table, batch_size=options.batch_size)
    return {**sizes, **{name: f"{value:.4f}" for name, value in scores.items()}}


PROGRAM = command.Program(
    name="kbert-prune",
    doc=__doc__,
    define_flags=define_flags,
    work=_prune,
    errors=(TypeError,),
    files=("data",),
    models=("model",),
)
main, run = PROGRAM.main, PROGRAM.run

if __name__ == "__main__":
    run()
