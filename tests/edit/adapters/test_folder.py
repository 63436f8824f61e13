"""Adapters trained in tasks, kept in folders, and loaded on the base they belong to."""

import contextlib
import json
import os

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.distillation import OwnLoss, SoftTargets
from kbert.edit import adapters
from kbert.edit.adapters.base import base_weights, weights_of
from tests.edit.adapters.conftest import make_encoder, reviews
from tests.harness import assert_close, to_numpy

pytestmark = [pytest.mark.tensorflow, pytest.mark.graphs]
KINDS = {
    "houlsby": {"size": 16},
    "pfeiffer": {"size": 16},
    "lora": {},
    "bitfit": {},
    "prefix": {"length": 8, "initializer_range": 0.5},
    "pal": {"size": 16},
}
FIT = {"learning_rate": 2e-2, "batch_size": 32, "verbose": 0}


def make(tokenizer, encoder=None, kind="lora", name=None, **options):
    encoder = make_encoder(tokenizer) if encoder is None else encoder
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    return adapters.add(task, kind, name=name, **options)


def draw(task, seed=0):
    """Weights of the adapter and the head that change the answers."""
    rng = np.random.default_rng(seed)
    for weight in task.trainable_weights:
        weight.assign(rng.normal(0, 0.3, tuple(weight.shape)).astype("float32"))


def probabilities(task, texts, in_graph=False):
    tf.config.run_functions_eagerly(not in_graph)
    answers = task.predict(texts)
    tf.config.run_functions_eagerly(False)
    return np.array([list(answer["probabilities"].values()) for answer in answers])


@pytest.mark.parametrize(
    "kind",
    [x if x == "lora" else pytest.param(x, marks=pytest.mark.slow) for x in KINDS],
)
def test_it_learns_by_its_own_weights_and_comes_back(tokenizer, tmp_path, kind):
    task = make(tokenizer, kind=kind, **KINDS[kind])
    before = [to_numpy(weight.value) for weight in base_weights(task.encoder)]
    losses = task.fit(*reviews(256), epochs=8, **FIT).history["loss"]
    if kind == "prefix":  # it can do little on an encoder that was drawn
        assert min(losses) < 0.95 * losses[0]
    else:
        assert task.evaluate(*reviews(64, seed=1), verbose=0)["accuracy"] > 0.95
    for weight, value in zip(base_weights(task.encoder), before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight.value), value)
    adapters.save(task, tmp_path / "adapter")
    size = sum(path.stat().st_size for path in (tmp_path / "adapter").iterdir())
    kept = sum(int(np.prod(x.shape)) for x in task.trainable_weights)
    assert size < 4 * kept + 12_000
    texts = [*reviews(12, seed=2)[0], "", "the unknown"]
    again = adapters.load_task(
        make_encoder(tokenizer), tmp_path / "adapter", tokenizer=tokenizer, name="other"
    )
    assert_close(probabilities(again, texts), probabilities(task, texts), 1e-6)
    task.save_to_preset(tmp_path / "preset")
    whole = kbert.tasks.Task.from_preset(tmp_path / "preset")
    assert_close(probabilities(whole, texts), probabilities(task, texts), 1e-6)
    assert {w.path.split("/", 1)[1] for w in whole.trainable_weights} == {
        w.path.split("/", 1)[1] for w in task.trainable_weights
    }
    encoder = kbert.Encoder.from_preset(tmp_path / "preset")
    ids = {"token_ids": np.array([[2, 5, 6, 3]], "int32")}
    with adapters.using(task.encoder, kind):
        expected = to_numpy(task.encoder(ids)["sequence"])
    assert_close(to_numpy(encoder(ids)["sequence"]), expected, 1e-6)


