"""The folder of a cache: whole shards whatever happens, of one teacher, within the free space."""

import contextlib
import errno
import json
import os
import shutil
import signal

import numpy as np
import pytest

from kbert.data.tables.table import as_table
from kbert.distillation import Distiller, HiddenStates, SoftTargets
from kbert.distillation.cache import store as stores
from kbert.distillation.cache.layout import TEXTS, TOKENS, Layout
from kbert.distillation.cache.outputs import identity
from kbert.distillation.cache.shard import SUFFIX
from kbert.distillation.cache.store import Store
from kbert.edit import adapters
from kbert.io import atomic
from kbert.tasks import TextClassifier, TextEmbedder
from tests.distillation.cached import batches_of, make_pair
from tests.harness import randomise
from tests.waiting import until

LAYOUTS = {
    "states": Layout((TEXTS, TOKENS, 3), "float16"),
    "scores": Layout((TEXTS, 2, TOKENS, TOKENS), "float32"),
    "head": Layout((TEXTS,), "float32", -1.0),
}
TEACHER = {"weights": "a", "config": {"layers": 2}}


def make_row(number, names=tuple(LAYOUTS)):
    """A row of an odd width; its numbers tell which it is."""
    size = np.array([1 + number % 2, 1 + number % 5], np.int32)
    counts = {name: int(LAYOUTS[name].counts(size[None])[0]) for name in names}
    vectors = {k: np.full(n, number, LAYOUTS[k].dtype) for k, n in counts.items()}
    return number.to_bytes(16, "little"), size, vectors


def keys_of(numbers):
    return np.array([number.to_bytes(16, "little") for number in numbers], "S16")


def make_store(folder, numbers=range(10), names=tuple(LAYOUTS)):
    store = Store(folder, TEACHER, "float16")
    os.makedirs(folder, exist_ok=True)
    store.write((make_row(n, names) for n in numbers), {name: LAYOUTS[name] for name in names})
    return store


def shards_of(folder):
    return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX))


@pytest.fixture
def small_shards(monkeypatch):
    monkeypatch.setattr(stores, "SHARD_ROWS", 3)


def test_rows_of_any_width_in_any_order(tmp_path, small_shards):
    make_store(tmp_path)
    assert len(shards_of(tmp_path)) == 4
    store = Store(tmp_path, TEACHER, "float16")
    numbers = [7, 0, 9, 7, 256]  # 0 and 256 begin or end with zeros
    assert (store.find(keys_of(numbers), "head") >= 0).tolist() == [True] * 4 + [False]
    places = store.find(keys_of(numbers[:4]), "head")
    states, scores, head = (store.read(name, places, 2, 6) for name in LAYOUTS)
    assert states.shape == (4, 2, 6, 3)
    assert scores.shape == (4, 2, 2, 6, 6)
    assert (states.dtype, scores.dtype) == ("float16", "float32")
    for row, number in enumerate(numbers[:4]):
        texts, tokens = 1 + number % 2, 1 + number % 5
        assert (states[row, :texts, :tokens] == number).all()
        assert (scores[row, :texts, :, :tokens, :tokens] == number).all()
        assert states[row].sum() == number * texts * tokens * 3
        assert head[row].tolist() == [number] * texts + [-1.0] * (2 - texts)


def test_shards_are_written_once_whoever_writes_them(tmp_path, small_shards):
    make_store(tmp_path)
    before = {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}
    make_store(tmp_path)  # as a process does that does not see the lock of another
    assert before == {name: (tmp_path / name).read_bytes() for name in os.listdir(tmp_path)}


def test_outputs_of_a_row_may_lie_in_different_shards(tmp_path, small_shards):
    make_store(tmp_path, range(10), ["head"])
    store = make_store(tmp_path, range(9, 3, -1), ["states"])
    found = store.find(keys_of(range(10)), "states") >= 0
    assert found.tolist() == [False] * 4 + [True] * 6
    at = {name: store.find(keys_of([5]), name) for name in ("head", "states")}
    assert all(store.read(name, place, 2, 1).max() == 5 for name, place in at.items())


