"""Readers: the files of tasks, as published, to tables with the same names of columns."""

from kbert.data.readers.choices import read_choices
from kbert.data.readers.conll import read_conll, read_conllu
from kbert.data.readers.glue import read_glue
from kbert.data.readers.glue_tasks import GLUE, GlueTask, glue_task
from kbert.data.readers.squad import read_squad
from kbert.data.readers.submissions import check_glue_submission, write_glue_submission
from kbert.data.readers.tables import read_table

__all__ = [
    "GLUE",
    "GlueTask",
    "check_glue_submission",
    "glue_task",
    "read_choices",
    "read_conll",
    "read_conllu",
    "read_glue",
    "read_squad",
    "read_table",
    "write_glue_submission",
]
