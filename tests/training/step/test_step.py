import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

from kbert.training.optimization import freezing
from kbert.training.optimization.adafactor import Adafactor
from kbert.training.optimization.optimizers import AdamW, Lamb
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.run.checkpoints import named_state
from kbert.training.step import loss_scale
from kbert.training.step.loss_scale import DOUBLE_AFTER, LossScale
from kbert.training.step.mixin import KERAS_HOOKS, TrainStep
from tests.training import toy_task

ROOT = Path(__file__).parents[3]
needs_tensorflow = pytest.mark.tensorflow


def make_task(optimizer=AdamW, strategy=None, dropout=0.0, **settings) -> toy_task.ToyTask:
    keras.utils.set_random_seed(0)
    with (strategy or tf.distribute.get_strategy()).scope():
        task = toy_task.ToyTask(dropout)
        settings = {"clip_norm": 0.5, **settings}
        task.compile(optimizer(WarmupDecay(0.05, 40, 5)), **settings)
    return task


def values(task) -> list[np.ndarray]:
    return [ops.convert_to_numpy(v.value) for v in task.trainable_variables]


class Steps(keras.callbacks.Callback):
    """Keeps what each step logs."""

    def __init__(self):
        super().__init__()
        self.logs = []

    def on_train_batch_end(self, batch, logs=None):
        self.logs.append({name: float(value) for name, value in logs.items()})


def trained(steps=20, **settings):
    """(weights before, weights after, every step's logs, the epoch's logs, evaluation)."""
    task, seen = make_task(**settings), Steps()
    before = values(task)
    epoch = task.fit(toy_task.dataset(steps), epochs=1, verbose=0, callbacks=[seen]).history
    evaluation = task.evaluate(toy_task.dataset(3, seed=5), verbose=0, return_dict=True)
    return before, values(task), seen.logs, epoch, evaluation


@pytest.fixture(scope="module")
def whole():
    return trained()


def difference(run, reference) -> float:
    """‖weights - weights of the reference‖ as a share of the whole update."""
    apart = sum(((a - b) ** 2).sum() for a, b in zip(run[1], reference[1], strict=True))
    moved = sum(((a - b) ** 2).sum() for a, b in zip(reference[1], reference[0], strict=True))
    return float(np.sqrt(apart / moved))


def test_a_dataset_that_just_ends_makes_no_further_step(recwarn):
    task = make_task(dropout=0.5)
    ends = toy_task.dataset(3).filter(lambda batch: True)  # so that its length is not known
    task.fit(ends, epochs=2, verbose=0)
    task.evaluate(ends, verbose=0)
    assert int(task.optimizer.iterations.value) == 6
    once = make_task(dropout=0.5)
    once.fit(ends.repeat(2), steps_per_epoch=6, verbose=0)
    # Nor does it draw another dropout mask: the weights and the seeds are the same.
    for a, b in zip(values(task), values(once), strict=True):
        np.testing.assert_array_equal(a, b)
    assert not [w for w in recwarn if "ran out of data" in str(w.message)]


def assert_same(run, reference):
    for step, expected in zip(run[2], reference[2], strict=True):
        for name in expected:
            assert step[name] == pytest.approx(expected[name], rel=1e-5), name
    assert difference(run, reference) < 1e-4
    assert run[3] == {name: pytest.approx(v, rel=1e-5) for name, v in reference[3].items()}
    assert run[4] == {name: pytest.approx(v, rel=1e-5) for name, v in reference[4].items()}


