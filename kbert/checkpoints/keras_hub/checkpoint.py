"""Converts KerasHub's backbones, in memory and as preset folders, in both directions.

KerasHub differs from kbert as follows:

- Each backbone fixes the form of GELU, the epsilon of LayerNorm and a single dropout rate in code,
  whatever a model was trained with. Reading uses these values; a model with other values is not
  written.
- BERT, ALBERT and ELECTRA always have a pooler. For a model without one, a pooler of zeros is
  written, and such a pooler is read as none. RoBERTa, XLM-RoBERTa and DistilBERT have no pooler, so
  it is left out.
- Positions count from 0, without RoBERTa's rows for padding, as in kbert.
- Heads are left out: KerasHub's masked-LM head has another epsilon (1e-5) than its encoder and the
  erf form of GELU, so it cannot be BERT's. `initializer_range` is not stored.

KerasHub is imported when it is first needed.
"""

import dataclasses
import re
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np
from absl import logging

from kbert.checkpoints import preset
from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.hdf5 import open_datasets
from kbert.checkpoints.keras_hub.names import BACKBONES, Backbone, choose
from kbert.checkpoints.keras_hub.tokenizer import write_tokenizer
from kbert.checkpoints.keys import check_keys, make_config
from kbert.checkpoints.renames import read_arrays, write_arrays
from kbert.checkpoints.sizes import fewest_numbers
from kbert.configs.encoder import EncoderConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.arrays import WEIGHTS_FILE, check_arrays
from kbert.io.json_file import read_json
from kbert.io.paths import Path, local_only

CONFIG_FILE = "config.json"
READS = "a KerasHub folder (config.json + model.weights.h5)"
TAKES = ("architecture", "tokenizer")
# One file of weights, or the index of several.
_WEIGHTS = ("model.weights.h5", "model.weights.json")
_HEADS = "task.weights.h5"
_MISFIT = "The weights of the KerasHub preset are damaged or do not fit its config"


def read_backbone(backbone: Any) -> Checkpoint:
    """Reads config and weights of a backbone in memory; the arrays are copies.

    Args:
        backbone: backbone of one of the classes in `BACKBONES`, or of a subclass.

    Returns:
        The checkpoint. A weight that is unknown to kbert is included under "encoder/" and its own
        name, so that loading an encoder reports it as unexpected.

    Raises:
        TypeError: the object is of another class.
        ValueError: a key of the backbone's config is not understood, or its weights are quantised.
    """
    source = "memory"
    spec_by_class = {spec.class_name: spec for spec in BACKBONES}
    names = [base.__name__ for base in type(backbone).__mro__]
    spec = next((spec_by_class[name] for name in names if name in spec_by_class), None)
    if spec is None:
        unknown = _unknown(type(backbone).__name__, source)
        raise TypeError(f"A model must be in a folder or one of KerasHub's. {unknown}")
    config = read_config(spec, backbone.get_config(), source)
    return _read(spec, config, backbone, source)


def is_folder(folder: Path) -> bool:
    """Whether the folder is a KerasHub preset with weights."""
    return (folder / CONFIG_FILE).is_file() and any((folder / x).is_file() for x in _WEIGHTS)


def read_folder(folder: Path) -> Checkpoint:
    """Reads a KerasHub preset, a folder for which `is_folder` is true.

    Heads (`task.weights.h5`) are not read, only listed in `left`. No class named in the folder is
    imported: the backbone is made from the values in its config, and Keras loads the weights into
    it.

    Args:
        folder: folder with `config.json` and `model.weights.h5`, or `model.weights.json` and its
            shards.

    Returns:
        The checkpoint, like `read_backbone`.

    Raises:
        ValueError: the backbone is of another class, or a file is damaged or not understood.
    """
    path = Path(local_only(folder, "Reading a KerasHub preset")) / CONFIG_FILE
    spec, config = read_config_file(path)
    weights = next(folder / name for name in _WEIGHTS if (folder / name).is_file())
    stored, fewest = _stored_numbers(weights), fewest_numbers(config)
    if stored < fewest:  # checked first: a damaged config could make a model of any size
        raise ValueError(f"{_MISFIT}. Received: {weights} with {stored:,} numbers for {fewest:,}")
    backbone = _build(spec, config)
    _load(backbone, weights, stored)
    checkpoint = _read(spec, config, backbone, str(folder))
    heads = (_HEADS,) if (folder / _HEADS).is_file() else ()
    return dataclasses.replace(checkpoint, left=(*checkpoint.left, *heads))


