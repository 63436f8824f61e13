"""What an earlier version wrote is read, answered and gone on with as that version did it.

The files, and the expected numbers, were written by `write.py` under the version that their folder
is named after; nothing here is made by the present one. What a test writes to is a copy.
"""

import fnmatch
import functools
import importlib
import json
import os
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from absl import flags
from absl.testing import flagsaver

import kbert
from kbert.distillation import Distiller, HiddenStates, SoftTargets

pytestmark = pytest.mark.tensorflow

GOLDEN = Path(__file__).parent
FIRST, SECOND, LAST = VERSIONS = ("v0.1.0", "v0.2.0", "v1.0.0")
LOADERS = {"Task": kbert.tasks.Task, "Translator": kbert.tasks.Translator, "Elmo": kbert.Elmo}
LATER = VERSIONS[1:]
# What a test of an export needs besides TensorFlow.
PACKAGES = {"savedmodel": (), "onnx": ("onnxruntime",), "openvino": ("openvino",),
            "litert": ("ai_edge_litert",)}  # fmt: skip


@functools.cache
def files_of(version):
    """A folder with all files of a version; 1.0.0 wrote most as 0.2.0 did."""
    if version != LAST:
        return GOLDEN / version
    folder = Path(tempfile.mkdtemp(), version)
    for one in (SECOND, LAST):
        shutil.copytree(GOLDEN / one, folder, dirs_exist_ok=True)
    return folder


def read(version, name):
    return json.loads((files_of(version) / name).read_text(encoding="utf-8"))


def last_of(*versions):
    """Versions for a test, of which all but the last are slow."""
    *before, last = versions
    return [*(pytest.param(version, marks=pytest.mark.slow) for version in before), last]


def is_new(version, entry, name):
    """Whether a version wrote files of an entry otherwise than the version before."""
    if version != LAST:
        return True
    place = next((entry[key] for key in ("folder", "path", "output") if key in entry), name)
    starts = tuple(f"{folder}{place}{end}" for folder in ("", "presets/") for end in "/.")
    files = (path.relative_to(GOLDEN / version) for path in (GOLDEN / version).rglob("*"))
    return any(str(path).startswith(starts) for path in files)


