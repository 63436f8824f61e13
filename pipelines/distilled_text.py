"""`kbert-distill` on text: a student learns from a pretrained teacher, on shards."""

import math
from typing import Any

from absl import flags

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.data.pretraining.stream import Corpus
from kbert.distillation import RECIPES, DistillationRecipe, Distiller
from kbert.distillation.student_model import EMBEDDINGS
from kbert.distillation.transfer import progressive
from kbert.hub import locate
from kbert.io import atomic
from kbert.io.paths import Path
from kbert.tasks import Pretraining
from kbert.tokenizers.base import Tokenizer
from kbert.training.run.log import human
from kbert.training.run.phases import parse_phases

from .distill_flags import (
    chosen_recipe,
    describe_terms,
    student_arguments,
    student_preset,
)
from .flags import OBJECTIVE_OPTIONS, default_checkpoints, differences, set_default_warmup
from .masked_text import MaskedText
from .shards import read_corpus

# Only the masked-LM head; for a recipe on pairs also the next-sentence head.
_HEADS = {"next_sentence": False, "sentence_order": False, "span_boundary": False}
_PAIRS = "pairs"


class DistilledText(MaskedText):
    """A student that is trained on shards.

    Args:
        options: the parsed flags, including the recipe's values (`apply_general`).
        tokenizer: tokenizer of the shards.
        corpus: the shards.

    Raises:
        ValueError: the recipe is for tasks.
    """

    READS = OBJECTIVE_OPTIONS  # what it does not read is no flag of kbert-distill

    def __init__(self, options: flags.FlagValues, tokenizer: Tokenizer, corpus: Corpus) -> None:
        super().__init__(options, tokenizer, corpus)
        self.recipe = chosen_recipe(options)
        pairs = self.recipe.general["segments"] == options.segments == _PAIRS
        self._heads = {**_HEADS, "next_sentence": pairs}
        self._lines: list[str] = []

    @property
    def reads_heads(self) -> bool:
        """Whether the loss trains the masked-LM head, not only the layers."""
        return _reads_heads(self.recipe)

    @property
    def has_heads(self) -> bool:
        """Whether the student has heads: trained ones, or its teacher's."""
        init = self.options.init or self.recipe.student.get("init")
        return self.reads_heads or init == EMBEDDINGS

    def make_task(self) -> Distiller:
        """Makes the distiller of teacher and student, not compiled.

        Raises:
            ValueError: --export_dir is given for a recipe without heads, or a model does not fit.
        """
        options = self.options
        if options.export_dir and not self.reads_heads:
            raise ValueError(
                f"The recipe {self.recipe.name} trains no head, so there is nothing to serve yet: "
                f"fine-tune the student first. Received: --export_dir={options.export_dir}"
            )
        teacher = self._load_teacher()
        student = self._make_student(teacher)
        self._lines = [
            _sizes("teacher", teacher),
            f"{_sizes('student', student)}; {self._initialised}",
        ]
        terms = self.recipe.terms
        if self.recipe.progressive:
            terms = progressive(terms, student, options.steps)
        return Distiller(student, teacher, terms)

    def _load_teacher(self) -> Pretraining:
        """Loads the teacher with the heads that the recipe compares.

        Raises:
            ValueError: a head is missing, or the shards have another tokenizer than the teacher.
        """
        options = self.options
        try:
            teacher = Pretraining.from_preset(
                options.teacher, options.precision, new_head=not self.has_heads, **self._heads
            )
        except ValueError as error:
            if not self.has_heads:
                raise
            without = [n for n, x in RECIPES.items() if x.terms and not _takes_heads(x)]
            raise ValueError(
                f"The recipe {self.recipe.name} requires a teacher with a masked-LM head; "
                f"{' and '.join(without)} support a teacher without one. {error}"
            ) from error
        if teacher.tokenizer.checksum != self.tokenizer.checksum:
            raise ValueError(
                "The shards must hold the teacher's tokens: prepare the corpus with "
                f"kbert-prepare-corpus --vocabulary={options.teacher}. Received: "
                f"{_tokens(self.tokenizer)} in {options.data_dir}, {_tokens(teacher.tokenizer)} in "
                "the teacher"
            )
        return teacher

    def _make_student(self, teacher: Pretraining) -> Pretraining:
        """Makes the student: of a preset (--student), or of the teacher's layers.

        It also sets `_initialised`, which describes the student's first weights.

        Args:
            teacher: the teacher.
        """
        preset = student_preset(self.options)
        if preset is not None:
            self._initialised = f"initialised from {preset}"
            has_head = read_checkpoint(locate(preset)).task is not None and self.has_heads
            return Pretraining.from_preset(
                preset, self.options.precision, new_head=not has_head, **self._heads
            )
        half = (teacher.encoder.config.num_layers + 1) // 2
        published = dict(self.recipe.student)
        if "num_layers" in published:  # else the student is as deep as its teacher
            published["num_layers"] = min(published["num_layers"], half)
        arguments = student_arguments(self.options, published)
        init = arguments.get("init", "every_other")
        self._initialised = f"initialised with layers {init} of the teacher, counted from 0"
        if isinstance(init, str):
            from_teacher = "initialised with every other layer of the teacher"
            self._initialised = {
                "random": "randomly initialised",
                EMBEDDINGS: "randomly initialised except for the teacher's embeddings and heads",
            }.get(init, from_teacher)
        return kbert.distillation.student(teacher, **arguments)

    def summary(self) -> str:
        """Returns a summary of text, teacher and student."""
        steps = steps_of_epoch(self.corpus, self.options)
        return "\n".join([f"{super().summary()}; about {steps:,} steps an epoch", *self._lines])

    def saved_kind(self, task: Distiller) -> str | None:
        """Returns the student's kind of task; None if the student has no heads."""
        return task.student.kind if self.has_heads else None

    def save(self, task: Distiller, folder: str) -> None:
        """Writes the student as a preset; only its encoder and tokenizer if it has no heads.

        Args:
            task: the trained distiller.
            folder: folder of the preset.
        """
        if self.has_heads:
            super().save(task, folder)
            return
        with atomic.together():
            task.encoder.save_to_preset(folder)
            task.tokenizer.save(Path(folder))

    def describe(self) -> str:
        """Describes the recipe, the run's differences from it, and the loss, one per line."""
        recipe_values = _general(self.recipe, self.options)
        changed = ", ".join(differences(self.options, recipe_values)) or "nothing"
        lines = [
            f"recipe {self.recipe.name}: {self.recipe.source}",
            f"changed (published, on a cluster): {changed}",
            f"loss: {describe_terms(self.recipe.terms)}",
        ]
        return "\n".join(lines)


