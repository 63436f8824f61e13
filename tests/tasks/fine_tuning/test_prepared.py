"""Rows of tasks on disk: trained on as in memory, resumed exactly, refused where they differ."""

import subprocess
import sys

import keras
import numpy as np
import pytest

import kbert
from kbert.data import Table, read_rows, read_table, table_parts
from kbert.data.tables import shards
from kbert.tasks import TextClassifier, prepare_rows
from kbert.tasks.fine_tuning import prepared
from tests.killing import ends_before, ends_killed, signalled
from tests.processes import ROOT
from tests.waiting import PATIENCE

pytestmark = pytest.mark.tensorflow

WORDS = "the a red blue green pen fox dog cat book house river tree".split()


def make(config, tokenizer, labels=("no", "yes"), seed=1, kind=TextClassifier, **options):
    keras.utils.set_random_seed(seed)
    arguments = {"labels": list(labels)} if labels else {}
    return kind(kbert.Encoder(config), tokenizer, **arguments, **options)


def data(count, seed=0):
    """Texts are "yes" where they name a fox."""
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice(WORDS, rng.integers(0, 16))) for _ in range(count)]
    return texts, ["yes" if "fox" in text.split() else "no" for text in texts]


def examples(count, seed=0):
    texts, labels = data(count, seed)
    return ({"text": t, "label": label} for t, label in zip(texts, labels, strict=True))


@pytest.fixture
def small(monkeypatch):
    """Several blocks, windows and shards of some dozen rows."""
    monkeypatch.setattr(shards, "BLOCK_ROWS", 4)
    monkeypatch.setattr(shards, "WINDOW_ROWS", 16)
    monkeypatch.setattr(shards, "SHARD_BYTES", 2000)
    monkeypatch.setattr(prepared, "PART_ROWS", 10)


