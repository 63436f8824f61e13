"""Every part of a loss on every task with heads, against NumPy on what the encoders give."""

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.distillation import (
    AttentionMaps,
    AttentionRelations,
    AttentionScores,
    Distiller,
    EmbeddingLoss,
    FeatureMaps,
    FeatureMeans,
    FeatureVariances,
    HiddenStates,
    LastHiddenCosine,
    OwnLoss,
    SoftTargets,
    terms,
)
from tests.distillation import reference, toys
from tests.harness import to_numpy

pytestmark = pytest.mark.tensorflow

LAYERS = [None, 3]
PARTS = [
    OwnLoss(weight=2.0),
    SoftTargets(temperature=2.0, weight=5.0),
    EmbeddingLoss(weight=0.5),
    HiddenStates(),
    AttentionScores(layers=LAYERS, weight=3.0),
    AttentionRelations(relations=("attention", "query", "key", "value"), teacher_layer=3),
]
WITHOUT_HEADS = [part for part in PARTS if not part.reads_heads]


def only(*fast, of=toys.KINDS):
    """Of these tasks the others are slow."""
    return [pytest.param(x, marks=() if x in fast else pytest.mark.slow) for x in of]


@pytest.fixture(scope="module")
def teachers(tokenizer):
    made = {}

    def find(name):
        if name not in made:
            made[name] = toys.make_task(name, tokenizer)
        return made[name]

    return find


def expected_heads(student, teacher, batch, temperature, positions="masked"):
    """name -> (student's logits, teacher's, weights, how they are compared)."""
    ours, theirs = (to_numpy(task(batch)) for task in (student, teacher))
    weights = batch.get("label_weights")
    soft, several = reference.soft_targets, reference.soft_labels
    if isinstance(student, kbert.tasks.Pretraining):
        heads = {"masked_lm": (batch["mask_weights"], soft)}
        if student.sentence is not None:
            heads["sentence"] = (batch["padding_mask"][:, 0], soft)
        found = {name: (ours[name], theirs[name], *rest) for name, rest in heads.items()}
    elif isinstance(student, kbert.tasks.TextRegressor):
        scores = (x["classifier"] for x in (ours, theirs))
        return {"soft_targets": reference.mean_squares(*scores, weights)}, {}
    elif getattr(student, "multi_label", False):
        logits = [x["classifier"] for x in (ours, theirs)]
        weights = np.broadcast_to(weights[:, None], logits[0].shape)
        return {"soft_targets": several(*logits, weights, temperature)}, {}
    else:
        found = {name: (ours[name], theirs[name], weights, soft) for name in ours}
    names = {name: f"_{name}" if len(found) > 1 else "" for name in found}
    return {
        f"soft_targets{names[name]}": compare(*pair, weights, temperature)
        for name, (*pair, weights, compare) in found.items()
    }, {
        f"agreement{names[name]}": reference.agreement(*pair, weights)
        for name, (*pair, weights, _) in found.items()
    }