def read_lines(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


# Where a version wrote less than the next one, its files are read as those of that one.


def read_presets(version):
    """Name -> what to ask it, and its answers."""
    if version != FIRST:
        return read(version, "presets.json")
    folder = GOLDEN / version / "presets"
    names = sorted(path.stem for path in folder.glob("*.json") if path.stem != "encoder")
    return {name: read(version, f"presets/{name}.json") for name in names}


def read_encoders(version):
    """Folder -> its inputs and outputs."""
    if version != FIRST:
        return read(version, "encoders.json")
    outputs = read(version, "presets/encoder.json")
    inputs = {"token_ids": outputs.pop("token_ids")}
    return {"presets/encoder": {"inputs": inputs, "outputs": outputs}}


def read_finetune(version):
    """Runs of programs: their flags, and what some of the files hold that they end with."""
    if version != FIRST:
        return read(version, "finetune.json")
    found = read(version, "finetune.json")
    files = {
        "training/steps.jsonl": found["steps"],
        "training/evaluations.jsonl": found["evaluations"],
        "results.json": found["results"],
        "dev_answers.jsonl": found["answers"],
    }
    return [{"folder": "finetune", "program": "finetune", "flags": found["flags"], "files": files}]


def read_features(version):
    found = read(version, "features.json")
    return found if version != FIRST else [{"path": "features.npy", **found}]


def read_answers(version):
    found = read(version, "answers.json")
    if version != FIRST:
        return found
    answers = zip(found["texts"], found["answers"], strict=True)
    lines = [{"text": text, **answer} for text, answer in answers]
    about = {"program": "predict", "output": "answers.jsonl", "flags": found["flags"]}
    return [{**about, "answers": lines}]


def each(reader, *fast, versions=VERSIONS):
    """(version, entry) of a file in `versions`, by names; those that are not `fast` are slow.

    Args:
        reader: version -> entries by name, or in a list, of which each has a folder, path or
            output.
        *fast: patterns of "version/name", of those that are in the default set; none = all.
    """
    found = {}
    for version in versions:
        entries = reader(version)
        if isinstance(entries, list):
            entries = {name_of(entry): entry for entry in entries}
        found |= {
            f"{version}/{name}": (version, entry)
            for name, entry in entries.items()
            if is_new(version, entry, name)
        }
    in_default = {name for x in fast or ["*"] for name in matching(found, x)}
    return [
        pytest.param(*entry, id=name, marks=[] if name in in_default else pytest.mark.slow)
        for name, entry in found.items()
    ]


def matching(names, pattern):
    found = fnmatch.filter(names, pattern)
    assert found, pattern
    return found


def name_of(entry):
    return Path(next(entry[key] for key in ("folder", "path", "output") if key in entry)).name


def of_file(name):
    return lambda version: read(version, name)


def named(reader):
    """Entries by name that say their name too."""
    return lambda version: {k: {"name": k, **entry} for k, entry in reader(version).items()}


def batches(version):
    return {f"{i}": entry for i, entry in enumerate(read(version, "batches.json"))}


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


TRAINED = 1e-4  # Adam divides a gradient by its own size, and so does not keep rounding small


def assert_same(found, expected, where="answer", tolerance=1e-5):
    """Numbers within `tolerance`, all else equal; more keys in a later version do not matter."""
    found = plain(found)
    if isinstance(expected, dict):
        assert expected.keys() <= found.keys(), where
        for name, value in expected.items():
            assert_same(found[name], value, f"{where}, {name}", tolerance)
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            assert_same(one, other, f"{where}, {number}", tolerance)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=tolerance, abs=tolerance), where
    else:
        assert found == expected, where


def contents(folder):
    """Path -> bytes of all files."""
    return {path: path.read_bytes() for path in Path(folder).rglob("*") if path.is_file()}


@pytest.fixture
def version():
    """Of tests that are of one set alone."""
    return SECOND


@pytest.fixture
def root(version):
    return files_of(version)


@pytest.fixture
def folder(version, root, tmp_path, monkeypatch):
    """A copy of all files, which the process is in: the runs name theirs by relative paths.

    Sources of texts alone are known by their whole path and by their time: the copy's are put in.
    """
    copy = tmp_path / "golden"
    shutil.copytree(root, copy)
    for path in copy.rglob("*.json"):
        content = path.read_text(encoding="utf-8")
        if '"/tmp/golden/' in content:
            path.write_text(content.replace('"/tmp/golden/', f'"{copy}/'), encoding="utf-8")
    for path in copy.glob("*.txt"):
        os.utime(path, (1_700_000_000, 1_700_000_000))
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture(autouse=True)
def whole_last_layer(version, monkeypatch):
    """The last layer computes every token, as in 0.1.0: dropout drew masks of that size."""
    if version == FIRST:
        monkeypatch.setattr(kbert.layers.Block, "takes_positions", False)


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
    """(program's name, *flags): what its console script does, in this process."""

    def call(program, *arguments):
        program = importlib.import_module(f"pipelines.{program}")
        with flagsaver.flagsaver():
            monkeypatch.setattr(sys, "argv", [program.__name__])
            before = set(flags.FLAGS)
            program.define_flags()
            for name in set(flags.FLAGS) - before:  # the key flags are what run.json holds
                flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
            program.main(flags.FLAGS([program.__name__, *arguments]))

    return call