def test_tasks_share_a_base_and_keep_to_their_adapters(tokenizer, tmp_path):
    encoder = make_encoder(tokenizer)
    straight = make(tokenizer, encoder, "lora", "straight")
    swapped = make(tokenizer, encoder, "houlsby", "swapped", size=8)
    straight.fit(*reviews(128), epochs=8, **FIT)
    first = [to_numpy(x.value) for x in weights_of(encoder, "straight")]
    swapped.fit(*reviews(128, swapped=True), epochs=8, **FIT)
    for weight, value in zip(weights_of(encoder, "straight"), first, strict=True):
        np.testing.assert_array_equal(to_numpy(weight.value), value)
    texts, labels = reviews(64, seed=1)
    assert straight.evaluate(texts, labels, verbose=0)["accuracy"] > 0.95
    assert swapped.evaluate(texts, labels, verbose=0)["accuracy"] < 0.05
    adapters.activate(encoder, None)  # of what the tasks keep to
    assert straight.evaluate(texts, labels, verbose=0)["accuracy"] > 0.95
    for name, task in (("a", straight), ("b", swapped)):
        adapters.save(task, tmp_path / name)
    shared = make_encoder(tokenizer)
    loaded = [
        adapters.load_task(shared, tmp_path / name, tokenizer=tokenizer) for name in ("a", "b")
    ]
    for task, before in zip(loaded, (straight, swapped), strict=True):
        assert_close(probabilities(task, texts[:9]), probabilities(before, texts[:9]), 1e-6)


def test_another_adapter_needs_no_other_graph(tokenizer, tmp_path):
    """Of a task that keeps to none each has its own, traced once."""
    encoder = make_encoder(tokenizer)
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    for name in ("a", "b"):
        adapters.add(encoder, "lora", name=name)
        draw(task, seed=ord(name))
    traced, found = [], {}
    run, text = task.predictor._run, ["the film was good"]
    task.predictor._runner.forward = kbert.inference.compiled(
        lambda batch: traced.append(1) or run(batch, labelled=False), *task.parts.values()
    )
    for name in ("a", "b", None, "a", "b", None):
        adapters.activate(encoder, name)
        answer = probabilities(task, text, in_graph=True)
        assert_close(answer, found.setdefault(name, answer), 0)
    assert len(traced) == 3
    assert len({tuple(x.ravel()) for x in found.values()}) == 3
    adapters.activate(task, "b")
    adapters.activate(encoder, "a")
    assert_close(probabilities(task, text, in_graph=True), found["b"], 0)


@pytest.mark.parametrize("kind", ["lora", "houlsby"])
@pytest.mark.slow
def test_replicas_and_micro_batches_train_as_one(tokenizer, mirrored, kind):
    def trained(scope=None, **options):
        with scope or contextlib.nullcontext():
            encoder = make_encoder(tokenizer)
            task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
        adapters.add(task, kind, **KINDS[kind])
        for weight in weights_of(encoder, kind):
            value = np.random.default_rng(1).normal(0, 0.1, tuple(weight.shape))
            weight.assign(value.astype("float32"))
        fit = {**FIT, "batch_size": 8, "learning_rate": 3e-3, **options}
        history = task.fit(*reviews(20), epochs=2, **fit)
        return history.history["loss"], [to_numpy(x.value) for x in task.trainable_weights]

    one = trained()
    others = (trained(mirrored.scope()), trained(micro_batches=4), trained(recompute=True))
    for other in others:
        np.testing.assert_allclose(other[0], one[0], rtol=1e-4)
        for found, wanted in zip(other[1], one[1], strict=True):
            assert_close(found, wanted, 1e-4)


@pytest.mark.slow
def test_a_run_resumes_to_the_same_numbers_and_refuses_another_adapter(tokenizer, tmp_path):
    def run(folder, rank=4, stop=None):
        task = make(tokenizer, rank=rank, dropout=0.1)
        callbacks = [keras.callbacks.LambdaCallback(on_epoch_end=stop)] if stop else []
        options = {**FIT, "learning_rate": 3e-3, "model_dir": folder, "callbacks": callbacks}
        with contextlib.suppress(InterruptedError):
            task.fit(*reviews(64), epochs=3, **options)
        return [to_numpy(x.value) for x in task.trainable_weights]

    def interrupt(epoch, logs):
        if epoch == 1:
            raise InterruptedError

    whole = run(tmp_path / "whole")
    run(tmp_path / "cut", stop=interrupt)
    for found, wanted in zip(run(tmp_path / "cut"), whole, strict=True):
        np.testing.assert_array_equal(found, wanted)
    with pytest.raises(ValueError, match=r"adapters"):
        run(tmp_path / "cut", rank=2)


