"""Readers: turn the published files of tasks into tables with the same column names."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.catalog.glue import GLUE as GLUE, GlueTask as GlueTask
    from kbert.data.readers.choices import read_choices as read_choices
    from kbert.data.readers.conll import read_conll as read_conll, read_conllu as read_conllu
    from kbert.data.readers.glue import read_glue as read_glue
    from kbert.data.readers.glue_tasks import glue_scores as glue_scores, glue_task as glue_task
    from kbert.data.readers.squad import read_squad as read_squad
    from kbert.data.readers.submissions import (
        check_glue_submission as check_glue_submission,
        write_glue_submission as write_glue_submission,
        write_super_glue_submission as write_super_glue_submission,
    )
    from kbert.data.readers.super_glue import read_super_glue as read_super_glue
    from kbert.data.readers.tables import read_table as read_table, table_parts as table_parts
    from kbert.data.readers.tfds import read_tfds as read_tfds
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