# Of the first version those whose settings had other names, and one of each loader. Of the second
# all but those that an edit left as ordinary ones, or that repeat another.
FAST_PRESETS = [
    *(f"{FIRST}/{name}" for name in ("classifier_of_windows", "question_answerer", "regressor")),
    *(f"{FIRST}/{name}" for name in ("token_classifier", "elmo", "prefix_translator")),
    *(
        f"{SECOND}/{name}"
        for name in read_presets(SECOND)
        if name not in {"bottom_layer", "moved", "pruned_alike", "rounded", "zeros"}
        and name not in {"classifier_of_several_labels", "pretraining_llama", "without_masks"}
        and name not in {"pruned_heads", "pruned_vocabulary"}
    ),
    f"{LAST}/*",
]


def assert_answers(model, asks):
    for asked in asks:
        answers = getattr(model, asked["method"])(*asked["arguments"], **asked["options"])
        assert_same(answers, asked["answers"])


def assert_vectors(encoder, expected):
    inputs = {name: np.array(x, "int32") for name, x in expected["inputs"].items()}
    found = encoder(inputs)
    for name, vectors in expected["outputs"].items():
        assert_same(found[name], vectors, name)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("version", "expected"), each(named(read_presets), *FAST_PRESETS))
def test_a_preset_answers_as_before(root, expected):
    preset = root / "presets" / expected["name"]
    assert_answers(LOADERS[expected["load"]].from_preset(preset), expected["asks"])
    tokenizer = kbert.load_tokenizer(preset)
    assert plain(tokenizer.encode(expected["texts"])) == expected["token_ids"]


@pytest.mark.parametrize(("version", "expected"), each(named(read_encoders)))
def test_an_encoder_gives_the_vectors_of_before(root, expected):
    assert_vectors(kbert.Encoder.from_preset(root / expected["name"]), expected)


def test_keras_loads_an_encoder(root):
    encoder = keras.models.load_model(root / "encoder.keras")
    assert_vectors(encoder, read(SECOND, "encoders.json")["encoders/bert"])


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(
    "expected", [pytest.param(x, id=name_of(x)) for x in read(SECOND, "adapters.json")]
)
def test_an_adapter_answers_as_before(root, expected):
    task = kbert.edit.adapters.load_task(root / expected["base"], root / expected["folder"])
    assert_answers(task, expected["asks"])


@pytest.mark.parametrize(
    "expected", [pytest.param(x, id=name_of(x)) for x in read(SECOND, "adapters_of_encoders.json")]
)
def test_an_encoder_with_an_adapter_gives_the_vectors_of_before(root, expected):
    encoder = kbert.Encoder.from_preset(root / expected["base"])
    bare = read(SECOND, "encoders.json")[expected["base"]]
    kbert.edit.adapters.load(encoder, root / expected["folder"])
    assert_vectors(encoder, expected)
    kbert.edit.adapters.activate(encoder, None)
    assert_vectors(encoder, bare)


@pytest.mark.usefixtures("eagerly")
def test_each_adapter_of_a_preset_can_run(root):
    task = kbert.tasks.Task.from_preset(root / "presets/two_adapters")
    expected = read(SECOND, "two_adapters.json")
    assert list(expected) == ["", "first", "second"]
    texts = read(SECOND, "presets.json")["two_adapters"]["texts"]
    kbert.edit.adapters.activate(task, None)  # it follows its encoder
    for name, answers in expected.items():
        kbert.edit.adapters.activate(task.encoder, name or None)
        assert_same(task.predict(texts), answers, name)


@pytest.mark.parametrize(("version", "expected"), each(batches, f"{LAST}/*"))
def test_shards_give_the_batches_of_before(root, expected):
    shards = root / expected["folder"]
    make = getattr(kbert.data, expected["function"])
    dataset = make(shards, kbert.load_tokenizer(shards), **expected["options"])
    found = [plain(batch) for batch in dataset.take(3).as_numpy_iterator()][::2]
    for one, other in zip(found, expected["batches"], strict=True):
        assert {name: one.get(name) for name in other} == other


