"""Zip files of models: what comes out, and which are refused before anything does."""

import hashlib
import os
import re
import stat
import subprocess
import sys
import threading
import zipfile

import pytest

from kbert.hub import archive, locate
from tests.processes import LIGHT, ROOT

FILES = {
    "bert_config.json": b"{}",
    "bert_model.ckpt.index": b"an index",
    "bert_model.ckpt.data-00000-of-00001": os.urandom(50_000),
    "vocab.txt": b"[PAD]\n",
}


def make_zip(path, files, **options):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, **options) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return path


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("inside", ["", "uncased_L-12_H-768_A-12/", "a/b/"])
def test_google_s_releases(tmp_path, cache, inside):
    path = make_zip(tmp_path / "m.zip", {f"{inside}{k}": v for k, v in FILES.items()})
    folder = locate(path)
    assert content(folder) == FILES
    checksum = hashlib.sha256(path.read_bytes()).hexdigest()
    assert folder == cache / "unpacked" / checksum / inside
    assert os.listdir(cache / "unpacked") == [checksum]


def test_a_folder_s_own_entry_and_what_macos_adds(tmp_path):
    extra = {"bert/": b"", "__MACOSX/bert/._vocab.txt": b"x"}
    path = make_zip(tmp_path / "m.zip", {**extra, **{f"bert/{k}": v for k, v in FILES.items()}})
    assert content(locate(path)) == FILES


def test_it_is_unpacked_once_and_goes_by_its_content(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "m.zip", FILES)
    first = locate(path)
    moved = path.rename(tmp_path / "other.ZIP")
    with monkeypatch.context() as patch:
        patch.setattr(archive, "_unpack", lambda *_: pytest.fail("unpacked again"))
        assert locate(moved) == first
    assert locate(make_zip(path, {**FILES, "vocab.txt": b"new"})) != first


def test_at_once_from_many_threads(tmp_path, cache):
    path = make_zip(tmp_path / "m.zip", FILES)
    found = []
    threads = [threading.Thread(target=lambda: found.append(locate(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert content(found[0]) == FILES
    assert len(os.listdir(cache / "unpacked")) == 1


@pytest.mark.parametrize(
    "name", ["../out", "a/../../out", "/out", "\\out", "c:\\out", "..\\out", "c:out", "//host/out"]
)
def test_names_outside_are_refused(tmp_path, cache, name):
    path = make_zip(tmp_path / "m.zip", {"vocab.txt": b"x"})
    # As an attacker would: the writer of Python's zipfile tidies some names.
    raw = path.read_bytes().replace(b"vocab.txt", name.encode()[:9].ljust(9, b"x"))
    path.write_bytes(raw)
    with pytest.raises(ValueError, match=r"plain files and folders below its root.*m.zip"):
        locate(path)
    assert os.listdir(cache / "unpacked") == []


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR])
def test_links_and_devices_are_refused(tmp_path, kind):
    info = zipfile.ZipInfo("vocab.txt")
    info.external_attr = (kind | 0o777) << 16
    path = make_zip(tmp_path / "m.zip", {})
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(info, "/etc/passwd")
    with pytest.raises(ValueError, match=r"not links, not encrypted. Received: 'vocab.txt' in "):
        locate(path)


def test_a_bomb_is_refused(tmp_path, monkeypatch):
    path = make_zip(tmp_path / "m.zip", {"zeros": bytes(1_000_000)})
    assert locate(path)  # small ones do no harm
    monkeypatch.setattr(archive, "_ALWAYS_ALLOWED", 1000)
    path = make_zip(path, {"zeros": bytes(1_000_001)})
    with pytest.raises(ValueError, match=r"at most 20 times its size.*unpack to 1,000,001 bytes"):
        locate(path)


def test_a_size_that_lies_is_found_by_the_checksum(tmp_path):
    path = make_zip(tmp_path / "m.zip", {"zeros": bytes(70_000)})
    path.write_bytes(path.read_bytes().replace((70_000).to_bytes(4, "little"), b"\x0a\0\0\0"))
    with pytest.raises(ValueError, match=r"The zip file is damaged .*CRC"):
        locate(path)


def test_too_many_members_and_a_name_twice(tmp_path):
    path = make_zip(tmp_path / "m.zip", {str(n): b"" for n in range(1001)})
    with pytest.raises(ValueError, match=r"at most 1000 files, .* Received: .* with 1001"):
        locate(path)
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("a", b"1")
        with pytest.warns(UserWarning, match="Duplicate"):
            file.writestr("a", b"2")
    with pytest.raises(ValueError, match="with 2, 1 different"):
        locate(path)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_damage_is_found_and_nothing_is_left(tmp_path, cache, damage):
    path = make_zip(tmp_path / "m.zip", FILES)
    raw = bytearray(path.read_bytes())
    raw[20_000] ^= 1
    damaged = {"cut": raw[:30_000], "flipped": raw, "empty": b"", "text": b"no zip at all"}
    path.write_bytes(damaged[damage])
    with pytest.raises(ValueError, match=r"The zip file is damaged .*Received: .*m.zip"):
        locate(path)
    assert os.listdir(cache / "unpacked") == []


def test_a_member_that_is_a_file_and_a_folder(tmp_path, cache):
    path = make_zip(tmp_path / "m.zip", {"a": b"1", "a/b": b"2"})
    with pytest.raises(OSError, match=r"Cannot write .*/a/b"):
        locate(path)
    assert os.listdir(cache / "unpacked") == []


def test_a_full_disk_names_the_file_and_leaves_nothing(tmp_path, cache):
    path = make_zip(tmp_path / "m.zip", FILES)
    code = (
        "import resource, signal, sys\n"
        "from kbert.hub import locate\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, resource.RLIM_INFINITY))\n"
        "try: locate(sys.argv[1])\n"
        "except OSError as error: print(error)\n"
    )
    run = [sys.executable, "-c", LIGHT + code, path]
    done = subprocess.run(run, capture_output=True, text=True, cwd=ROOT)
    assert re.search(r"Cannot write .*bert_model\.ckpt\.data", done.stdout), done.stderr
    assert os.listdir(cache / "unpacked") == []


def test_a_cache_that_cannot_be_a_folder(tmp_path, cache):
    cache.write_text("a file")
    with pytest.raises(OSError, match=r"Cannot write .*/cache/unpacked"):
        locate(make_zip(tmp_path / "m.zip", FILES))
