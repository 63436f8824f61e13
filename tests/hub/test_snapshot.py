"""Downloads from a hub on loopback: what is asked for, kept, checked and said."""

import os
import time

import pytest
from huggingface_hub import constants

from kbert.hub import locate

FILES = {
    "config.json": b'{"model_type": "bert"}',
    "vocab.txt": b"[PAD]\n[UNK]\n",
    "model.safetensors": bytes(range(256)) * 40,
    "pytorch_model.bin": b"a pickle",
    "README.md": b"# words",
    "onnx/model.safetensors": b"another",
}
WANTED = ["config.json", "model.safetensors", "vocab.txt"]


@pytest.fixture
def model(hub):
    hub.add("someone/model", FILES)
    return hub


def content(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_is_wanted_is_downloaded_and_nothing_else(model):
    folder = locate("hf:someone/model")
    assert content(folder) == {name: FILES[name] for name in WANTED}
    assert model.files_requested() == WANTED


def test_a_second_call_asks_for_no_file(model):
    folder = locate("hf:someone/model")
    model.requests.clear()
    assert locate("hf:someone/model") == folder
    assert model.requests
    assert not model.files_requested()
    assert not [request for request in model.requests if request.startswith("HEAD")]


def test_a_tokenizer_s_files_come_without_the_weights_and_the_weights_later(model):
    folder = locate("hf:someone/model", weights=False)
    assert sorted(content(folder)) == ["config.json", "vocab.txt"]
    assert sorted(content(locate("hf:someone/model"))) == WANTED


def test_a_well_known_name(hub):
    hub.add("google-bert/bert-base-uncased", FILES)
    assert content(locate("bert-base-uncased"))["vocab.txt"] == FILES["vocab.txt"]


def test_sharded_weights(hub):
    shards = {f"model-0000{n}-of-00002.safetensors": b"%d" % n * 9 for n in (1, 2)}
    files = {"config.json": b"{}", "model.safetensors.index.json": b"{}", **shards}
    hub.add("someone/sharded", files)
    assert content(locate("hf:someone/sharded")) == files


def test_modules_of_sentence_transformers(hub):
    """Those of a layer too; a folder that is none of theirs stays there."""
    modules = {
        "modules.json": b"[]",
        "sentence_bert_config.json": b"{}",
        "sentence_roberta_config.json": b"{    }",
        "config_sentence_transformers.json": b"{ }",
        "1_Pooling/config.json": b"{  }",
        "2_Dense/config.json": b"{   }",
        "2_Dense/model.safetensors": bytes(2000),
    }
    hub.add("someone/embedder", {**FILES, **modules, "2_Dense/pytorch_model.bin": b"a pickle"})
    folder = locate("hf:someone/embedder")
    found = {str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file()}
    assert found == {*WANTED, *modules}


def test_the_first_format_of_weights_that_a_repository_has(hub):
    """Of the model, and of a layer beside it, which may be of another."""
    dense = {"2_Dense/config.json": b"{}", "2_Dense/pytorch_model.bin": bytes(20)}
    shards = {f"pytorch_model-0000{n}-of-00002.bin": b"%d" % n * 9 for n in (1, 2)}
    old = {"config.json": b"{}", "pytorch_model.bin.index.json": b"{}", **shards}
    hub.add("someone/old", old | dense | {"optimizer.bin": b"x"})
    hub.add("someone/newer", FILES | dense)
    for name, wanted in (("old", [*old]), ("newer", WANTED)):
        folder = locate(f"hf:someone/{name}")
        found = {str(x.relative_to(folder)) for x in folder.rglob("*") if x.is_file()}
        assert found == {*wanted, *dense}


@pytest.mark.parametrize("how", ["in the name", "as an argument"])
def test_a_revision_stays_when_the_branch_moves_on(model, how):
    old = model.add("someone/model", {**FILES, "vocab.txt": b"old"}, revision="v1")
    for revision in ("v1", old):
        if how == "in the name":
            folder = locate(f"hf:someone/model@{revision}")
        else:
            folder = locate("hf:someone/model", revision=revision)
        assert content(folder)["vocab.txt"] == b"old"
    assert content(locate("hf:someone/model"))["vocab.txt"] == FILES["vocab.txt"]


def test_a_branch_that_moved_is_followed(model):
    locate("hf:someone/model")
    model.add("someone/model", {**FILES, "vocab.txt": b"new"})
    model.requests.clear()
    assert content(locate("hf:someone/model"))["vocab.txt"] == b"new"
    assert model.files_requested() == ["vocab.txt"]  # the weights are the same


def test_a_damaged_file_is_refused_and_fetched_again(model):
    model.corrupt = True
    with pytest.raises(ValueError, match=r"model.safetensors of 'hf:someone/model' must have"):
        locate("hf:someone/model")
    model.corrupt = False
    assert content(locate("hf:someone/model"))["model.safetensors"] == FILES["model.safetensors"]


def test_a_file_that_the_disk_damaged_is_found(model):
    folder = locate("hf:someone/model")
    blob = (folder / "model.safetensors").resolve()
    blob.write_bytes(b"x" + FILES["model.safetensors"][1:])
    with pytest.raises(ValueError, match=r"removed from the cache: try again. Received: [0-9a-f]"):
        locate("hf:someone/model")
    assert not blob.exists()
    assert content(locate("hf:someone/model"))["model.safetensors"] == FILES["model.safetensors"]


@pytest.fixture
def no_waiting(monkeypatch):
    monkeypatch.setattr(time, "sleep", lambda _: None)


def test_a_connection_that_breaks_is_taken_up_where_it_broke(model, no_waiting, monkeypatch):
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    model.break_after = [5000]
    folder = locate("hf:someone/model")
    assert content(folder)["model.safetensors"] == FILES["model.safetensors"]
    assert "RANGE 5000" in model.requests


def test_a_hub_that_dies_and_comes_back(model, no_waiting):
    model.break_after = [100] + [0] * 100
    with pytest.raises(ConnectionError, match="The same call resumes the download"):
        locate("hf:someone/model")
    model.break_after = []
    model.requests.clear()
    assert sorted(content(locate("hf:someone/model"))) == WANTED
    assert model.files_requested() == ["model.safetensors"]


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("RepoNotFound", FileNotFoundError, "hub has no repository http.*/someone/model/tree/main"),
        ("GatedRepo", PermissionError, "accept the terms there.*hf auth login.*HF_TOKEN"),
        ("Portal", ConnectionError, "cannot be downloaded: JSONDecodeError: Expecting value"),
        ("ServerError", ConnectionError, "cannot be downloaded: HfHubHTTPError: Server error '500"),
    ],
)
def test_a_hub_that_refuses(model, no_waiting, code, error, message):
    model.refused["someone/model"] = code
    with pytest.raises(error, match=f"{message}.*Received: 'hf:someone/model'"):
        locate("hf:someone/model")


