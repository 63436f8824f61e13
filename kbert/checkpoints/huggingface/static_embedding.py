"""Static token embeddings: model2vec's folders, and sentence-transformers' `StaticEmbedding`.

model.safetensors   `embeddings` (model2vec, optionally with `weights` and a `mapping` of tokens to
                    rows) or `embedding.weight` (sentence-transformers)
tokenizer.json
config.json         model2vec: whether embeddings are normalised, and the maximum sequence length
modules.json        sentence-transformers; model2vec writes it too, for sentence-transformers
0_StaticEmbedding/  sentence-transformers may store the first two files here

Shapes: V tokens, R rows of the table, D width.
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.huggingface.sentence_transformers import (
    KIND,
    MODULES_FILE,
    prompt_settings,
    read_modules,
    write_prompts,
)
from kbert.configs.static import StaticConfig
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays, PathLike
from kbert.io import atomic
from kbert.io.arrays import WEIGHTS_FILE, read_safetensors, serialise
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.tokenizers.loading import load_tokenizer

_CONFIG_FILE, _TOKENIZER_FILE = "config.json", "tokenizer.json"
_MODEL_TYPE, _MODULE = "model2vec", "StaticEmbedding"
_TABLE = "encoder/embeddings/token"
_LONGEST = 512  # model2vec's default maximum sequence length
_NO_LIMIT = 1 << 16  # tokens; stands for no limit, as in sentence-transformers
_TYPES = "sentence_transformers.models."


def is_folder(folder: Path) -> bool:
    """Whether a folder has a static embedding table, of model2vec or of sentence-transformers."""
    if (folder / MODULES_FILE).is_file():
        return read_modules(folder)[0][0] == _MODULE
    config, weights = folder / _CONFIG_FILE, folder / WEIGHTS_FILE
    if not config.is_file() or not weights.is_file():
        return False
    return read_json(config).get("model_type") == _MODEL_TYPE


def read_folder(folder: Path) -> Checkpoint[StaticConfig]:
    """Reads a folder with a static embedding table, one for which `is_folder` is true.

    Raises:
        ValueError: there are other modules, or the arrays do not match the tokenizer's tokens.
    """
    table_folder, normalize = folder, False
    if (folder / MODULES_FILE).is_file():
        (_, table_folder), *other_modules = read_modules(folder)
        if [name for name, _ in other_modules] not in ([], ["Normalize"]):
            raise ValueError(
                "A folder of sentence-transformers with a StaticEmbedding can have no other "
                "module than Normalize. Received: "
                f"{', '.join(name for name, _ in other_modules)} in {folder / MODULES_FILE}"
            )
        normalize = bool(other_modules)
    arrays = read_safetensors(table_folder / WEIGHTS_FILE)
    tokenizer: Any = load_tokenizer(table_folder)
    config = read_json(folder / _CONFIG_FILE) if (folder / _CONFIG_FILE).is_file() else {}
    uncounted: tuple[int, ...] = ()
    longest: Any = _NO_LIMIT
    if config.get("model_type") == _MODEL_TYPE:
        normalize = _flag(config, "normalize", folder)
        longest = config.get("max_length", _LONGEST)
        longest = _NO_LIMIT if longest is None else longest
        uncounted = () if tokenizer.unk_id is None else (tokenizer.unk_id,)
    table = _with_rows_for(tokenizer, _table(arrays, table_folder / WEIGHTS_FILE), table_folder)
    if uncounted:  # left out of means in kbert; zeros keep it out of sums elsewhere
        table[list(uncounted)] = 0.0
    static_config = StaticConfig(
        vocabulary_size=len(table),
        hidden_size=table.shape[1],
        max_positions=longest,
        uncounted_ids=uncounted,
    )
    return Checkpoint(
        config=static_config,
        arrays={_TABLE: table},
        task={"kind": KIND, "normalize": normalize, **prompt_settings(folder)},
        source=str(folder),
    )


def write_folder(
    folder: PathLike,
    config: StaticConfig,
    arrays: Arrays,
    *,
    task: Mapping[str, Any] | None,
    tokenizer: TokenizerLike | None,
) -> None:
    """Writes a folder that model2vec and sentence-transformers load.

    Args:
        folder: folder to write to; created if missing.
        config: config of the encoder.
        arrays: weight name -> array of the encoder.
        task: settings of a `TextEmbedder`; None = only the encoder, with mean pooling.
        tokenizer: a WordPiece tokenizer; any other, or None, raises an error.

    Raises:
        ValueError: the format cannot store the weights, the settings or the tokenizer.
    """
    folder = Path(folder)
    settings = {"normalize": False, "token_pooling": "mean", "projection": None, **(task or {})}
    write_json = getattr(tokenizer, "tokenizer_json", None)
    if {*arrays} != {_TABLE} or settings["projection"] or settings["token_pooling"] != "mean":
        raise ValueError(
            "model2vec's format supports only one table, and the mean of its rows as a text's "
            f"embedding. Received: {', '.join(sorted(arrays))}; "
            f"token_pooling={settings['token_pooling']!r}, projection={settings['projection']!r}"
        )
    if settings.get("kind", KIND) != KIND:
        raise ValueError(
            f"model2vec's format supports only a TextEmbedder. Received: {settings['kind']}"
        )
    if write_json is None:
        raise ValueError(
            "model2vec's format requires a tokenizer.json, so the tokenizer must be a "
            "WordPieceTokenizer. Received: "
            f"{'no tokenizer' if tokenizer is None else type(tokenizer).__name__}"
        )
    table = np.asarray(arrays[_TABLE])
    if (size := tokenizer.vocabulary_size) != len(table):  # type: ignore[union-attr]
        raise ValueError(
            f"The table must have a row for each of the {size} tokens. Received: {len(table)} rows"
        )
    longest = settings.get("max_length") or config.max_positions
    content = {
        "model_type": _MODEL_TYPE,
        "architectures": ["StaticModel"],
        "hidden_dim": config.hidden_size,
        "seq_length": longest,
        "max_length": longest,
        "normalize": settings["normalize"],
        "embedding_dtype": "float32",
    }
    modules = [(_MODULE, "."), *([("Normalize", "1_Normalize")] if settings["normalize"] else [])]
    listed = [
        {"idx": i, "name": str(i), "path": module_path, "type": f"{_TYPES}{kind}"}
        for i, (kind, module_path) in enumerate(modules)
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for _, module_path in modules[1:]:
        (folder / module_path).mkdir(exist_ok=True)
    write_prompts(folder, settings)
    atomic.write_together(
        {
            folder / WEIGHTS_FILE: serialise({"embeddings": table}),
            folder / _CONFIG_FILE: _as_json(content),
            folder / _TOKENIZER_FILE: write_json(),
            folder / MODULES_FILE: _as_json(listed),
        }
    )


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raises ValueError for options of `write_checkpoint` that the format does not support.

    `options` are all options by name: `architecture`, `labels`, `max_shard_size` and `weight_dtype`
    must be absent, None or (the dtype) "float32".
    """
    defaults = {"weight_dtype": "float32"}
    names = ("architecture", "labels", "max_shard_size", "weight_dtype")
    refused_options = {k: options[k] for k in names if options.get(k) != defaults.get(k)}
    if refused_options:
        raise ValueError(
            (
                "Static encoders support no options: they are written as one file of float32. "
                "Received: "
            )
            + ", ".join(f"{name}={value!r}" for name, value in refused_options.items())
        )


