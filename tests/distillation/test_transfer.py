"""MobileBERT's terms against NumPy, one layer at a time, and the rates that go with it."""

import keras
import numpy as np
import pytest

import kbert
from kbert.distillation import (
    AttentionMaps,
    Distiller,
    FeatureMaps,
    FeatureMeans,
    FeatureVariances,
    OwnLoss,
    SoftTargets,
    distillation_recipe,
    student,
)
from kbert.distillation.transfer import progressive
from kbert.models.weights import get_arrays
from kbert.training import AdamW
from kbert.training.optimization.layer_rates import LayerPhase, layer_phases
from kbert.training.optimization.optimizers import Lamb, make_optimizer
from tests.distillation import reference, toys
from tests.harness import assert_close, numpy_norm

TERMS = (
    FeatureMaps(weight=100.0),
    FeatureMeans(weight=5000.0),
    FeatureVariances(weight=5.0),
    AttentionMaps(),
)
LOSSES = {
    **{"weighted_feature_maps": 100.0, "weighted_feature_means": 5000.0},
    **{"weighted_feature_variances": 5.0, "attention_maps": 1.0},
}


@pytest.fixture(scope="module")
def teacher(tokenizer):
    """Two layers that are wide inside."""
    part = {"name": "bottleneck", "width": 24, "num_feed_forwards": 1, "no_norm": False}
    return toys.make_task(
        *("text", tokenizer),
        num_layers=2,
        embedding_size=8,
        part={**part, "attention_input": "whole"},
    )


@pytest.fixture(scope="module")
def mobile(teacher):
    """For tests that do not train it."""
    return make_mobile(teacher)


def make_mobile(teacher):
    made = distillation_recipe("mobilebert").student | {"part": {"name": "bottleneck", "width": 8}}
    keras.utils.set_random_seed(1)
    return student(teacher, **made, attention_dropout=0.0)


def expected(ours, theirs, batch, layers):
    """name -> Σ over these layers of Σ over tokens, not divided by their number."""
    real = toys.counted(batch)
    a, b = (toys.read_encoder(task, batch) for task in (ours, theirs))
    found = dict.fromkeys(LOSSES, 0.0)
    for layer in layers:
        x, y = a["hidden_states"][layer], b["hidden_states"][layer]
        maps = ((numpy_norm(x, 1e-12) - numpy_norm(y, 1e-12)) ** 2).mean(-1)
        means = (x.mean(-1) - y.mean(-1)) ** 2
        variances = np.abs(x.var(-1) - y.var(-1))
        sums = [100 * maps, 5000 * means, 5 * variances]
        for name, value in zip(LOSSES, sums, strict=False):
            found[name] += (value * real).sum()
        scores = (x["internals"][layer - 1]["scores"] for x in (a, b))
        found["attention_maps"] += reference.relation_divergence(*scores, real)[0]
    return found, real.sum()


def test_terms_are_numpys_and_means_over_the_layers(mobile, teacher):
    batch = toys.make_batch("text", teacher)
    losses, _ = Distiller(mobile, teacher, TERMS).loss_terms(batch, training=False)
    found = toys.values(losses)
    wanted, tokens = expected(mobile, teacher, batch, (1, 2))
    assert found.keys() == wanted.keys()
    for name, total in wanted.items():
        assert found[name] == pytest.approx((total / 2, tokens), rel=1e-4), name
        assert total > 0


def test_one_layer_after_the_other_learns(mobile, teacher):
    """By the optimizer's count of updates; what is evaluated is all of them."""
    batch = toys.make_batch("text", teacher)
    terms = progressive(TERMS, mobile, 7)
    assert {term.steps_per_layer for term in terms} == {3}
    distiller = Distiller(mobile, teacher, terms)
    distiller.compile(AdamW(1e-3, rate_scales=distiller.rate_scales))
    wanted = {layer: expected(mobile, teacher, batch, (layer,))[0] for layer in (1, 2)}
    for step, layer in ((0, 1), (2, 1), (3, 2), (6, 2)):
        distiller.optimizer.iterations.assign(step)
        found = toys.values(distiller.loss_terms(batch, training=True)[0])
        for name, total in wanted[layer].items():
            assert found[name][0] == pytest.approx(total / 2, rel=1e-4), (step, name)
    found = toys.values(distiller.loss_terms(batch, training=False)[0])
    both = sum(wanted[layer]["attention_maps"] for layer in (1, 2))
    assert found["attention_maps"][0] == pytest.approx(both / 2, rel=1e-4)


@pytest.mark.parametrize("kind", [AdamW, pytest.param(Lamb, marks=pytest.mark.slow)])
def test_what_a_step_moves(kind, teacher):
    """A layer in its turn and those below; none above, no embeddings and no heads."""
    mobile = make_mobile(teacher)
    batch = toys.make_batch("text", teacher)
    distiller = Distiller(mobile, teacher, progressive(TERMS, mobile, 20))
    distiller.compile(kind(1e-2, rate_scales=distiller.rate_scales))
    moved = []
    for first in (1, 11):  # at the very first of a phase the rate is 0
        distiller.optimizer.build(distiller.trainable_variables)
        distiller.optimizer.iterations.assign(first)
        before = weights_of(mobile)
        distiller.fit(to_dataset(batch), steps_per_epoch=1, epochs=1, verbose=0)
        after = weights_of(mobile)
        changed = [name for name in before if np.abs(after[name] - before[name]).max() > 0]
        moved.append({name.split("/layers/")[-1][0] for name in changed if "/layers/" in name})
        assert not [name for name in changed if "/layers/" not in name]
        assert any("kernel" in name for name in changed)
    assert moved == [{"0"}, {"0", "1"}]


