"""Vectors of texts: what they are trained by, what measures them, and who else reads them."""

import contextlib
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import kbert
from kbert import tasks
from kbert.distillation import Distiller, HiddenStates, OwnLoss
from kbert.export import load_exported
from kbert.layers import Dropout
from kbert.tasks.embedding import global_batch

TEXTS = ["the fox jumps", "a lazy dog", "the quick brown fox", "over the dog", "jumps", "the dog"]
OTHERS = ["jumps over", "the lazy fox", "a dog", "brown dog", "quick fox", "lazy"]
PAIRS = list(zip(TEXTS, OTHERS, strict=True))
SCORES = [0.1, 0.9, 0.4, 0.6, 0.2, 1.0]
TRIPLETS = [(a, b, c) for (a, b), c in zip(PAIRS, reversed(TEXTS), strict=True)]


def make(config, tokenizer, seed=3, dropout=0.0, **options):
    keras.utils.set_random_seed(seed)
    config = config.replace(dropout=dropout, attention_dropout=dropout)
    return tasks.TextEmbedder(kbert.Encoder(config), tokenizer, **options)


@pytest.mark.parametrize(
    ("pooling", "wanted"),
    [
        ("mean", lambda x: x.mean(0)),
        ("cls", lambda x: x[0]),
        ("max", lambda x: x.max(0)),
        ("weighted", lambda x: np.average(x, axis=0, weights=np.arange(1, len(x) + 1))),
    ],
)
def test_vectors_are_pooled_tokens(config, tokenizer, pooling, wanted):
    task = make(config, tokenizer, token_pooling=pooling, normalize=False)
    found = task.predict(TEXTS)
    assert found.shape == (6, 16)
    assert found.dtype == np.float32
    for text, vector in zip(TEXTS, found, strict=True):
        features = task.build_inputs(tokenizer.encode([text]))
        tokens = ops.convert_to_numpy(task.encoder(features)["sequence"])[0]
        count = int(ops.sum(features["padding_mask"]))
        np.testing.assert_allclose(vector, wanted(tokens[:count]), atol=1e-5)


def test_length_one_projection_and_similarity(config, tokenizer):
    task = make(config, tokenizer, projection=5, projection_activation="tanh")
    found = task.predict(TEXTS)
    assert found.shape == (6, 5)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1.0, rtol=1e-5)
    np.testing.assert_allclose(task.similarity(TEXTS), found @ found.T, atol=1e-5)
    np.testing.assert_allclose(task.similarity(found, TEXTS[:2]), found @ found[:2].T, atol=1e-5)
    np.testing.assert_array_equal(task.predict(PAIRS)[:, 0], found)


def test_prompts_stand_before_queries_and_documents(config, tokenizer):
    plain = make(config, tokenizer)
    task = make(config, tokenizer, query_prompt="the ", document_prompt="lazy ")
    before = plain.predict(["the dog", "lazy dog"])
    np.testing.assert_allclose(task.predict(["dog"], prompt="query"), before[:1], atol=1e-6)
    np.testing.assert_allclose(task.predict([("dog", "dog")])[0], before, atol=1e-6)
    entries = task.signatures()
    assert [*entries] == ["embed", "embed_query", "embed_document"]
    found = entries["embed_document"].function(tf.constant(["dog"]))["embedding"]
    np.testing.assert_allclose(found, before[1:], atol=1e-6)
    with pytest.raises(ValueError, match=r"prompt='query', query_prompt=None"):
        plain.predict(["dog"], prompt="query")