def _as_json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode() + b"\n"


def _flag(config: Mapping[str, Any], name: str, folder: Path) -> bool:
    """Returns a boolean in a config, False if absent; raises ValueError for another type."""
    value = config.get(name) or False
    if not isinstance(value, bool):
        raise ValueError(
            f"`{name}` must be true or false. Received: {value!r} in {folder / _CONFIG_FILE}"
        )
    return value


def _table(arrays: Arrays, path: Path) -> np.ndarray:
    """Returns the table (V, D) in float32: the embedding of each token.

    With an array `mapping`, several tokens may share a row; with `weights`, a row is multiplied by
    the token's weight. Raises ValueError if the embeddings are missing, an array is unknown or of a
    wrong shape, or `mapping` has rows that do not exist.

    Args:
        arrays: name in the file -> array.
        path: path of the file, for the error message.
    """
    name = "embedding.weight" if "embedding.weight" in arrays else "embeddings"
    unknown_names = {*arrays} - {name, "weights", "mapping"}
    if name not in arrays or unknown_names or arrays[name].ndim != 2 or not arrays[name].size:
        shapes = ", ".join(f"{key} {value.shape}" for key, value in sorted(arrays.items()))
        raise ValueError(
            "The file must contain `embeddings` (R, D), optionally with `weights` (V,) and "
            f"`mapping` (V,), or `embedding.weight` (V, D). Received: {shapes or 'nothing'} in "
            f"{path}"
        )
    table = np.asarray(arrays[name], np.float32)
    if (mapping := arrays.get("mapping")) is not None:
        is_index = mapping.ndim == 1 and mapping.dtype.kind in "iu"
        if not is_index or not ((mapping >= 0) & (mapping < len(table))).all():
            raise ValueError(
                f"`mapping` must be one index of the {len(table)} rows for each token. Received: "
                f"{mapping.dtype} of shape {mapping.shape} in {path}"
            )
        table = table[mapping]
    if (weights := arrays.get("weights")) is not None:
        if weights.shape != table.shape[:1]:
            raise ValueError(
                f"`weights` must be a number for each of {len(table)} tokens. "
                f"Received: shape {weights.shape} in {path}"
            )
        table = table * np.asarray(weights, np.float32)[:, None]
    return np.array(table, np.float32)


def _with_rows_for(tokenizer: Any, table: np.ndarray, place: Path) -> np.ndarray:
    """Appends rows of zeros for the special tokens that `load_tokenizer` added to the file's.

    Raises ValueError if the rows of other tokens are missing.

    Args:
        tokenizer: kbert tokenizer of V tokens.
        table: table with V or fewer rows, (…, D).
        place: folder of the table, for the error message.
    """
    size = tokenizer.vocabulary_size
    added = range(len(table), size)
    if not {*added} <= {*tokenizer.special_ids}:
        raise ValueError(
            f"The table must have a row for each of the {size} tokens. "
            f"Received: {len(table)} rows in {place}"
        )
    return np.concatenate([table, np.zeros((len(added), table.shape[1]), np.float32)])
