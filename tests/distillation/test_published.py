"""The recipes are the published values, and what they make is of the published size."""

import importlib

import pytest

import kbert
from kbert.catalog.distillation import table
from kbert.distillation import RECIPES, distillation_recipe, student, terms

BERT_BASE = 109_482_240


def test_the_published_values():
    soft, own, cosine = distillation_recipe("distilbert").terms
    assert (soft.weight, soft.temperature, soft.positions) == (5.0, 2.0, "all")
    assert isinstance(own, terms.OwnLoss)
    assert own.weight == 2.0
    assert isinstance(cosine, terms.LastHiddenCosine)
    assert cosine.weight == 1.0
    general = distillation_recipe("distilbert").general
    assert general["learning_rate"] == 5e-4
    assert general["clip_norm"] == 5.0

    tiny = distillation_recipe("tinybert-general")
    assert [type(term).__name__ for term in tiny.terms] == [
        *("EmbeddingLoss", "HiddenStates", "AttentionScores")
    ]
    assert all(getattr(term, "layers", "uniform") == "uniform" for term in tiny.terms)
    assert {term.weight for term in tiny.terms} == {1.0}
    first, last = distillation_recipe("tinybert-task").stages
    assert first.terms == tiny.terms
    assert not first.reads_heads
    assert last.reads_heads
    assert (first.learning_rate, last.learning_rate, last.epochs) == (5e-5, 3e-5, 3)
    assert last.terms[0].temperature == 1.0

    (relations,) = distillation_recipe("minilm").terms
    assert relations.relations == ("attention", "value")
    assert relations.teacher_layer is None


class OnlyConfig:
    """In the place of an encoder: nothing is allocated."""

    dtype_policy = weights_from = None

    def __init__(self, config, dtype=None):
        self.config = config


@pytest.fixture
def only_configs(monkeypatch):
    module = importlib.import_module("kbert.distillation.student_model")
    monkeypatch.setattr(module, "Encoder", OnlyConfig)
    monkeypatch.setattr(module, "_arrays", lambda *_: {})
    monkeypatch.setattr(module, "set_arrays", lambda *_: None)


@pytest.mark.parametrize(
    ("arguments", "wanted", "smaller"),
    [
        (distillation_recipe("distilbert").student, 66_362_880, 1 / (1 - 0.394)),
        (distillation_recipe("tinybert-general").student, 14_350_248, 7.63),
        ({"num_layers": 6}, 66_955_008, 1.635),  # TinyBERT with 6 layers of 768
    ],
)
def test_the_published_sizes(only_configs, arguments, wanted, smaller):
    teacher = kbert.family("bert-base-uncased")
    assert kbert.describe(teacher).parameters == BERT_BASE
    found = student(OnlyConfig(teacher), **arguments).config
    parameters = kbert.describe(found).parameters
    assert parameters == wanted
    assert BERT_BASE / parameters == pytest.approx(smaller, abs=0.005)


def test_the_students_are_the_familys(only_configs):
    """Under another name, the same config."""
    for name, published in {
        "distilbert": "distilbert-base-uncased",
        "tinybert-general": "huawei-noah/TinyBERT_General_4L_312D",
        "minilm": "nreimers/MiniLM-L6-H384-uncased",
    }.items():
        ours = student(
            OnlyConfig(kbert.family("bert-base-uncased")), **distillation_recipe(name).student
        )
        ours, theirs = (c.to_dict() for c in (ours.config, kbert.family(published)))
        differ = {field for field in ours if ours[field] != theirs[field]}
        assert differ <= {"activation"}, {f: (ours[f], theirs[f]) for f in differ}


def test_an_unknown_recipe_names_the_close_ones():
    with pytest.raises(ValueError, match=r"Close: tinybert-.*Received: 'tinybert'"):
        distillation_recipe("tinybert")
    with pytest.raises(ValueError, match=r"Known: distilbert, .*minilm.*Received: 'x'"):
        distillation_recipe("x")


def test_the_table_has_all():
    lines = table().splitlines()
    for name, row in RECIPES.items():
        (line,) = (line for line in lines if line.startswith(f"{name} "))
        where = "text and tasks" if row.terms and row.stages else "text" if row.terms else "tasks"
        assert f" {where} " in line
        assert row.summary in line
