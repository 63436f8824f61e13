"""Classification: against transformers, with several labels, in windows, by name, kept."""

import contextlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.checkpoints.huggingface.huggingface import import_model
from kbert.data.tables.bucketing import bucketed_batches
from kbert.data.tables.table import Table, as_table
from kbert.layers import chunked_attention
from kbert.models.weights import named_weights
from kbert.tasks import TextClassifier
from tests.harness import assert_close, assert_gradients_close
from tests.models.references import LABELS, as_tensors, gradients, make_reference

pytestmark = pytest.mark.tensorflow

TEXTS = ["the quick fox", "a dog jumps over the moon", "red", ""]
PAIRS = [("the red pen", "it is day"), ("fox", "the moon is big and old"), ("", "a"), ("dog", "")]
NO_DROPOUT = {"dropout": 0.0, "attention_dropout": 0.0}


def make(config, tokenizer, labels=("no", "yes"), seed=1, **options):
    keras.utils.set_random_seed(seed)
    return TextClassifier(kbert.Encoder(config), tokenizer, list(labels), **options)


@pytest.fixture(scope="module")
def task(config, tokenizer):
    return make(config, tokenizer)


def toy_data(count, seed=0):
    """Texts are "yes" where they name a fox."""
    rng = np.random.default_rng(seed)
    words = "the a red blue green pen fox dog cat book house river tree".split()
    texts = [" ".join(rng.choice(words, rng.integers(2, 16))) for _ in range(count)]
    return texts, ["yes" if "fox" in text.split() else "no" for text in texts]


def our_gradients(task, batch):
    weights = named_weights(task.encoder, "encoder") | named_weights(task.classifier, "classifier")

    def loss():
        ((total, count),) = task.loss_terms(batch, training=False)[0].values()
        return total / count

    return float(loss()), gradients(loss, weights)


@pytest.mark.parametrize(
    ("data", "problem_type"),
    [
        pytest.param(TEXTS, "single_label_classification", marks=pytest.mark.slow),
        (PAIRS, "single_label_classification"),
        (TEXTS, "multi_label_classification"),
    ],
    ids=["texts", "pairs", "several labels"],
)
def test_loss_gradients_and_answers_are_those_of_transformers(
    tokenizer, tmp_path, data, problem_type
):
    torch, _ = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = make_reference(
        *("bert", "ForSequenceClassification"),
        vocab_size=tokenizer.vocabulary_size,
        pad_token_id=tokenizer.pad_id,
        problem_type=problem_type,
    )
    model.save_pretrained(tmp_path)
    tokenizer.save(tmp_path)
    several = problem_type.startswith("multi")
    task = TextClassifier.from_preset(tmp_path, max_length=24)
    assert task.labels == LABELS
    assert task.multi_label == several
    labels = [["good", "odd"], [], ["bad"], ["odd"]] if several else ["bad", "odd", "good", "bad"]
    rows = task.tokenize(as_table(data, labels), labelled=True)
    batch = task.assemble(rows.gather(np.arange(4))) | {"label_weights": tf.ones(4)}
    loss, found = our_gradients(task, batch)

    names = ("token_ids", "segment_ids", "padding_mask")
    inputs = as_tensors({name: batch[name].numpy() for name in names})
    out = model(
        **inputs,
        labels=torch.tensor(batch["labels"].numpy()).to(torch.float32 if several else torch.int64),
    )
    out.loss.backward()
    assert loss == pytest.approx(out.loss.item(), rel=1e-4)
    wanted = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert_gradients_close(found, import_model(model.config.to_dict(), wanted, "theirs").arrays)

    logits = out.logits.detach()
    probabilities = (logits.sigmoid() if several else logits.softmax(-1)).numpy()
    for answer, expected in zip(task.predict(data), probabilities, strict=True):
        assert_close(list(answer["probabilities"].values()), expected, 1e-5)
        if several:
            assert answer["labels"] == [LABELS[i] for i in np.flatnonzero(expected >= 0.5)]
        else:
            assert answer["label"] == LABELS[expected.argmax()]
            assert answer["probability"] == pytest.approx(expected.max(), abs=1e-5)


@pytest.mark.graphs
def test_it_learns_a_rule_and_keeps_it(config, tokenizer, tmp_path):
    task = make(config.replace(**NO_DROPOUT), tokenizer)
    history = task.fit(
        *toy_data(300),
        validation_data=toy_data(100, seed=1),
        epochs=8,
        learning_rate=5e-3,
        verbose=0,
    )
    assert len(history.history["val_accuracy"]) == 8
    scores = task.evaluate(*toy_data(200, seed=2))
    assert scores["accuracy"] > 0.95
    assert scores["loss"] < 0.4
    assert {"macro_f1", "matthews", "f1"} < set(scores)
    report = task.report(*toy_data(200, seed=2))
    assert report.accuracy == pytest.approx(scores["accuracy"])
    assert "yes" in str(report)

    task.save_to_preset(tmp_path)
    again = kbert.tasks.Task.from_preset(tmp_path)
    assert isinstance(again, TextClassifier)
    assert again.settings == task.settings
    assert again.predict(TEXTS) == task.predict(TEXTS)


