"""Students, teachers and the batches that a distiller makes of a table."""

import kbert
from kbert.data.tables.table import as_table
from tests.distillation.toys import TABLES, make_task
from tests.harness import randomise


def table_of(name):
    data = TABLES[name][2]
    return as_table(*data) if isinstance(data, tuple) else as_table(data)


def make_pair(name, tokenizer):
    teacher = make_task(name, tokenizer)
    student = kbert.student(teacher, num_layers=2)
    randomise(student, sigma=0.3, seed=1)
    return student, teacher


def batches_of(distiller, table, rows=None, **options):
    rows = distiller.student.tokenize(table, labelled=True) if rows is None else rows
    options = {"batch_size": 4, "seed": 1, "epochs": 2, **options}
    return list(distiller.batches(rows, **options).as_numpy_iterator())
