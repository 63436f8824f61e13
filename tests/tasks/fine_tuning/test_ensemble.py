"""Ensembles: the members' mean, presets, exports, what is refused."""

import json

import keras
import numpy as np
import pytest

import kbert
from kbert import tasks
from kbert.edit import adapters, pruning
from kbert.experiments import answering_task
from kbert.tasks import FineTuningTask
from kbert.tasks.loading import WrongTaskError
from tests.distillation.cached import table_of
from tests.distillation.toys import PAIRS, TABLES, TEXTS, make_task
from tests.export import session
from tests.harness import assert_close

SIZES = {"hidden_size": 24, "num_heads": 3, "num_layers": 2}  # of the second member


def members(name, tokenizer, **options):
    return [
        make_task(name, tokenizer, seed=0, **options),
        make_task(name, tokenizer, seed=1, **SIZES, **options),
        make_task(name, tokenizer, seed=2, **options),
    ]


def probabilities(answers):
    return np.array([list(answer["probabilities"].values()) for answer in answers])


@pytest.mark.parametrize("name", ["classes", "pairs", "several", "windows"])
def test_probabilities_of_classes_are_the_mean(name, tokenizer):
    parts = members(name, tokenizer)
    ensemble = kbert.Ensemble(parts)
    texts = list(zip(*PAIRS.values(), strict=True)) if name == "pairs" else TEXTS
    answers = ensemble.predict(texts)
    wanted = np.mean([probabilities(task.predict(texts)) for task in parts], axis=0)
    assert_close(probabilities(answers), wanted, 1e-6)
    if name == "several":
        assert [a["labels"] for a in answers] == [
            [label for label, p in zip("abc", row, strict=True) if p >= 0.5] for row in wanted
        ]
    else:
        assert [a["label"] for a in answers] == ["abc"[i] for i in wanted.argmax(1)]


def test_numbers_are_the_mean(tokenizer):
    parts = members("numbers", tokenizer)
    wanted = np.mean([task.predict(TEXTS) for task in parts], axis=0)
    assert_close(kbert.Ensemble(parts).predict(TEXTS), wanted, 1e-6)


def test_choices_are_those_of_the_mean(tokenizer):
    parts, table = members("choices", tokenizer), table_of("choices")
    answers = [task.predict(table) for task in (*parts, kbert.Ensemble(parts))]
    for *single, combined in zip(*answers, strict=True):
        wanted = np.mean([answer["probabilities"] for answer in single], axis=0)
        assert_close(combined["probabilities"], wanted, 1e-6)
        assert combined["choice"] == wanted.argmax()


def test_tags_are_those_of_the_mean(tokenizer):
    parts, table = members("tags", tokenizer, max_positions=40), table_of("tags")
    for task in parts:
        task.max_length = 40  # a single window: windows are pooled after the mean
    ensemble = kbert.Ensemble(parts)
    rows = ensemble.tokenize(table, labelled=False)
    outputs = [task.predictor.outputs(rows, 8)[0] for task in (*parts, ensemble)]
    for *single, combined in zip(*outputs, strict=True):
        wanted = np.mean([softmax(output["logits"]) for output in single], axis=0)
        assert_close(softmax(combined["logits"]), wanted, 1e-6)
    assert len(ensemble.predict(table)[0]["labels"]) == len(table["words"][0])


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


def test_spans_are_ranked_by_the_sum_of_scores(tokenizer):
    parts, table = members("answers", tokenizer), table_of("answers")
    ensemble = kbert.Ensemble(parts)
    rows = ensemble.tokenize(table, labelled=False)
    (index, features), *_ = ensemble.predictor.padded_batches(rows, 32)
    logits = [keras.tree.map_structure(np.asarray, dict(t(features))) for t in (*parts, ensemble)]
    for name in ("start", "end"):
        wanted = np.mean([x[name] for x in logits[:-1]], axis=0)
        real = features["padding_mask"] > 0
        assert_close(logits[-1][name][real], wanted[real], 1e-6)
        assert (logits[-1][name][~real] <= -1e8).all()
    assert len(ensemble.predict(table)) == len(table)
    assert len(index)


FIRST, *OTHERS = TABLES


