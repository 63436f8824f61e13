"""What people do with a `keras.Model`, done with tasks: it works, or is refused by name."""

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert import tasks
from kbert.data.tables.table import Table
from kbert.tasks.fine_tuning.sample_weights import example_weights, weigh_examples
from kbert.tasks.pretraining.replaced_tokens import sharing
from tests.harness import KINDS
from tests.tasks import toy

pytestmark = pytest.mark.tensorflow
TEXTS = ["the red fox", "a big house", "the old man", "a new moon"] * 2
LABELS = ["yes", "no", "yes", "no"] * 2


@pytest.fixture
def classifier(config, tokenizer):
    keras.utils.set_random_seed(1)
    return tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"], dropout=0.0)


def weights(task):
    return [np.array(x) for x in task.get_weights()]


def same(before, after):
    return all(np.array_equal(a, b) for a, b in zip(before, after, strict=True))


@pytest.mark.parametrize(
    ("positional", "given", "message"),
    [
        ((), {"loss": "mse"}, r"not support `loss`: a task defines its own losses.*loss='mse'"),
        (("mse",), {}, r"not support `loss`: a task defines its own losses.*loss='mse'"),
        ((), {"metrics": ["accuracy"]}, r"not support `metrics`.*\) return.*\['accuracy'\]"),
        ((), {"steps_per_execution": 4}, r"not support `steps_per_execution`: .*=4"),
        ((), {"auto_scale_loss": False}, r"not support `auto_scale_loss`: .*=False"),
        ((), {"learning_rate": 4}, r"no such argument\. Received: learning_rate=4"),
    ],
)
def test_compile_refuses_what_a_task_has_of_its_own(classifier, positional, given, message):
    with pytest.raises(TypeError, match=message):
        classifier.compile("adam", *positional, **given)
    assert not classifier.compiled


def test_compile_takes_what_asks_for_nothing_and_needs_an_optimizer(classifier):
    classifier.compile(*("adam", None), metrics=None, steps_per_execution=1, auto_scale_loss=True)
    with pytest.raises(TypeError, match=r"compile\(\) requires an optimizer; .*Received: none"):
        classifier.compile()


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({"class_weight": {0: 2.0}}, "class_weights="),
        ({"y": LABELS}, r"fit\(data, labels\)"),
        ({"steps_per_epoch": 3}, "pass fewer rows"),
        ({"initial_epoch": 1}, "`model_dir` resumes"),
        ({"validation_freq": 2}, "evaluate_every="),
        ({"validation_steps": 2}, "fewer rows"),
        ({"validation_batch_size": 2}, "`batch_size`"),
        ({"shuffle": False}, "`seed`"),
        ({"sample_weights": [1.0]}, "sample_weight="),
    ],
)
def test_fit_names_the_way_of_each_argument_of_keras(classifier, given, way):
    (name,) = given
    before = weights(classifier)
    with pytest.raises(TypeError, match=rf"not support `{name}`: .*{way}.*Received: {name}="):
        classifier.fit(TEXTS, LABELS, verbose=0, **given)
    assert same(before, weights(classifier))


def test_evaluate_and_predict_name_them_too(classifier):
    with pytest.raises(TypeError, match=r"\(\) does not support `return_dict`: .*are always"):
        classifier.evaluate(TEXTS, LABELS, return_dict=True)
    with pytest.raises(TypeError, match=r"evaluate\(\) does not support `sample_weight`"):
        classifier.evaluate(TEXTS, LABELS, sample_weight=np.ones(8))
    with pytest.raises(TypeError, match=r"predict\(\) does not support `steps`"):
        classifier.predict(TEXTS, steps=2)
    with pytest.raises(TypeError, match=r"predict\(\) has no such argument. Received: size=2"):
        classifier.predict(TEXTS, size=2)


def test_x_is_the_first_argument_here(classifier):
    multi = tasks.MultiTask({"one": classifier})
    for call in (classifier.fit, classifier.evaluate, multi.fit, multi.evaluate):
        with pytest.raises(TypeError, match=r"does not support `x`: .*first argument, `data`"):
            call(x=TEXTS, y=LABELS)
    with pytest.raises(TypeError, match=r"predict\(\) does not support `x`.*Received: x=\['"):
        classifier.predict(x=TEXTS)