@needs_tensorflow
@pytest.mark.parametrize(
    "optimizer",
    [
        *(AdamW, Adafactor),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (keras.optimizers.AdamW, Lamb)),
    ],
)
@pytest.mark.parametrize("micro_batches", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_two_replicas_train_as_one(mirrored, optimizer, micro_batches, whole):
    """Half of a batch holds nine times the masks of the other, and the gradients are clipped."""
    reference = whole if optimizer is AdamW else trained(optimizer=optimizer)
    assert any(step["gradient_norm"] > 0.5 for step in reference[2])  # it does clip
    settings = {"optimizer": optimizer, "micro_batches": micro_batches}
    assert_same(trained(strategy=mirrored, **settings), reference)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_micro_batches_train_as_the_whole_batch(jit_compile, whole):
    if keras.backend.backend() == "jax" and not jit_compile:
        pytest.skip("compiled on JAX anyway")
    assert_same(trained(micro_batches=4, jit_compile=jit_compile), whole)


def test_the_update_is_that_of_the_written_out_loss():
    """One step of plain descent against NumPy's central differences of the global loss."""
    keras.utils.set_random_seed(3)
    task = toy_task.ToyTask()
    task.compile(keras.optimizers.SGD(1.0), clip_norm=None, micro_batches=2)
    (batch,) = toy_task.batches(1)

    def loss():
        terms, _ = task.loss_terms(batch, training=False)
        return sum(float(n) / float(d) for n, d in terms.values())

    variable, at = task.tokens.kernel, (3, 5)
    value = ops.convert_to_numpy(variable.value).copy()
    moved = value.copy()
    slope = []
    for sign in (1, -1):
        moved[at] = value[at] + sign * 1e-2
        variable.assign(moved)
        slope.append(loss())
    variable.assign(value)
    task.fit(toy_task.dataset(1), verbose=0)
    step = value[at] - ops.convert_to_numpy(variable.value)[at]
    assert step == pytest.approx((slope[0] - slope[1]) / 2e-2, rel=1e-2)


def test_an_embedding_is_clipped_by_the_norm_of_its_summed_gradient():
    """Rows are looked up many times; the norm of the unsummed slices would be too small."""
    keras.utils.set_random_seed(0)
    task = toy_task.ToyTask()
    task.compile(keras.optimizers.SGD(1.0), clip_norm=0.01)
    before = values(task)
    task.fit(toy_task.dataset(1), verbose=0)
    moved = sum(((a - b) ** 2).sum() for a, b in zip(values(task), before, strict=True))
    assert np.sqrt(moved) == pytest.approx(0.01, rel=1e-3)


def test_epoch_values_weigh_every_masked_token_the_same():
    task, (first, second) = make_task(), toy_task.batches(2)
    second["mask_weights"][:] = 0
    second["mask_weights"][0, 0] = 1  # its mean must count as one token, not as half
    terms = [task.loss_terms(batch, training=False)[0]["mlm_loss"] for batch in (first, second)]
    expected = sum(float(n) for n, _ in terms) / sum(float(d) for _, d in terms)
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), first, second)
    data = tf.data.Dataset.from_tensor_slices(stacked)
    result = task.evaluate(data, verbose=0, return_dict=True)
    assert result["mlm_loss"] == pytest.approx(expected, rel=1e-6)
    assert result["perplexity"] == pytest.approx(np.exp(expected), rel=1e-5)
    assert result["loss"] == pytest.approx(result["mlm_loss"] + result["nsp_loss"], rel=1e-6)
    assert not {"gradient_norm", "learning_rate"} & set(result)


def test_a_batch_without_masks_is_no_nan():
    task, (batch,) = make_task(), toy_task.batches(1)
    batch["mask_weights"][:] = 0
    data = tf.data.Dataset.from_tensors(batch)
    history = task.fit(data, verbose=0).history
    assert history["mlm_loss"] == [0.0]
    assert all(np.isfinite(v).all() for v in values(task))


def test_logs_tell_the_rate_of_the_step_itself():
    logs = trained(steps=3)[2]
    assert [step["learning_rate"] for step in logs] == pytest.approx([0.0, 0.01, 0.02])


def everything(task) -> dict[str, list]:
    """Weights, moments and the count of updates, as lists that compare bit by bit."""
    state = named_state(task).items()
    kept = {n: v for n, v in state if n.startswith(("weights/", "optimizer/"))}
    return {n: ops.convert_to_numpy(v.value).tolist() for n, v in kept.items()}


