"""Checks before the first step whether the terms of a loss can compare a student and a teacher."""

from collections.abc import Sequence

from kbert.core.protocols import TokenizerLike
from kbert.distillation.terms import Term
from kbert.models import Encoder
from kbert.tasks import EncoderTask, Ensemble, FineTuningTask, Pretraining


def check_comparable(student: EncoderTask, teacher: EncoderTask, terms: Sequence[Term]) -> None:
    """Raises TypeError or ValueError unless all terms of a loss can compare student and teacher.

    Args:
        student: task to train.
        teacher: task whose outputs the student learns from.
        terms: terms of the loss.
    """
    for role, task in (("student", student), ("teacher", teacher)):
        if not isinstance(task, EncoderTask):
            raise TypeError(
                f"The {role} must be a single task on an encoder; for a MultiTask use a "
                "MultiTaskDistiller, or pass one of its tasks, multi.tasks[name]. "
                f"Received: {task!r:.200}"
            )
    if not terms:
        raise ValueError("A distiller requires a loss term. Received: none")
    if student is teacher:
        raise ValueError("Student and teacher must be two models. Received: the same one for both")
    _check_tokens(student, teacher)
    if isinstance(teacher, Ensemble):
        _check_only_heads(teacher, terms)
    if any(term.reads_heads for term in terms):
        _check_heads(student, teacher)
    if any(term.returned.get("return_internals") for term in terms):
        for task in (student, teacher):
            if not isinstance(task.encoder, Encoder):
                raise ValueError(
                    "Attention can only be compared in encoders of the BERT family. Received: a "
                    f"{type(task.encoder).__name__}"
                )
            _check_even(task.encoder)
    for term in terms:
        term.check(student, teacher)


def _check_only_heads(teacher: Ensemble, terms: Sequence[Term]) -> None:
    """Raises ValueError if a term compares other outputs than predictions."""
    inner_terms = [type(x).__name__ for x in terms if x.returned or not x.reads_heads]
    if inner_terms:
        raise ValueError(
            "Several teachers are supported by terms that compare predictions, such as "
            "SoftTargets: their hidden states and attention have no mean. Received: "
            f"{', '.join(inner_terms)} with {len(teacher.members)} teachers"
        )


def _check_even(encoder: Encoder) -> None:
    """Raises ValueError if heads were pruned from some layers of an encoder."""
    config = encoder.config
    heads = encoder.layer_heads
    if set(heads) != {config.num_heads}:
        raise ValueError(
            "Attention can only be compared if every layer has the num_heads of its config. "
            f"Received: an encoder with num_heads={config.num_heads}, pruned to {list(heads)}"
        )


def _check_tokens(student: EncoderTask, teacher: EncoderTask) -> None:
    """Raises ValueError unless both models read the same sequences.

    Tokenizer and special tokens must be the same, and the teacher must have enough positions.
    """
    student_tokenizer, teacher_tokenizer = student.tokenizer, teacher.tokenizer
    if (
        type(student_tokenizer) is not type(teacher_tokenizer)
        or student_tokenizer.checksum != teacher_tokenizer.checksum
    ):
        raise ValueError(
            "Student and teacher must have the same tokenizer. Received: "
            f"{_shown(student_tokenizer)} and {_shown(teacher_tokenizer)}"
        )
    if student.form != teacher.form:
        raise ValueError(
            "Student and teacher must have the same special tokens around the texts. "
            f"Received: {student.form} and {teacher.form}"
        )
    longest = teacher.encoder.config.max_positions
    if isinstance(student, FineTuningTask) and student.row_length > longest:
        raise ValueError(
            "max_length of the student must be at most the teacher's max_positions. Received: "
            f"sequences of up to {student.row_length} tokens, a teacher of "
            f"{longest}"
        )


def _shown(tokenizer: TokenizerLike) -> str:
    """Describes a tokenizer for a message: class, vocabulary size, first digits of the checksum."""
    size = getattr(tokenizer, "vocabulary_size", None)
    entries = "" if size is None else f" of {size:,} entries"
    return f"a {type(tokenizer).__name__}{entries} (checksum {tokenizer.checksum[:8]})"


def _check_heads(student: EncoderTask, teacher: EncoderTask) -> None:
    """Raises ValueError unless both are tasks of one class with the same labels and heads."""
    if not isinstance(student, FineTuningTask | Pretraining):
        raise ValueError(
            "Heads can only be compared in fine-tuning tasks and kbert.tasks.Pretraining. "
            f"Received: a {type(student).__name__}"
        )
    if type(student) is not type(getattr(teacher, "members", [teacher])[0]):
        raise ValueError(
            "The terms of this loss compare heads, so teacher and student must be tasks of the "
            f"same class. Received: a {type(teacher).__name__} for a "
            f"{type(student).__name__}"
        )
    if isinstance(student, Pretraining):
        _check_pretraining(student, teacher)
    for name in student.prediction_settings:
        student_value, teacher_value = (getattr(task, name, None) for task in (student, teacher))
        if student_value != teacher_value:
            raise ValueError(
                f"Student and teacher must have the same {name} (labels in the same order). "
                f"Received: {student_value} and {teacher_value}"
            )


def _check_pretraining(student: Pretraining, teacher: Pretraining) -> None:
    """Raises ValueError unless the pretraining heads of both can be compared."""
    sizes = [task.encoder.config.vocabulary_size for task in (student, teacher)]
    if sizes[0] != sizes[1]:
        raise ValueError(
            "Student and teacher must have the same vocabulary_size, since distributions over the "
            f"vocabulary are compared. Received: {sizes[0]:,} and {sizes[1]:,}"
        )
    if (teacher.masked_lm is None) != (student.masked_lm is None):
        raise ValueError(
            "Student and teacher must both have a masked-LM head, or neither. Received: "
            "masked_lm=False of one"
        )
    if teacher.span_boundary_head is not None and student.span_boundary_head is None:
        raise ValueError(
            "A teacher with a span-boundary head requires spans, which the batches of a student "
            "without one do not contain: load it with span_boundary=False. Received: such a teacher"
        )
