"""Fine-tuning by task names: one run, k seeds, the paper's grid; evaluation; answers to files."""

from kbert.experiments.answer_file import (
    AnswerFile,
    VectorFile,
    answer_records,
    answer_stream,
    model_checksum,
)
from kbert.experiments.beam import answer_on_beam
from kbert.experiments.catalogue import TASKS, NamedTask, named_task, task_for, task_table
from kbert.experiments.evaluation import (
    Evaluation,
    check_submission,
    evaluate,
    tune_threshold,
    write_submission,
)
from kbert.experiments.experiment import Experiment
from kbert.experiments.folder import RunFolder
from kbert.experiments.preview import preview, show_examples
from kbert.experiments.reading import read
from kbert.experiments.records import Records
from kbert.experiments.results import Result, Series
from kbert.experiments.run import Stopped, devices, run
from kbert.experiments.series import BATCH_SIZES, EPOCHS, LEARNING_RATES, grid, seeds
from kbert.experiments.settings import Settings

__all__ = [
    "BATCH_SIZES",
    "EPOCHS",
    "LEARNING_RATES",
    "TASKS",
    "AnswerFile",
    "Evaluation",
    "Experiment",
    "NamedTask",
    "Records",
    "Result",
    "RunFolder",
    "Series",
    "Settings",
    "Stopped",
    "VectorFile",
    "answer_on_beam",
    "answer_records",
    "answer_stream",
    "check_submission",
    "devices",
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
