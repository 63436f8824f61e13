"""What an earlier version wrote is read, answered and gone on with as that version did it.

The files, and the expected numbers, were written by `write.py` under that version; nothing here
is made by the present one. What a test writes to is a copy.
"""

import json
import os
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert.distillation import Distiller, HiddenStates, SoftTargets

pytestmark = pytest.mark.tensorflow

GOLDEN = Path(__file__).parent / "v0.1.0"
LOADERS = {"Task": kbert.tasks.Task, "Translator": kbert.tasks.Translator, "Elmo": kbert.Elmo}


def read(name):
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


PRESETS = sorted(
    path.stem for path in (GOLDEN / "presets").glob("*.json") if path.stem != "encoder"
)
BATCHES = read("batches.json")


def runs(name, *in_default):
    """Those of a file as parameters by the name of their folder, the rest marked slow."""
    found = {Path(run["folder"]).name: run for run in read(name)}
    assert found.keys() > set(in_default)
    return [
        pytest.param(run, id=kind, marks=[pytest.mark.slow] * (kind not in in_default))
        for kind, run in found.items()
    ]


def plain(value):
    """What JSON can hold."""
    if hasattr(value, "to_list"):
        value = value.to_list()
    if hasattr(value, "numpy"):
        value = value.numpy()
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {name: plain(x) for name, x in value.items()}
    return [plain(x) for x in value] if isinstance(value, list | tuple) else value


def assert_same(found, expected, where="answer"):
    """Numbers within 1e-5, all else equal; what a later version says besides does not matter."""
    found = plain(found)
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), where
        for name, value in expected.items():
            assert_same(found[name], value, f"{where}, {name}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}, {number}")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-5), where
    else:
        assert found == expected, where