@pytest.mark.parametrize(
    ("data", "labels", "options"),
    [
        (PAIRS, None, {}),
        (PAIRS, SCORES, {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (
                (TRIPLETS, None, {}),
                (PAIRS, None, {"objective": "symmetric_ranking", "matryoshka": (4, 16)}),
                (TRIPLETS, None, {"objective": "triplet"}),
                (PAIRS, SCORES, {"objective": "angle"}),
                (PAIRS, SCORES, {"objective": "cosine"}),
            )
        ),
        (TEXTS, None, {}),
        ({"text": TEXTS, "vector": np.eye(6, 16).tolist()}, None, {}),
    ],
    ids=lambda x: x.get("objective", "") if isinstance(x, dict) else "",
)
def test_it_learns_from_each_kind_of_data(config, tokenizer, data, labels, options, caplog):
    dropout = 0.1 if data is TEXTS else 0.0
    task = make(config, tokenizer, dropout=dropout, **options)
    before = task.evaluate(data, labels, verbose=0)
    history = task.fit(
        data, labels, epochs=5, batch_size=6, learning_rate=5e-3, verbose=0, warmup_share=0.0
    )
    losses = history.history["contrast"]
    assert losses[-1] < 0.9 * losses[0]
    assert "the encoder has no dropout" not in caplog.text
    if options.get("objective") == "angle":
        return  # whose order is not that of cosines
    after = task.evaluate(data, labels, verbose=0)
    for name in ("spearman", "ndcg_at_10", "accuracy", "cosine"):
        assert after.get(name, 1) >= before.get(name, 0)


def test_how_well_texts_find_their_own(config, tokenizer):
    """By hand: each first text's own second text among the distinct second texts."""
    task = make(config, tokenizer)
    pairs = [*PAIRS, ("the fox", OTHERS[0])]
    found = task.evaluate(pairs, verbose=0)
    first, second = np.swapaxes(task.predict(pairs), 0, 1)
    cosines = first @ second[:6].T
    right = cosines[np.arange(7), [0, 1, 2, 3, 4, 5, 0]]
    ranks = (cosines > right[:, None]).sum(1) + 1
    assert found["mrr_at_10"] == pytest.approx(np.mean(1 / ranks))
    assert found["ndcg_at_10"] == pytest.approx(np.mean(1 / np.log2(1 + ranks)))
    assert found["recall_at_1"] == pytest.approx(np.mean(ranks == 1))


def test_files_have_vectors_of_texts_and_cosines_of_pairs(config, tokenizer):
    task = make(config, tokenizer)
    vectors = task.predict(TEXTS)
    written = task.file_answers(task).written
    assert [*written(vectors)[0]] == ["vector"]
    scores = written(task.predict(PAIRS))
    np.testing.assert_allclose(scores, np.diag(task.similarity(TEXTS, OTHERS)), atol=1e-5)


def test_the_best_weights_are_those_of_the_data_s_own_metric(config, tokenizer):
    task = make(config, tokenizer)
    scored = (PAIRS, SCORES)
    history = task.fit(*scored, validation_data=scored, epochs=2, batch_size=6, verbose=0)
    assert {"val_spearman", "val_pearson"} <= history.history.keys()
    assert task.main_metric(kbert.data.as_table(*scored)) == "spearman"
    assert task.main_metric(kbert.data.as_table(PAIRS)) == "ndcg_at_10"
    assert task.main_metric(kbert.data.as_table(TEXTS)) == "loss"


def weights_after(task, data, labels=None, **options):
    task.fit(data, labels, epochs=2, batch_size=6, verbose=0, learning_rate=1e-3, **options)
    return [v.numpy() for v in task.trainable_variables]


@pytest.mark.graphs
@pytest.mark.parametrize(
    ("data", "labels", "kind"),
    [
        pytest.param(PAIRS, SCORES, "replicas", id="cosent, replicas", marks=pytest.mark.slow),
        pytest.param(TRIPLETS, None, "micro", id="ranking, micro"),
        pytest.param(PAIRS, SCORES, "micro", id="cosent, micro", marks=pytest.mark.slow),
        pytest.param(TRIPLETS, None, "replicas", id="ranking, replicas", marks=pytest.mark.slow),
    ],
)
def test_the_whole_batch_is_compared_however_it_is_split(
    config, tokenizer, mirrored, data, labels, kind
):
    whole = weights_after(make(config, tokenizer), data, labels)
    with mirrored.scope() if kind == "replicas" else contextlib.nullcontext():
        task = make(config, tokenizer)
    split = weights_after(task, data, labels, micro_batches=3)
    for one, other in zip(whole, split, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.graphs
@pytest.mark.parametrize("kind", ["micro", pytest.param("replicas", marks=pytest.mark.slow)])
@pytest.mark.slow
def test_vectors_are_computed_twice_with_the_same_dropout(config, tokenizer, mirrored, kind):
    """The sum of vector times gradient, by hand of the first run's vectors, is that of the step."""
    seen = []

    class Watched(tasks.TextEmbedder):
        kind = None

        def before_gradients(self, batch, replicas):
            batch = super().before_gradients(batch, replicas)
            parts = self._split(
                {k: x for k, x in batch.items() if k.endswith(("ids", "padding_mask"))}
            )
            count = self.micro_batches
            again = global_batch.vectors_by_parts(
                self, parts, count, lambda x: self(x, training=True)
            )
            return {**batch, "again": again["embedding"]}

        def terms(self, logits, batch):
            if "again" in batch:
                error = ops.max(ops.abs(batch["again"] - logits["embedding"]))
                spread = ops.max(ops.abs(logits["embedding"] - logits["second_embedding"]))
                tf.py_function(lambda *x: seen.append([float(v) for v in x]), [error, spread], [])
            return super().terms(logits, batch)

    with mirrored.scope() if kind == "replicas" else contextlib.nullcontext():
        keras.utils.set_random_seed(3)
        task = Watched(kbert.Encoder(config.replace(dropout=0.3)), tokenizer)
    task.fit(TEXTS, epochs=2, batch_size=6, micro_batches=3, verbose=0)
    assert len(seen) == (12 if kind == "replicas" else 6)
    assert max(error for error, _ in seen) < 1e-6
    assert min(spread for _, spread in seen) > 1e-3  # dropout makes two of a text


@pytest.mark.parametrize("dropout", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_texts_alone_without_dropout_are_warned_of(config, tokenizer, caplog, dropout):
    make(config, tokenizer, dropout=dropout).fit(TEXTS, epochs=1, verbose=0)
    assert ("the encoder has no dropout" in caplog.text) == (dropout == 0)


def test_of_several_tasks_it_compares_whole_batches_or_none(config, tokenizer):
    multi = tasks.MultiTask({"near": make(config, tokenizer)})
    with pytest.raises(ValueError, match=r"a TextEmbedder in another model, micro_batches=2, 1 d"):
        multi.fit({"near": PAIRS}, batch_size=6, micro_batches=2, verbose=0)


def test_a_student_compares_whole_batches_or_none(config, tokenizer):
    student, teacher = make(config, tokenizer), make(config, tokenizer)
    distiller = Distiller(student, teacher, [OwnLoss(), HiddenStates()])
    with pytest.raises(ValueError, match=r"a TextEmbedder in another model, micro_batches=2, 1 d"):
        distiller.fit(PAIRS, batch_size=6, micro_batches=2, verbose=0)
    Distiller(student, teacher, [HiddenStates()]).compile("adam", micro_batches=2)


def test_variables_are_what_they_were(config, tokenizer):
    task = make(config, tokenizer, dropout=0.3)
    features = task.build_inputs(tokenizer.encode(TEXTS))
    before = [v.numpy() for v in task.variables]
    parts = {name: ops.reshape(x, (3, 2, -1)) for name, x in features.items()}
    found = global_batch.vectors_by_parts(task, parts, 2, lambda x: task(x, training=True))
    assert found["embedding"].shape == (6, 16)
    assert not np.allclose(found["embedding"], task(features)["embedding"])
    for variable, value in zip(task.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    assert any(isinstance(layer, Dropout) for layer in task._flatten_layers())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(PAIRS, id="pairs", marks=pytest.mark.slow),
        pytest.param(TRIPLETS, id="triplets"),
        pytest.param(TEXTS, id="texts"),
    ],
)
def test_a_runtime_with_a_text_a_row_answers_and_measures_all(config, tokenizer, data):
    task = make(config, tokenizer)
    vectors, measured = task.predict(data), task.evaluate(data, verbose=0)
    rows, rows_of = [], task.row_export(task)

    def run(features):
        rows.append(features["token_ids"].shape)
        return {n: ops.convert_to_numpy(x) for n, x in rows_of.outputs(features).items()}

    rows_of.answer_by(run)
    np.testing.assert_allclose(task.predict(data), vectors, atol=1e-6)
    assert task.evaluate(data, verbose=0) == pytest.approx(measured, abs=1e-5)
    assert all(len(shape) == 2 for shape in rows)


def test_a_refused_loss_leaves_the_objective(config, tokenizer):
    task = make(config, tokenizer)
    with pytest.raises(ValueError, match="requires the columns first, label"):
        task.fit(PAIRS, loss="cosent", epochs=1, verbose=0)
    with pytest.raises(ValueError, match=r"`objective` must be one of .*Received: .*cosin"):
        task.fit(PAIRS, loss="cosin", epochs=1, verbose=0)
    assert task.objective is None
    task.fit(PAIRS, loss="symmetric_ranking", epochs=1, verbose=0)
    assert task.objective == "symmetric_ranking"


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        ((PAIRS, SCORES), {"loss": "ranking"}, "ranking does not support the columns label"),
        ((PAIRS, None), {"loss": "cosine"}, "cosine requires the columns first, label"),
        ((PAIRS, None), {"loss": "triplet"}, "triplet requires the columns first, negatives"),
        ((PAIRS, [2.0] * 6), {"loss": "cosine"}, "row 0 of the data.*between -1 and 1"),
        ((PAIRS, ["yes"] * 6), {}, "must be a number, their similarity. Received: 'yes'"),
        (({"text": ["a"], "vector": [[1.0]]}, None), {}, "list of 16 finite numbers"),
        (({"label": [1.0]}, None), {}, "must have the column `text`, or `first` and `second`"),
        ((PAIRS, None), {"loss": "hinge"}, "`objective` must be one of"),
    ],
)
def test_data_that_an_objective_cannot_have_is_refused(config, tokenizer, data, options, message):
    with pytest.raises(ValueError, match=message):
        make(config, tokenizer).fit(*data, verbose=0, **options)