@pytest.mark.parametrize(
    "name", [FIRST, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)]
)
def test_it_evaluates_and_comes_back_from_a_preset(name, tokenizer, tmp_path):
    ensemble, table = kbert.Ensemble(members(name, tokenizer)), table_of(name)
    scores = ensemble.evaluate(table)
    assert set(ensemble.score_names(table)) <= set(scores)
    ensemble.save_to_preset(tmp_path / "ensemble")
    loaded = tasks.Task.from_preset(tmp_path / "ensemble")
    assert isinstance(loaded, kbert.Ensemble)
    assert isinstance(loaded, TABLES[name][0])
    assert len(loaded.members) == 3
    assert loaded.settings == ensemble.settings
    assert loaded.evaluate(table) == pytest.approx(scores, abs=1e-6)
    again = type(ensemble).from_preset(tmp_path / "ensemble", "mixed_bfloat16")
    assert again.compute_dtype == "bfloat16"


def test_members_stay_usable_and_are_presets(tokenizer, tmp_path):
    parts = members("classes", tokenizer)
    before = [probabilities(task.predict(TEXTS)) for task in parts]
    ensemble = kbert.Ensemble(parts)
    ensemble.save_to_preset(tmp_path)
    for number, task in enumerate(parts):
        assert_close(probabilities(task.predict(TEXTS)), before[number], 1e-6)
        single = tasks.TextClassifier.from_preset(tmp_path / f"member-{number}")
        assert_close(probabilities(single.predict(TEXTS)), before[number], 1e-6)
    first = probabilities(ensemble.predict(TEXTS))
    parts[0].classifier.dense.bias.assign([3.0, 0.0, 0.0])
    assert np.abs(probabilities(ensemble.predict(TEXTS)) - first).max() > 0.1


def test_it_counts_each_weight_once(tokenizer):
    parts = members("classes", tokenizer)
    ensemble = kbert.Ensemble(parts)
    assert ensemble.count_params() == sum(task.count_params() for task in parts)
    assert len(ensemble.weights) == sum(len(task.weights) for task in parts)


def test_settings_of_its_own_are_saved(tokenizer, tmp_path):
    parts = members("several", tokenizer)
    ensemble = kbert.Ensemble(parts, threshold=0.4)
    assert ensemble.tune_threshold(*TABLES["several"][2]) != 0.4
    ensemble.save_to_preset(tmp_path)
    loaded = kbert.Task.from_preset(tmp_path)
    assert loaded.threshold == ensemble.threshold
    assert parts[0].threshold == loaded.members[0].threshold == 0.5
    assert kbert.Task.from_preset(tmp_path, threshold=0.9).threshold == 0.9


def test_one_member_may_have_an_adapter(tokenizer, tmp_path):
    from kbert.edit import adapters

    parts = members("classes", tokenizer)
    adapters.add(parts[1], "lora", rank=2)
    ensemble = kbert.Ensemble(parts)
    wanted = probabilities(ensemble.predict(TEXTS))
    ensemble.save_to_preset(tmp_path)
    assert_close(probabilities(kbert.Task.from_preset(tmp_path).predict(TEXTS)), wanted, 1e-6)


def test_reports_and_file_answers_are_those_of_the_class(tokenizer):
    ensemble = kbert.Ensemble(members("classes", tokenizer))
    assert list(ensemble.report(*TABLES["classes"][2]).names) == ["a", "b", "c"]
    assert ensemble.record["kind"] == "classify"
    assert ensemble.name.endswith("_ensemble")


@pytest.mark.tensorflow
@pytest.mark.parametrize(
    "name",
    [
        "pairs",
        *(
            pytest.param(x, marks=pytest.mark.slow)
            for x in ("several", "numbers", "windows", "tags", "choices")
        ),
    ],
)
def test_a_saved_model_answers_in_the_session_loader(name, tokenizer, tmp_path):
    ensemble = kbert.Ensemble(members(name, tokenizer))
    path = ensemble.export(tmp_path)
    if name == "tags":
        (answer,) = session.ask_json(path, ("tag", {"text": TEXTS}))
        wanted = ensemble.predict(TEXTS)
        assert [row[: len(w["labels"])] for row, w in zip(answer["labels"], wanted, strict=True)] \
            == [w["labels"] for w in wanted]  # fmt: skip
    elif name == "choices":
        choices = [["a", "pen"], ["fox", "dog"]]
        (answer,) = session.ask_json(path, ("choose", {"context": TEXTS[:2], "choices": choices}))
        rows = [{"context": c, "choices": x} for c, x in zip(TEXTS, choices, strict=False)]
        wanted = [w["probabilities"] for w in ensemble.predict(rows)]
        assert_close(answer["probabilities"], wanted, 1e-5)
    else:
        entry, key = ("score", "score") if name == "numbers" else ("classify", "scores")
        (answer,) = session.ask_json(path, (entry, {"text": TEXTS}))
        wanted = ensemble.predict(TEXTS)
        assert_close(answer[key], wanted if name == "numbers" else probabilities(wanted), 1e-5)


