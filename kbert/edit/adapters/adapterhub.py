"""Reads and writes bottlenecks in the format of `adapters`, AdapterHub's package.

(Format: adapters 1.3, `adapter_config.json` and `adapter.safetensors`, which its `save_adapter`
writes with `use_safetensors=True`. Without that option it writes `pytorch_adapter.bin`, a pickle.)
"""

import math
import re
from collections.abc import Iterator
from typing import Any

import numpy as np

from kbert.checkpoints.huggingface.architectures import infer
from kbert.core.types import Arrays, PathLike
from kbert.edit.adapters.base import Adapter, encoder_of, inserting, known, running, slot
from kbert.edit.adapters.bottleneck import Houlsby, Pfeiffer
from kbert.edit.adapters.files import FOREIGN_FILE
from kbert.edit.adapters.foreign import check_only, read_adapter_files, write_adapter_files
from kbert.edit.adapters.sites import plain_blocks
from kbert.io.paths import Path
from kbert.models import Encoder

WEIGHTS_FILE = "adapter.safetensors"
_HINT = " (written with use_safetensors=True: pytorch_adapter.bin is a pickle and is never read)"
# Names of a layer's two bottlenecks: after the attention, after the feed-forward part.
_BERT = "encoder.layer", ("attention.output.adapters", "output.adapters")
_PLACES = {
    **dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta"), _BERT),
    "distilbert": (
        "transformer.layer",
        ("attention_adapters.adapters", "output_adapters.adapters"),
    ),
}
_PARTS = ("attention", "feed_forward")
# Settings that change what a bottleneck computes and that kbert does not support: any other value
# raises an error.
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("adapter_residual_before_ln", "cross_adapter", "is_parallel"), (False,)),
    **dict.fromkeys(("ln_before", "ln_after", "phm_layer", "use_gating"), (False,)),
    **dict.fromkeys(("output_adapter", "original_ln_after", "residual_before_ln"), (True,)),
    **dict.fromkeys(("dropout", "stochastic_depth"), (0.0,)),
    **{"inv_adapter": (None,), "leave_out": ([],), "scaling": (1.0,)},
}
# (Bottleneck after the attention?, reads the norm of the residual?) -> kind of adapter.
_KINDS: dict[tuple[bool, bool], type[Houlsby | Pfeiffer]] = {
    (True, False): Houlsby,
    (False, True): Pfeiffer,
}
_ACTIVATIONS = {
    **{"relu": "relu", "silu": "silu", "swish": "silu", "tanh": "tanh"},
    **{"gelu": "gelu", "gelu_new": "gelu_tanh"},
}
_THEIRS = {ours: theirs for theirs, ours in _ACTIVATIONS.items()}
_OLD = {"gelu": "gelu_new", "gelu_orig": "gelu"}


def read_adapterhub(model: Any, folder: PathLike, *, name: str | None = None) -> Any:
    """Loads the bottlenecks of a folder that `adapters` has written into a model.

    Args:
        model: a `kbert.Encoder` with the weights of the adapter's base, or a task on one; BERT,
            RoBERTa, XLM-RoBERTa, ELECTRA or DistilBERT. Heads are separate files in `adapters`, and
            are not loaded.
        folder: folder with `adapter_config.json` and `adapter.safetensors`, an adapter of kind
            "double_seq_bn" (Houlsby) or "seq_bn" (Pfeiffer).
        name: name of the adapter in the model; None = the name in the folder.

    Returns:
        The model, with the adapter active.

    Raises:
        FileNotFoundError: a file is missing, or the weights are a pickle.
        ValueError: the adapter is of another kind, has options that kbert does not support, or its
            weights do not fit the encoder; then the model is unchanged.
    """
    encoder = encoder_of(model)
    content, arrays = read_adapter_files(folder, WEIGHTS_FILE, "adapters", _HINT)
    source = Path(folder) / FOREIGN_FILE
    saved_name, config = content.get("name"), content.get("config")
    if not isinstance(saved_name, str) or not isinstance(config, dict):
        raise ValueError(
            "The folder must contain the settings of one adapter of `adapters`: its name and its "
            f"config. Received: {', '.join(content)} in {source}"
        )
    if "version" not in content:  # adapter-transformers 1 used other names
        old_activation = config.get("non_linearity")
        config = {**config, "non_linearity": _OLD.get(str(old_activation), old_activation)}
    weights = _weights(encoder, saved_name, arrays, source)
    shapes = {array.shape for place, array in weights.items() if place[2:] == ("down", "bias")}
    adapter = _adapter(config, shapes, source)
    name = re.sub(r"\W", "_", saved_name) if name is None else name
    with inserting(model, adapter, name):
        _assign(encoder, name, weights, source)
    return model