def test_callbacks_are_a_list_one_or_none(classifier):
    steps = []
    one = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: steps.append(batch))
    for callbacks in (None, (), one, [one], (one,), keras.callbacks.CallbackList([one])):
        classifier.fit(TEXTS, LABELS, epochs=1, batch_size=4, verbose=0, callbacks=callbacks)
    assert len(steps) == 4 * 2
    rate = keras.callbacks.LearningRateScheduler(lambda epoch: 0.0)
    before = weights(classifier)
    classifier.fit(TEXTS, LABELS, epochs=1, batch_size=4, verbose=0, callbacks=rate)
    assert same(before, weights(classifier))


def test_a_task_without_trainable_weights_is_not_trained(classifier, tmp_path):
    rule = r"requires trainable weights.*Received: a {} whose \d+ weights are all frozen"
    folder = tmp_path / "run"
    with pytest.raises(ValueError, match=rule.format("TextClassifier")):
        classifier.fit(TEXTS, LABELS, freeze="*", model_dir=folder, verbose=0)
    assert not folder.exists()
    multi = tasks.MultiTask({"one": classifier})
    pretraining = tasks.Pretraining(classifier.encoder, classifier.tokenizer)
    for layer in (classifier, pretraining):
        layer.trainable = False
    with pytest.raises(ValueError, match=rule.format("TextClassifier")):
        classifier.fit(TEXTS, LABELS, verbose=0)
    with pytest.raises(ValueError, match=rule.format("MultiTask")):
        multi.fit({"one": (TEXTS, LABELS)}, verbose=0)
    with pytest.raises(ValueError, match=rule.format("Pretraining")):
        pretraining.fit(toy.batches(pretraining.tokenizer), verbose=0)


# Sample weights.


def trained(config, tokenizer, data, *labels, **options):
    keras.utils.set_random_seed(1)
    encoder = kbert.Encoder(config)
    task = tasks.TextClassifier(encoder, tokenizer, ["no", "yes"], dropout=0.0)
    settings = {"epochs": 1, "batch_size": 8, "learning_rate": 1e-2, "warmup_share": 0.0}
    task.fit(data, *labels, verbose=0, by_length=False, **settings, **options)
    return weights(task)


def test_a_weight_of_zero_takes_a_wrong_label_out(config, tokenizer):
    wrong = ["yes", "yes", *LABELS[2:]]
    counts = np.array([1, 0, 1, 1, 1, 1, 1, 1])
    kept = trained(config, tokenizer, TEXTS, LABELS, sample_weight=counts)
    assert same(kept, trained(config, tokenizer, TEXTS, wrong, sample_weight=counts))
    assert not same(kept, trained(config, tokenizer, TEXTS, wrong))


def test_an_array_a_column_and_numbers_out_of_a_file_are_the_same(config, tokenizer):
    counts = [1.0, 0.5, 2.0, 0.0, 1.0, 1.0, 1.0, 3.0]
    by_array = trained(config, tokenizer, TEXTS, LABELS, sample_weight=np.array(counts))
    table = {"text": TEXTS, "label": LABELS, "weight": counts}
    by_column = trained(config, tokenizer, table, sample_weight="weight")
    table["weight"] = [str(x) for x in counts]
    written = trained(config, tokenizer, table, sample_weight="weight")
    assert same(by_array, by_column)
    assert same(by_array, written)


def test_weights_of_examples_and_of_classes_multiply(config, tokenizer):
    doubled = [2.0 if label == "yes" else 1.0 for label in LABELS]
    both = trained(
        *(config, tokenizer, TEXTS, LABELS), class_weights={"yes": 2.0}, sample_weight=doubled
    )
    four = [x * x for x in doubled]
    assert same(both, trained(config, tokenizer, TEXTS, LABELS, sample_weight=four))