def assert_same_weights(found, wanted):
    for one, other in zip(found.get_weights(), wanted.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.usefixtures("eagerly")
def test_it_trains_as_in_memory(config, tokenizer, tmp_path):
    options = {"epochs": 2, "batch_size": 8, "learning_rate": 1e-3, "verbose": 0}
    options |= {"validation_data": data(12, seed=1)}
    wanted = make(config, tokenizer)
    history = wanted.fit(*data(30), **options)
    found = make(config, tokenizer)
    rows = prepare_rows(found, examples(30), tmp_path)
    assert found.fit(tmp_path, **options).history == history.history
    assert_same_weights(found, wanted)
    opened = make(config, tokenizer)
    assert opened.fit(rows, **options).history == history.history


@pytest.mark.usefixtures("eagerly", "small")
@pytest.mark.slow
def test_a_run_that_was_stopped_resumes_to_the_same_numbers(config, tokenizer, tmp_path):
    options = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "verbose": 0}
    whole = make(config, tokenizer)
    rows = prepare_rows(whole, examples(42), tmp_path / "rows")
    assert len(rows.note["shards"]) > 1
    whole.fit(tmp_path / "rows", **options)

    class Stop(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if self.model.optimizer.iterations.numpy() == 9:
                raise KeyboardInterrupt  # in the second of the three windows of the second epoch

    options |= {"model_dir": tmp_path / "run", "checkpoint_every": 3}
    with pytest.raises(KeyboardInterrupt):
        make(config, tokenizer).fit(tmp_path / "rows", callbacks=[Stop()], **options)
    again = make(config, tokenizer)
    again.fit(tmp_path / "rows", **options)
    assert_same_weights(again, whole)

    other = prepare_rows(again, examples(42, seed=1), tmp_path / "other")
    with pytest.raises(ValueError, match=r"Received: data_checksum was .*, is "):
        make(config, tokenizer).fit(other, **options)


def test_a_tuple_of_data_and_labels_is_that_of_fit(config, tokenizer, tmp_path):
    task = kbert.TokenClassifier(kbert.Encoder(config), tokenizer, ["O", "B-x"])
    given = [["the", "fox"], ["a", "dog"]], [["O", "B-x"], ["O", "O"]]
    rows = prepare_rows(task, given, tmp_path / "rows")
    assert rows.num_examples == 2


KILLED = """
import sys
from kbert.data.tables import shards
from kbert.tasks import TextClassifier, prepare_rows
from kbert.tasks.fine_tuning import prepared
from tests.tasks.fine_tuning.test_prepared import OF_RUN, examples
shards.BLOCK_ROWS, shards.WINDOW_ROWS, shards.SHARD_BYTES, prepared.PART_ROWS = 4, 16, 2000, 10
preset, rows, run, end = sys.argv[1:]
task = TextClassifier.from_preset(preset)
prepare_rows(task, examples(42), rows)
task.fit(rows, model_dir=run, checkpoint_every=3, **OF_RUN)
task.save_to_preset(end)
"""
OF_RUN = {"epochs": 3, "batch_size": 8, "learning_rate": 1e-3, "verbose": 0}


@pytest.mark.slow
@pytest.mark.usefixtures("small")
def test_writing_and_training_end_alike_though_they_are_killed(config, tokenizer, tmp_path):
    task = make(config, tokenizer)
    task.save_to_preset(tmp_path / "preset")
    whole = prepare_rows(task, examples(42), tmp_path / "whole")
    task.fit(whole, **OF_RUN)
    folders = [str(tmp_path / name) for name in ("preset", "rows", "run", "end")]

    def start(before=""):
        return subprocess.Popen(
            [sys.executable, "-c", before + KILLED, *folders],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    ends_killed(start(signalled("kbert.io.outputs:Output.save", calls=2)))
    with pytest.raises(ValueError, match="are unfinished"):
        read_rows(folders[1])
    ends_before(start(signalled(calls=2)), tmp_path / "run", last_step=18)
    last = start()
    _, errors = last.communicate(timeout=PATIENCE)
    assert last.returncode == 0, errors[-3000:]
    assert read_rows(folders[1]).checksum == whole.checksum
    assert_same_weights(TextClassifier.from_preset(folders[3]), task)


def forms(folder):
    """The same data in several forms."""
    texts, labels = data(25)
    lines = [f"{text}\t{label}\n" for text, label in zip(texts, labels, strict=True)]
    (folder / "named.tsv").write_text("text\tlabel\n" + "".join(lines))
    (folder / "other.tsv").write_text("review\tstars\n" + "".join(lines))
    table = Table({"text": texts, "label": labels})
    columns = {"text": "review", "label": "stars"}
    return {
        "dicts": examples(25),
        "a file": folder / "named.tsv",
        "parts of a file": table_parts(folder / "other.tsv", 10, columns=columns),
        "tables": (table[i : i + 10] for i in (0, 10, 20)),
        "columns": {"text": texts, "label": labels},
        "a list of dicts": list(examples(25)),
    }


@pytest.mark.usefixtures("small")
def test_every_form_of_data_gives_the_same_rows(config, tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(prepared, "table_parts", lambda path: table_parts(path, 10))
    task = make(config, tokenizer)
    found = {
        name: prepare_rows(task, form, tmp_path / name) for name, form in forms(tmp_path).items()
    }
    checksums = {name: rows.checksum for name, rows in found.items()}
    assert len(set(checksums.values())) == 1, checksums
    assert {rows.num_examples for rows in found.values()} == {25}
    texts, labels = data(25)
    wanted = task.tokenize(Table({"text": texts, "label": labels}), labelled=True)
    assert found["a file"].first(25).checksum == wanted.checksum
    for whole in (Table({"text": texts, "label": labels}), (texts, labels)):  # one part
        rows = prepare_rows(task, whole, tmp_path / type(whole).__name__)
        assert rows.first(25).checksum == wanted.checksum


SENTENCES = {"words": [["the", "fox"], ["a", "dog", "jumps"], ["red"]] * 4}
SENTENCES |= {"labels": [["no", "yes"], ["no", "no", "yes"], ["yes"]] * 4}
CHOICES = {"context": ["the fox", "a dog"] * 6, "choices": [["jumps", "is red"], ["a", "b c"]] * 6}
KINDS = [
    ("TextClassifier", {"labels": ["no", "yes"], "doc_stride": 3, "max_length": 8}, "text", None),
    ("TextClassifier", {"labels": ["no", "yes"], "multi_label": True}, "text", [["no"], []] * 6),
    ("TextClassifier", {"labels": ["no", "yes"]}, "pair", ["no", "yes"] * 6),
    ("TextRegressor", {}, "text", [0.5, 2.0] * 6),
    ("TokenClassifier", {"labels": ["no", "yes"], "max_length": 5}, SENTENCES, None),
    ("MultipleChoice", {}, {**CHOICES, "label": [0, 1] * 6}, None),
    ("TextDenoiser", {}, {"text": data(12)[0]}, None),
    ("SkipThought", {}, dict.fromkeys(("previous", "text", "next"), data(12)[0]), None),
]


@pytest.mark.usefixtures("eagerly")
@pytest.mark.slow
@pytest.mark.parametrize(("kind", "options", "columns", "labels"), KINDS)
def test_every_kind_trains_as_in_memory(
    config, tokenizer, tmp_path, kind, options, columns, labels
):
    texts, classes = data(12)
    if columns == "text":
        columns = {"text": texts, "label": labels or classes}
    elif columns == "pair":
        columns = {"first": texts, "second": texts[::-1], "label": labels}
    table = Table(columns)
    settings = {"epochs": 1, "batch_size": 4, "learning_rate": 1e-3, "verbose": 0}
    kind = getattr(kbert.tasks, kind)
    wanted = make(config, tokenizer, **{"labels": (), "kind": kind, **options})
    wanted.fit(table, **settings)
    found = make(config, tokenizer, **{"labels": (), "kind": kind, **options})
    prepare_rows(found, table, tmp_path)
    found.fit(tmp_path, **settings)
    assert_same_weights(found, wanted)


@pytest.mark.usefixtures("small")
def test_weights_are_written_with_the_rows(config, tokenizer, tmp_path):
    texts, labels = data(25)
    weights = [float(i % 3) for i in range(5)] + [0.0] * 10 + [1.0] * 10  # a part without any
    table = Table({"text": texts, "label": labels, "weight": weights})
    task = make(config, tokenizer)
    chosen = {"sample_weight": "weight", "class_weights": {"yes": 3.0}}
    rows = prepare_rows(task, (table[i : i + 5] for i in range(0, 25, 5)), tmp_path, **chosen)
    wanted = task.make_objective(table, **chosen).rows
    assert rows.first(25).checksum == wanted.checksum
    with pytest.raises(ValueError, match=r"weights.class_weights.yes was 3.0, is 4.0"):
        prepare_rows(
            task, table, tmp_path, sample_weight="weight", class_weights={"yes": 4.0, "no": 1.0}
        )
    with pytest.raises(ValueError, match="The column 'weight' is ambiguous"):
        prepare_rows(task, table, tmp_path / "unasked")
    with pytest.raises(ValueError, match=r"weights by label.*Received: class_weights='bal"):
        prepare_rows(task, table, tmp_path / "balanced", class_weights="balanced")


@pytest.fixture
def folder(config, tokenizer, tmp_path):
    prepare_rows(make(config, tokenizer), examples(20), tmp_path / "rows")
    return tmp_path / "rows"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": data(20)[1]}, "Received: labels"),
        ({"validation_split": 0.1}, "Received: validation_split"),
        ({"class_weights": "balanced"}, "Received: class_weights"),
        ({"sample_weight": "weight"}, "Received: sample_weight"),
        ({"sample_weight": [1.0] * 20}, "Received: sample_weight"),
    ],
)
def test_what_needs_a_table_is_refused(config, tokenizer, folder, options, message):
    with pytest.raises(ValueError, match=f"not supported for rows on disk, .*{message}"):
        make(config, tokenizer).fit(folder, **options)


def test_rows_of_another_task_are_refused(config, tokenizer, folder, tiny_vocabulary):
    def refuses(task, message):
        with pytest.raises(ValueError, match=f"for another task, tokenizer or settings.*{message}"):
            task.fit(folder)
        with pytest.raises(ValueError, match=f"started with other settings.*{message}"):
            prepare_rows(task, examples(20), folder)

    refuses(make(config, tokenizer, ("yes", "no")), r"task.labels was \['no', 'yes'\], is")
    refuses(make(config, tokenizer, max_length=9), "task.max_length was None, is 9")
    refuses(make(config.replace(max_positions=50), tokenizer), "task.row_length was 40, is 50")
    refuses(
        make(config, tokenizer, (), kind=kbert.tasks.TextRegressor),
        "task.kind was 'classify', is 'regress'",
    )
    cased = kbert.WordPieceTokenizer(tiny_vocabulary, lowercase=False)
    refuses(make(config, cased), "tokenizer.lowercase was True, is False")
    shorter = kbert.WordPieceTokenizer(tiny_vocabulary[:-1])
    refuses(
        make(config.replace(vocabulary_size=len(tiny_vocabulary) - 1), shorter),
        "tokenizer.checksum was ",
    )


def test_settings_that_no_row_depends_on_may_differ(config, tokenizer, folder):
    options = {"dropout": 0.3, "pooling": "max", "threshold": 0.4}
    task = make(config.replace(dropout=0.2), tokenizer, **options)
    assert task.make_objective(folder).steps_per_epoch == 1
    assert prepare_rows(task, examples(20), folder).checksum == read_rows(folder).checksum


def test_bad_data_is_named_by_its_line(config, tokenizer, tmp_path):
    path = tmp_path / "data.csv"
    rows = "".join(f"text {i},{'no' if i != 5000 else 'perhaps'}\n" for i in range(6000))
    path.write_text("text,label\n" + rows)
    with pytest.raises(ValueError, match=f"{path}, line 5002: .*'perhaps'"):
        prepare_rows(make(config, tokenizer), path, tmp_path / "rows")
    numbers = ({"text": str(i) if i != 4999 else 7, "label": "no"} for i in range(6000))
    with pytest.raises(ValueError, match="row 4999 of the data: 'text' must be a string"):
        prepare_rows(make(config, tokenizer), numbers, tmp_path / "others")


@pytest.mark.parametrize("kind", ["TextEmbedder", "QuestionAnswerer"])
def test_tasks_that_must_see_the_whole_table_are_refused(config, tokenizer, tmp_path, kind):
    task = make(config, tokenizer, (), kind=getattr(kbert.tasks, kind))
    with pytest.raises(ValueError, match=f"the whole table at once.*Received: a {kind}"):
        prepare_rows(task, examples(3), tmp_path)


def test_a_folder_without_rows_is_refused(config, tokenizer, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"a folder with rows.json.*Received: "):
        make(config, tokenizer).fit(tmp_path)


def test_parts_of_files_are_those_of_the_whole(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"One,\n\ntwo",3\nthree,4\n\nfour,5\n')
    (tmp_path / "b.csv").write_text("text,label\nfive,6\n")
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": " x"}\n\n{"text": "b", "label": "y"}')
    (tmp_path / "a.txt").write_text("one\ntwo\nthree")
    cases = [("*.csv", {"numeric_labels": True}, 2), ("a.jsonl", {}, 1), ("a.txt", {}, 2)]
    for name, options, size in cases:
        whole = read_table(tmp_path / name, **options)
        parts = list(table_parts(tmp_path / name, size, **options))
        assert all(len(part) <= size for part in parts)
        joined = {c: [x for part in parts for x in part[c]] for c in whole.columns}
        assert joined == whole.columns
        places = [part.place(row) for part in parts for row in range(len(part))]
        assert places == [whole.place(row) for row in range(len(whole))]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("text,label\na,x\nb,y,z\n", "line 3: the row has 3 columns, the first row has 2"),
        ("text,label\na,x\nb,\n", "line 3: the label is empty"),
    ],
)
def test_a_bad_part_is_named(tmp_path, content, message):
    path = tmp_path / "a.csv"
    path.write_text(content)
    parts = table_parts(path, 1)
    assert next(parts)["text"] == ["a"]
    with pytest.raises(ValueError, match=message):
        next(parts)


def test_parts_are_of_files(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text\na\n")
    with pytest.raises(
        ValueError, match=r"table_parts requires a file.*Received: tfds:glue, size=4096"
    ):
        next(table_parts("tfds:glue"))
    with pytest.raises(ValueError, match=r"a size of at least 1.*size=0"):
        next(table_parts(tmp_path / "a.csv", 0))
    with pytest.raises(TypeError, match="colums"):
        next(table_parts(path, colums={}))