def test_a_revision_that_is_not_there(model):
    with pytest.raises(FileNotFoundError, match=r"no such branch, tag or commit: .*/tree/nope"):
        locate("hf:someone/model@nope")


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("rust_model.ot",), "has no weights in these formats.*@refs/pr/N.*save_pretrained"),
        (("onnx/model.safetensors",), "has no weights in these formats"),
    ],
)
def test_a_repository_without_weights(hub, files, message):
    hub.add("someone/old", dict.fromkeys(("config.json", "vocab.txt", *files), b"x"))
    with pytest.raises(FileNotFoundError, match=message):
        locate("hf:someone/old")
    assert not hub.files_requested()
    assert sorted(content(locate("hf:someone/old", weights=False))) == ["config.json", "vocab.txt"]


@pytest.fixture
def offline(model, monkeypatch):
    def go():
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
        model.requests.clear()

    return go


def test_offline_the_cache_is_enough(model, offline):
    commit = model.add("someone/model", FILES)
    folder = locate("hf:someone/model")
    offline()
    assert locate("hf:someone/model") == locate(f"hf:someone/model@{commit}") == folder
    assert not model.requests


def test_offline_without_a_cache_says_what_to_put_where(model, offline):
    offline()
    message = (
        "cannot be downloaded: HF_HUB_OFFLINE is set.*download config.json, model.safetensors and"
        ".*vocab.txt.*from http://127.0.0.1.*/someone/model/tree/main elsewhere, put them into one "
        "folder, and pass that folder. Received: 'hf:someone/model'"
    )
    with pytest.raises(ConnectionError, match=message):
        locate("hf:someone/model")


def test_offline_with_half_of_it_in_the_cache(model, offline):
    locate("hf:someone/model", weights=False)
    offline()
    with pytest.raises(ConnectionError, match=r"not completely.* HF_HUB_OFFLINE is set"):
        locate("hf:someone/model")


def test_nobody_listens(model):
    model.close()
    with pytest.raises(ConnectionError, match=r"ConnectError: .*refused"):
        locate("hf:someone/model")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_cache_that_may_not_be_written(model, tmp_path):
    (tmp_path / "hub").mkdir(mode=0o500)
    with pytest.raises(PermissionError, match=r"Cannot write the hub's cache, .*/hub"):
        locate("hf:someone/model")


def test_a_cache_that_cannot_be_a_folder(model, tmp_path):
    (tmp_path / "hub").write_text("a file")
    with pytest.raises(OSError, match=r"Cannot write the hub's cache, .*/hub"):
        locate("hf:someone/model")
