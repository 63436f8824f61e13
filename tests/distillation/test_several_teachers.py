"""Several teachers of one student, one teacher for each task of a student, and what is refused."""

import numpy as np
import pytest

import kbert
from kbert.distillation import (
    AttentionScores,
    Distiller,
    HiddenStates,
    LastHiddenCosine,
    MultiTaskDistiller,
    OwnLoss,
    SoftTargets,
)
from kbert.distillation.cache import outputs
from kbert.tasks import MultiTask
from tests.distillation.cached import batches_of, table_of
from tests.distillation.toys import TABLES, TEXTS, make_batch, make_task
from tests.harness import assert_close, to_numpy

WIDER = {"hidden_size": 24, "num_heads": 3, "num_layers": 2}
SOFT = [SoftTargets(temperature=2.0)]


def teachers(name, tokenizer):
    return [make_task(name, tokenizer), make_task(name, tokenizer, seed=1, **WIDER)]


def make_student(name, tokenizer):
    return make_task(name, tokenizer, seed=2, num_layers=1)


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def softened(probabilities, temperature):
    powers = probabilities ** (1 / temperature)
    return powers / powers.sum(-1, keepdims=True)


def test_soft_targets_are_the_mean_of_the_probabilities(tokenizer):
    student, several = make_student("classes", tokenizer), teachers("classes", tokenizer)
    batch = make_batch("classes", student)
    losses, metrics = Distiller(student, several, SOFT).loss_terms(batch, training=False)
    ours, *theirs = (
        to_numpy(task(batch)["classifier"]).astype("float64") for task in (student, *several)
    )
    target = softened(np.mean([softmax(x) for x in theirs], axis=0), 2.0)
    weights = batch["label_weights"]
    divergence = (target * (np.log(target) - np.log(softmax(ours / 2.0)))).sum(-1) * 4.0
    total, count = map(float, losses["soft_targets"])
    assert count == weights.sum()
    assert total == pytest.approx((divergence * weights).sum(), rel=1e-4)
    agreed = target.argmax(-1) == ours.argmax(-1)
    assert float(metrics["agreement"][0]) == (agreed * weights).sum()


def test_soft_labels_and_numbers(tokenizer):
    for name in ("several", "numbers"):
        student, several = make_student(name, tokenizer), teachers(name, tokenizer)
        batch = make_batch(name, student)
        losses, _ = Distiller(student, several, [SoftTargets()]).loss_terms(batch, training=False)
        ours, *theirs = (to_numpy(t(batch)["classifier"]) for t in (student, *several))
        if name == "numbers":
            wanted = (ours - np.mean(theirs, axis=0)) ** 2
        else:
            right = np.mean([1 / (1 + np.exp(-x)) for x in theirs], axis=0)
            p = 1 / (1 + np.exp(-ours))
            wanted = right * np.log(right / p) + (1 - right) * np.log((1 - right) / (1 - p))
        weights = batch["label_weights"][:, None]
        total, _ = losses["soft_targets"]
        assert float(total) == pytest.approx((wanted * weights).sum(), rel=1e-4)


def test_one_in_a_list_is_one_teacher(tokenizer):
    student, (teacher, _) = make_student("classes", tokenizer), teachers("classes", tokenizer)
    assert Distiller(student, [teacher], [HiddenStates(layers="last")]).teacher is teacher


@pytest.mark.tensorflow
def test_their_outputs_are_cached(tokenizer, tmp_path):
    student, several = make_student("classes", tokenizer), teachers("classes", tokenizer)
    plain = Distiller(student, several, [*SOFT, OwnLoss()])
    cached = Distiller(student, several, [*SOFT, OwnLoss()], cache_dir=tmp_path)
    table = table_of("classes")
    for ours, theirs in zip(batches_of(plain, table), batches_of(cached, table), strict=True):
        wanted, found = (x.loss_terms(b, False)[0] for x, b in ((plain, ours), (cached, theirs)))
        for name, pair in wanted.items():
            assert_close(found[name], pair, 1e-5)
    identities = [outputs.identity(kbert.Ensemble(x)) for x in (several, several[::-1])]
    assert identities[0] != identities[1]
    other = Distiller(student, several[::-1], SOFT, cache_dir=tmp_path)
    with pytest.raises(ValueError, match="teacher"):
        batches_of(other, table)


