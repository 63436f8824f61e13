"""Flags of `kbert-distill`: teacher, student and the terms of the loss."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from absl import flags

from kbert import distillation
from kbert.catalog.distillation import DISTILLATIONS
from kbert.core import late
from kbert.core.options import Options, option
from kbert.io.paths import is_dir
from kbert.tasks.settings import MaskedSettings

from .flags import CorpusOptions, ResumeOptions, RunOptions, parse_settings
from .masked_text import encoder_config
from .option_flags import flag_names, shown
from .task_flags import DataOptions, SeriesOptions, task_settings

if TYPE_CHECKING:
    from kbert.distillation import DistillationRecipe, Term

_NO_LAYER = "none"


class DistillationOptions(Options):
    """Recipe, teacher and student."""

    recipe: str | None = option(
        None,
        help="Loss terms and settings, see below.",
        choices=list(DISTILLATIONS),
    )
    teacher: tuple[str, ...] | None = option(
        None,
        help="Teacher, a folder or a name on the hub: on text a pretrained model, on a task a "
        "model written by kbert-finetune, an ensemble, or several models, separated by commas, "
        "whose mean probabilities are the soft targets.",
    )
    student: str | None = option(
        None,
        help="Student: a size from kbert.family, a JSON file with a config, or the folder of a "
        "pretrained model to start from. Default: on text the recipe's, on a task half of the "
        "teacher's layers.",
    )
    num_layers: int | None = option(None, help="Layers of the student.", at_least=1)
    init: str | None = option(
        None,
        help="Initial weights of the student's layers: every_other (every other layer of the "
        "teacher), teacher layers counted from 0, such as 0,2,4,7,9,11, random, or embeddings "
        "(random layers with the teacher's embeddings and heads).",
    )
    set: tuple[str, ...] = option(
        (),
        help="Override a field of the student's config, as field=value; repeat the flag for "
        "several fields. For example --set=hidden_size=312 --set=intermediate_size=1200 "
        "--init=random.",
        repeated=True,
    )
    temperature: float | None = option(
        None, help="Temperature of soft targets. Default: the recipe's.", at_least=0
    )
    term_weights: tuple[str, ...] = option(
        (),
        help="Weights of loss terms instead of the recipe's, such as soft_targets=5,own=2; 0 "
        f"removes a term. The terms: {', '.join(late.TABLE['term'])}.",
    )
    layers: tuple[str, ...] | None = option(
        None,
        help="Teacher layer that each student layer is compared with: uniform, last, or one for "
        f"each, counted from 1, such as 2,4,6 ({_NO_LAYER}: not compared). Default: the "
        "recipe's.",
    )


class OnTextOptions(Options):
    """Options for a student that is trained on shards."""

    positions: str | None = option(
        None,
        help="Tokens whose soft targets are compared; all takes longer. Default: the recipe's.",
        choices=("masked", "all"),
    )


class OnTaskOptions(Options):
    """Options for a student that is trained on the data of a task."""

    augmented: str | None = option(
        None, help="Folder written by kbert-augment, instead of --train."
    )
    output_dir: str | None = option(None, help="On a task: folder of the run.")
    first_epochs: int | None = option(None, help="Epochs of the stage before the last.", at_least=1)
    first_learning_rate: float | None = option(
        None, help="Learning rate of the stage before the last.", at_least=0
    )
    cache_dir: str | None = option(
        None, help="On a task: folder that caches the teacher's outputs."
    )


# Options for text, and for a task; a flag that is in both, such as --batch_size, is read by both.
TEXT = (
    *(CorpusOptions, MaskedSettings, RunOptions, OnTextOptions),
    ResumeOptions,
)
TASK = (DataOptions, SeriesOptions, OnTaskOptions, ResumeOptions)


def flags_of_modes() -> tuple[list[str], list[str]]:
    """Returns the names of the flags for text alone, and of those for a task alone.

    They include the settings of the tasks in imported modules, so call it when these are there.
    """
    on_text, on_task = flag_names(*TEXT), ["task", *flag_names(*task_settings(), *TASK)]
    return (
        [name for name in on_text if name not in on_task],
        [name for name in on_task if name not in on_text],
    )


def chosen_recipe(options: flags.FlagValues) -> DistillationRecipe:
    """Returns the recipe, changed by the given flags.

    Raises:
        ValueError: no term of the recipe's loss reads the value of a flag.
    """
    chosen, kinds = distillation.distillation_recipe(options.recipe), dict(late.load_each("term"))
    changes = {
        "temperature": options.temperature,
        "positions": options.positions,
        "layers": _parse_layers(options.layers),
    }
    changes = {name: value for name, value in changes.items() if value is not None}
    weights = _parse_weights(options.term_weights)
    every = [*chosen.terms, *(term for stage in chosen.stages for term in stage.terms)]
    for name in changes:
        if not any(hasattr(term, name) for term in every):
            raise ValueError(
                f"--{name} is not supported by the recipe {chosen.name}: none of its loss terms "
                f"uses it. Received: --{name}={shown(options[name].value)}"
            )
    known_terms = [name for name, kind in kinds.items() if any(isinstance(x, kind) for x in every)]
    if unknown := [name for name in weights if name not in known_terms]:
        raise ValueError(
            f"--term_weights must name terms of the recipe {chosen.name}: "
            f"{', '.join(known_terms)}. Received: {', '.join(unknown)}"
        )

    def changed(terms: Sequence[Term]) -> tuple[Term, ...]:
        changed_terms = (_changed(term, changes, weights, kinds) for term in terms)
        return tuple(term for term in changed_terms if term is not None)

    stages = [dataclasses.replace(stage, terms=changed(stage.terms)) for stage in chosen.stages]
    return dataclasses.replace(chosen, terms=changed(chosen.terms), stages=tuple(stages))


def _changed(
    term: Term,
    changes: Mapping[str, Any],
    weights: Mapping[str, float],
    kinds: Mapping[str, type[Term]],
) -> Term | None:
    """Returns a loss term with changed settings; None if its weight is 0.

    Args:
        term: term of the recipe.
        changes: field -> new value; fields that the term does not have are ignored.
        weights: name of a term -> new weight.
        kinds: name of a term -> its class.
    """
    weight = next((w for name, w in weights.items() if isinstance(term, kinds[name])), term.weight)
    if weight == 0:
        return None
    term_changes = {name: value for name, value in changes.items() if hasattr(term, name)}
    return dataclasses.replace(term, weight=weight, **term_changes)


def student_arguments(
    options: flags.FlagValues, published: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the arguments of `kbert.student` that the flags describe.

    Args:
        options: the parsed flags.
        published: default arguments, from the recipe, which other flags override; ignored with
            --student.

    Raises:
        ValueError: a flag has an invalid config, layer or field.
    """
    arguments = dict(published or {})
    if options.student:
        # Vocabulary, padding id and maximum length are the teacher's.
        config = encoder_config(options.student)
        if config is None:
            raise ValueError(
                "--student must be an encoder of the BERT family. Received: "
                f"--student={options.student}"
            )
        arguments = config.to_dict() | {"init": "random"}
        del arguments["vocabulary_size"], arguments["max_positions"]
        arguments.pop("padding_id", None)
    if options.num_layers:
        arguments["num_layers"] = options.num_layers
    if options.init:
        arguments["init"] = _parse_init(options.init)
    return arguments | parse_settings(options.set)