@pytest.mark.parametrize(
    ("options", "odd"),
    [({"projection": 7}, "7"), ({"projection": 7, "matryoshka": (3, 4, 7)}, "3, 7")],
)
def test_angles_need_even_widths(config, tokenizer, options, odd):
    task = make(config, tokenizer, objective="angle", **options)
    with pytest.raises(ValueError, match=rf"angle requires .* even width: .*Received: {odd}$"):
        task.fit(PAIRS, SCORES, epochs=1, verbose=0)
    # Where the losses are only those of the even widths, an odd one is none of theirs.
    task = make(config, tokenizer, objective="angle", projection=7, matryoshka=(4,))
    task.fit(PAIRS, SCORES, epochs=1, verbose=0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"matryoshka": (8, 32)}, r"widths of at most 16.*Received: \[32\]"),
        ({"projection_activation": "tanh"}, "projection=None"),
        ({"token_pooling": "sum"}, "`token_pooling` must be one of"),
    ],
)
def test_settings_that_do_not_fit(config, tokenizer, options, message):
    with pytest.raises(ValueError, match=message):
        make(config, tokenizer, **options)


def test_presets_and_exports(config, tokenizer, tmp_path):
    task = make(config, tokenizer, projection=6, query_prompt="the ", matryoshka=(2, 6))
    expected = task.predict(TEXTS)
    task.save_to_preset(tmp_path / "preset")
    loaded = tasks.Task.from_preset(tmp_path / "preset")
    assert isinstance(loaded, tasks.TextEmbedder)
    assert loaded.settings == task.settings
    np.testing.assert_array_equal(loaded.predict(TEXTS), expected)
    served = tf.saved_model.load(task.export(tmp_path / "served")).signatures
    assert {*served} == {"serving_default", "embed", "embed_query"}
    found = served["embed"](text=tf.constant(TEXTS))["embedding"]
    np.testing.assert_allclose(found, expected, atol=1e-5)
    found = served["embed_query"](text=tf.constant(["dog"]))["embedding"]
    np.testing.assert_allclose(found, task.predict(["the dog"]), atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["onnx", "openvino"])