def test_a_drawn_pooler_is_kept_whole(tokenizer, tmp_path):
    """It is another in the process that loads."""
    kbert.Encoder(make_encoder(tokenizer).config.replace(pooler_activation=None)).save_to_preset(
        tmp_path / "base"
    )
    tokenizer.save(tmp_path / "base")

    def fresh():
        return kbert.tasks.TextClassifier.from_preset(
            tmp_path / "base", new_head=True, labels=["no", "yes"]
        )

    keras.utils.set_random_seed(1)
    task = adapters.add(fresh(), "lora", pooler=True)
    draw(task)
    adapters.save(task, tmp_path / "own")
    keras.utils.set_random_seed(2)
    again = adapters.load_task(tmp_path / "base", tmp_path / "own")
    texts = reviews(6)[0]
    assert_close(probabilities(again, texts), probabilities(task, texts), 1e-5)
    adapters.merge(again)
    assert_close(probabilities(again, texts), probabilities(task, texts), 1e-5)
    adapters.save(adapters.add(fresh(), "lora", pooler=False), tmp_path / "without")
    with pytest.raises(ValueError, match=r"other weights \(checksum"):
        adapters.load_task(tmp_path / "base", tmp_path / "without")


def test_a_merged_task_is_any_other(tokenizer, tmp_path):
    task = make(tokenizer)
    draw(task)
    texts = reviews(6)[0]
    before = probabilities(task, texts)
    with pytest.raises(
        ValueError, match=r"not support edits: .*merge .*Received: edits=.*'lora'.* with"
    ):
        task.save_to_preset(tmp_path, format="huggingface")
    assert not list(tmp_path.iterdir())
    adapters.merge(task)
    assert task.variant is None
    assert_close(probabilities(task, texts), before, 1e-5)
    task.save_to_preset(tmp_path, format="huggingface")
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert_close(probabilities(again, texts), before, 1e-5)


def test_another_base_another_task_and_damaged_folders_are_refused(tokenizer, tmp_path):
    task = make(tokenizer)
    draw(task)
    folder = tmp_path / "adapter"
    adapters.save(task, folder)
    other = make_encoder(tokenizer)
    other.blocks[0].attention.qkv.bias.assign_add(np.full((96,), 1e-6, "float32"))
    with pytest.raises(ValueError, match=r"other weights \(checksum"):
        adapters.load(other, folder)
    with pytest.raises(ValueError, match="another config"):
        adapters.load(make_encoder(tokenizer, num_layers=1), folder)
    encoder = make_encoder(tokenizer)
    labels = kbert.tasks.TextClassifier(encoder, tokenizer, ["yes", "no"])
    with pytest.raises(ValueError, match=r"in the same order. Received: \['yes', 'no'\]"):
        adapters.load(labels, folder)
    regressor = kbert.tasks.TextRegressor(encoder, tokenizer)
    with pytest.raises(ValueError, match="of kind 'regress', heads of 'classify'"):
        adapters.load(regressor, folder)
    adapters.save(adapters.add(make_encoder(tokenizer), "lora"), tmp_path / "alone")
    with pytest.raises(ValueError, match="must contain the task that the adapter was trained in"):
        adapters.load_task(encoder, tmp_path / "alone", tokenizer=tokenizer)
    with pytest.raises(ValueError, match=r"contains an adapter: see kbert\.edit\.adapters"):
        kbert.Encoder.from_preset(folder)
    with pytest.raises(ValueError, match="contains an adapter, whose weights"):
        task.save_to_preset(folder)
    task.save_to_preset(tmp_path / "preset")
    with pytest.raises(ValueError, match="contains a preset, whose weights"):
        adapters.save(task, tmp_path / "preset")
    with pytest.raises(FileNotFoundError, match=r"must contain adapter.json. Received: .*nowhere"):
        adapters.load(encoder, tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"Pass the `name` of the adapter to save"):
        adapters.save(encoder, tmp_path / "none")
    text = (folder / "adapter.json").read_text()
    content = json.loads(text)
    for changes, message in (
        ({"format_version": 2}, "supports adapters of format 1. Received: format_version=2"),
        ({"adapter": {"kind": "new"}}, r"is not supported: .*'new'"),
        ({"adapter": {"kind": "lora", "rnak": 2}}, "is not supported: .*rnak"),
        ({"adapter": {"kind": "lora", "rank": 4}}, "shape"),
        ({"more": 1}, "missing, unknown or of another type: more"),
        ({"name": 3}, "missing, unknown or of another type: name"),
    ):
        (folder / "adapter.json").write_text(json.dumps({**content, **changes}))
        with pytest.raises(ValueError, match=message):
            adapters.load(encoder, folder)
        assert not encoder.variants.added
    (folder / "adapter.json").write_text(text)
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match="safetensors"):
        adapters.load(encoder, folder)
    assert not encoder.variants.added
    assert os.listdir(tmp_path / "adapter")


