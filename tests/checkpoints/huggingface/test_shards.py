import json

import numpy as np
import pytest

from kbert.checkpoints import read_checkpoint
from kbert.checkpoints.huggingface.shards import INDEX_FILE, read_shards
from kbert.io.arrays import read_safetensors, write_safetensors
from kbert.models import Encoder
from tests.harness import randomise, tiny_config

FILES = {
    "model-00001-of-00002.safetensors": {"a": np.ones(2), "b": np.zeros((1, 3), "float32")},
    "model-00002-of-00002.safetensors": {"c": np.arange(4.0)},
}


@pytest.fixture
def folder(tmp_path):
    for file, arrays in FILES.items():
        write_safetensors(tmp_path / file, arrays)
    write_index(tmp_path, {name: file for file, arrays in FILES.items() for name in arrays})
    return tmp_path


def write_index(folder, places):
    content = {"metadata": {"total_size": 1}, "weight_map": places}
    (folder / INDEX_FILE).write_text(json.dumps(content))


def read_index(folder):
    return json.loads((folder / INDEX_FILE).read_text())["weight_map"]


def test_all_files_are_read(folder):
    arrays = read_shards(folder)
    expected = {name: array for file in FILES.values() for name, array in file.items()}
    assert arrays.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(arrays[name], array)


def test_missing_files_are_named(folder):
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ValueError, match=r"All 2 files .*Received: no model-00002-of-00002"):
        read_shards(folder)


def test_a_name_in_two_files_is_refused(folder):
    write_safetensors(
        folder / "model-00002-of-00002.safetensors", {"c": np.ones(1), "a": np.ones(2)}
    )
    with pytest.raises(ValueError, match=r"and no others. Received: a in only one of"):
        read_shards(folder)


def test_a_name_that_the_file_lacks_is_refused(folder):
    write_index(folder, {**read_index(folder), "d": "model-00001-of-00002.safetensors"})
    with pytest.raises(ValueError, match=r"and no others. Received: d in only one of"):
        read_shards(folder)


def test_a_file_cut_short_is_named(folder):
    path = folder / "model-00002-of-00002.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"damaged, truncated.*model-00002-of-00002"):
        read_shards(folder)


@pytest.mark.parametrize(
    "file",
    ["../x.safetensors", "/etc/passwd", "sub/x.safetensors", "..", "", 3, "..\\x.safetensors"],
)
def test_a_path_in_the_index_is_refused(folder, file):
    write_index(folder, {**read_index(folder), "c": file})
    with pytest.raises(ValueError, match=r"files in its folder, without a path. Received: "):
        read_shards(folder)


@pytest.mark.parametrize("content", ["[]", "{", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_an_index_that_is_none(folder, content):
    (folder / INDEX_FILE).write_text(content)
    with pytest.raises(ValueError, match=r"JSON|weight_map"):
        read_shards(folder)


def test_transformers_shards_are_read(tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    encoder = Encoder(tiny_config(activation="gelu"))
    randomise(encoder)
    encoder.save_to_preset(tmp_path / "one", format="huggingface")
    model = transformers.BertModel.from_pretrained(tmp_path / "one")
    model.save_pretrained(tmp_path / "several", max_shard_size="5KB")
    assert not (tmp_path / "several" / "model.safetensors").exists()
    assert len(list((tmp_path / "several").glob("model-*.safetensors"))) > 2
    one, several = read_checkpoint(tmp_path / "one"), read_checkpoint(tmp_path / "several")
    assert several.config == one.config
    assert several.arrays.keys() == one.arrays.keys()
    for name, array in one.arrays.items():
        np.testing.assert_array_equal(several.arrays[name], array)


def test_the_one_file_counts_where_there_are_both(tmp_path):
    Encoder(tiny_config()).save_to_preset(tmp_path, format="huggingface")
    (tmp_path / INDEX_FILE).write_text("{}")
    assert read_checkpoint(tmp_path).arrays
    assert read_safetensors(tmp_path / "model.safetensors")


def files(folder):
    return sorted(path.name for path in folder.iterdir())


def test_shards_are_written_and_those_before_go(tmp_path):
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    encoder = Encoder(tiny_config(activation="gelu"))
    randomise(encoder)
    size = 6000
    encoder.save_to_preset(tmp_path, format="huggingface", max_shard_size=size)
    shards = sorted(tmp_path.glob("model-*.safetensors"))
    assert len(shards) > 2
    assert files(tmp_path) == ["config.json", *(path.name for path in shards), INDEX_FILE]
    for path in shards:
        assert sum(array.nbytes for array in read_safetensors(path).values()) <= size
    model = transformers.AutoModel.from_pretrained(tmp_path)
    table = model.embeddings.word_embeddings.weight.detach().numpy()
    np.testing.assert_array_equal(table, encoder.token_embedding.numpy())

    encoder.save_to_preset(tmp_path, format="huggingface")
    assert files(tmp_path) == ["config.json", "model.safetensors"]
    encoder.save_to_preset(tmp_path, format="huggingface", max_shard_size=2 * size)
    assert "model.safetensors" not in files(tmp_path)
    assert 1 < len(list(tmp_path.glob("model-*.safetensors"))) < len(shards)
    again = Encoder.from_preset(tmp_path)
    np.testing.assert_array_equal(again.token_embedding, encoder.token_embedding)


def test_an_array_larger_than_a_shard_has_one_of_its_own(tmp_path):
    Encoder(tiny_config()).save_to_preset(tmp_path, format="huggingface", max_shard_size=1)
    assert all(len(read_safetensors(p)) == 1 for p in tmp_path.glob("model-*.safetensors"))
    assert Encoder.from_preset(tmp_path).config == tiny_config()
