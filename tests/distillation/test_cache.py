"""A teacher's outputs from a cache: the same losses, without a second forward of the teacher.

The folder itself is in test_cache_files.py.
"""

import numpy as np
import pytest

import kbert
from kbert.data.tables.table import as_table
from kbert.distillation import (
    AttentionRelations,
    AttentionScores,
    Distiller,
    EmbeddingLoss,
    HiddenStates,
    LastHiddenCosine,
    OwnLoss,
    SoftTargets,
    Term,
)
from tests.distillation.cached import batches_of, make_pair, table_of
from tests.distillation.toys import TABLES, make_task

EVERY_TERM = [
    SoftTargets(temperature=2.0),
    OwnLoss(),
    LastHiddenCosine(),
    EmbeddingLoss(),
    HiddenStates(),
    AttentionScores(layers=[None, 3]),
    AttentionRelations(relations=("attention", "query", "key", "value")),
]
HEADS = [SoftTargets(temperature=2.0), OwnLoss()]


def values_of(distiller, batch):
    terms = [values.items() for values in distiller.loss_terms(batch, training=False)]
    return {k: np.array([float(x) for x in pair]) for part in terms for k, pair in part}


def assert_same_values(plain, cached, table, rtol):
    """In each batch of the shuffled rows, of which the last one is filled up."""
    rows = plain.student.tokenize(table, labelled=True)
    batches = (batches_of(x, table, rows, epochs=1) for x in (plain, cached))
    for batch, with_outputs in zip(*batches, strict=True):
        expected, found = values_of(plain, batch), values_of(cached, with_outputs)
        assert expected.keys() == found.keys()
        for name, pair in expected.items():
            np.testing.assert_allclose(found[name], pair, rtol=rtol, atol=rtol, err_msg=name)


@pytest.fixture
def calls(monkeypatch):
    """Names of the encoders that were called."""
    made = []
    call = kbert.Encoder.call

    def counting(self, *args, **options):
        made.append(id(self))
        return call(self, *args, **options)

    monkeypatch.setattr(kbert.Encoder, "call", counting)
    return made


def test_every_part_has_the_value_it_has_without_a_cache(tokenizer, tmp_path):
    """In float32; in float16 within what it rounds to."""
    student, teacher = make_pair("pairs", tokenizer)
    table, plain = table_of("pairs"), Distiller(student, teacher, EVERY_TERM)
    for dtype, rtol in (("float32", 1e-5), ("float16", 3e-3)):
        cached = Distiller(
            student, teacher, EVERY_TERM, cache_dir=tmp_path / dtype, cache_dtype=dtype
        )
        assert_same_values(plain, cached, table, rtol)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name == "answers" else pytest.mark.slow)
        for name in TABLES
        if name not in ("pairs", "classes")
    ],
)
def test_heads_of_every_task(name, tokenizer, tmp_path):
    """Rows of windows, choices and tokens, narrower than their batches."""
    student, teacher = make_pair(name, tokenizer)
    plain = Distiller(student, teacher, HEADS)
    cached = Distiller(student, teacher, HEADS, cache_dir=tmp_path)
    assert_same_values(plain, cached, table_of(name).take(range(3)), 1e-5)


@pytest.mark.parametrize("name", ["windows", pytest.param("choices", marks=pytest.mark.slow)])
def test_layers_of_windows_and_choices(name, tokenizer, tmp_path):
    student, teacher = make_pair(name, tokenizer)
    terms = [HiddenStates(), AttentionScores()]
    cached = Distiller(student, teacher, terms, cache_dir=tmp_path, cache_dtype="float32")
    plain, table = Distiller(student, teacher, terms), table_of(name).take(range(3))
    assert_same_values(plain, cached, table, 1e-5)