def test_few_files_are_open(tmp_path, small_shards, monkeypatch):
    monkeypatch.setattr(stores, "_OPEN_SHARDS", 2)
    store = make_store(tmp_path)
    for _ in range(2):
        places = store.find(keys_of(range(10)), "states")
        assert store.read("states", places, 2, 5)[:, 0, 0, 0].tolist() == list(range(10))
    assert sum(bool(shard._arrays) for shard in store._shards.values()) <= 2


def test_a_process_that_is_killed_leaves_whole_shards(tmp_path, small_shards):
    child = os.fork()
    if not child:
        make_store(tmp_path / "cache", range(1_000_000))
        os._exit(1)
    until(lambda: (tmp_path / "cache").exists() and len(shards_of(tmp_path / "cache")) >= 3)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
    store = Store(tmp_path / "cache", TEACHER, "float16")
    found = store.find(keys_of(range(1000)), "states")
    whole = int((found >= 0).sum())
    assert whole >= 9
    assert (found[:whole] >= 0).all()
    states = store.read("states", found[:whole], 2, 5)
    assert states[:, 0, 0, 0].tolist() == list(range(whole))


@pytest.mark.parametrize("harm", ["cut", "tail", "index", "numbers", "header", "empty"])
def test_a_damaged_shard_is_named(tmp_path, harm):
    make_store(tmp_path)
    (name,) = shards_of(tmp_path)
    data = bytearray((tmp_path / name).read_bytes())
    begin = 8 + int.from_bytes(data[:8], "little")
    places = json.loads(data[8:begin])
    of = {k: begin + places[k]["data_offsets"][0] for k in ("keys", "states")}
    if harm in ("index", "numbers"):
        data[of["keys" if harm == "index" else "states"] + 1] ^= 1
    elif harm == "header":
        data[9] ^= 255
    else:
        data = {"cut": data[:-5], "tail": data + b"x", "empty": b""}[harm]
    (tmp_path / name).write_bytes(data)

    def read():
        store = Store(tmp_path, TEACHER, "float16")
        return store.read("states", store.find(keys_of([3]), "states"), 2, 5)

    with pytest.raises(ValueError, match=rf"is damaged: delete it.* Received: .*{name} \("):
        read()
    os.remove(tmp_path / name)
    assert make_store(tmp_path).find(keys_of([3]), "states") >= 0


def test_a_folder_is_of_one_teacher_and_dtype(tmp_path):
    make_store(tmp_path)
    with pytest.raises(ValueError, match=r"other settings.* teacher.weights was 'a', is 'b'"):
        Store(tmp_path, {**TEACHER, "weights": "b"}, "float16")
    with pytest.raises(
        ValueError, match=r"choose another output.* dtype was 'float16', is 'float32'"
    ):
        Store(tmp_path, TEACHER, "float32")
    manifest = json.loads((tmp_path / stores.MANIFEST).read_text())
    (tmp_path / stores.MANIFEST).write_text(json.dumps({**manifest, "format": 2}))
    with pytest.raises(ValueError, match=r"Received: format was 2, is 1"):
        Store(tmp_path, TEACHER, "float16")
    (tmp_path / stores.MANIFEST).write_text("{")
    with pytest.raises(ValueError, match="manifest of a cache must be JSON"):
        Store(tmp_path, TEACHER, "float16")


def test_a_teacher_that_was_trained_on_is_another_one(tokenizer, tmp_path):
    student, teacher = make_pair("classes", tokenizer)
    distiller = Distiller(student, teacher, [SoftTargets()], cache_dir=tmp_path)
    batches_of(distiller, as_table(["a dog"], [0]))
    randomise(teacher.classifier, seed=9)
    with pytest.raises(ValueError, match=r"Received: teacher.weights was"):
        distiller.cache_size(["a dog"])


def test_a_teacher_with_another_active_adapter_is_another_one(tokenizer, tmp_path):
    student, teacher = make_pair("classes", tokenizer)
    assert "adapters" not in identity(teacher)  # as in caches of older versions
    for name in ("first", "second"):
        adapters.add(teacher, "lora", name=name, rank=2)
    distiller = Distiller(student, teacher, [SoftTargets()], cache_dir=tmp_path)
    batches_of(distiller, as_table(["a dog"], [0]))
    checksum = identity(teacher)["weights"]
    adapters.activate(teacher, "first")
    assert identity(teacher)["weights"] == checksum
    with pytest.raises(ValueError, match=r"adapters.running was 'second', is 'first'"):
        distiller.cache_size(["a dog"])
    adapters.activate(teacher, "second")
    assert distiller.cache_size(["a dog"]).missing_rows == 0


