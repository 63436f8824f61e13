"""Files of every format, damaged in many ways: what was there is read, or one line says why not."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf

import kbert
from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.google.names import bert_rules
from kbert.checkpoints.renames import write_arrays
from kbert.models.weights import get_arrays
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.bpe.byte_alphabet import CHARACTERS
from tests.harness import tiny_config
from tests.models.elmo.elmo_reference import OPTIONS, make_weights, write_folder

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "fox", "##es"]
CONFIG = tiny_config(vocabulary_size=len(PIECES), hidden_size=8, num_heads=2, num_layers=1)


def write_google(folder):
    arrays = get_arrays(kbert.Encoder(CONFIG), "encoder")
    names = {
        "vocab_size": "vocabulary_size",
        "hidden_size": "hidden_size",
        "num_hidden_layers": "num_layers",
        "num_attention_heads": "num_heads",
        "intermediate_size": "intermediate_size",
        "max_position_embeddings": "max_positions",
        "type_vocab_size": "num_segments",
    }
    content = {there: getattr(CONFIG, here) for there, here in names.items()}
    folder.mkdir()
    (folder / "bert_config.json").write_text(json.dumps({**content, "hidden_act": "gelu"}))
    (folder / "vocab.txt").write_text("".join(f"{piece}\n" for piece in PIECES))
    there = write_arrays(bert_rules(CONFIG), arrays)
    tf.raw_ops.SaveV2(
        prefix=str(folder / "bert_model.ckpt"),
        tensor_names=list(there),
        shape_and_slices=[""] * len(there),
        tensors=[tf.constant(array) for array in there.values()],
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Format -> a folder of it, whole."""
    base = tmp_path_factory.mktemp("whole")
    tokenizer = kbert.WordPieceTokenizer(PIECES)
    task = kbert.tasks.TextClassifier(kbert.Encoder(CONFIG), tokenizer, ["no", "yes"])
    task.save_to_preset(base / "kbert")
    task.save_to_preset(base / "huggingface", "huggingface")
    task.save_to_preset(base / "shards", "huggingface", max_shard_size=1000)
    for name in ("huggingface", "shards"):
        (base / name / "special_tokens_map.json").write_text('{"mask_token": "[MASK]"}')
    gpt2 = kbert.BytePairTokenizer([*CHARACTERS, "<|endoftext|>"], [])
    sizes = {"hidden_size": 8, "num_layers": 1, "num_heads": 2, "intermediate_size": 32}
    config = kbert.DecoderConfig(vocabulary_size=257, max_positions=12, **sizes)
    kbert.Decoder(config).save_to_preset(base / "gpt2", "huggingface")
    gpt2.save(base / "gpt2")
    write_google(base / "google")
    (base / "bilm").mkdir()
    write_folder(base / "bilm", OPTIONS, make_weights(OPTIONS))
    words = "".join(f"{word}\n" for word in ("</S>", "<S>", "<UNK>", "the"))
    (base / "bilm" / "vocab.txt").write_text(words)
    return base


FORMATS = ("kbert", "huggingface", "shards", "gpt2", "google", "bilm")


def files_of(folder):
    return sorted(p.name for p in folder.iterdir())


def load(folder):
    return read_checkpoint(folder), load_tokenizer(folder)


# Files that only tokenizers are made of; the others are the model's.
OF_TOKENIZERS = ("tokenizer_config.json", "special_tokens_map.json", "vocab.json", "merges.txt")


def assert_same(found, wanted):
    (checkpoint, tokenizer), (whole, its_tokenizer) = found, wanted
    assert checkpoint.config == whole.config
    assert checkpoint.labels == whole.labels
    assert checkpoint.arrays.keys() == whole.arrays.keys()
    for name, array in whole.arrays.items():
        np.testing.assert_array_equal(checkpoint.arrays[name], array)
    assert tokenizer.get_config() == its_tokenizer.get_config()


def refusal(folder, file=None):
    """The message with which a folder is refused; None where it loads. Of one file, if it is."""
    loaders = {None: load, True: load_tokenizer, False: read_checkpoint}
    try:
        loaders[None if file is None else file in OF_TOKENIZERS](folder)
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return None


def assert_clear(message, folder, file):
    assert "Received: " in message
    assert str(folder) in message, message
    assert len(message.splitlines()) == 1 or "do not fit the model" in message
    assert len(message) < 1500, f"{file}: {message[:300]}"