def test_groups_of_rows_count_together(task):
    """MultiRC: F1 over all candidates, and the share of questions that are all right."""
    labels = ["no", "yes", "yes", "no", "yes", "no"]
    given = ["no", "yes", "no", "no", "yes", "yes"]
    table = Table(
        {"text": ["a"] * 6, "label": labels, "group": ["0-0"] * 2 + ["0-1"] * 3 + ["1-0"]}
    )
    scores = task.score(table, [{"label": label} for label in given])
    assert scores["f1"] == pytest.approx(2 * 2 / (3 + 3))
    assert scores["exact_match"] == pytest.approx(1 / 3)
    assert task.score_names(table) == [*scores]


@pytest.mark.graphs
def test_answers_do_not_depend_on_their_neighbours(task):
    together = task.predict(TEXTS * 20, batch_size=7)
    for text, answer in zip(TEXTS * 20, together, strict=True):
        (alone,) = task.predict(text)
        assert_close(
            list(alone["probabilities"].values()), list(answer["probabilities"].values()), 1e-5
        )
    assert task.predict([]) == []


def test_the_loss_of_an_evaluation_is_the_mean_over_examples(task):
    labels = ["yes", "no", "no", "yes"]
    probabilities = [
        a["probabilities"][x] for a, x in zip(task.predict(TEXTS), labels, strict=True)
    ]
    scores = task.evaluate(TEXTS, labels, batch_size=3)
    assert scores["loss"] == pytest.approx(-np.mean(np.log(probabilities)), rel=1e-4)


def test_labels_by_name_or_by_index(task):
    by_name = task.evaluate(TEXTS, ["yes", "no", "no", "yes"])
    assert by_name == task.evaluate(TEXTS, [1, 0, 0, 1])
    table = {"first": [a for a, _ in PAIRS], "second": [b for _, b in PAIRS], "label": [1, 0, 0, 1]}
    assert task.evaluate(table) == task.evaluate(PAIRS, ["yes", "no", "no", "yes"])


@pytest.mark.parametrize(
    ("train", "dev", "message"),
    [
        (["yes", "no"], ["yes", "maybe"], "row 1 of the data: a label must be one of the task's 2"),
        (["yes", "yes"], ["yes", "no"], "row 1 .*must occur in the training data. Received: 'no'"),
        (["yes", "no"], [1, 0], "row 0 .*the type of the training labels, names. Received: 1"),
        ([1, 2], [1, 0], "row 1 of the data: .*or by index from 0. Received: 2"),
        ([0.5, 1.0], [1, 0], "row 0 of the data: a label must be one of .*Received: 0.5"),
    ],
)
def test_labels_that_clash_are_named(task, train, dev, message):
    with pytest.raises(ValueError, match=message):
        task.fit(TEXTS[:2], train, validation_data=(TEXTS[:2], dev), verbose=0)


def test_class_weights(config, tokenizer):
    task = make(config, tokenizer)
    table = Table({"text": TEXTS, "label": ["no", "no", "no", "yes"]})
    rows = task.tokenize(table, labelled=True)
    balanced = task.weigh_classes(rows, "balanced").dense["label_weights"]
    assert_close(balanced, [2 / 3, 2 / 3, 2 / 3, 2], 1e-6)
    named = task.weigh_classes(rows, {"yes": 5})
    assert named.dense["label_weights"].tolist() == [1, 1, 1, 5]
    (batch,) = bucketed_batches(named, task.assemble, batch_size=5, epochs=1)
    ((_, count),) = task.loss_terms(batch, training=False)[0].values()
    assert float(count) == 8  # the copy that fills the batch up has no weight
    for wrong, message in (
        ("equal", 'must be "balanced"'),
        ({"maybe": 1}, "'no', 'yes'. Received"),
        ({"yes": -1}, "must be 0 or more"),
    ):
        with pytest.raises(ValueError, match=message):
            task.fit(table, class_weights=wrong)


def several(config, tokenizer, **options):
    return make(config, tokenizer, ["animal", "colour"], multi_label=True, **options)


SEVERAL = ["red fox", "dog", "blue", "the house", "a green cat", "the dog and the fox"]
SEVERAL_LABELS = [
    ["animal", "colour"],
    ["animal"],
    ["colour"],
    [],
    ["animal", "colour"],
    ["animal"],
]