@pytest.mark.slow
def test_a_refused_folder_leaves_what_runs_and_is_trained(tokenizer, tmp_path):
    texts = reviews(5)[0]
    encoder = make_encoder(tokenizer)
    wide = make(tokenizer, name="wide", rank=4)
    adapters.save(wide, tmp_path)
    other = make(tokenizer, name="narrow", rank=2)
    adapters.save(other, tmp_path / "other")
    (tmp_path / "model.safetensors").write_bytes(
        (tmp_path / "other" / "model.safetensors").read_bytes()
    )
    task = kbert.tasks.TextClassifier(encoder, tokenizer, ["no", "yes"])
    everything = {weight.path for weight in task.trainable_weights}
    with pytest.raises(ValueError, match="shape"):
        adapters.load(task, tmp_path)
    assert {weight.path for weight in task.trainable_weights} == everything
    adapters.add(task, "lora", name="own")
    draw(task)
    before, trained = probabilities(task, texts), {x.path for x in task.trainable_weights}
    with pytest.raises(ValueError, match="shape"):
        adapters.load(task, tmp_path)
    assert task.variant == "own"
    np.testing.assert_array_equal(probabilities(task, texts), before)
    assert {weight.path for weight in task.trainable_weights} == trained


@pytest.mark.parametrize("take", [adapters.remove, adapters.merge])
def test_a_task_whose_adapter_another_took_says_so(tokenizer, tmp_path, take):
    texts = reviews(5)[0]
    first = make(tokenizer, name="own")
    second = kbert.tasks.TextClassifier(first.encoder, tokenizer, ["no", "yes"])
    adapters.activate(second, "own")
    draw(first)
    before = probabilities(second, texts)
    take(first, "own")
    rule = r"was removed or merged.*activate\(task, None\).*the adapter 'own', .* none"
    with pytest.raises(ValueError, match=rule):
        second.predict(texts)
    with pytest.raises(ValueError, match=rule):
        second.save_to_preset(tmp_path / "preset")
    assert not (tmp_path / "preset").exists()
    adapters.activate(second, None)
    if take is adapters.merge:
        assert_close(probabilities(second, texts), before, 1e-5)
    second.save_to_preset(tmp_path / "preset")


def test_what_a_folder_and_an_export_of_several_need(tokenizer, tmp_path):
    task = make(tokenizer)
    adapters.save(task, tmp_path)
    with pytest.raises(ValueError, match=r"pass its tokenizer too.*Received: tokenizer=None"):
        adapters.load_task(make_encoder(tokenizer), tmp_path)
    for none in ([task], {}):
        with pytest.raises(ValueError, match="must be a dict of one or more tasks"):
            adapters.export(none, tmp_path / "served")
    with pytest.raises(ValueError, match=r"has the options pooler, rank, .*Received: rankk"):
        adapters.add(task, "lora", name="more", rankk=4)
    with pytest.raises(ValueError, match=r"letters, digits and underscores.*Received: 3"):
        adapters.add(task, "lora", name=3)


def test_a_student_is_trained_by_its_adapter(tokenizer):
    encoders = [make_encoder(tokenizer, num_layers=1) for _ in range(2)]
    teacher = kbert.tasks.TextClassifier(encoders[0], tokenizer, ["no", "yes"])
    teacher.fit(*reviews(256), epochs=4, **{**FIT, "learning_rate": 3e-3})
    assert teacher.evaluate(*reviews(64, seed=1), verbose=0)["accuracy"] > 0.9
    student = make(tokenizer, encoders[1], kind="houlsby", size=16)
    before = [to_numpy(x.value) for x in base_weights(student.encoder)]
    distiller = kbert.distillation.Distiller(
        student, teacher, [SoftTargets(temperature=2.0), OwnLoss()]
    )
    distiller.fit(*reviews(256), epochs=8, **FIT)
    for weight, value in zip(base_weights(student.encoder), before, strict=True):
        np.testing.assert_array_equal(to_numpy(weight.value), value)
    assert student.evaluate(*reviews(64, seed=1), verbose=0)["accuracy"] > 0.9


def test_masked_language_models_are_adapted_too(tokenizer):
    task = kbert.tasks.Pretraining(make_encoder(tokenizer), tokenizer, next_sentence=False)
    before = task.predict("the [MASK] was good")
    adapters.add(task, "lora")
    assert task.predict("the [MASK] was good") == before
    draw(task)
    assert task.predict("the [MASK] was good") != before
