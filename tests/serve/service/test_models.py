"""Version folders come and go; requests do not notice."""

import concurrent.futures
import ctypes
import gc
import os
import shutil
import threading
import time
import weakref
from pathlib import Path

import pytest

from kbert.serve.service import models
from kbert.serve.service.models import version_folders
from tests.serve.harness import running
from tests.waiting import until

PATH = "/v1/models/m:predict"
BODY = {"signature_name": "total", "instances": [[1, 2]]}


def versions(service) -> list[tuple[str, str]]:
    found = service.get("/v1/models/m")[1]["model_version_status"]
    return [(each["version"], each["state"]) for each in found]


@pytest.fixture
def folder(operations, tmp_path) -> Path:
    """A model's folder with version 1."""
    shutil.copytree(operations, tmp_path / "m" / "1")
    return tmp_path / "m"


def test_a_new_version_takes_over_and_no_request_is_lost(folder, operations):
    with running(model=[f"m={folder}"], poll_seconds=0.05) as service:
        done, found = threading.Event(), []

        def ask():
            while not done.is_set():
                found.append(service.post(PATH, BODY))

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            asking = [pool.submit(ask) for _ in range(4)]
            for number in ("2", "10"):
                shutil.copytree(operations, folder / f".{number}")
                os.rename(folder / f".{number}", folder / number)
                until(lambda number=number: versions(service) == [(number, "AVAILABLE")])
            done.set()
            for each in asking:
                each.result()
        assert found
        assert found == [(200, {"predictions": [3.0]})] * len(found)
        assert service.metric("kbert_newest_version") == 10
        assert service.post(f"/v1/models/m/versions/1{PATH[-8:]}", BODY)[0] == 404


def test_the_newest_version_is_the_older_one_after_a_rollback(folder, operations):
    shutil.copytree(operations, folder / "2")
    with running(model=[f"m={folder}"], poll_seconds=0.05) as service:
        assert service.metric("kbert_newest_version") == 2
        shutil.rmtree(folder / "2")
        until(lambda: versions(service) == [("1", "AVAILABLE")])
        assert service.metric("kbert_newest_version") == 1


def test_several_versions_at_once_and_one_that_is_damaged(folder, operations):
    shutil.copytree(operations, folder / "2")
    (folder / "3").mkdir()
    (folder / "3" / "saved_model.pb").write_bytes(b"\xff" * 100)
    (folder / "latest").mkdir()
    with running(model=[f"m={folder}"], num_versions=2, poll_seconds=0.05) as service:
        assert versions(service) == [("3", "END"), ("2", "AVAILABLE"), ("1", "AVAILABLE")]
        status = service.get("/v1/models/m/versions/3")[1]["model_version_status"][0]["status"]
        assert status["error_message"].startswith(
            "The folder must have a SavedModel or an export that can be loaded ("
        )
        for number, wanted in (("1", 200), ("2", 200), ("3", 404)):
            assert service.post(f"/v1/models/m/versions/{number}:predict", BODY)[0] == wanted
        shutil.rmtree(folder / "3")
        shutil.copytree(operations, folder / "4")
        until(lambda: versions(service) == [("4", "AVAILABLE"), ("2", "AVAILABLE")])
        shutil.rmtree(folder)  # what is served stays
        time.sleep(0.3)
        assert service.post(PATH, BODY)[0] == 200


def test_an_unforeseen_error_is_logged_and_later_versions_load(
    folder, operations, monkeypatch, caplog
):
    load, look, failing = models._load, version_folders, [RuntimeError("looking")]

    def load_or_fail(path, threads):
        if path.name == "2":
            raise TypeError("loading")
        return load(path, threads)

    looks = []

    def look_or_fail(folder):
        looks.append(folder)
        if len(looks) > 1 and failing:
            raise failing.pop()
        return look(folder)

    monkeypatch.setattr(models, "_load", load_or_fail)
    monkeypatch.setattr(models, "version_folders", look_or_fail)
    with running(model=[f"m={folder}"], poll_seconds=0.05) as service:
        until(lambda: not failing)
        shutil.copytree(operations, folder / "2")
        until(lambda: ("2", "END") in versions(service))
        assert service.post(PATH, BODY)[0] == 200
        shutil.copytree(operations, folder / "3")
        until(lambda: ("3", "AVAILABLE") in versions(service))
    assert "RuntimeError: looking" in caplog.text  # with its traceback
    assert "m, version 2: TypeError('loading')" in caplog.text
    assert caplog.text.count("TypeError: loading") == 1