def without_third(batches) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(
        keras.tree.map_structure(lambda *x: np.stack(x), *batches[:2], *batches[3:])
    )


@pytest.mark.parametrize(
    ("optimizer", "settings"),
    [
        (AdamW, {"micro_batches": 4}),
        pytest.param(AdamW, {"jit_compile": True}, marks=pytest.mark.slow),
        (keras.optimizers.AdamW, {}),
    ],
)
def test_a_step_that_is_not_finite_moves_nothing(optimizer, settings):
    assert_third_step_is_left_out(optimizer, **settings)


@needs_tensorflow
@pytest.mark.parametrize(
    "optimizer", [AdamW, pytest.param(keras.optimizers.AdamW, marks=pytest.mark.slow)]
)
@pytest.mark.slow
def test_nor_does_it_on_replicas(mirrored, optimizer):
    assert_third_step_is_left_out(optimizer, strategy=mirrored)


def assert_third_step_is_left_out(optimizer, **settings):
    """The weights, the moments and the count of updates are those of a run without that batch."""
    batches = toy_task.batches(5)
    batches[2]["mask_weights"][0, 0] = np.nan  # of one replica's rows
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches)
    task, seen = make_task(optimizer, **settings), Steps()
    data = tf.data.Dataset.from_tensor_slices(stacked)
    task.fit(data, epochs=1, verbose=0, callbacks=[seen])
    assert [bool(np.isfinite(step["gradient_norm"])) for step in seen.logs] == [
        *(True, True, False, True, True)
    ]
    assert int(task.optimizer.iterations.numpy()) == 4
    other = make_task(optimizer, **settings)
    other.fit(without_third(batches), epochs=1, verbose=0)
    assert everything(task) == everything(other)


def test_the_position_of_the_last_batch_is_filed():
    task = make_task()
    with pytest.raises(ValueError, match="`fit` or `prepare` must run first"):
        task.step_state.saved()
    task.fit(toy_task.dataset(4, seed=2), verbose=0)
    task.evaluate(toy_task.dataset(2, seed=9), verbose=0)  # leaves it alone
    assert ops.convert_to_numpy(task.step_state.position.value.value).tolist() == [0, 2, 64]


@needs_tensorflow
def test_uneven_replicas_evaluate_right(mirrored):
    """12 rows as 8 and 4, then a batch of which one replica gets nothing."""
    data = toy_task.dataset(1, rows=13).unbatch().batch(12)
    expected = make_task().evaluate(data, verbose=0, return_dict=True)
    found = make_task(strategy=mirrored).evaluate(data, verbose=0, return_dict=True)
    assert found == {name: pytest.approx(value, rel=1e-5) for name, value in expected.items()}


def test_train_on_batch():
    task = make_task()
    first = task.train_on_batch(toy_task.batches(1)[0], return_dict=True)
    assert first["loss"] == pytest.approx(trained(steps=1)[2][0]["loss"], rel=1e-6)


def test_dropout_differs_in_every_step_and_micro_batch():
    task = make_task(dropout=0.5, micro_batches=2)
    (generator,) = [v for v in task.variables if v.name == "seed_generator_state"]
    before = ops.convert_to_numpy(generator.value)
    task.fit(toy_task.dataset(3), verbose=0)
    assert (ops.convert_to_numpy(generator.value) - before).tolist() == [0, 6]


def test_compile_refuses_what_the_step_does_itself():
    task = toy_task.ToyTask()
    with pytest.raises(ValueError, match=r"must not clip or accumulate.*global_clipnorm.*1.0"):
        task.compile(keras.optimizers.Adam(global_clipnorm=1.0))
    with pytest.raises(ValueError, match=r"`micro_batches` must be at least 1. Received: 0"):
        task.compile(AdamW(), micro_batches=0)
    with pytest.raises(ValueError, match=r"`clip_norm` must be positive.*Received: 0"):
        task.compile(AdamW(), clip_norm=0)


