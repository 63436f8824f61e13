"""Files by their address: fetched once, checked always."""

import hashlib
import zipfile

import pytest

from kbert.hub import fetch

CONTENT = b"sentence\tlabel\n"
SHA256 = hashlib.sha256(CONTENT).hexdigest()


@pytest.fixture
def published(monkeypatch, tmp_path):
    """A folder that stands for a server's."""
    monkeypatch.setenv("KBERT_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "server"
    folder.mkdir()
    (folder / "dev.tsv").write_bytes(CONTENT)
    return folder


def test_a_file_is_fetched_once(published):
    url = f"file://{published}/dev.tsv"
    path = fetch(url, SHA256.upper())
    (published / "dev.tsv").unlink()
    assert fetch(url, SHA256.upper()) == path
    assert path.read_bytes() == CONTENT


def test_an_archive_is_unpacked(published):
    with zipfile.ZipFile(published / "SST-2.zip", "w") as archive:
        archive.writestr("SST-2/dev.tsv", CONTENT)
        archive.writestr("SST-2/train.tsv", CONTENT)
    sha256 = hashlib.sha256((published / "SST-2.zip").read_bytes()).hexdigest()
    folder = fetch(f"file://{published}/SST-2.zip", sha256)
    assert (folder / "dev.tsv").read_bytes() == CONTENT


def test_another_file_is_refused_and_not_kept(published, tmp_path):
    with pytest.raises(ValueError, match=rf"must be {'0' * 64}: .* Received: {SHA256} of file:"):
        fetch(f"file://{published}/dev.tsv", "0" * 64)
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_a_file_that_was_damaged_in_the_cache_is_refused(published):
    url = f"file://{published}/dev.tsv"
    path = fetch(url, SHA256)
    path.write_bytes(CONTENT + b"x")
    with pytest.raises(ValueError, match=f"must be {SHA256}: .* of {path}"):
        fetch(url, SHA256)


def test_a_query_is_not_part_of_the_name(published):
    (published / "dev.tsv?download=1").write_bytes(CONTENT)  # a server would give the other
    assert fetch(f"file://{published}/dev.tsv?download=1#top", SHA256).name == "dev.tsv"


NO_FILES = ["https://host/folder/", "https://host/..", "https://host/%2e%2e", "https://host"]
NO_FILES += ["dev.tsv", "ftp://host/dev.tsv", "https://host/a%5c..%5cb"]


@pytest.mark.parametrize("url", NO_FILES)
def test_an_address_without_a_file_is_refused(url, published, tmp_path):
    with pytest.raises(ValueError, match=f"end with the name of a file. Received: '{url}'"):
        fetch(url, SHA256)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("url", ["file:///no/such/dev.tsv", "http://127.0.0.1:9/dev.tsv"])
def test_no_network(url, published, tmp_path):
    with pytest.raises(ConnectionError, match=rf"or put the file at {tmp_path}.*Received: {url}"):
        fetch(url, SHA256)