def apply_general(options: flags.FlagValues) -> None:
    """Sets the recipe's values for text as defaults of the other flags; given flags override them.

    Raises:
        ValueError: the recipe is for the data of a task, no term of its loss is left, or --steps is
            missing.
    """
    chosen = chosen_recipe(options)
    if not chosen.general:
        text = ", ".join(name for name, candidate in RECIPES.items() if candidate.general)
        raise ValueError(
            "This recipe requires the data of a task, not text: pass --task, or use one of the "
            f"recipes for text: {text}. Received: --recipe={chosen.name}"
        )
    if not chosen.terms:
        raise ValueError(
            "--term_weights must leave at least one term of the loss. Received: "
            f"{','.join(options.term_weights)}"
        )
    for name, value in _general(chosen, options).items():
        options.set_default(name, value)
    manifest = read_corpus(options)
    if options.steps is None:
        raise ValueError(
            "--steps must be given; the shards have about "
            f"{steps_of_epoch(manifest, options):,} steps an epoch. Received: none"
        )
    set_default_warmup(options, round(chosen.general["warmup_share"] * options.steps))
    default_checkpoints(options)


def steps_of_epoch(corpus: Corpus, options: flags.FlagValues) -> int:
    """Estimates the number of batches in one epoch of the text.

    Args:
        corpus: the shards.
        options: the parsed flags; sequence length and batch size are those of the last phase.
    """
    text = options.phases or f"{options.sequence_length}:1"
    last = parse_phases(text, 10**6, options.batch_size)[-1]
    # Each row also has [CLS] and [SEP].
    rows = corpus.split("train").tokens / (last.sequence_length - 2)
    return math.ceil(rows / last.batch_size)


def _general(chosen: DistillationRecipe, options: flags.FlagValues) -> dict[str, Any]:
    """Returns the recipe's values of flags, without the warm-up, which follows from the steps."""
    values = {name: value for name, value in chosen.general.items() if name != "warmup_share"}
    if options["sequence_length"].present:  # this flag replaces the recipe's phases
        del values["phases"]
    return values


def _reads_heads(chosen: DistillationRecipe) -> bool:
    """Returns whether a term of the recipe's loss trains the masked-LM head."""
    return any(term.reads_heads for term in chosen.terms)


def _takes_heads(chosen: DistillationRecipe) -> bool:
    """Returns whether the recipe requires a teacher with heads."""
    return _reads_heads(chosen) or chosen.student.get("init") == EMBEDDINGS


def _sizes(name: str, task: Pretraining) -> str:
    """Describes a model in one line: layers, width, parameters and bytes in float32.

    Args:
        name: "teacher" or "student".
        task: the model with its heads.
    """
    config, count = task.encoder.config, task.encoder.count_params()
    bytes_ = sum(math.prod(v.shape) for v in task.variables) * 4
    layers = "1 layer" if config.num_layers == 1 else f"{config.num_layers} layers"
    return (
        f"{name}: {layers} of {config.hidden_size}, {count:,} parameters, "
        f"{human(bytes_)}B with its head"
    )


def _tokens(tokenizer: Tokenizer) -> str:
    """Describes a tokenizer by the size of its vocabulary and its checksum."""
    return f"{tokenizer.vocabulary_size:,} entries (checksum {tokenizer.checksum[:8]})"