def schedule_free_weights(gradients: np.ndarray, rate: float) -> np.ndarray:
    """Defazio et al., 2024: AdamW on a sequence, gradients between it and its average."""
    sequence, average, second_moment = np.zeros(2), np.zeros(2), np.zeros(2)
    for step, gradient in enumerate(gradients, 1):
        second_moment = 0.999 * second_moment + 0.001 * gradient**2
        sequence = sequence - rate * gradient / np.sqrt(second_moment / (1 - 0.999**step))
        average = average + (sequence - average) / step
    return 0.1 * sequence + 0.9 * average


def test_schedule_free_is_refused_as_long_as_keras_computes_it_wrongly_on_tensorflow():
    weights, optimizer = keras.Variable(np.zeros(2)), keras.optimizers.ScheduleFreeAdamW(0.1)
    optimizer.build([weights])
    gradients = np.random.default_rng(0).normal(1, 1, (30, 2))
    for gradient in gradients:
        optimizer.apply([ops.convert_to_tensor(gradient, "float32")])
    expected = schedule_free_weights(gradients, 0.1)
    wrong = bool(np.abs(ops.convert_to_numpy(weights) - expected).max() > 0.01)
    if keras.backend.backend() == "tensorflow":
        assert wrong  # if not, Keras has mended it: delete the refusal
        with pytest.raises(ValueError, match=r"wrong updates on TensorFlow.*ScheduleFreeAdamW"):
            toy_task.ToyTask().compile(keras.optimizers.ScheduleFreeAdamW(0.1))
    else:
        assert not wrong
        toy_task.ToyTask().compile(keras.optimizers.ScheduleFreeAdamW(0.1))


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ("float16", "policies mixed_bfloat16 .*Received: dtype policy float16, weights in flo"),
        ("bfloat16", "policies mixed_bfloat16 .*Received: dtype policy bfloat16, weights in bfl"),
    ],
)
def test_weights_are_trained_in_float32(policy, message, request):
    before = keras.config.dtype_policy()
    request.addfinalizer(lambda: keras.config.set_dtype_policy(before))
    keras.config.set_dtype_policy(policy)
    with pytest.raises(ValueError, match=message):
        toy_task.ToyTask().compile(AdamW())
    keras.config.set_dtype_policy("mixed_bfloat16")
    toy_task.ToyTask().compile(AdamW())


@pytest.fixture
def float16(monkeypatch):
    """The toy's gradients reach 2, which a first scale of 2**15 would take beyond float16."""
    monkeypatch.setattr(loss_scale, "FIRST", 2.0**8)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")
    yield
    keras.config.set_dtype_policy(before)


def test_float16_trains_as_float32_does(request):
    """Losses of 30 steps within what 11 bits round to, the loss scaled and logged."""
    history = make_task().fit(toy_task.dataset(30), epochs=2, verbose=0).history
    request.getfixturevalue("float16")
    seen, task = Steps(), make_task()
    half = task.fit(toy_task.dataset(30), epochs=2, verbose=0, callbacks=[seen]).history
    assert task.tokens.compute_dtype == "float16"
    for name in ("loss", "mlm_loss", "gradient_norm"):
        np.testing.assert_allclose(half[name], history[name], rtol=0.02)
    assert history["loss"][1] < history["loss"][0]
    assert half["loss_scale"] == [2.0**8] * 2
    assert half["skipped_steps"] == [0.0] * 2
    assert "loss_scale" not in history