@pytest.mark.slow
def test_several_labels_a_text(config, tokenizer):
    task = several(config.replace(num_layers=2, **NO_DROPOUT), tokenizer)
    task.fit(SEVERAL * 8, SEVERAL_LABELS * 8, epochs=25, learning_rate=5e-3, verbose=0)
    answers = task.predict(SEVERAL)
    assert [answer["labels"] for answer in answers] == SEVERAL_LABELS
    scores = task.evaluate(SEVERAL, SEVERAL_LABELS)
    assert scores["micro_f1"] == 1


def test_thresholds_of_several_labels_are_tuned_and_kept(config, tokenizer, tmp_path):
    task = several(config, tokenizer)
    assert task.metric in task.evaluate(SEVERAL, SEVERAL_LABELS)
    threshold = task.tune_threshold(SEVERAL, SEVERAL_LABELS, per_class=True)
    assert set(threshold) == {"animal", "colour"}
    task.save_to_preset(tmp_path)
    again = TextClassifier.from_preset(tmp_path)
    assert again.threshold == threshold
    assert again.predict(SEVERAL) == task.predict(SEVERAL)
    assert isinstance(task.tune_threshold(SEVERAL, SEVERAL_LABELS), float)


def test_thresholds_of_classes(config, tokenizer):
    task = several(config, tokenizer, threshold={"animal": 0.0, "colour": 1.0})
    assert all(answer["labels"] == ["animal"] for answer in task.predict(TEXTS))
    weights = task.weigh_classes(
        task.tokenize(Table({"text": SEVERAL, "label": SEVERAL_LABELS}), labelled=True), "balanced"
    ).dense["label_weights"]
    assert_close(weights[0], [2 / 4, 3 / 3], 1e-6)  # its positives weigh what all negatives do
    assert weights[3].tolist() == [1, 1]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda task: task.report(SEVERAL, SEVERAL_LABELS), "requires one label per row"),
        (lambda task: task.evaluate(["a"], ["animal"]), "row 0 .*have a list of labels.*'animal'"),
        (lambda task: task.evaluate(["a"], [["thing"]]), "row 0 .*one of the task's 2 classes"),
    ],
)
def test_what_several_labels_do_not_have(config, tokenizer, call, message):
    with pytest.raises(ValueError, match=message):
        call(several(config, tokenizer))


LONG = "fox " * 30 + "dog " * 50 + "pen " * 9


@pytest.mark.parametrize("pooling", ["mean", "max"])
def test_long_texts_in_windows(config, tokenizer, pooling):
    """The logits of the windows, made one by one, and pooled by hand."""
    task = make(config, tokenizer, max_length=16, doc_stride=10, pooling=pooling)
    ids = tokenizer.encode(LONG).numpy()
    starts = range(0, len(ids) - 14 + 10, 10)
    windows = [tf.ragged.constant([ids[i : i + 14].tolist()], dtype=tf.int32) for i in starts]
    plain = TextClassifier(task.encoder, tokenizer, ["no", "yes"], max_length=16)
    plain.classifier.set_weights(task.classifier.get_weights())
    logits = np.concatenate([plain(plain.build_inputs(window))["classifier"] for window in windows])
    pooled = logits.mean(0) if pooling == "mean" else logits.max(0)
    expected = np.exp(pooled) / np.exp(pooled).sum()
    for batch in ([LONG], [LONG, "fox", "", LONG + "moon " * 9]):
        answer = task.predict(batch)[0]
        assert_close(list(answer["probabilities"].values()), expected, 1e-5)
    rows = task.tokenize(Table({"text": [LONG, "fox"]}), labelled=False)
    assert rows.cut == 0
    assert rows.lengths.tolist() == [16 * len(windows), 3]