def expected_states(student, teacher, batch, kernel=None):
    """What `WITHOUT_HEADS` must give, not weighted."""
    real = toys.counted(batch)
    ours, theirs = (toys.read_encoder(task, batch) for task in (student, teacher))
    states = [x @ kernel if kernel is not None else x for x in ours["hidden_states"]]
    depth = len(ours["internals"])
    pairs = [(i, i * len(theirs["internals"]) // depth) for i in range(1, depth + 1)]
    hidden = [reference.mean_squares(states[i], theirs["hidden_states"][j], real) for i, j in pairs]
    last, third = ours["internals"][-1], theirs["internals"][2]
    related = {"attention": (last["scores"], third["scores"])} | {
        name: tuple(reference.relation(x[name], 2) for x in (last, third))
        for name in ("query", "key", "value")
    }
    return {
        "embeddings": reference.mean_squares(states[0], theirs["hidden_states"][0], real),
        "hidden_states": (sum(x for x, _ in hidden), real.sum()),
        "attention_scores": reference.score_squares(
            ours["internals"][1]["scores"], third["scores"], real
        ),
        **{f"{k}_relation": reference.relation_divergence(*x, real) for k, x in related.items()},
    }


def split(wanted):
    """Losses and metrics as the parts weigh them."""
    weights = {"embeddings": 0.5, "attention_scores": 3.0}
    losses = {k: v for k, v in wanted.items() if k not in weights}
    weighed = {k: wanted[k] for k in weights}
    losses |= {f"weighted_{k}": (weights[k] * x, n) for k, (x, n) in weighed.items()}
    return losses, weighed


@pytest.mark.parametrize(
    "name", only("several", "windows", "numbers", "tags", "answers", "choices", "text")
)
def test_all_parts_are_numpys(name, tokenizer, teachers):
    """A student of half the layers and width, without segments, of a teacher that has them."""
    teacher = teachers(name)
    student = toys.make_task(name, tokenizer, seed=1, num_layers=2, hidden_size=8, num_segments=0)
    batch = toys.make_batch(name, teacher)
    distiller = Distiller(student, teacher, PARTS)
    distiller.projection.kernel.assign(np.random.default_rng(2).normal(0, 0.5, (8, 16)))
    distiller.projection.bias.assign(np.random.default_rng(3).normal(0, 0.5, 16))
    losses, metrics = map(toys.values, distiller.loss_terms(batch, training=False))

    kernel = Projection(*map(to_numpy, (distiller.projection.kernel, distiller.projection.bias)))
    wanted, plain = split(expected_states(student, teacher, batch, kernel))
    soft, agreements = expected_heads(student, teacher, batch, 2.0)
    own, own_metrics = map(toys.values, student.loss_terms(batch, training=False))
    for weight, pairs in ((5.0, soft), (2.0, own)):
        wanted |= {f"weighted_{k}": (weight * x, n) for k, (x, n) in pairs.items()}
    assert sorted(losses) == sorted(wanted)
    toys.assert_pairs(losses, wanted)
    wanted = {**plain, **soft, **own, **own_metrics, **agreements}
    assert sorted(metrics) == sorted(wanted)
    toys.assert_pairs(metrics, wanted)
    assert all(x > 0.01 for x, _ in losses.values())


class Projection:
    """x @ this is the dense layer."""

    __array_ufunc__ = None

    def __init__(self, kernel, bias):
        self.kernel, self.bias = kernel, bias

    def __rmatmul__(self, x):
        return x @ self.kernel + self.bias


@pytest.mark.parametrize("name", only("several", "choices", "text"))
def test_a_student_that_is_its_teacher_has_nothing_to_learn(name, teachers):
    teacher = teachers(name)
    student = kbert.student(teacher)
    parts = [
        SoftTargets(temperature=2.0),
        *(LastHiddenCosine(), EmbeddingLoss(), HiddenStates(), AttentionScores()),
        AttentionRelations(relations=terms.RELATIONS, num_relation_heads=4)
        if name == "text"
        else AttentionRelations(),
    ]
    distiller = Distiller(student, teacher, parts)
    assert distiller.projection is None
    batch = toys.make_batch(name, teacher)
    losses, metrics = map(toys.values, distiller.loss_terms(batch, training=True))
    assert len(losses) >= len(parts)
    for key, (total, count) in losses.items():
        assert count > 0, key
        assert abs(total) <= 1e-5 * count, key
    for key, (total, count) in metrics.items():
        assert not key.startswith("agreement") or total == count > 0


@pytest.mark.parametrize(
    "name", only("windows", "tags", of=["windows", "choices", "tags", "several"])
)
def test_copies_that_fill_a_batch_up_count_nothing(name, tokenizer, teachers):
    teacher = teachers(name)
    student = toys.make_task(name, tokenizer, seed=1, num_layers=2)
    distiller = Distiller(student, teacher, [*PARTS, LastHiddenCosine()])
    full = toys.make_batch(name, teacher, batch_size=16)
    there = full["label_weights"].reshape(16, -1).max(1) > 0
    assert 5 <= there.sum() < 16
    cut = {key: value[there] for key, value in full.items()}
    found, wanted = (toys.values(distiller.loss_terms(x, training=False)[0]) for x in (full, cut))
    toys.assert_pairs(found, wanted, rtol=1e-5)


@pytest.mark.parametrize("name", only("several", "windows", "tags", of=list(toys.TABLES)))
def test_a_row_that_counts_three_is_three_rows(name, tokenizer, teachers):
    teacher = teachers(name)
    student = toys.make_task(name, tokenizer, seed=1, num_layers=2)
    transfer = [FeatureMaps(), FeatureMeans(), FeatureVariances(), AttentionMaps()]
    distiller = Distiller(student, teacher, [*PARTS, LastHiddenCosine(), *transfer])
    batch = toys.make_batch(name, teacher)  # copies without weight come first
    weighted = {**batch, "label_weights": batch["label_weights"].copy()}
    weighted["label_weights"][-1] *= 3
    thrice = {key: np.concatenate([x, x[-1:], x[-1:]]) for key, x in batch.items()}
    found, wanted, plain = (
        toys.values(distiller.loss_terms(x, training=False)[0]) for x in (weighted, thrice, batch)
    )
    toys.assert_pairs(found, wanted, rtol=1e-5)
    assert all(found[key] != plain[key] for key in plain)


def test_a_masked_lm_head_is_compared_everywhere(tokenizer, teachers):
    teacher = teachers("text")
    student = toys.make_task("text", tokenizer, seed=1, num_layers=2)
    batch = toys.make_batch("text", teacher)
    distiller = Distiller(student, teacher, [SoftTargets(temperature=3.0, positions="all")])
    losses, _ = distiller.loss_terms(batch, training=False)
    real = toys.counted(batch)
    places = np.tile(np.arange(real.shape[1]), (len(real), 1))
    logits = [
        to_numpy(task.masked_lm(task.encode(batch)["sequence"], places))
        for task in (student, teacher)
    ]
    wanted = reference.soft_targets(*logits, real, 3.0)
    toys.assert_pairs(toys.values(losses), {"soft_targets_masked_lm": wanted})
    both = toys.values(losses)["soft_targets_sentence"]
    assert both[1] == 5
    assert both[0] > 0.01


def test_a_head_that_one_of_them_lacks_is_left_out(tokenizer, teachers):
    student = toys.make_task("text alone", tokenizer, seed=1, num_layers=2, pooler_activation=None)
    batch = toys.make_batch("text alone", student)
    distiller = Distiller(student, teachers("text"), [SoftTargets(), OwnLoss()])
    losses, metrics = distiller.loss_terms(batch, training=False)
    assert sorted(losses) == ["mlm_loss", "soft_targets"]
    assert sorted(metrics) == ["agreement", "mlm_accuracy"]


def test_the_teachers_dropout_is_off(tokenizer):
    rates = {"dropout": 0.5, "attention_dropout": 0.5}
    teacher = toys.make_task("classes", tokenizer, **rates)
    batch = toys.make_batch("classes", teacher)

    def loss(student, training):
        distiller = Distiller(student, teacher, [HiddenStates(), SoftTargets()])
        return [toys.values(distiller.loss_terms(batch, training)[0]) for _ in range(2)]

    one, two = loss(toys.make_task("classes", tokenizer, seed=1), True)
    assert one == two
    student = toys.make_task("classes", tokenizer, seed=1, **rates)
    one, two = loss(student, True)
    assert one != two
    one, two = loss(student, False)
    assert one == two


def test_layers_of_shared_weights(tokenizer, teachers):
    """A student like ALBERT of a teacher like ALBERT."""
    shared = {"num_layer_groups": 1, "embedding_size": 6}
    teacher = toys.make_task("classes", tokenizer, **shared)
    student = kbert.student(teacher, 2)
    assert len(student.encoder.blocks) == 1
    student.encoder.blocks[0].set_weights(
        [0.5 * w for w in student.encoder.blocks[0].get_weights()]
    )
    batch = toys.make_batch("classes", teacher)
    losses, _ = Distiller(student, teacher, WITHOUT_HEADS).loss_terms(batch, training=False)
    wanted, _ = split(expected_states(student, teacher, batch))
    assert wanted["hidden_states"][0] > 0.1
    toys.assert_pairs(toys.values(losses), wanted)


def test_a_teacher_of_another_kind_where_no_heads_are_compared(tokenizer, teachers):
    """A pretrained one for a task, whose batch lacks what its heads read; and of other windows."""
    student = toys.make_task("windows", tokenizer, seed=1, num_layers=2)
    batch = toys.make_batch("windows", student)
    assert batch["token_ids"].ndim == 3
    for name in ("text", "numbers"):
        distiller = Distiller(student, teachers(name), WITHOUT_HEADS)
        losses, metrics = distiller.loss_terms(batch, training=True)
        wanted, plain = split(expected_states(student, teachers(name), batch))
        toys.assert_pairs(toys.values(losses), wanted)
        assert sorted(metrics) == sorted(plain)  # nothing of heads
        assert not distiller.derived_metrics


def test_windows_in_a_graph(tokenizer, teachers):
    """Windows are otherwise read in a loop when nothing is trained."""
    teacher = teachers("windows")
    student = toys.make_task("windows", tokenizer, seed=1, num_layers=2)
    batch = toys.make_batch("windows", teacher)
    distiller = Distiller(student, teacher, [SoftTargets(), HiddenStates(), OwnLoss()])
    wanted = toys.values(distiller.loss_terms(batch, training=False)[0])
    spec = {k: tf.TensorSpec([None] * v.ndim, v.dtype) for k, v in batch.items()}
    spec["label_weights"] = tf.TensorSpec([None], tf.float32)

    @tf.function(input_signature=[spec], autograph=False)
    def graph(batch):
        return distiller.loss_terms(batch, training=False)[0]

    toys.assert_pairs(toys.values(graph(batch)), wanted)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: OwnLoss(weight=0), "weight.*above 0.*0"),
        (lambda: OwnLoss(weight="2"), "weight.*'2'"),
        (lambda: SoftTargets(temperature=0.0), "temperature.*above 0.*0.0"),
        (lambda: SoftTargets(positions="some"), r"one of \('masked', 'all'\). Received: 'some'"),
        (
            lambda: AttentionRelations(relations=()),
            "one or more of attention, .*value. Rec",
        ),
        (lambda: AttentionRelations(relations=("values",)), r"Received: \('values',\)"),
        (lambda: AttentionRelations(num_relation_heads=0), "num_relation_heads.*0"),
        (lambda: AttentionRelations(teacher_layer=0), "teacher_layer.*0"),
    ],
)
def test_values_that_no_part_has(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_parts_compare_and_show_themselves():
    assert HiddenStates(layers=[1, 2]) == HiddenStates(layers=(1, 2)) != HiddenStates()
    assert "temperature=2.0" in repr(SoftTargets(temperature=2.0))


def test_the_record_of_embeddings_is_that_of_runs_that_0_1_began():
    assert EmbeddingLoss(weight=0.5).record == "Embeddings(weight=0.5)"