def test_a_step_that_overflows_in_float16_is_skipped_and_counted(float16):
    batches = toy_task.batches(5)
    batches[2]["mask_weights"][0, 0] = np.inf
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches)
    task, seen = make_task(), Steps()
    data = tf.data.Dataset.from_tensor_slices(stacked)
    history = task.fit(data, epochs=1, verbose=0, callbacks=[seen]).history
    assert [float(step["skipped_steps"]) for step in seen.logs] == [0, 0, 1, 0, 0]
    assert [float(step["loss_scale"]) for step in seen.logs] == [2.0**8] * 3 + [2.0**7] * 2
    assert int(task.optimizer.iterations.numpy()) == 4
    other = make_task()
    rest = other.fit(without_third(batches), epochs=1, verbose=0).history
    # Half the scale: other roundings of the last two steps.
    for name in ("loss", "nsp_accuracy", "gradient_norm"):
        assert history[name] == pytest.approx(rest[name], rel=1e-3)
    for ours, theirs in zip(values(task), values(other), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=2e-3)
    assert history["skipped_steps"] == [pytest.approx(0.2)]
    state = named_state(task)
    assert float(state["loss_scale/value"].numpy()) == 2.0**7
    assert int(state["loss_scale/good_steps"].numpy()) == 2


def test_the_loss_scale_doubles_and_ends_at_one():
    scale = LossScale()
    for _ in range(DOUBLE_AFTER):
        scale.update_state(ops.convert_to_tensor(True))
    assert (float(scale.value.numpy()), int(scale.good_steps.numpy())) == (2.0**16, 0)
    for _ in range(20):
        scale.update_state(ops.convert_to_tensor(False))
    assert float(scale.value.numpy()) == 1.0


@needs_tensorflow
def test_replicas_agree_on_the_loss_scale(mirrored, float16):
    """An overflow of one replica's rows is one of the global batch."""
    batches = toy_task.batches(3)
    batches[1]["mask_weights"][0, 0] = np.inf
    stacked = keras.tree.map_structure(lambda *x: np.stack(x), *batches)
    task, seen = make_task(strategy=mirrored), Steps()
    task.fit(tf.data.Dataset.from_tensor_slices(stacked), verbose=0, callbacks=[seen])
    assert [float(step["skipped_steps"]) for step in seen.logs] == [0, 1, 0]
    scales = mirrored.experimental_local_results(task.step_state.loss_scale.value.value)
    assert [float(x) for x in scales] == [2.0**7] * 2


def test_a_part_with_weights_in_bfloat16_is_found():
    task = toy_task.ToyTask()
    task.label = keras.layers.Dense(2, dtype="bfloat16")
    task.label.build((None, toy_task.WIDTH))
    with pytest.raises(ValueError, match="Received: dtype policy float32, weights in bfloat16"):
        task.compile(AdamW())


def test_rows_must_divide_by_micro_batches():
    with pytest.raises(ValueError, match="Received: 16 rows, micro_batches=3"):
        make_task(micro_batches=3).fit(toy_task.dataset(1), verbose=0)


def test_a_tuple_of_features_and_labels_is_refused():
    data = toy_task.dataset(1).map(lambda batch: (batch, batch["label"]))
    with pytest.raises(ValueError, match="A batch must be one structure"):
        make_task().fit(data, verbose=0)


@needs_tensorflow
def test_an_optimizer_from_outside_the_strategy_is_refused(mirrored):
    optimizer = AdamW()
    with mirrored.scope():
        task = toy_task.ToyTask()
        with pytest.raises(ValueError, match="model under MirroredStrategy, optimizer under"):
            task.compile(optimizer)


def test_names_of_terms_are_checked():
    class Clash(toy_task.ToyTask):
        def loss_terms(self, batch, training):
            losses, _ = super().loss_terms(batch, training)
            return losses, {"mlm_loss": losses["mlm_loss"]}

    task = Clash()
    task.compile(AdamW())
    with pytest.raises(ValueError, match=r"distinct names.*'mlm_loss'"):
        task.fit(toy_task.dataset(1), verbose=0)