@pytest.mark.tensorflow
def test_the_student_learns_and_the_teachers_do_not(tokenizer):
    several = teachers("classes", tokenizer)
    student = kbert.student(kbert.Ensemble(several), num_layers=1)
    assert type(student) is kbert.TextClassifier
    assert_close(student.classifier.dense.kernel, several[0].classifier.dense.kernel, 0)
    before = [[to_numpy(x) for x in task.weights] for task in several]
    distiller = Distiller(student, several, SOFT)
    history = distiller.fit(
        *TABLES["classes"][2], epochs=6, batch_size=5, learning_rate=1e-2, verbose=0
    )
    losses = history.history["soft_targets"]
    assert losses[-1] < 0.7 * losses[0]
    for task, weights in zip(several, before, strict=True):
        for now, then in zip(task.weights, weights, strict=True):
            assert_close(to_numpy(now), then, 0)
    settings = distiller.settings
    assert (
        settings["teacher_weights"]
        != Distiller(student, several[0], SOFT).settings["teacher_weights"]
    )


def test_only_predictions_have_a_mean(tokenizer):
    student, several = make_student("classes", tokenizer), teachers("classes", tokenizer)
    for term in (HiddenStates(), AttentionScores(layers="last"), LastHiddenCosine()):
        message = rf"have no mean. Received: {type(term).__name__} with 2 teachers"
        with pytest.raises(ValueError, match=message):
            Distiller(student, several, [*SOFT, term])


def test_teachers_must_form_an_ensemble(tokenizer):
    student, several = make_student("classes", tokenizer), teachers("classes", tokenizer)
    with pytest.raises(ValueError, match=r"two or more tasks. Received: \[\]"):
        Distiller(student, [], SOFT)
    with pytest.raises(ValueError, match="tasks of the same class"):
        Distiller(student, [several[0], make_task("numbers", tokenizer)], SOFT)
    with pytest.raises(ValueError, match=r"same class. Received: a TextClassifierEnsemble for a T"):
        Distiller(make_student("numbers", tokenizer), several, SOFT)


def multi_task(tokenizer, seed=0):
    """Classes and numbers on one encoder."""
    classes = make_task("classes", tokenizer, seed=seed, num_layers=1)
    numbers = kbert.TextRegressor(classes.encoder, tokenizer)
    return MultiTask({"classes": classes, "numbers": numbers})


def data():
    return {"classes": TABLES["classes"][2], "numbers": TABLES["numbers"][2]}


def test_a_head_of_several_tasks_is_a_teacher(tokenizer):
    student, multi = make_student("classes", tokenizer), multi_task(tokenizer)
    batch = make_batch("classes", student)
    losses, _ = Distiller(student, multi.tasks["classes"], SOFT).loss_terms(batch, training=False)
    assert float(losses["soft_targets"][0]) > 0


@pytest.mark.tensorflow
def test_each_task_has_its_teachers(tokenizer, tmp_path):
    halves = [OwnLoss(weight=0.5), SoftTargets(weight=0.5)]
    multi = multi_task(tokenizer, seed=3)
    single = Distiller(multi.tasks["classes"], teachers("classes", tokenizer), halves)
    both = MultiTaskDistiller(
        multi, {"classes": teachers("classes", tokenizer)}, halves, cache_dir=tmp_path
    )
    assert set(both.settings["classes"]) > {"kind", "distilled_by", "teacher_weights"}
    assert set(both.settings["numbers"]) == set(multi.settings["numbers"])
    batch = make_batch("classes", multi.tasks["classes"])
    wanted = single.loss_terms(batch, training=False)
    history = both.fit(
        data(), epochs=3, batch_size=5, learning_rate=1e-2, sampling="uniform", verbose=0
    ).history
    assert {f"classes_{name}" for pairs in wanted for name in pairs} <= set(history)
    assert "numbers_squared_error" in history
    assert "numbers_agreement" not in history
    assert history["loss"][-1] < history["loss"][0]
    assert len(multi.tasks["classes"].predict(TEXTS)) == len(TEXTS)
    assert (tmp_path / "classes").is_dir()


def test_teachers_of_unknown_tasks_are_refused(tokenizer):
    multi = multi_task(tokenizer)
    with pytest.raises(
        ValueError, match=r"must be the tasks' names, classes, numbers. Received: x"
    ):
        MultiTaskDistiller(multi, {"x": multi.tasks["classes"]}, SOFT)