@pytest.mark.slow
def test_training_equals_training_without(tokenizer, tmp_path):
    losses = []
    for cache_dir in (None, tmp_path):
        student, teacher = make_pair("classes", tokenizer)
        terms = [*HEADS, HiddenStates()]  # of the others the test above
        distiller = Distiller(student, teacher, terms, cache_dir=cache_dir, cache_dtype="float32")
        history = distiller.fit(table_of("classes"), epochs=2, batch_size=4, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_the_teacher_reads_each_text_once(tokenizer, tmp_path, calls):
    """Epochs, another student, the second stage and other splits read the cache."""
    student, teacher = make_pair("classes", tokenizer)
    table = table_of("classes")
    first = Distiller(student, teacher, [HiddenStates(), AttentionScores()], cache_dir=tmp_path)
    first.fit(table, epochs=2, batch_size=5, verbose=0)
    assert id(teacher.encoder) in calls
    calls.clear()
    other = kbert.student(teacher, num_layers=2, init="random")
    for terms in (first.terms, HEADS):
        shuffled = as_table(table["text"][::-1] * 2, table["label"][::-1] * 2)
        again = Distiller(other, teacher, terms, cache_dir=tmp_path)
        assert again.cache_size(shuffled).missing_rows == 0
        again.fit(shuffled, epochs=1, batch_size=8, verbose=0)
    assert id(teacher.encoder) not in calls
    assert id(other.encoder) in calls


def test_what_is_missing_is_added(classes, tmp_path, calls):
    """New texts, and outputs that no part asked for before."""
    student, teacher = classes
    distiller = Distiller(student, teacher, HEADS, cache_dir=tmp_path)
    size = distiller.cache_size(["a dog", "moon", "a dog"])
    assert (size.rows, size.missing_rows, size.missing_bytes) == (2, 2, 2 * (3 * 4 + 24))
    batches_of(distiller, as_table(["a dog", "moon"], [0, 1]))
    assert distiller.cache_size(["a dog", "moon", "the sun"]).missing_rows == 1
    wider = Distiller(student, teacher, [*HEADS, HiddenStates()], cache_dir=tmp_path)
    size = wider.cache_size(["a dog", "moon"])
    states = 2 * 16 * (4 + 3) * 2  # layers, width, tokens, bytes
    assert (size.missing_rows, size.missing_bytes) == (2, states + 2 * 24)
    assert size.total_bytes == states + 2 * (3 * 4 + 24)
    table = as_table(["moon", "the sun", "a dog"], [0, 1, 0])
    assert_same_values(Distiller(student, teacher, wider.terms), wider, table, 3e-3)
    assert "hidden_states/2" in str(size)
    assert "to be written: 2 texts" in str(size)


def test_a_restart_sees_the_same_batches(classes, tokenizer, tmp_path):
    distiller = Distiller(*classes, EVERY_TERM, cache_dir=tmp_path)
    table = table_of("classes")
    whole = batches_of(distiller, table)
    fresh = Distiller(*make_pair("classes", tokenizer), EVERY_TERM, cache_dir=tmp_path)
    rest = batches_of(fresh, table, start=whole[1]["position"][0])
    assert len(rest) == len(whole) - 2
    for batch, again in zip(whole[2:], rest, strict=True):
        assert {n for n in batch if n.startswith("teacher/")}
        for name, values in batch.items():
            np.testing.assert_array_equal(values, again[name], err_msg=name)


def test_labels_are_no_part_of_a_row_and_segments_are_where_they_are_read(classes, tmp_path):
    student, teacher = classes
    distiller = Distiller(student, teacher, HEADS, cache_dir=tmp_path)
    batches_of(distiller, as_table(["a dog a dog"], [0]))
    assert distiller.cache_size(["a dog a dog"], [2]).missing_rows == 0
    assert distiller.cache_size([("a dog", "a dog")]).missing_rows == 1


def test_pretraining_has_nothing_to_keep(tokenizer, tmp_path):
    student, teacher = (make_task("text", tokenizer, seed=seed) for seed in (0, 1))
    with pytest.raises(ValueError, match=r"masks other tokens in every.*would take \d+\.\d+ kB"):
        Distiller(student, teacher, HEADS, cache_dir=tmp_path)


def test_what_cannot_be_cached_is_told(tokenizer, tmp_path):
    student, teacher = make_pair("classes", tokenizer)
    with pytest.raises(
        ValueError, match=r"cache_dtype must be one of float16, float32. Received: "
    ):
        Distiller(student, teacher, HEADS, cache_dir=tmp_path, cache_dtype="int8")
    with pytest.raises(ValueError, match="requires a distiller with a cache_dir"):
        Distiller(student, teacher, HEADS).cache_size(["a dog"])
    with pytest.raises(ValueError, match="must declare by"):
        Distiller(student, teacher, [Term()], cache_dir=tmp_path)
    cached = Distiller(student, teacher, HEADS, cache_dir=tmp_path)
    batch = batches_of(Distiller(student, teacher, HEADS), table_of("classes"))[0]
    with pytest.raises(ValueError, match=r"use those of Distiller.batches. Received: label"):
        cached.loss_terms(batch, training=True)
    for weight in teacher.weights:
        if weight.name == "gamma":
            weight.assign(3e5 * np.ones(weight.shape))
    overflowing = Distiller(student, teacher, [HiddenStates()], cache_dir=tmp_path / "x")
    with pytest.raises(ValueError, match="hidden_states/2, which is NaN or beyond the range"):
        batches_of(overflowing, table_of("classes"))


@pytest.mark.slow
@pytest.mark.tensorflow
def test_two_replicas_share_a_cache(tokenizer, tmp_path, mirrored):
    losses = []
    for cache_dir in (None, tmp_path):
        with mirrored.scope():
            student, teacher = make_pair("classes", tokenizer)
            distiller = Distiller(
                student, teacher, [SoftTargets(), HiddenStates()],
                cache_dir=cache_dir, cache_dtype="float32",
            )  # fmt: skip
        history = distiller.fit(table_of("classes"), epochs=1, batch_size=4, verbose=0)
        losses.append(history.history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_rows_on_disk_have_no_cache(classes, tmp_path):
    student, teacher = classes
    rows = kbert.tasks.prepare_rows(student, table_of("classes"), tmp_path / "rows")
    distiller = Distiller(student, teacher, HEADS, cache_dir=tmp_path / "cache")
    without = Distiller(student, teacher, HEADS).batches(rows, batch_size=2, epochs=1)
    assert len(list(without)) == 3
    with pytest.raises(ValueError, match=r"tables in memory.*Received: a cache_dir, and the rows"):
        distiller.batches(rows, batch_size=2)