def to_keras_hub(
    config: EncoderConfig, arrays: Arrays, architecture: str | None = None
) -> keras.Model:
    """Returns a KerasHub backbone with an encoder's weights.

    Args:
        config: config of the encoder.
        arrays: weight name -> array, under kbert's names. Heads are left out, with a warning.
        architecture: "bert", "electra", "albert", "distilbert", "roberta" or "xlm-roberta";
            None = the first of them that is compatible with the config.

    Returns:
        The backbone, in float32.

    Raises:
        ValueError: no such backbone of KerasHub is compatible; the message gives the reasons.
    """
    spec = choose(config, architecture)
    unsupported_names = without_place(config, arrays, architecture)
    written = {name: array for name, array in arrays.items() if name not in unsupported_names}
    if spec.pooler and config.pooler_activation is None:
        width = config.hidden_size
        written["encoder/pooler/kernel"] = np.zeros((width, width), "float32")
        written["encoder/pooler/bias"] = np.zeros(width, "float32")
    if unsupported_names:
        logging.warning(
            "KerasHub's %s does not support %s, which are not written",
            spec.class_name,
            ", ".join(unsupported_names),
        )
    backbone_arrays = write_arrays(spec.rules(config), written)
    backbone = _build(spec, config)
    weights = {weight.path: weight for weight in backbone.weights}
    check_arrays(
        {path: tuple(w.shape) for path, w in weights.items()}, backbone_arrays, spec.class_name
    )
    for path, weight in weights.items():
        weight.assign(backbone_arrays[path])
    return backbone


def without_place(
    config: EncoderConfig, names: Iterable[str], architecture: str | None = None
) -> list[str]:
    """Returns the names of the weights that `to_keras_hub` leaves out.

    These are heads, the pooler if the backbone has none, and the position embedding of padding:
    KerasHub's RoBERTa treats padding like any other token.

    Args:
        config: config of the encoder.
        names: names of the weights of encoder and heads.
        architecture: kind of backbone, such as "bert"; None = the first that is compatible with the
            config.

    Raises:
        ValueError: no such backbone of KerasHub is compatible with the config.
    """
    pooler = "" if choose(config, architecture).pooler else "pooler/|"
    stored_pattern = rf"encoder/(?!{pooler}embeddings/padding$)"
    return [name for name in names if not re.match(stored_pattern, name)]


def write_folder(
    folder: PathLike,
    config: EncoderConfig,
    arrays: Arrays,
    *,
    architecture: str | None = None,
    tokenizer: TokenizerLike | None = None,
) -> None:
    """Writes a preset that `keras_hub.models.Backbone.from_preset` loads.

    Args:
        folder: folder to write to; created if missing. Other files in it are kept.
        config: config of the encoder.
        arrays: weight name -> array, under kbert's names.
        architecture: kind of backbone, such as "bert"; None = the first that is compatible with the
            config.
        tokenizer: kbert tokenizer to write too. If KerasHub has no equivalent, it is left out with
            a warning that gives the reason. None = no tokenizer.

    Raises:
        ValueError: no such backbone of KerasHub is compatible, or the folder holds a model in
            another format.
    """
    folder = Path(folder)
    preset.refuse_other(folder, preset.CONFIG_FILE, "a kbert preset")
    preset.refuse_other(folder, WEIGHTS_FILE, "a Hugging Face model")
    backbone = to_keras_hub(config, arrays, architecture)
    with tempfile.TemporaryDirectory() as temporary:
        backbone.save_to_preset(temporary, max_shard_size=None)
        files = {
            name: Path(temporary, name) for name in (_WEIGHTS[0], "metadata.json", CONFIG_FILE)
        }
        contents: dict[PathLike, bytes] = {
            folder / name: path.read_bytes() for name, path in files.items()
        }
    folder.mkdir(parents=True, exist_ok=True)
    atomic.write_together(contents)
    if tokenizer is not None:
        write_tokenizer(folder, choose(config, architecture), tokenizer)


def read_config_file(path: Path) -> tuple[Backbone, EncoderConfig]:
    """Reads the class of the backbone and its config from a preset's `config.json`.

    Args:
        path: path of the file.

    Raises:
        ValueError: the file is damaged, or kbert does not read this class.
    """
    content = read_json(path)
    class_name = content.get("class_name")
    spec = next((spec for spec in BACKBONES if spec.class_name == class_name), None)
    if spec is None or not isinstance(content.get("config"), dict):
        raise ValueError(_unknown(class_name, str(path)))
    return spec, read_config(spec, content["config"], str(path))