def test_tokens_and_several_labels_are_weighed_by_their_example(config, tokenizer):
    words = [["the", "red", "fox"], ["a", "big", "house", "old"]]
    table = Table({"words": words, "labels": [["O", "B", "I"], ["O", "B", "I", "O"]]})
    counts = [0.0, 3.0]
    tagger = tasks.TokenClassifier(kbert.Encoder(config), tokenizer, ["O", "B", "I"])
    several = tasks.TextClassifier(
        kbert.Encoder(config), tokenizer, ["no", "yes"], multi_label=True
    )
    texts = Table({"text": TEXTS[:2], "label": [["yes"], []]})
    rows = weigh_examples(tagger.tokenize(table, labelled=True), np.array(counts))
    assert rows.ragged["label_weights"].to_list() == [[0, 0, 0], [3, 3, 3, 3]]
    rows = weigh_examples(several.tokenize(texts, labelled=True), np.array(counts))
    assert rows.dense["label_weights"].tolist() == [0, 3]
    for task, data in ((tagger, table), (several, texts)):
        task.fit(data, epochs=1, batch_size=2, sample_weight=counts, verbose=0)


@pytest.mark.parametrize("name", ["weight", "weights", "sample_weight", "sample_weights"])
def test_a_column_of_weights_is_not_passed_over(classifier, name):
    table = {"text": TEXTS, "label": LABELS, name: [1.0] * 8}
    message = rf"column '{name}' is ambiguous.*sample_weight=\"{name}\".*Received: the columns"
    with pytest.raises(ValueError, match=message):
        classifier.fit(table, verbose=0)
    multi = tasks.MultiTask({"a": classifier})
    with pytest.raises(ValueError, match=message):
        multi.fit({"a": table}, verbose=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, -1.0], r"row 1 .*'weight' must be a finite number of 0 or more.*Received: -1.0"),
        ([1.0, "much"], r"row 1 of the data: 'weight' must be a finite number.*Received: 'much'"),
        ([float("nan"), 1.0], r"row 0 of the data: .*Received: nan"),
        ([True, 1.0], r"row 0 of the data: .*Received: True"),
        ([0, 0.0], r"a weight above 0.*Received: 'weight' of 2 rows, all of them 0"),
    ],
)
def test_weights_are_numbers(values, message):
    with pytest.raises(ValueError, match=message):
        example_weights(Table({"text": ["a", "b"], "weight": values}), "weight")


def test_weights_that_do_not_fit_the_data(classifier):
    with pytest.raises(ValueError, match=r"same number of rows.*'sample_weight': 2"):
        classifier.fit(TEXTS, LABELS, sample_weight=[1.0, 2.0], verbose=0)
    with pytest.raises(ValueError, match=r"no column 'heavy'"):
        classifier.fit(TEXTS, LABELS, sample_weight="heavy", verbose=0)


# Callbacks.


def callbacks(folder):
    return {
        "ModelCheckpoint": keras.callbacks.ModelCheckpoint(
            f"{folder}/{{epoch}}.weights.h5", save_weights_only=True
        ),
        "EarlyStopping": keras.callbacks.EarlyStopping("loss", patience=1),
        "ReduceLROnPlateau": keras.callbacks.ReduceLROnPlateau("loss", patience=1),
        "LearningRateScheduler": keras.callbacks.LearningRateScheduler(lambda _, rate: rate / 2),
        "CSVLogger": keras.callbacks.CSVLogger(f"{folder}/log.csv"),
        "LambdaCallback": keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: None),
        "TerminateOnNaN": keras.callbacks.TerminateOnNaN(),
    }


def test_callbacks_of_keras_are_followed(classifier, tmp_path):
    given = callbacks(tmp_path)
    options = {"epochs": 2, "batch_size": 4, "verbose": 0, "callbacks": [*given.values()]}
    history = classifier.fit(TEXTS, LABELS, **options)
    assert len(history.history["loss"]) == 2
    assert {path.name for path in tmp_path.iterdir()} == {
        *("1.weights.h5", "2.weights.h5", "log.csv")
    }