def contents(folder):
    """Path -> bytes of all files."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of all files, which the process is in: the runs name theirs by relative paths.

    Sources of texts alone are known by their whole path and by their time: the copy's are put in.
    """
    copy = tmp_path / "golden"
    shutil.copytree(GOLDEN, copy)
    for path in copy.rglob("*.json"):
        content = path.read_text(encoding="utf-8")
        path.write_text(content.replace('"/tmp/golden/', f'"{copy}/'), encoding="utf-8")
    for path in copy.glob("*.txt"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def unchanged():
    """Nothing of a run is told to be other than it was."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield
    told = [str(warning.message) for warning in caught if warning.category is UserWarning]
    assert not [text for text in told if "settings" in text]


@pytest.fixture
def call(monkeypatch):
    """(program, *flags): what its console script does, in this process."""

    def call(program, *arguments):
        with flagsaver.flagsaver():
            monkeypatch.setattr(sys, "argv", [program.__name__])
            before = set(flags.FLAGS)
            program.define_flags()
            for name in set(flags.FLAGS) - before:  # the key flags are what run.json holds
                flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
            program.main(flags.FLAGS([program.__name__, *arguments]))

    return call


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_answers_as_before(name):
    expected = read(f"presets/{name}.json")
    model = LOADERS[expected["load"]].from_preset(GOLDEN / "presets" / name)
    for asked in expected["asks"]:
        answers = getattr(model, asked["method"])(*asked["arguments"], **asked["options"])
        assert_same(answers, asked["answers"])
    tokenizer = kbert.load_tokenizer(GOLDEN / "presets" / name)
    assert plain(tokenizer.encode(expected["texts"])) == expected["token_ids"]


def test_an_encoder_gives_the_vectors_of_before():
    expected = read("presets/encoder.json")
    encoder = kbert.Encoder.from_preset(GOLDEN / "presets" / "encoder")
    found = encoder({"token_ids": np.array(expected["token_ids"])})
    for name in ("sequence", "pooled"):
        assert_same(found[name], expected[name], name)


@pytest.mark.parametrize("number", range(len(BATCHES)))
def test_shards_give_the_batches_of_before(number):
    expected = BATCHES[number]
    shards = GOLDEN / expected["folder"]
    make = getattr(kbert.data, expected["function"])
    dataset = make(shards, kbert.load_tokenizer(shards), **expected["options"])
    found = [plain(batch) for batch in dataset.take(3).as_numpy_iterator()][::2]
    for one, other in zip(found, expected["batches"], strict=True):
        assert {name: one.get(name) for name in other} == other


def test_a_corpus_is_not_prepared_again(folder):
    """Not by another version either, where nothing else is new."""
    for shards in ("shards", "word_shards"):
        before = contents(shards)
        tokenizer = kbert.load_tokenizer(shards)
        manifest = kbert.data.prepare_corpus("text.txt", shards, tokenizer, held_out_share=0.2)
        assert manifest.splits["train"].documents + manifest.splits["held_out"].documents == 30
        assert contents(shards) == before


@pytest.mark.parametrize("expected", runs("pretrain.json", "gpt"))
def test_a_pretraining_resumes_to_the_losses_of_before(expected, folder, call, unchanged):
    from pipelines import pretrain

    run = Path(expected["folder"])
    assert len(read_lines(run / "steps.jsonl")) == 5
    call(pretrain, *expected["flags"])
    for name in ("steps", "evaluations"):
        assert_same(read_lines(run / f"{name}.jsonl"), expected[name], name)


@pytest.fixture(autouse=True)
def whole_last_layer(monkeypatch):
    """The last layer computes every token, as in 0.1.0: dropout drew masks of that size."""
    monkeypatch.setattr(kbert.layers.Block, "takes_positions", False)


@pytest.mark.parametrize("expected", runs("fit.json", "classifier"))
def test_a_fine_tuning_resumes_to_the_losses_of_before(expected, folder, unchanged):
    run = Path(expected["folder"])
    before = (run / "steps.jsonl").read_bytes()
    assert before.count(b"\n") == 4
    task = kbert.tasks.Task.from_preset(expected["preset"])
    task.fit(expected["data"], **expected["options"], model_dir=run)
    assert (run / "steps.jsonl").read_bytes().startswith(before)
    assert_same(read_lines(run / "steps.jsonl"), expected["steps"], "steps")
    if expected["evaluations"]:
        assert_same(read_lines(run / "evaluations.jsonl"), expected["evaluations"], "evaluations")
    assert_same(task.predict(expected["asked"], verbose=0), expected["answers"])


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
def test_kbert_finetune_resumes_to_the_results_of_before(folder, call, unchanged):
    from pipelines import finetune

    expected = read("finetune.json")
    call(finetune, *expected["flags"])
    for name in ("steps", "evaluations"):
        assert_same(read_lines(f"finetune/training/{name}.jsonl"), expected[name], name)
    assert_same(json.loads(Path("finetune/results.json").read_text()), expected["results"])
    assert_same(read_lines("finetune/dev_answers.jsonl"), expected["answers"])


@pytest.mark.usefixtures("eagerly")
def test_a_student_learns_from_the_outputs_that_are_kept(folder, unchanged):
    expected = read("teacher.json")
    kept = contents("teacher")
    teacher = kbert.tasks.Task.from_preset("presets/classifier")
    student = kbert.student(teacher, num_layers=1)
    terms = [HiddenStates(), SoftTargets(weight=2.0, temperature=2.0)]
    distiller = Distiller(student, teacher, terms, cache_dir="teacher", cache_dtype="float32")
    labels = ["ham", "spam"] * 6
    distiller.fit(expected["texts"], labels, **expected["options"], model_dir="distilled")
    assert_same(read_lines("distilled/steps.jsonl"), expected["steps"], "steps")
    assert contents("teacher") == kept


@pytest.mark.usefixtures("eagerly")
def test_features_are_written_to_the_end(folder):
    expected = read("features.json")
    half = Path("features.npy.part").read_bytes()
    mark = np.float32(7.0).tobytes()  # by which it is told that the first four rows are kept
    Path("features.npy.part").write_bytes(half[: -len(mark)] + mark)
    encoder = kbert.Encoder.from_preset("presets/encoder")
    tokenizer = kbert.load_tokenizer("presets/encoder")
    given = (encoder, tokenizer, expected["texts"])
    assert kbert.extraction.write_features("features.npy", *given, **expected["options"]) == 10
    found = np.load("features.npy")
    assert found[3, -1] == 7.0
    found[3, -1] = expected["features"][3][-1]
    assert_same(found, expected["features"])


@pytest.mark.usefixtures("eagerly")
def test_kbert_predict_answers_the_rest(folder, call):
    from pipelines import predict

    expected = read("answers.json")
    _, *lines = Path("answers.jsonl").read_text().splitlines(keepends=True)
    assert len(lines) == 3
    Path("answers.jsonl").write_text("".join(['{"kept": true}\n', *lines]))
    call(predict, *expected["flags"])
    first, *answers = read_lines("answers.jsonl")
    assert first == {"kept": True}
    assert [answer["text"] for answer in answers] == expected["texts"][1:]
    assert_same(answers, expected["answers"][1:])


def test_kbert_augment_writes_the_rest(folder, call):
    from pipelines import augment

    expected = read("augmented.json")
    before = {path: path.stat().st_mtime_ns for path in Path("augmented").glob("*.jsonl")}
    assert len(before) == 2 < len(expected["files"])
    call(augment, *expected["flags"])
    found = {path.name: path.read_text() for path in Path("augmented").glob("*.jsonl")}
    assert found == expected["files"]
    assert before == {path: path.stat().st_mtime_ns for path in before}