def test_what_waits_for_an_old_version_is_answered(folder, operations, gate, monkeypatch):
    """And then nothing of it is left."""
    load, loaded, still_used = models._load, [], []
    collect, collected = gc.collect, []

    def load_and_watch(path, threads):
        found = load(path, threads)
        loaded.append(weakref.ref(found._loaded))
        if os.fspath(path).endswith("1"):
            still_used.append(found)  # as by an answer that is being sent
        return found

    monkeypatch.setattr(models, "_load", load_and_watch)
    monkeypatch.setattr(models, "_COLLECTIONS", 10**6)
    monkeypatch.setattr(gc, "collect", lambda: collected.append(collect()))
    gate.open.set()
    with running(model=[f"m={folder}"], poll_seconds=0.05) as service:
        gate.hold()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            old = [pool.submit(service.post, PATH, BODY) for _ in range(3)]
            gate.wait_for_run()
            until(lambda: service.metric("kbert_waiting_texts") + gate.runs[-1] >= 3)
            gate.open.set()
            shutil.copytree(operations, folder / "2")
            assert [each.result() for each in old] == [(200, {"predictions": [3.0]})] * 3
        until(lambda: versions(service) == [("2", "AVAILABLE")])
        gc.disable()  # it does not wait for Python to do it
        try:
            until(lambda: len(collected) > 2)
            assert loaded[0]() is not None
            still_used.clear()
            until(lambda: loaded[0]() is None)
        finally:
            still_used.clear()
            gc.enable()
        assert loaded[1]() is not None


def test_memory_that_cannot_be_returned_is_logged_and_requests_are_answered(
    folder, monkeypatch, caplog
):
    def fail():
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(models, "_TRIM_SECONDS", 0.05)
    monkeypatch.setattr(models, "_give_back", fail)
    with running(model=[f"m={folder}"], poll_seconds=0) as service:
        until(lambda: caplog.text.count("not returned to the system: can't start new thread") > 1)
        assert service.post(PATH, BODY)[0] == 200


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc's alone")
def test_memory_freed_between_blocks_in_use_goes_back_to_the_system(folder, monkeypatch):
    glibc = ctypes.CDLL(None)
    glibc.malloc.restype, glibc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    glibc.free.argtypes = [ctypes.c_void_p]
    size, page = 20_000, os.sysconf("SC_PAGE_SIZE")

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * page

    monkeypatch.setattr(models, "_TRIM_SECONDS", 0.1)
    with running(model=[f"m={folder}"], poll_seconds=0):
        blocks = [glibc.malloc(size) for _ in range(4000)]
        for block in blocks:
            ctypes.memset(block, 1, size)
        full = resident()
        for block in blocks[::2]:
            glibc.free(block)
        try:
            until(lambda: resident() < full - 0.5 * size * len(blocks[::2]))
        finally:
            for block in blocks[1::2]:
                glibc.free(block)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder: None, r"The folder cannot be read \(.*none"),
        (
            lambda folder: folder.mkdir(),
            "must hold a SavedModel or an export to another runtime .*, or version folders .*none",
        ),
        (
            lambda folder: [
                (folder / "1").mkdir(parents=True),
                (folder / "1" / "saved_model.pb").write_bytes(b"a"),
            ],
            "of which one loads. The folder must have a SavedModel or an export that can be loaded",
        ),
    ],
)
def test_a_folder_without_a_model_ends_the_start(tmp_path, make, message):
    make(tmp_path / "none")
    options = {"model": [f"m={tmp_path / 'none'}"], "grpc_port": 0}
    with pytest.raises(ValueError, match=message), running(**options):
        pass


def test_names_of_version_folders(tmp_path):
    for name in ("1", "2", "10", "01", "-1", "x", "³", "9" * 30):
        (tmp_path / name).mkdir()
        (tmp_path / name / "saved_model.pb").touch()
    (tmp_path / "7").mkdir()  # not there yet
    assert list(version_folders(tmp_path)) == [10, 2, 1]
    assert list(version_folders(tmp_path / "2")) == [2]