@pytest.mark.parametrize("version", VERSIONS)
def test_a_corpus_is_not_prepared_again(folder):
    """Not by another version either, where nothing else is new."""
    for shards in ("shards", "word_shards"):
        before = contents(shards)
        tokenizer = kbert.load_tokenizer(shards)
        manifest = kbert.data.prepare_corpus("text.txt", shards, tokenizer, held_out_share=0.2)
        assert manifest.splits["train"].documents + manifest.splits["held_out"].documents == 30
        assert contents(shards) == before


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("version", "expected"), each(of_file("pretrain.json"), f"{LAST}/gpt"))
def test_a_pretraining_resumes_to_the_losses_of_before(expected, folder, call, unchanged):
    run = Path(expected["folder"])
    assert len(read_lines(run / "steps.jsonl")) == 5
    call(expected.get("program", "pretrain"), *expected["flags"])
    for name in ("steps", "evaluations"):
        assert_same(read_lines(run / f"{name}.jsonl"), expected[name], name)


FAST_FITS = [f"{FIRST}/classifier", f"{LAST}/two_adapters"]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("version", "expected"), each(of_file("fit.json"), *FAST_FITS))
def test_a_fine_tuning_resumes_to_the_losses_of_before(expected, folder, unchanged):
    run = Path(expected["folder"])
    before = (run / "steps.jsonl").read_bytes()
    assert before.count(b"\n") == 4
    task = kbert.tasks.Task.from_preset(expected["preset"])
    options = dict(expected["options"])
    if getattr(task, "query_prompt", None):  # numbered its texts with their prompts
        with pytest.raises(ValueError, match=r"Received: data_checksum was"):
            task.fit(expected["data"], **options, model_dir=run)
        options["resume"] = ["data_checksum"]
    task.fit(expected["data"], **options, model_dir=run)
    assert (run / "steps.jsonl").read_bytes().startswith(before)
    assert_same(read_lines(run / "steps.jsonl"), expected["steps"], "steps")
    if expected["evaluations"]:
        assert_same(read_lines(run / "evaluations.jsonl"), expected["evaluations"], "evaluations")
    answers = task.predict(expected["asked"], verbose=0)
    assert_same(answers, expected["answers"], tolerance=TRAINED)


@pytest.mark.slow
@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("version", LATER)
def test_two_tasks_with_adapters_resume_to_the_losses_of_before(version, folder, unchanged):
    expected = read(version, "multi_task.json")
    encoder = kbert.Encoder.from_preset("presets/encoder")
    tokenizer = kbert.load_tokenizer("presets/encoder")
    multi = kbert.tasks.MultiTask({
        name: kbert.edit.adapters.load_task(encoder, f"adapters/{name}", tokenizer=tokenizer)
        for name in expected["data"]
    })  # fmt: skip
    run = Path("fit/multi_task")
    assert len(read_lines(run / "steps.jsonl")) == 4
    multi.fit(expected["data"], **expected["options"], model_dir=run)
    assert_same(read_lines(run / "steps.jsonl"), expected["steps"], "steps")
    for name, answers in expected["answers"].items():
        assert_same(multi.tasks[name].predict(expected["texts"]), answers, name)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("version", "expected"), each(read_finetune, f"{LAST}/movement"))