def test_other_runtimes(config, tokenizer, tmp_path, format):
    pytest.importorskip({"onnx": "tf2onnx", "openvino": "openvino"}[format])
    task = make(config, tokenizer, projection=6)
    loaded = load_exported(task.export(tmp_path / "out", format=format))
    np.testing.assert_allclose(loaded.predict(TEXTS), task.predict(TEXTS), atol=1e-4)


def test_onnx_s_operations_are_an_encoder_s(config, tokenizer, tmp_path):
    """Rows in another shape hide what they are: products are cut, and all sizes asked for."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("tf2onnx")
    folder = make(config, tokenizer).export(tmp_path / "out", format="onnx")
    kinds = [x.op_type for x in onnx.load(os.path.join(folder, "model.onnx")).graph.node]
    assert "Split" not in kinds
    assert kinds.count("Shape") <= 4


@pytest.mark.slow
def test_texts_alone_make_an_encoder_tell_texts_apart(config, tokenizer):
    """SimCSE: by dropout alone texts of other words move away from each other."""
    task = make(config, tokenizer, dropout=0.1)
    before = task.similarity(TEXTS)
    task.fit(TEXTS, epochs=40, batch_size=6, learning_rate=1e-3, verbose=0)
    after = task.similarity(TEXTS)
    apart = ~np.eye(6, dtype=bool)
    assert after[apart].mean() < before[apart].mean() - 0.2


def test_equal_texts_are_no_negatives_whatever_their_prompts(config, tokenizer):
    """The first text of a row and the second of another, which have other prompts."""
    pairs = [("the fox", "a dog"), ("jumps", "the fox")]
    task = make(config, tokenizer, query_prompt="the ", document_prompt="a ")
    rows = task.tokenize(task.as_table(pairs), labelled=True)
    assert rows.dense["first_number"].tolist() == [0, 1]
    assert rows.dense["second_number"].tolist() == [2, 0]


def test_only_rows_with_negatives_count_in_the_accuracy(config, tokenizer):
    task = make(config, tokenizer)
    data = {"first": TEXTS, "second": OTHERS, "negatives": [[x] for x in reversed(TEXTS)]}
    first, second, negative = np.swapaxes(task.predict(data), 0, 1)
    is_nearer = (first * second).sum(1) > (first * negative).sum(1)
    data["negatives"] = [x if number % 2 else [] for number, x in enumerate(data["negatives"])]
    assert task.evaluate(data, verbose=0)["accuracy"] == pytest.approx(is_nearer[1::2].mean())
    data["negatives"] = [[] for _ in TEXTS]
    assert "accuracy" not in task.evaluate(data, verbose=0)