def write_adapterhub(model: Any, folder: PathLike, *, name: str | None = None) -> None:
    """Writes bottlenecks in the format of `adapters`, which loads them by `load_adapter(folder)`.

    Args:
        model: an encoder, or a task on one.
        folder: folder to write to, created if missing.
        name: name of the adapter; None = the active one.

    Raises:
        ValueError: the adapter is neither Houlsby without norms nor Pfeiffer, it trains the pooler
            too, or the encoder's architecture is not supported.
    """
    encoder = encoder_of(model)
    name = running(model) if name is None else name
    adapter: Any = known(encoder, name).added.get(name or "")
    is_supported = isinstance(adapter, Pfeiffer) or (
        isinstance(adapter, Houlsby) and not adapter.norms
    )
    if not is_supported or adapter.pooler or adapter.activation not in _THEIRS:
        raise ValueError(
            "A folder of `adapters` can only contain bottlenecks: pfeiffer, or houlsby with "
            "norms=False, without pooler=True and with an activation that `adapters` supports. "
            f"Received: {None if adapter is None else {'kind': adapter.kind, **adapter.to_dict()}}"
        )
    stem, bottleneck_names = _layout(encoder)
    arrays: dict[str, np.ndarray] = {}
    for (layer, part, direction, kind), weight in _variables(encoder, str(name)):
        array = np.asarray(weight.value, "float32")
        dense_name = f"adapter_{direction}.0" if direction == "down" else f"adapter_{direction}"
        key = f"{stem}.{layer}.{bottleneck_names[_PARTS.index(part)]}.{name}.{dense_name}"
        arrays[f"{key}.{'weight' if kind == 'kernel' else 'bias'}"] = np.transpose(array)
    is_normed = isinstance(adapter, Pfeiffer)
    hidden = encoder.config.hidden_size
    config = {key: allowed[-1] for key, allowed in _ONLY.items()}
    config |= {
        "mh_adapter": not is_normed,
        "original_ln_before": is_normed,
        "non_linearity": _THEIRS[adapter.activation],
        "reduction_factor": reduction_factor(hidden, adapter.size),
    }
    content = {
        "config": config,
        "hidden_size": hidden,
        "model_name": "",
        "model_type": _architecture(encoder),
        "name": name,
        "version": "adapters.1.3.0",
    }
    write_adapter_files(folder, content, arrays, WEIGHTS_FILE)