def student_preset(options: flags.FlagValues) -> str | None:
    """Returns the folder that the student is initialised from; None if --student is no folder.

    Raises:
        ValueError: --student is a folder, and flags for a student made from the teacher are given.
    """
    text = options.student
    if not text or text.endswith(".json"):
        return None
    if not is_dir(text) and os.sep not in text:
        return None  # a name in the family
    names = ("num_layers", "init", "set")
    conflicting = [f"--{n}={shown(options[n].value)}" for n in names if options[n].value]
    if conflicting:
        raise ValueError(
            "--num_layers, --init and --set cannot be combined with a student from a folder, "
            f"which has that model's sizes and weights. Received: --student={text}, "
            f"{', '.join(conflicting)}"
        )
    return text


def describe_terms(terms: Sequence[Term]) -> str:
    """Returns the terms of a loss in one line."""
    return " + ".join(map(repr, terms))


def _parse_init(text: str) -> str | list[int]:
    """Parses --init: one of three words, or layers of the teacher counted from 0."""
    if text in ("every_other", "embeddings", "random"):
        return text
    try:
        return [int(layer) for layer in text.split(",")]
    except ValueError:
        raise ValueError(
            "--init must be every_other, embeddings, random, or layers of the teacher counted "
            f"from 0, such as 0,2,4. Received: --init={text}"
        ) from None


def _parse_layers(items: list[str] | None) -> str | list[int | None] | None:
    """Parses --layers: "uniform", "last", or a layer (None: not compared) per student layer."""
    if not items or items in (["uniform"], ["last"]):
        return items[0] if items else None
    try:
        return [None if item == _NO_LAYER else int(item) for item in items]
    except ValueError:
        raise ValueError(
            "--layers must be uniform, last, or layers of the teacher counted from 1, such as "
            f"2,4,6. Received: --layers={','.join(items)}"
        ) from None


def _parse_weights(items: Sequence[str]) -> dict[str, float]:
    """Parses --term_weights, `term=weight` items; ValueError if a weight is not a number."""
    weights = {}
    for item in items:
        name, _, value = item.partition("=")
        try:
            weights[name] = float(value)
        except ValueError:
            raise ValueError(
                "--term_weights must be term=weight, separated by commas. Received: "
                f"--term_weights={','.join(items)}"
            ) from None
    return weights
