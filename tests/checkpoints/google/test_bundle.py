import numpy as np
import pytest
import tensorflow as tf

from kbert.checkpoints.google.bundle import find_checkpoint, holds_checkpoint, read_tensors


def write(folder, prefix="model.ckpt", value=1.0):
    """A checkpoint of two variables."""
    values = {"a/kernel": np.full((40, 10), value, "float32"), "step": np.array(3, "int64")}
    tf.raw_ops.SaveV2(
        prefix=str(folder / prefix),
        tensor_names=list(values),
        shape_and_slices=["", ""],
        tensors=[tf.constant(array) for array in values.values()],
    )
    return folder / prefix


def test_what_is_wanted_is_read(tmp_path):
    prefix = write(tmp_path)
    assert find_checkpoint(tmp_path) == prefix
    tensors = read_tensors(prefix, lambda name: name != "step")
    assert tensors.keys() == {"a/kernel"}
    assert tensors["a/kernel"].shape == (40, 10)
    assert (tensors["a/kernel"] == 1).all()


@pytest.mark.parametrize("prefix", ["bert_model.ckpt", "model.ckpt-best", "model.ckpt-125000"])
def test_names_of_checkpoints(tmp_path, prefix):
    assert not holds_checkpoint(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    assert not holds_checkpoint(tmp_path)
    write(tmp_path, prefix)
    assert holds_checkpoint(tmp_path)
    assert find_checkpoint(tmp_path).name == prefix


def test_one_of_several_checkpoints_is_named_by_the_file_checkpoint(tmp_path):
    write(tmp_path, "model.ckpt-10")
    wanted = write(tmp_path, "model.ckpt-20")
    with pytest.raises(ValueError, match=r"must name one.*model.ckpt-10, model.ckpt-20$"):
        find_checkpoint(tmp_path)
    state = tmp_path / "checkpoint"
    state.write_text(
        'model_checkpoint_path: "/far/away/model.ckpt-20"\n'
        'all_model_checkpoint_paths: "/far/away/model.ckpt-10"\n'
    )
    assert find_checkpoint(tmp_path) == wanted
    state.write_text('model_checkpoint_path: "model.ckpt-30"')
    with pytest.raises(ValueError, match=r"model.ckpt-20, where it names model.ckpt-30"):
        find_checkpoint(tmp_path)


def test_one_checkpoint_needs_no_name(tmp_path):
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "model.ckpt-30"')
    prefix = write(tmp_path)
    assert find_checkpoint(tmp_path) == prefix


def cut(file, size):
    file.write_bytes(file.read_bytes()[:size])


def flip(file):
    content = bytearray(file.read_bytes())
    content[500] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "message"),
    [
        ("data", lambda f: f.unlink(), "data files .* are missing. Received: .*ckpt.index al"),
        ("data", lambda f: cut(f, 1000), "damaged or truncated.*Received: .*model.ckpt$"),
        ("data", flip, "damaged or truncated.*Received: .*model.ckpt$"),
        ("index", lambda f: cut(f, 100), "damaged or truncated.*Received: .*model.ckpt$"),
        ("index", lambda f: cut(f, 0), "damaged or truncated.*Received: .*model.ckpt$"),
    ],
)
def test_damaged_files_are_named(tmp_path, file, damage, message):
    prefix = write(tmp_path)
    names = {"data": "model.ckpt.data-00000-of-00001", "index": "model.ckpt.index"}
    damage(tmp_path / names[file])
    with pytest.raises(ValueError, match=message):
        read_tensors(prefix, lambda name: True)


def test_a_missing_index_is_named(tmp_path):
    write(tmp_path)
    (tmp_path / "model.ckpt.index").unlink()
    assert holds_checkpoint(tmp_path)
    with pytest.raises(ValueError, match=r"the .index file is missing. Received: "):
        find_checkpoint(tmp_path)