@pytest.mark.parametrize(("layers", "others"), [(1, 3), ((1, 2), (1, 3))])
def test_a_teacher_whose_head_reads_other_layers_is_another_one(
    tokenizer, tmp_path, layers, others
):
    student, first = make_pair("classes", tokenizer)

    def distiller(layers):
        teacher = TextClassifier(first.encoder, tokenizer, first.labels, feature_layers=layers)
        randomise(teacher, sigma=0.3, seed=2)
        return Distiller(student, teacher, [SoftTargets()], cache_dir=tmp_path)

    batches_of(distiller(layers), as_table(["a dog"], [0]))
    assert distiller(layers).cache_size(["a dog"]).missing_rows == 0
    with pytest.raises(ValueError, match=r"teacher.settings.feature_layers was .*1.*, is .*3"):
        distiller(others).cache_size(["a dog"])


def test_what_an_embedder_does_with_its_tokens_is_part_of_its_identity(tokenizer):
    _, task = make_pair("classes", tokenizer)
    usual = identity(TextEmbedder(task.encoder, tokenizer))["settings"]
    assert not {"token_pooling", "normalize", "projection_activation"} & {*usual}
    for changes in ({"token_pooling": "cls"}, {"normalize": False}):
        other = identity(TextEmbedder(task.encoder, tokenizer, **changes))["settings"]
        assert other == {**usual, **changes}


def test_a_full_disk_is_named_and_the_next_start_resumes(
    classes, tmp_path, small_shards, monkeypatch
):
    student, teacher = classes
    distiller = Distiller(student, teacher, [HiddenStates()], cache_dir=tmp_path)
    table = as_table(["a", "a dog", "the red fox", "moon", "the sun"], [0, 1, 0, 1, 0])
    replace, written = os.replace, []

    def full(old, new):
        written.append(new)
        if len(written) == 3:  # the manifest, a shard, and now
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(old, new)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=rf"Cannot write .*{SUFFIX}: No space left on device"):
        batches_of(distiller, table)
    monkeypatch.setattr(os, "replace", replace)
    assert len(shards_of(tmp_path)) == 1
    assert distiller.cache_size(table).missing_rows == 2
    (tmp_path / f"x{SUFFIX}{atomic._MARK}1").write_text("what a kill has left")
    batches_of(distiller, table)
    assert not [name for name in os.listdir(tmp_path) if atomic._MARK in name]
    assert distiller.cache_size(table).missing_rows == 0


def test_what_does_not_fit_is_not_begun(classes, tmp_path, monkeypatch):
    student, teacher = classes
    folder = tmp_path / "deep" / "cache"
    distiller = Distiller(student, teacher, [HiddenStates()], cache_dir=folder)
    table = as_table(["a dog"], [0])
    needed = distiller.cache_size(table).missing_bytes
    assert needed == 2 * 4 * 16 * 2 + 3 * 4 + 24
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed - 1))
    with pytest.raises(OSError, match=rf"need {needed} B of disk.* Received: {needed - 1} B in"):
        batches_of(distiller, table)
    assert not folder.exists()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=needed))
    batches_of(distiller, table)


def test_a_second_process_waits_and_computes_nothing_twice(classes, tmp_path, monkeypatch):
    """While it waits for the lock, the first one writes what both want."""
    student, teacher = classes
    table = as_table(["a dog", "moon"], [0, 1])
    first = Distiller(student, teacher, [HiddenStates()], cache_dir=tmp_path)
    second = Distiller(student, teacher, [HiddenStates()], cache_dir=tmp_path)
    remove_leftovers = atomic.remove_leftovers

    def between(folder):
        monkeypatch.setattr(atomic, "remove_leftovers", remove_leftovers)
        monkeypatch.setattr(atomic, "only_one", lambda _: contextlib.nullcontext())
        batches_of(first, table)
        return remove_leftovers(folder)

    monkeypatch.setattr(atomic, "remove_leftovers", between)
    monkeypatch.setattr(second._cache(), "_rows", lambda *_: iter(()))
    assert "teacher/hidden_states/4" in batches_of(second, table)[0]