def test_long_pairs_in_windows(config, tokenizer, caplog):
    task = make(config, tokenizer, max_length=16, doc_stride=10)
    rows = task.tokenize(Table({"first": ["fox", LONG], "second": [LONG, LONG]}), labelled=False)
    assert rows.cut == 1  # of two long texts one does not slide
    features = task.assemble(rows.gather([0, 1]))
    assert features["token_ids"].shape == (2, rows.lengths.max() // 16, 16)
    assert task.predict([("fox", LONG), ("", "")])[0].keys() == {
        "label",
        "probability",
        "probabilities",
    }
    assert "truncated" not in caplog.text


def test_cut_texts_are_counted(config, tokenizer, caplog):
    task = make(config, tokenizer, max_length=16)
    task.predict([LONG, "fox", LONG])
    assert (
        "2 of 3 examples are longer than 16 tokens and are truncated; with doc_stride"
        in caplog.text
    )
    caplog.clear()
    task.fit(
        [LONG, "fox"], [0, 1], validation_data=([LONG, LONG, "dog"], [0, 1, 1]), epochs=1, verbose=0
    )
    assert "1 of 2 examples" in caplog.text
    assert "2 of 3 held-out examples" in caplog.text


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="rows"),
        pytest.param({"max_length": 12, "doc_stride": 6}, id="windows"),
    ],
)
def test_replicas_and_micro_batches_train_as_one(config, tokenizer, mirrored, options):
    def trained(scope=None, micro_batches=1):
        with scope or contextlib.nullcontext():
            task = make(config.replace(**NO_DROPOUT), tokenizer, **options)
        history = task.fit(
            *toy_data(20),
            epochs=2,
            batch_size=8,
            learning_rate=1e-3,
            class_weights={"yes": 3},
            micro_batches=micro_batches,
            verbose=0,
        )
        return history.history["loss"], task.get_weights()

    one = trained()
    for other in (trained(mirrored.scope()), trained(micro_batches=4)):
        np.testing.assert_allclose(other[0], one[0], rtol=1e-4)
        for found, wanted in zip(other[1], one[1], strict=True):
            assert_close(found, wanted, 1e-4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": []}, r"class names, in the order of the logits.*Received: \[\]"),
        ({"labels": ["a", "a"]}, "must be unique. Received: \\['a'\\] twice"),
        ({"max_length": 41}, r"4 and 40 \(the encoder's max_positions\). Received: max_length=41"),
        ({"max_length": 8.5}, "`max_length` must be a whole number .*Received: 8.5"),
        ({"doc_stride": 0}, "`doc_stride` must be a whole .*of at least 1 .*Received: 0"),
        ({"pooling": "sum"}, "`pooling` must be one of .*Received: 'sum'"),
        ({"multi_label": True, "threshold": 2}, "between 0 and 1.*Received: {'a': 2.0, 'b': 2.0}"),
        ({"multi_label": True, "threshold": {"a": 0.5}}, "a dict of one for every label"),
        (
            {"threshold": {"c": 0.5}},
            "threshold must name the task's classes, 'a', 'b'. Received: 'c'",
        ),
    ],
)
def test_settings_out_of_range(config, tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        make(config, tokenizer, **{"labels": ["a", "b"], **options})


def test_an_encoder_without_a_pooler_is_refused_and_gets_a_new_one(config, tokenizer, tmp_path):
    encoder = kbert.Encoder(config.replace(pooler_activation=None))
    with pytest.raises(ValueError, match=r"must have a pooler: TextClassifier.from_preset"):
        TextClassifier(encoder, tokenizer, ["a", "b"])
    encoder.save_to_preset(tmp_path)
    tokenizer.save(tmp_path)
    task = TextClassifier.from_preset(tmp_path, new_head=True, labels=["a", "b"])
    assert set(task.predict("fox")[0]["probabilities"]) == {"a", "b"}


def test_a_folder_s_classes_in_another_order_are_refused(config, tokenizer, tmp_path):
    make(config, tokenizer, labels=["a", "b"]).save_to_preset(tmp_path)
    with pytest.raises(ValueError, match=r"in the order.*Received: \['b', 'a'\].*\['a', 'b'\]"):
        TextClassifier.from_preset(tmp_path, labels=["b", "a"])
    assert TextClassifier.from_preset(tmp_path, labels=["no", "yes"]).labels == ["no", "yes"]
    assert TextClassifier.from_preset(tmp_path, labels=["b", "a"], new_head=True).labels[0] == "b"


@pytest.mark.parametrize("recompute", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_long_rows_of_a_table_are_attended_in_chunks(config, tokenizer, monkeypatch, recompute):
    """One run has batches of rows below and above the threshold; the losses are those without."""
    calls, attend = [], chunked_attention.attention_in_chunks
    monkeypatch.setattr(chunked_attention, "CHUNK_SIZE", 4)
    monkeypatch.setattr(
        chunked_attention,
        "attention_in_chunks",
        lambda *given, **options: calls.append(given) or attend(*given, **options),
    )
    found = []
    for least in (None, 9):
        monkeypatch.setattr(chunked_attention.Threshold, "tokens", least)
        two_layers = config.replace(num_layers=2, **NO_DROPOUT)  # the last one attends from [CLS]
        task = make(two_layers, tokenizer, max_length=24)
        options = {"epochs": 2, "batch_size": 4, "learning_rate": 1e-3, "recompute": recompute}
        history = task.fit(*toy_data(16), verbose=0, seed=1, **options)
        found.append(np.array(history.history["loss"]))
        assert bool(calls) is (least is not None)
    assert_close(found[1], found[0], 1e-5)
