"""Names of models: what they stand for, and what is said of those that stand for nothing."""

import pytest

from kbert.catalog.families import ALIASES, FAMILY
from kbert.catalog.repositories import parse_name
from kbert.hub import REPOSITORIES, locate

NEVER_RELEASED = {
    *("bert-xlarge", "mobilebert-tiny-uncased", "ib-bert-large-uncased"),
    "awd-lstm",  # fastai's is a pickle of PyTorch's
}


def test_every_model_of_the_family_has_a_repository():
    assert {*FAMILY, *ALIASES} - NEVER_RELEASED <= set(REPOSITORIES)


def test_the_repository_of_an_alias_is_the_one_of_its_model():
    for alias, name in ALIASES.items():
        if "/" not in alias:  # sentence-transformers' have weights of their own
            assert REPOSITORIES[alias] == REPOSITORIES[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("bert-base-uncased", ("google-bert/bert-base-uncased", None)),
        ("google-bert/bert-base-uncased", ("google-bert/bert-base-uncased", None)),
        ("roberta-base@main", ("FacebookAI/roberta-base", "main")),
        ("bert-tiny", ("google/bert_uncased_L-2_H-128_A-2", None)),
        ("hf:bert-base-uncased", ("bert-base-uncased", None)),
        ("hf:a/b@refs/pr/3", ("a/b", "refs/pr/3")),
        ("hf:a_b/c.d-e@v1.0+x", ("a_b/c.d-e", "v1.0+x")),
        ("someone/model", None),
        ("./bert-base-uncased", None),
        ("", None),
    ],
)
def test_names(name, expected):
    assert parse_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "hf:",
        "hf:a/b/c",
        "hf:/a",
        "hf:a/",
        "hf:../a",
        "hf:a/..",
        "hf:a/b..c",
        "hf:a/b--c",
        "hf: a/b",
        "hf:a/b\n",
        "hf:-a/b",
        "hf:a/.b",
        f"hf:a/{'b' * 97}",
        "hf:a\\b",
        "hf:datasets/a/b",
        "hf://a/b",
    ],
)
def test_bad_names(name):
    with pytest.raises(ValueError, match=r"written hf:owner/name or .*Received: '"):
        locate(name)


@pytest.mark.parametrize("revision", ["", "..", "a/../b", "-x", "a b", "a\x00", "/a", "main@x"])
def test_bad_revisions(revision):
    with pytest.raises(ValueError, match="A revision must be a branch, a tag or a commit"):
        locate(f"hf:a/b@{revision}")
    with pytest.raises(ValueError, match="A revision must be a branch, a tag or a commit"):
        locate("hf:a/b", revision=revision)


def test_two_revisions():
    with pytest.raises(
        ValueError, match=r"in the name or as `revision`, not both. Received: 'hf:a"
    ):
        locate("hf:a/b@v1", revision="v2")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "bert-base-uncasd",
            "Close: bert-base-uncased.*hf:owner/name. Received: 'bert-base-uncasd'",
        ),
        ("electra-base", "Close: electra-base-generator, electra-base-discriminator, google/"),
        (
            "someone/model",
            "no such folder or zip file, nor a well-known model of this name. A repos",
        ),
        ("../nowhere", "no such folder"),
        ("", "no such folder"),
        ("\x00", "no such folder"),
        ("x" * 5000, "no such folder"),
        ("https://storage.googleapis.com/x.zip", "not loaded from a URL: download the file"),
    ],
)
def test_what_is_nowhere(name, message):
    with pytest.raises(FileNotFoundError, match=message):
        locate(name)


def test_a_folder_goes_before_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bert-base-uncased").mkdir()
    assert locate("bert-base-uncased").is_dir()
    with pytest.raises(ValueError, match=r"left out for a local path.* revision='v1'"):
        locate("bert-base-uncased", revision="v1")


def test_another_file_is_no_model(tmp_path):
    for name, message in (("m.bin", "not another file. Rec"), ("m.tar.gz", "Unpack it first")):
        (tmp_path / name).write_text("")
        with pytest.raises(ValueError, match=f"{message}.*{name}"):
            locate(tmp_path / name)