@pytest.mark.graphs
def test_weights_that_are_frozen_after_a_step_stay():
    task = make_task()
    task.fit(toy_task.dataset(2), verbose=0)
    freezing.freeze(task, "embedding/*")
    before = ops.convert_to_numpy(task.embedding.embeddings)
    if keras.backend.backend() == "jax":
        with pytest.raises(ValueError, match=r"call `compile` again.*1 weights.*embedding"):
            task.fit(toy_task.dataset(2), verbose=0)
        task.compile(AdamW(0.05))
    moving = values(task)
    task.fit(toy_task.dataset(2), verbose=0)
    np.testing.assert_array_equal(ops.convert_to_numpy(task.embedding.embeddings), before)
    assert all((a != b).any() for a, b in zip(moving, values(task), strict=True))
    task.compile(AdamW(0.05))
    task.fit(toy_task.dataset(1), verbose=0)
    freezing.thaw(task)
    with pytest.raises(ValueError, match=r"call `compile` again.*1 weights.*embedding"):
        task.fit(toy_task.dataset(1), verbose=0)


def test_the_private_hooks_of_keras_are_where_they_were():
    """Fails when a release of Keras moves what the engines override: then mend the engine."""
    backend = keras.backend.backend()
    base = importlib.import_module(f"keras.src.backend.{backend}.trainer")
    trainer = {"tensorflow": "TensorFlowTrainer", "jax": "JAXTrainer"}[backend]
    owners = {"Model": keras.Model, "Optimizer": keras.optimizers.Optimizer}
    for owner, names in KERAS_HOOKS[backend].items():
        for name in names:
            assert hasattr(owners[owner], name), f"keras {owner}.{name} is gone"
    assert issubclass(keras.Model, getattr(base, trainer))
    for name in ("make_train_function", "make_test_function", "train_step", "test_step"):
        assert callable(getattr(keras.Model, name))
    called = Path(base.__file__).read_text()
    assert f"self.{KERAS_HOOKS[backend]['Model'][0]}(iterator=epoch_iterator)" in called
    assert issubclass(toy_task.ToyTask, TrainStep)


def run_python(code: str, **environment) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1]


JAX_RUN = """
import json, keras, numpy as np, jax
from tests.training import toy_task
from kbert.training.optimization.optimizers import AdamW
from kbert.training.optimization.schedules import WarmupDecay
from kbert.training.strategies import make_strategy

runs = []
for name in ("one_device", "mirrored"):
    strategy = make_strategy(name)
    keras.utils.set_random_seed(0)
    with strategy.scope():
        task = toy_task.ToyTask()
        task.compile(AdamW(WarmupDecay(0.05, 40, 5)), micro_batches=2, clip_norm=0.5)
        before = [np.array(v.value) for v in task.trainable_variables]
        history = task.fit(toy_task.dataset(20), verbose=0).history
        evaluation = task.evaluate(toy_task.dataset(3, seed=5), verbose=0, return_dict=True)
    devices = len(task.tokens.kernel.value.sharding.device_set)
    runs.append((devices, history, evaluation, before, [np.array(v.value) for v in
                 task.trainable_variables]))
apart, moved = (np.sqrt(sum(((a - b) ** 2).sum() for a, b in zip(x, y))) for x, y in
                ((runs[0][4], runs[1][4]), (runs[0][4], runs[0][3])))
print(json.dumps([[run[:3] for run in runs], float(apart / moved)]))
"""


@pytest.mark.slow
def test_on_jax_two_devices_train_as_one():
    out = run_python(
        JAX_RUN,
        KERAS_BACKEND="jax",
        XLA_FLAGS="--xla_force_host_platform_device_count=2",
        JAX_PLATFORMS="cpu",
    )
    ((devices, history, evaluation), (devices_2, history_2, evaluation_2)), apart = json.loads(out)
    assert (devices, devices_2) == (1, 2)
    assert apart < 1e-4
    assert history_2 == {name: pytest.approx(value, rel=1e-5) for name, value in history.items()}
    assert evaluation_2 == {n: pytest.approx(value, rel=1e-5) for n, value in evaluation.items()}