def read_config(spec: Backbone, content: Mapping[str, Any], source: str) -> EncoderConfig:
    """Converts the config of a KerasHub backbone to an `EncoderConfig`.

    Args:
        spec: class of the backbone.
        content: key -> value of the backbone's config.
        source: where the values are from, for messages.

    Raises:
        ValueError: a key is unknown or missing, or has an invalid value.
    """
    check_keys(
        content,
        fields=spec.fields,
        required={"num_inner_repetitions": (1,)},
        ignored=("name", "trainable", "dtype"),
        title=f"KerasHub's {spec.class_name}",
        source=source,
    )
    fields = {field: content[key] for key, field in spec.fields.items()}
    if fields.get("embedding_size") == fields["hidden_size"] and not spec.always_projects:
        del fields["embedding_size"]
    fixed = {
        "attention_dropout": fields["dropout"],
        "activation": spec.activation,
        "layer_norm_epsilon": spec.layer_norm_epsilon,
        "pooler_activation": "tanh" if spec.pooler else None,
    }
    return make_config(EncoderConfig, {"num_segments": 0, **fields, **fixed}, source)


def _stored_numbers(path: Path) -> int:
    """Returns how many numbers a file of weights contains, or all shards of an index together."""
    stored = 0
    for shard in _shards(path):
        with open_datasets(shard) as datasets:
            stored += sum(dataset.size for dataset in datasets.values())
    return stored


def _shards(path: Path) -> list[Path]:
    """Returns the files of weights: `path` itself, or the shards of an index in JSON."""
    if path.suffix != ".json":
        return [path]
    read_json(path)  # raises a useful error for a damaged index, which Keras does not
    return sorted(path.parent.glob(f"{path.name.removesuffix('.weights.json')}_*.weights.h5"))


def _load(backbone: Any, path: Path, stored: int) -> None:
    """Loads a file of weights into a backbone.

    Keras skips missing and extra weights mostly in silence. So ValueError is raised if a weight of
    the backbone is not set, or if the number of parameters differs.

    Args:
        backbone: KerasHub backbone; its weights are replaced.
        path: path of the file, or of the index of its shards.
        stored: how many numbers the file contains.
    """
    for weight in backbone.weights:
        weight.assign(keras.ops.full(weight.shape, float("nan")))
    try:
        backbone.load_weights(str(path))
    except (KeyError, OSError, ValueError) as error:
        raise ValueError(f"{_MISFIT} ({error}). Received: {path}") from error
    unset = [w.path for w in backbone.weights if not keras.ops.all(keras.ops.isfinite(w.value))]
    if unset or stored != backbone.count_params():
        listed = f"; missing, NaN or infinite: {', '.join(unset)}" if unset else ""
        raise ValueError(
            f"{_MISFIT}. Received: {path} with {stored:,} numbers for "
            f"{backbone.count_params():,}{listed}"
        )


def _read(spec: Backbone, config: Any, backbone: Any, source: str) -> Checkpoint:
    """Makes a checkpoint from a KerasHub backbone; raises ValueError for quantised weights."""
    integers = [w.path for w in backbone.weights if not keras.backend.is_float_dtype(w.dtype)]
    if integers:
        raise ValueError(
            "Quantised weights are not supported: load the preset in a float dtype. Received: "
            f"{integers[0]} and {len(integers) - 1} more in {source}"
        )
    arrays = {
        weight.path: keras.ops.convert_to_numpy(keras.ops.cast(weight.value, "float32"))
        for weight in backbone.weights
    }
    return make_checkpoint(spec, config, arrays, source)


def make_checkpoint(
    spec: Backbone, config: EncoderConfig, there: Arrays, source: str
) -> Checkpoint[EncoderConfig]:
    """Makes a checkpoint with kbert's names from the weights of a backbone.

    A pooler of zeros is read as none.

    Args:
        spec: class of the backbone.
        config: config of the model.
        there: KerasHub's weight name -> array.
        source: where the weights are from, for messages.
    """
    arrays, other_arrays = read_arrays(spec.rules(config), there)
    unread_names: tuple[str, ...] = ()
    pooler = arrays.get("encoder/pooler/kernel")
    if pooler is not None and not pooler.any():
        config = config.replace(pooler_activation=None)
        arrays = {name: array for name, array in arrays.items() if "/pooler/" not in name}
        unread_names = ("pooled_dense/kernel", "pooled_dense/bias")
    arrays |= {f"encoder/{path}": array for path, array in other_arrays.items()}
    return Checkpoint(config=config, arrays=arrays, task=None, source=source, left=unread_names)


def _build(spec: Backbone, config: Any) -> Any:
    """Builds a randomly initialised KerasHub backbone, in float32, from kbert's config."""
    from keras_hub import models

    values = {key: getattr(config, field) for key, field in spec.fields.items()}
    if "embedding_dim" in values:
        values["embedding_dim"] = config.embedding_width
    if "num_groups" in values:
        values["num_groups"] = config.num_blocks
    return getattr(models, spec.class_name)(**values, dtype="float32")


def _unknown(name: str | None, source: str) -> str:
    class_names = ", ".join(spec.class_name for spec in BACKBONES)
    return f"kbert supports KerasHub's {class_names}. Received: {name} in {source}"