@pytest.mark.parametrize(
    ("callback", "message"),
    [
        (keras.callbacks.BackupAndRestore("backup"), r'model_dir="run".*BackupAndRestore'),
        (keras.callbacks.SwapEMAWeights(), r"use_moving_average\(task\).*SwapEMAWeights"),
        (keras.callbacks.ModelCheckpoint("x.keras"), r"save_weights_only=True.*ModelCheckpoint"),
        (keras.callbacks.TensorBoard("x"), r"TensorBoard needs the extra: .*kbert\[tensorboard\]'"),
    ],
)
def test_callbacks_that_would_fail_later_are_refused_before_a_step(
    classifier, callback, message, tmp_path, monkeypatch
):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    before = weights(classifier)
    options = {"verbose": 0, "callbacks": [callback], "model_dir": tmp_path / "run"}
    with pytest.raises((ValueError, ImportError), match=message):
        classifier.fit(TEXTS, LABELS, **options)
    with pytest.raises((ValueError, ImportError), match=message):
        tasks.MultiTask({"a": classifier}).fit({"a": (TEXTS, LABELS)}, **options)
    assert same(before, weights(classifier))
    assert not (tmp_path / "run").exists()


def test_an_average_that_keras_would_put_in_the_weights_place_is_refused(classifier):
    classifier.compile(keras.optimizers.Adam(1e-3, use_ema=True))
    with pytest.raises(ValueError, match=r"use_moving_average.*Received: Adam with use_ema=True"):
        classifier.fit(TEXTS, LABELS, verbose=0)


@pytest.mark.graphs
def test_a_pretraining_task_trained_by_keras_fit_backs_up_and_restores(task, tokenizer, tmp_path):
    data = toy.batches(tokenizer).take(2).cache().repeat()
    epochs = []

    class Stop(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            epochs.append(epoch)
            if len(epochs) == 2:
                raise KeyboardInterrupt

    task.compile("adam", jit_compile=False)
    options = {"epochs": 4, "steps_per_epoch": 2, "verbose": 0}
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    with pytest.raises(KeyboardInterrupt):
        task.fit(data, callbacks=[backup, Stop()], **options)
    stopped = weights(task)
    backup = keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))
    seen = []
    first = keras.callbacks.LambdaCallback(
        on_train_begin=lambda logs: seen.append(same(stopped, weights(task)))
    )
    task.fit(data, callbacks=[backup, first, Stop()], **options)
    assert epochs == [0, 1, 2, 3]
    assert seen == [True]
    with pytest.raises(ValueError, match="save_weights_only=True"):
        task.fit(data, callbacks=[keras.callbacks.ModelCheckpoint("x.keras")], **options)


@pytest.mark.parametrize(
    ("given", "way"),
    [
        ({"sample_weight": [1.0]}, "a batch includes its weights"),
        ({"class_weight": {0: 1.0}}, "a batch includes its weights"),
        ({"validation_split": 0.1}, "as `validation_data`"),
        ({"batch_size": 4}, "already batched"),
    ],
)
def test_a_fit_on_a_dataset_names_the_ways(task, tokenizer, given, way):
    (name,) = given
    with pytest.raises(TypeError, match=rf"fit\(\) does not support `{name}`: .*{way}"):
        task.fit(toy.batches(tokenizer).take(1), **given)


# Saving, and methods of Keras that a task has other ways for.


def test_a_file_that_is_there_stays_where_a_task_or_a_model_cannot_be_saved(classifier, tmp_path):
    path = tmp_path / "model.keras"
    path.write_bytes(b"what was here")
    with pytest.raises(NotImplementedError, match="save_to_preset"):
        classifier.save(path)
    generator = sharing(classifier.encoder.embeddings, classifier.encoder.config)
    with pytest.raises(ValueError, match="cannot be restored from its config"):
        generator.save(path)
    assert path.read_bytes() == b"what was here"


def test_weights_go_to_h5_and_back(classifier, config, tokenizer, tmp_path):
    classifier.save_weights(tmp_path / "task.weights.h5")
    other = tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
    assert not same(weights(classifier), weights(other))
    other.load_weights(tmp_path / "task.weights.h5")
    assert same(weights(classifier), weights(other))