def weights_of(task):
    return get_arrays(task.encoder, "student") | get_arrays(task.masked_lm, "masked_lm")


def to_dataset(batch):
    import tensorflow as tf

    return tf.data.Dataset.from_tensors(batch).repeat()


def test_the_factors_of_the_published_schedule():
    """distill_util.py: 3, then 0.3, times min(√-like fall from 1 to 0.9, 10 times the share)."""
    phase = LayerPhase(1, 1, steps=100)
    fall = lambda share: 0.9 + 0.1 * (1 - share) ** 0.5  # noqa: E731
    wanted = {50: 0.0, 99: 0.0, 100: 0.0, 105: 3 * 0.5, 150: 3 * fall(0.5), 250: 0.3 * fall(0.5)}
    for step, factor in wanted.items():
        assert float(phase(step)) == pytest.approx(factor, abs=1e-6), step
    assert float(LayerPhase(1, None, steps=100)(250)) == pytest.approx(3 * fall(0.5))
    assert float(LayerPhase(0, 0, steps=1)(0)) == 3.0


def test_shared_blocks_have_the_turns_of_all_their_layers(tokenizer):
    task = toys.make_task("text", tokenizer, num_layers=4, num_layer_groups=2)
    turns = {(x.first, x.last) for x in layer_phases(task.encoder, 5).values()}
    assert turns == {(0, 1), (2, None)}


def test_an_optimizer_with_phases_is_saved_and_revived():
    phase = LayerPhase(0, None, steps=5)
    optimizer = AdamW(1e-3, rate_scales={"w": phase, "b": 0.0})
    again = AdamW.from_config(optimizer.get_config())
    assert again.rate_scales["b"] == 0.0
    assert again.rate_scales["w"].get_config() == phase.get_config()


def test_a_student_has_its_teacher_s_embeddings_and_heads(mobile, teacher):
    ours, theirs = (get_arrays(task.encoder.embeddings, "x") for task in (mobile, teacher))
    for name in ("token", "position", "segment", "projection/kernel"):
        np.testing.assert_array_equal(ours[f"x/{name}"], theirs[f"x/{name}"])
    assert_close(ours["x/norm/gamma"], np.ones(16), 0)  # of another kind of norm
    for head in ("masked_lm", "sentence"):
        a, b = (get_arrays(task.parts[head], head) for task in (mobile, teacher))
        for name in b:
            np.testing.assert_array_equal(a[name], b[name], err_msg=name)
    with pytest.raises(ValueError, match=r"must have their sizes.*Received: .*embeddings/token, "):
        student(teacher, init="embeddings", embedding_size=4)


def test_own_losses_and_soft_targets_by_name(mobile, teacher):
    batch = toys.make_batch("text", teacher)
    terms = distillation_recipe("mobilebert").terms
    losses, metrics = Distiller(mobile, teacher, terms).loss_terms(batch, training=False)
    assert sorted(losses) == ["nsp_loss", "weighted_mlm_loss", "weighted_soft_targets_masked_lm"]
    half = toys.values(losses)["weighted_mlm_loss"][0], toys.values(metrics)["mlm_loss"][0]
    assert half[0] == pytest.approx(half[1] / 2)
    unknown = [OwnLoss(losses=("no_loss",))]
    with pytest.raises(ValueError, match=r"student's losses, mlm_loss, nsp_loss.*no_loss"):
        Distiller(mobile, teacher, unknown).loss_terms(batch, training=False)


def test_records_of_before_are_what_they_were():
    assert OwnLoss(weight=2.0).record == "OwnLoss(weight=2.0)"
    said = "SoftTargets(weight=5.0, temperature=2.0, positions='all')"
    assert SoftTargets(weight=5.0, temperature=2.0, positions="all").record == said
    assert "heads=('masked_lm',)" in SoftTargets(heads=["masked_lm"]).record


def test_what_it_refuses(mobile, teacher, tokenizer):
    with pytest.raises(ValueError, match=r"one step per layer, 2 or more. Received: 1 steps"):
        progressive(TERMS, mobile, 1)
    with pytest.raises(ValueError, match="steps_per_layer"):
        FeatureMaps(steps_per_layer=0)
    mixed = [FeatureMaps(steps_per_layer=2), AttentionMaps(steps_per_layer=3)]
    with pytest.raises(ValueError, match=r"same steps_per_layer. Received: steps_per_layer=2, 3"):
        _ = Distiller(mobile, teacher, mixed).rate_scales
    with pytest.raises(ValueError, match=r"learning rates per layer.*Received: AdamW without"):
        Distiller(mobile, teacher, progressive(TERMS, mobile, 4)).compile(AdamW(1e-3))
    other = toys.make_task("text", tokenizer, num_layers=2, num_heads=4)
    with pytest.raises(ValueError, match=r"head by head.*num_heads. Received: 4 and 2"):
        Distiller(other, teacher, [AttentionMaps()])
    settings = type("Settings", (), {"initial_accumulator_value": 1.0})
    with pytest.raises(ValueError, match=r"lamb, adafactor only. Received: 'adagrad'"):
        make_optimizer("adagrad", 0.1, settings, rate_scales={"w": 0.0})


def test_published_students_are_their_family_s():
    """Of the teacher's row the recipe's student is MobileBERT's."""
    teacher, mobile = map(kbert.family, ("ib-bert-large-uncased", "google/mobilebert-uncased"))
    changes = {k: v for k, v in distillation_recipe("mobilebert").student.items() if k != "init"}
    assert teacher.replace(**changes) == mobile
