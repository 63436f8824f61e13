"""Fine-tuning by task names: one run, k seeds, the paper's grid; evaluation; answers to files."""

from kbert.finetuning.answer_file import AnswerFile, answer_records, answer_stream, model_checksum
from kbert.finetuning.catalogue import TASKS, NamedTask, named_task, task_for, task_table
from kbert.finetuning.evaluation import (
    Evaluation,
    check_submission,
    evaluate,
    tune_threshold,
    write_submission,
)
from kbert.finetuning.experiment import Experiment
from kbert.finetuning.folder import RunFolder
from kbert.finetuning.preview import preview, show_examples
from kbert.finetuning.reading import read
from kbert.finetuning.records import Records
from kbert.finetuning.results import Result, Series
from kbert.finetuning.run import Stopped, run
from kbert.finetuning.series import BATCH_SIZES, EPOCHS, LEARNING_RATES, grid, seeds
from kbert.finetuning.settings import Settings

__all__ = [
    "AnswerFile",
    "BATCH_SIZES",
    "EPOCHS",
    "Evaluation",
    "Experiment",
    "LEARNING_RATES",
    "NamedTask",
    "Records",
    "Result",
    "RunFolder",
    "Series",
    "Settings",
    "Stopped",
    "TASKS",
    "answer_records",
    "answer_stream",
    "check_submission",
    "evaluate",
    "grid",
    "model_checksum",
    "named_task",
    "preview",
    "read",
    "run",
    "seeds",
    "show_examples",
    "task_for",
    "task_table",
    "tune_threshold",
    "write_submission",
]