def reduction_factor(hidden: int, size: int) -> float:
    """Returns a factor for `adapters`, which computes the size as `int(hidden // factor)`.

    Args:
        hidden: width of the encoder.
        size: size of the bottlenecks.

    Example:
        >>> [int(768 // factor) for factor in (768 / 13, reduction_factor(768, 13))]
        [12, 13]
    """
    factor = hidden / size
    # If the quotient was rounded up, the floor division would give one less.
    return factor if int(hidden // factor) == size else math.nextafter(factor, 0)


_Place = tuple[int, str, str, str]  # layer, part of the block, "down" or "up", "kernel" or "bias"


def _adapter(config: dict[str, Any], shapes: set[tuple[int, ...]], source: Path) -> Adapter:
    """Returns the adapter, Houlsby or Pfeiffer, that the settings of a folder describe.

    Args:
        config: settings of the adapter in `adapter_config.json`.
        shapes: shapes of the biases of all first layers.
        source: path of the settings, for messages.

    Raises:
        ValueError: kbert does not support a setting, or bottlenecks have different widths.
    """
    check_only(config, _ONLY, "a bottleneck of `adapters`", source)
    kind = _KINDS.get((bool(config.get("mh_adapter")), bool(config.get("original_ln_before"))))
    activation = _ACTIVATIONS.get(config.get("non_linearity", ""))
    if kind is None or activation is None:
        raise ValueError(
            "The adapter must be double_seq_bn (Houlsby) or seq_bn (Pfeiffer), with one of the "
            f"activations {', '.join(_ACTIVATIONS)}. Received: "
            + ", ".join(
                f"{key}={config.get(key)!r}"
                for key in ("mh_adapter", "original_ln_before", "non_linearity")
            )
            + f" in {source}"
        )
    if len(shapes) != 1:
        raise ValueError(
            "The bottlenecks of all layers must have the same width. Received: shapes "
            f"{sorted(shapes)} next to {source}"
        )
    options: dict[str, Any] = {"size": shapes.pop()[0], "activation": activation, "pooler": False}
    if kind is Houlsby:
        options["norms"] = False
    return kind(**options)


def _architecture(encoder: Any) -> str:
    return infer(encoder.config, (), None)


def _layout(encoder: Any) -> tuple[str, tuple[str, str]]:
    """Returns the prefix of layer names in `adapters`, and the names of a layer's two bottlenecks.

    The first is after the attention, the second after the feed-forward part.

    Raises:
        ValueError: the encoder's architecture is not supported.
    """
    plain_blocks(encoder, "adapters")
    kind = _architecture(encoder) if isinstance(encoder, Encoder) else type(encoder).__name__
    if kind not in _PLACES:
        raise ValueError(
            f"Folders of `adapters` are supported only for {', '.join(_PLACES)}. Received: {kind}"
        )
    return _PLACES[kind]


def _weights(encoder: Any, name: str, arrays: Arrays, source: Path) -> dict[_Place, np.ndarray]:
    """Returns the weights of a folder by their place in kbert, see `_Place`; kernels are (I, O).

    Args:
        encoder: encoder that the adapter is loaded into.
        name: name of the adapter in the folder.
        arrays: arrays of the folder by name; a model's prefix before the names is optional.
        source: path of the settings, for the message.

    Raises:
        ValueError: an array does not belong to a bottleneck of this adapter, or there are none.
    """
    stem, bottleneck_names = _layout(encoder)
    parts = dict(zip(bottleneck_names, _PARTS, strict=True))
    pattern = re.compile(
        rf"(?:\w+\.)?{re.escape(stem)}\.(\d+)\.({'|'.join(map(re.escape, bottleneck_names))})"
        rf"\.{re.escape(name)}\.adapter_(down\.0|up)\.(weight|bias)"
    )
    weights, unknown_names = {}, []
    for key, array in arrays.items():
        match = pattern.fullmatch(key)
        if match is None:
            unknown_names.append(key)
            continue
        layer, part, direction, kind = match.groups()
        weight_kind = "kernel" if kind == "weight" else "bias"
        place = int(layer), parts[part], direction.removesuffix(".0"), weight_kind
        weights[place] = np.transpose(array)
    if unknown_names or not weights:
        raise ValueError(
            f"Each weight must belong to a bottleneck called {name!r} in a layer of {stem}. "
            f"Received: {', '.join(sorted(unknown_names)[:6]) or 'no weights'} next to {source}"
        )
    return weights


def _variables(encoder: Any, name: str) -> Iterator[tuple[_Place, Any]]:
    """Yields the bottleneck weights of the encoder's adapter `name`, each after its place."""
    for layer, block in enumerate(encoder.blocks):
        for part, bottleneck in zip(_PARTS, slot(block, name).bottlenecks, strict=True):
            for direction in () if bottleneck is None else ("down", "up"):
                dense = getattr(bottleneck, direction)
                yield (layer, part, direction, "kernel"), dense.kernel
                yield (layer, part, direction, "bias"), dense.bias


def _assign(encoder: Any, name: str, weights: dict[_Place, np.ndarray], source: Path) -> None:
    """Sets the bottleneck weights of the encoder's adapter `name`.

    Args:
        encoder: encoder with the adapter.
        name: name of the adapter in the encoder.
        weights: place of a weight, see `_Place` -> its values.
        source: path of the settings, for the message.

    Raises:
        ValueError: a weight is missing, superfluous or of another shape.
    """
    variables = dict(_variables(encoder, name))
    wrong_places = [
        place
        for place in {**variables, **weights}
        if place not in variables
        or place not in weights
        or tuple(variables[place].shape) != weights[place].shape
    ]
    if wrong_places:
        raise ValueError(
            "The folder must contain the bottlenecks of the encoder's layers, and no others. "
            f"Received: {len(wrong_places)} that are missing, superfluous or of another shape, "
            f"such as {'/'.join(map(str, wrong_places[0]))}, next to {source}"
        )
    for place, weight in variables.items():
        weight.assign(weights[place])