def test_a_run_on_a_table_resumes_to_the_results_of_before(expected, folder, call, unchanged):
    run = Path(expected["folder"])
    call(expected["program"], *expected["flags"])
    for name, content in expected["files"].items():
        path = run / name
        found = read_lines(path) if path.suffix == ".jsonl" else json.loads(path.read_text())
        assert_same(found, content, name)


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize("version", last_of(FIRST, SECOND))
def test_a_student_learns_from_the_outputs_that_are_kept(version, folder, unchanged):
    expected = read(version, "teacher.json")
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
@pytest.mark.parametrize(("version", "expected"), each(read_features))
def test_features_are_written_to_the_end(expected, folder):
    path, options = expected["path"], expected["options"]
    half = Path(f"{path}.part").read_bytes()
    if path.endswith(".npy"):  # by this it is told that what is there is kept
        mark = np.float32(7.0).tobytes()
        half = half[: -len(mark)] + mark
        Path(f"{path}.part").write_bytes(half)
    encoder = kbert.Encoder.from_preset("presets/encoder")
    tokenizer = kbert.load_tokenizer("presets/encoder")
    given = (encoder, tokenizer, expected["texts"])
    assert kbert.extraction.write_features(path, *given, **options) == 10
    features = expected["features"]
    found = kbert.extraction.read_features(path, options["dtype"])
    if path.endswith(".tfrecord"):
        assert Path(path).read_bytes().startswith(half)
        for one, other in zip(found.as_numpy_iterator(), features, strict=True):
            np.testing.assert_allclose(one, other, rtol=2**-10, atol=1e-5)
        return
    found = [np.array(row) for row in found]
    last = found[3][-1] if found[3].ndim == 2 else found[3]
    assert last[-1] == 7.0
    last[-1] = np.ravel(features[3])[-1]
    assert_same(found, features)


ALL_ANSWERS = each(read_answers, f"{FIRST}/*", f"{SECOND}/embed.npy")


@pytest.mark.usefixtures("eagerly")
@pytest.mark.parametrize(("version", "expected"), ALL_ANSWERS)
def test_a_program_answers_the_rest(expected, folder, call):
    output = Path(expected["output"])
    if output.suffix == ".npy":
        half = bytearray(output.read_bytes())
        half[-4:] = np.float32(7.0).tobytes()  # the last number of four rows
        output.write_bytes(half)
        call(expected["program"], *expected["flags"])
        found = np.load(output)
        assert found[3, -1] == 7.0
        found[3, -1] = expected["answers"][3][-1]
        assert_same(found, expected["answers"])
        return
    first, *lines = output.read_text(encoding="utf-8").splitlines(keepends=True)
    assert len(lines) == 3
    size = len(first.encode()) - 1
    kept = '{"kept": true}'.ljust(size) + "\n"
    output.write_text("".join([kept, *lines]), encoding="utf-8")
    call(expected["program"], *expected["flags"])
    first, *answers = read_lines(output)
    assert first == {"kept": True}
    assert_same(answers, expected["answers"][1:])


@pytest.mark.parametrize("version", last_of(*VERSIONS))
def test_kbert_augment_writes_the_rest(version, folder, call):
    expected = read(version, "augmented.json")
    before = {path: path.stat().st_mtime_ns for path in Path("augmented").glob("*.jsonl")}
    assert len(before) == 2 < len(expected["files"])
    call("augment", *expected["flags"])
    found = {path.name: path.read_text() for path in Path("augmented").glob("*.jsonl")}
    assert found == expected["files"]
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_an_index_finds_as_before(root):
    expected = read(SECOND, "index.json")
    hits = kbert.search.Index.load(root / "index").search(expected["queries"], k=3)
    assert_same(hits.ids, expected["ids"])
    assert_same(hits.scores, expected["scores"])


@pytest.mark.parametrize(
    ("version", "expected"), each(of_file("exports.json"), f"{LAST}/*", versions=LATER)
)
def test_an_export_answers_as_before(root, expected, tmp_path):
    for package in PACKAGES[expected["format"]]:
        pytest.importorskip(package)
    shutil.unpack_archive(root / f"{expected['folder']}.zip", tmp_path)
    if expected["format"] == "savedmodel":
        served = tf.saved_model.load(tmp_path / "1").signatures["serving_default"]
        answers = served(text=tf.constant(expected["texts"]))
    else:
        answers = kbert.export.load_exported(tmp_path).predict(expected["texts"])
    if expected["precision"] == "int8":
        # Processors may round an input of each of the products to the next of 127 steps.
        products = 5
        np.testing.assert_allclose(answers, expected["answers"], atol=products / 127)
    else:
        assert_same(answers, expected["answers"])