@pytest.mark.tensorflow
@pytest.mark.slow
def test_a_saved_model_of_spans_has_no_single_encoder(tokenizer, tmp_path):
    ensemble = kbert.Ensemble(members("answers", tokenizer))
    assert list(ensemble.signatures()) == ["answer"]
    table = table_of("answers")
    columns = {name: table[name] for name in ("question", "context")}
    (answer,) = session.ask_json(ensemble.export(tmp_path), ("answer", columns))
    wanted = ensemble.predict(table)
    assert answer["answer"] == [w["answer"] for w in wanted]
    assert_close(answer["score"], [w["score"] for w in wanted], 1e-4)


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_saved_model_in_fewer_bits(precision, tokenizer, tmp_path):
    ensemble = kbert.Ensemble(members("classes", tokenizer, sigma=0.15))
    (answer,) = session.ask_json(
        ensemble.export(tmp_path, precision=precision), ("classify", {"text": TEXTS})
    )
    assert_close(answer["scores"], probabilities(ensemble.predict(TEXTS)), 0.1)


@pytest.mark.tensorflow
@pytest.mark.parametrize("name", ["classes", *(
    pytest.param(x, marks=pytest.mark.slow) for x in ("several", "numbers", "tags", "answers")
)])  # fmt: skip
def test_onnx_runtime_gives_the_answers(name, tokenizer, tmp_path):
    pytest.importorskip("onnxruntime")
    ensemble, table = kbert.Ensemble(members(name, tokenizer)), table_of(name)
    if name == "tags":
        for task in (ensemble, *ensemble.members):
            task.max_length = 32
    exported = kbert.export.load_exported(ensemble.export(tmp_path / "onnx", format="onnx"))
    data = table if name in ("tags", "answers") else TEXTS
    ours, theirs = ensemble.predict(data), exported.predict(data)
    if name == "numbers":
        assert_close(theirs, ours, 1e-4)
    elif name in ("classes", "several"):
        assert_close(probabilities(theirs), probabilities(ours), 1e-5)
    else:
        key = "labels" if name == "tags" else "answer"
        assert [x[key] for x in theirs] == [x[key] for x in ours]


def test_programs_load_it_like_a_single_task(tokenizer, tmp_path):
    kbert.Ensemble(members("classes", tokenizer)).save_to_preset(tmp_path)
    task, checksum = answering_task("kbert-predict", FineTuningTask, tmp_path)
    assert isinstance(task, kbert.Ensemble)
    assert len(checksum()) == 8


def test_it_cannot_be_trained(tokenizer):
    parts = members("classes", tokenizer)
    ensemble = kbert.Ensemble(parts)
    message = r"cannot be trained: train its members.*ensemble of 3 TextClassifiers$"
    with pytest.raises(ValueError, match=message):
        ensemble.fit(*TABLES["classes"][2])
    batch = next(iter(ensemble.batches(ensemble.tokenize(table_of("classes"), True), batch_size=2,
                                       seed=0)))  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ensemble.loss_terms(batch, training=True)
    assert "cross_entropy" in ensemble.loss_terms(batch, training=False)[0]