@pytest.fixture
def copy_of(folders, tmp_path):
    def make(name):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
        return shutil.copytree(folders / name, tmp_path / name)

    return make


BROKEN = {
    "empty": b"",
    "a null byte": b"\0",
    "no UTF-8": b"\xff\xfe{}",
    "nested brackets": b"[" * 100_000,
    "nested objects": b'{"a":' * 100_000,
    "a long number": b'{"hidden_size": ' + b"9" * 100_000 + b"}",
    "a list": b"[]",
    "cut short": b'{"hidden_size": 3',
}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("damage", BROKEN)
def test_json_that_is_none_is_refused_with_its_name(copy_of, name, damage):
    folder = copy_of(name)
    for file in files_of(folder):
        if not file.endswith(".json"):
            continue
        whole = (folder / file).read_bytes()
        (folder / file).write_bytes(BROKEN[damage])
        message = refusal(folder)
        assert message is not None, f"{file} was taken"
        assert_clear(message, folder, file)
        assert file in message
        (folder / file).write_bytes(whole)


@pytest.mark.parametrize("name", FORMATS)
def test_what_is_no_file_is_none(copy_of, name):
    """A folder in its place, a link to itself, a link to nothing: as if it were missing."""
    folder = copy_of(name)
    for file in files_of(folder):
        path, kept = folder / file, folder.parent / "kept"
        path.rename(kept)
        missing = refusal(folder)
        for target in (None, path, folder / "nowhere"):
            path.mkdir() if target is None else path.symlink_to(target)
            message = refusal(folder)
            assert (message is None) == (missing is None), f"{file}: {message}"
            if message is not None:
                assert_clear(message, folder, file)
            path.rmdir() if target is None else path.unlink()
        kept.rename(path)


@pytest.mark.parametrize("name", FORMATS)
def test_marks_and_ends_of_lines_of_other_systems(copy_of, folders, name):
    """A byte order mark before JSON and vocabularies, and lines that end as in Windows."""
    folder, wanted = copy_of(name), load(folders / name)
    for file in files_of(folder):
        if file.endswith((".json", ".txt")):
            whole = (folder / file).read_bytes()
            (folder / file).write_bytes(b"\xef\xbb\xbf" + whole.replace(b"\n", b"\r\n"))
    assert_same(load(folder), wanted)


VALUES = (None, True, -1, 0, 10**30, float("nan"), float("inf"), "maybe", [], {}, [[]], ["a"])


def places(content, path=()):
    """Where a value stands: keys from the outermost to its own."""
    for key, value in content.items():
        yield (*path, key)
        if isinstance(value, dict) and len(path) < 2:
            yield from places(value, (*path, key))


def changed(content, place, value):
    key, *rest = place
    return {**content, key: changed(content[key], rest, value) if rest else value}


@pytest.mark.parametrize("name", FORMATS)
def test_values_of_another_kind(copy_of, name):
    """Each value of each JSON file in turn: the model is still one, or the message is clear."""
    folder = copy_of(name)
    for file in files_of(folder):
        if not file.endswith(".json") or file == "vocab.json":
            continue
        whole = (folder / file).read_text()
        content = json.loads(whole)
        for place in places(content):
            for value in VALUES:
                (folder / file).write_text(json.dumps(changed(content, place, value)))
                try:
                    message = refusal(folder, file)
                except Exception as error:
                    raise AssertionError(f"{file}: {place} = {value!r}: {error!r}") from error
                if message is not None:
                    assert_clear(message, folder, f"{file}: {place} = {value!r}")
        (folder / file).write_text(whole)


@pytest.mark.parametrize("name", FORMATS)
def test_files_cut_short_or_with_bytes_between(copy_of, folders, name):
    """Weights and vocabularies: refused, or the very same arrays."""
    folder, wanted = copy_of(name), load(folders / name)
    for file in files_of(folder):
        if file.endswith((".json", ".txt")) or file == "checkpoint":
            continue
        whole = (folder / file).read_bytes()
        for share in (0, 1, 8, len(whole) // 3, len(whole) // 2, len(whole) - 1):
            (folder / file).write_bytes(whole[:share])
            message = refusal(folder)
            assert message is not None, f"{file}: {share} of {len(whole)} bytes were taken"
            assert_clear(message, folder, file)
        (folder / file).write_bytes(whole)
    assert_same(load(folder), wanted)
