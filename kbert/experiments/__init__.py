"""Fine-tuning on named tasks: one run, k seeds, the paper's grid; evaluation; answers to files."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.catalog.named_tasks import (
        TASKS as TASKS,
        NamedTask as NamedTask,
        named_task as named_task,
        task_table as task_table,
    )
    from kbert.experiments.answer_file import (
        AnswerFile as AnswerFile,
        answer_records as answer_records,
        answer_stream as answer_stream,
        model_checksum as model_checksum,
    )
    from kbert.experiments.answering import answering_task as answering_task
    from kbert.experiments.beam import answer_on_beam as answer_on_beam
    from kbert.experiments.catalogue import settings_for as settings_for, task_for as task_for
    from kbert.experiments.evaluation import (
        Evaluation as Evaluation,
        check_submission as check_submission,
        predict_and_score as predict_and_score,
        tune_threshold as tune_threshold,
        write_submission as write_submission,
    )
    from kbert.experiments.experiment import Experiment as Experiment
    from kbert.experiments.folder import RunFolder as RunFolder
    from kbert.experiments.multi_task import (
        MultiTaskExperiment as MultiTaskExperiment,
        read_task_file as read_task_file,
    )
    from kbert.experiments.previews import (
        describe_examples as describe_examples,
        preview as preview,
    )
    from kbert.experiments.reading import read as read
    from kbert.experiments.records import Records as Records
    from kbert.experiments.results import Result as Result, Series as Series
    from kbert.experiments.series import grid as grid, seeds as seeds
    from kbert.experiments.settings import (
        BATCH_SIZES as BATCH_SIZES,
        EPOCHS as EPOCHS,
        LEARNING_RATES as LEARNING_RATES,
        Settings as Settings,
    )
    from kbert.experiments.single_run import Stopped as Stopped, devices as devices, run as run
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