def test_members_must_fit_together(tokenizer, tiny_vocabulary):
    first = make_task("classes", tokenizer)

    def other(name="classes", tokenizer=tokenizer, dtype=None, max_positions=32, **options):
        task = make_task(name, tokenizer, dtype=dtype, max_positions=max_positions)
        return type(task)(task.encoder, tokenizer, **{**task.settings, **options})

    for task, message in (
        (other("pairs"), r"same labels. Received: \['a', 'b', 'c'\] and \['a', 'b'\]"),
        (other("several"), r"same multi_label. Received: False and True"),
        (other("numbers"), "same class. Received: 'TextClassifier' and 'TextRegressor'"),
        (other(max_length=16), "same max_length. Received: 32 and 16"),
        (other(doc_stride=4), "same doc_stride. Received: None and 4"),
        (other(max_positions=24), "same max_length. Received: 32 and 24"),
        (other(dtype="mixed_bfloat16"), "same precision. Received: 'float32' and 'mixed_bfl"),
        (
            other(tokenizer=kbert.WordPieceTokenizer(tiny_vocabulary[::-1])),
            "same tokenizer. Received: 'a WordPieceTokenizer, ",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            kbert.Ensemble([first, task])
    kbert.Ensemble([first, other(dropout=0.5, pooling="max", threshold=0.9)])


EDITS = {
    "adapter": lambda task: adapters.add(task, "lora"),
    "enable_lora": lambda task: task.enable_lora(2),
    "running adapter": lambda task: adapters.activate(task, None),
    "heads": lambda task: pruning.prune_heads(task, {0: [0]}),
    "layers": lambda task: pruning.keep_layers(task, "alternate", 1),
    "importance": lambda task: pruning.head_importance(task, TEXTS, ["a"] * len(TEXTS)),
    "vocabulary": lambda task: pruning.prune_vocabulary(task, TEXTS),
}


@pytest.mark.parametrize("edit", EDITS)
def test_edits_are_refused(edit, tokenizer):
    """They would change the first member alone."""
    ensemble = kbert.Ensemble(members("classes", tokenizer))
    with pytest.raises(ValueError, match=r"by an edit: change its members.*of 3 TextClassifiers$"):
        EDITS[edit](ensemble)


def test_what_is_no_list_of_fine_tuned_tasks_is_refused(tokenizer):
    first = make_task("classes", tokenizer)
    for given in ([first], first, []):
        with pytest.raises(ValueError, match=r"requires a list of two or more tasks. Received: "):
            kbert.Ensemble(given)
    embedder = tasks.TextEmbedder(first.encoder, tokenizer)
    with pytest.raises(TypeError, match=r"answers have a mean.*Received: a TextEmbedder$"):
        kbert.Ensemble([embedder, embedder])
    for wrong in (make_task("text", tokenizer), kbert.Ensemble([first, first])):
        with pytest.raises(TypeError, match=r"requires fine-tuned tasks, each with a single model"):
            kbert.Ensemble([first, wrong])


def test_other_libraries_have_no_ensembles(tokenizer, tmp_path):
    ensemble = kbert.Ensemble(members("classes", tokenizer))
    with pytest.raises(ValueError, match=r'format="kbert".*Received: format=\'huggingface\''):
        ensemble.save_to_preset(tmp_path, "huggingface")
    with pytest.raises(ValueError, match=r'format="kbert"'):
        ensemble.export(tmp_path, format="safetensors")


def test_windows_are_pooled_before_the_mean(tokenizer, tmp_path):
    ensemble = kbert.Ensemble(members("windows", tokenizer))
    with pytest.raises(ValueError, match=r"Received: format='onnx', doc_stride=3"):
        ensemble.export(tmp_path, format="onnx")


def test_a_folder_holds_one_model_or_an_ensemble(tokenizer, tmp_path):
    parts = members("classes", tokenizer)
    ensemble = kbert.Ensemble(parts)
    ensemble.save_to_preset(tmp_path / "several")
    parts[0].save_to_preset(tmp_path / "single")
    for format in ("kbert", "huggingface"):
        with pytest.raises(ValueError, match="contains an ensemble, whose weights would be over"):
            parts[0].save_to_preset(tmp_path / "several", format)
    with pytest.raises(ValueError, match="contains a preset, whose weights would be overwritten"):
        ensemble.save_to_preset(tmp_path / "single")
    ensemble.save_to_preset(tmp_path / "several")  # again
    with pytest.raises(ValueError, match=r"an ensemble of several models: load it with kbert"):
        kbert.Encoder.from_preset(tmp_path / "several")
    with pytest.raises(ValueError, match=r"new_head=True requires the folder of a single model"):
        tasks.TextClassifier.from_preset(tmp_path / "several", new_head=True)
    with pytest.raises(WrongTaskError, match=r"class TextRegressor. Received: an ensemble of Text"):
        tasks.TextRegressor.from_preset(tmp_path / "several")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"format_version": 9}, "presets of format 1", id="later"),
        pytest.param({"members": ["../x"]}, "names of subfolders", id="outside"),
        pytest.param({"more": 1}, "must have the keys", id="more"),
    ],
)
def test_a_damaged_record_is_refused(change, message, tokenizer, tmp_path):
    kbert.Ensemble(members("classes", tokenizer)).save_to_preset(tmp_path)
    content = json.loads((tmp_path / "ensemble.json").read_text())
    (tmp_path / "ensemble.json").write_text(json.dumps({**content, **change}))
    with pytest.raises(ValueError, match=message):
        kbert.Task.from_preset(tmp_path)


def test_the_checksum_of_weights_is_of_all_members(tokenizer, tmp_path):
    from kbert.training.run.record import weights_checksum

    parts = members("classes", tokenizer)
    kbert.Ensemble(parts).save_to_preset(tmp_path / "one")
    parts[2].classifier.dense.bias.assign([3.0, 0.0, 0.0])
    kbert.Ensemble(parts).save_to_preset(tmp_path / "two")
    checksums = {weights_checksum(tmp_path / name) for name in ("one", "two")}
    assert len(checksums) == 2
    assert "00000000" not in checksums