def test_quantize_and_lora_and_export_by_keras_names(classifier, tmp_path):
    with pytest.raises(ValueError, match=r'export\(folder, precision="int8"\).*mode=\'int8\''):
        classifier.quantize("int8")
    assert classifier.enable_lora(2) is classifier
    assert any("adapter_lora" in x.path for x in classifier.trainable_weights)
    for given in ({"input_signature": []}, {"verbose": True}):
        (name,) = given
        with pytest.raises(TypeError, match=rf"export\(\) does not support `{name}`"):
            classifier.export(tmp_path / "model", **given)
    with pytest.raises(ValueError, match="tf_saved_model"):
        classifier.export(tmp_path / "model", format="tf_saved_model")
    assert not (tmp_path / "model").exists()


@pytest.mark.graphs
def test_batches_by_hand(classifier):
    classifier.compile("adam", jit_compile=False)
    rows = classifier.tokenize(Table({"text": TEXTS, "label": LABELS}), labelled=True)
    batch = next(iter(classifier.batches(rows, batch_size=4)))
    before = classifier.test_on_batch(batch, return_dict=True)["loss"]
    for _ in range(5):
        classifier.train_on_batch(batch)
    assert classifier.test_on_batch(batch, return_dict=True)["loss"] < before
    lines = []
    classifier.summary(print_fn=lines.append)
    assert classifier.count_params() == sum(x.size for x in weights(classifier))


def test_parts_are_frozen_by_trainable(classifier):
    classifier.encoder.trainable = False
    before = weights(classifier.encoder)
    head = np.array(classifier.classifier.weights[0])
    classifier.fit(TEXTS, LABELS, epochs=1, batch_size=4, verbose=0)
    assert same(before, weights(classifier.encoder))
    assert not np.array_equal(head, classifier.classifier.weights[0])


# What a batch says of its rows.


def test_a_batch_says_which_tokens_are_global(tokenizer, config):
    keras.utils.set_random_seed(1)
    config = kbert.EncoderConfig(**{**config.to_dict(), **KINDS["global tokens"], "num_layers": 2})
    config = config.replace(vocabulary_size=tokenizer.vocabulary_size)
    task = tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"], dropout=0.0)
    ids = np.random.default_rng(0).integers(5, 12, (2, 16)).astype("int32")
    batch = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    usual = np.array(task(batch)["classifier"])
    others = {**batch, "global_positions": np.array([[0, 7], [0, -1]], "int32")}
    found = np.array(task(others)["classifier"])
    assert not np.allclose(found[0], usual[0], atol=1e-6)
    np.testing.assert_allclose(found[1], usual[1], atol=1e-5)
    pooled = task.encoder(others)["pooled"]
    np.testing.assert_allclose(found, task.classifier(pooled), atol=1e-5)


def test_a_batch_says_where_its_tokens_stand(classifier):
    ids = np.full((1, 6), 7, "int32")
    batch = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    places = np.arange(6, dtype="int32")[None] + 9
    found = np.array(classifier({**batch, "position_ids": places})["classifier"])
    assert not np.allclose(found, classifier(batch)["classifier"], atol=1e-6)


@pytest.mark.graphs
def test_ids_of_a_batch_are_inside_of_their_tables(classifier):
    ids = np.full((1, 6), 7, "int32")
    batch = {"token_ids": ids, "padding_mask": np.ones_like(ids)}
    for name, wrong in (("token_ids", -1), ("token_ids", 10_000), ("segment_ids", 5)):
        with pytest.raises(ValueError, match=f"`{name}` must be whole numbers from 0"):
            classifier({**batch, name: np.full_like(ids, wrong)})
        with pytest.raises(ValueError, match=f"`{name}` must be whole numbers from 0"):
            classifier.predict_on_batch({**batch, name: np.full_like(ids, wrong)})
    graph = tf.function(lambda ids: classifier({**batch, "token_ids": ids})["classifier"])
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"-1 is not in \[0, "):
        graph(tf.constant(-ids // 7))
