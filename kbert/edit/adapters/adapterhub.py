"""Bottlenecks in the folders of `adapters`, AdapterHub's package.

(Format: adapters 1.3, `adapter_config.json` and `adapter.safetensors`, which its `save_adapter`
writes with `use_safetensors=True`. What it writes without, `pytorch_adapter.bin`, is a pickle.)
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
from kbert.edit.adapters.foreign import check_only, read_folder, write_folder
from kbert.edit.adapters.sites import plain_blocks
from kbert.io.paths import Path
from kbert.models import Encoder

WEIGHTS_FILE = "adapter.safetensors"
_HINT = ", written with use_safetensors=True: pytorch_adapter.bin is a pickle and is never read"
# Where the two bottlenecks of a layer lie: behind the attention, behind the feed-forward part.
_BERT = "encoder.layer", ("attention.output.adapters", "output.adapters")
_PLACES = {
    **dict.fromkeys(("bert", "electra", "roberta", "xlm-roberta"), _BERT),
    "distilbert": (
        "transformer.layer",
        ("attention_adapters.adapters", "output_adapters.adapters"),
    ),
}
_PARTS = ("attention", "feed_forward")
# What changes what a bottleneck computes, and is not read: any other value is refused.
_ONLY: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("adapter_residual_before_ln", "cross_adapter", "is_parallel"), (False,)),
    **dict.fromkeys(("ln_before", "ln_after", "phm_layer", "use_gating"), (False,)),
    **dict.fromkeys(("output_adapter", "original_ln_after", "residual_before_ln"), (True,)),
    **dict.fromkeys(("dropout", "stochastic_depth"), (0.0,)),
    **{"inv_adapter": (None,), "leave_out": ([],), "scaling": (1.0,)},
}
# Whether there is a bottleneck behind the attention, and whether it reads the residual's norm.
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
    """Adds the bottlenecks of a folder that `adapters` has written.

    Args:
        model: a `kbert.Encoder` with the weights of its base, or a task on one; of BERT, RoBERTa,
            XLM-RoBERTa, ELECTRA or DistilBERT. Heads are files of their own there, and not read.
        folder: with `adapter_config.json` and `adapter.safetensors`, of "double_seq_bn" (Houlsby)
            or "seq_bn" (Pfeiffer).
        name: of the adapter; None = as in the folder.

    Returns:
        The model; the adapter runs.

    Raises:
        FileNotFoundError: a file is missing, or the weights are a pickle.
        ValueError: it is of another kind, has options that kbert knows not, or other weights than
            the encoder has places for; then the model is as it was.
    """
    encoder = encoder_of(model)
    content, arrays = read_folder(folder, WEIGHTS_FILE, "adapters", _HINT)
    source = Path(folder) / FOREIGN_FILE
    found, config = content.get("name"), content.get("config")
    if not isinstance(found, str) or not isinstance(config, dict):
        raise ValueError(
            "Of `adapters` a folder with the settings of one adapter is read, its name and its "
            f"config. Received: {', '.join(content)} in {source}"
        )
    if "version" not in content:  # of adapter-transformers 1, whose names were others
        theirs = config.get("non_linearity")
        config = {**config, "non_linearity": _OLD.get(str(theirs), theirs)}
    weights = _weights(encoder, found, arrays, source)
    shapes = {x.shape for place, x in weights.items() if place[2:] == ("down", "bias")}
    adapter = _adapter(config, shapes, source)
    name = re.sub(r"\W", "_", found) if name is None else name
    with inserting(model, adapter, name):
        _assign(encoder, name, weights, source)
    return model


def write_adapterhub(model: Any, folder: PathLike, *, name: str | None = None) -> None:
    """Writes bottlenecks as `adapters` reads them: `model.load_adapter(folder)`.

    Args:
        model: an encoder, or a task on one.
        folder: made where it is missing.
        name: of the adapter; None = the one that runs.

    Raises:
        ValueError: the adapter is none of Houlsby's, without norms, or Pfeiffer's; it trains the
            pooler too; or the encoder is of another architecture.
    """
    encoder = encoder_of(model)
    name = running(model) if name is None else name
    adapter: Any = known(encoder, name).added.get(name or "")
    fits = isinstance(adapter, Pfeiffer) or (isinstance(adapter, Houlsby) and not adapter.norms)
    if not fits or adapter.pooler or adapter.activation not in _THEIRS:
        raise ValueError(
            "Folders of `adapters` hold bottlenecks alone: pfeiffer, or houlsby with norms=False, "
            "without a pooler that is trained too. Received: "
            f"{None if adapter is None else {'kind': adapter.kind, **adapter.to_dict()}}"
        )
    stem, places = _layout(encoder)
    arrays: dict[str, np.ndarray] = {}
    for (layer, part, direction, kind), weight in _variables(encoder, str(name)):
        array = np.asarray(weight.value, "float32")
        row = f"adapter_{direction}.0" if direction == "down" else f"adapter_{direction}"
        key = f"{stem}.{layer}.{places[_PARTS.index(part)]}.{name}.{row}"
        arrays[f"{key}.{'weight' if kind == 'kernel' else 'bias'}"] = np.transpose(array)
    normed = isinstance(adapter, Pfeiffer)
    hidden = encoder.config.hidden_size
    config = {key: allowed[-1] for key, allowed in _ONLY.items()}
    config |= {
        "mh_adapter": not normed,
        "original_ln_before": normed,
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
    write_folder(folder, content, arrays, WEIGHTS_FILE)


def reduction_factor(hidden: int, size: int) -> float:
    """What `adapters` divides the width by, `int(hidden // factor)`, to make that size.

    Args:
        hidden: the width.
        size: of the bottlenecks.

    Example:
        >>> [int(768 // factor) for factor in (768 / 13, reduction_factor(768, 13))]
        [12, 13]
    """
    factor = hidden / size
    # Rounded up, the factor goes into the width one time less.
    return factor if int(hidden // factor) == size else math.nextafter(factor, 0)


_Place = tuple[int, str, str, str]  # layer, part of the block, "down" or "up", "kernel" or "bias"


def _adapter(config: dict[str, Any], shapes: set[tuple[int, ...]], source: Path) -> Adapter:
    check_only(config, _ONLY, "a bottleneck of `adapters`", source)
    kind = _KINDS.get((bool(config.get("mh_adapter")), bool(config.get("original_ln_before"))))
    activation = _ACTIVATIONS.get(config.get("non_linearity", ""))
    if kind is None or activation is None:
        raise ValueError(
            "kbert reads double_seq_bn (Houlsby) and seq_bn (Pfeiffer) of `adapters`, with "
            f"{', '.join(_ACTIVATIONS)}. Received: "
            + ", ".join(
                f"{key}={config.get(key)!r}"
                for key in ("mh_adapter", "original_ln_before", "non_linearity")
            )
            + f" in {source}"
        )
    if len(shapes) != 1:
        raise ValueError(
            "The bottlenecks of all layers must be as wide. "
            f"Received: shapes {sorted(shapes)} beside {source}"
        )
    options: dict[str, Any] = {"size": shapes.pop()[0], "activation": activation, "pooler": False}
    if kind is Houlsby:
        options["norms"] = False
    return kind(**options)


def _architecture(encoder: Any) -> str:
    return infer(encoder.config, (), None)


def _layout(encoder: Any) -> tuple[str, tuple[str, str]]:
    """What stands before the number of a layer, and the two places in it.

    Raises:
        ValueError: the encoder is of an architecture whose folders are not known here.
    """
    plain_blocks(encoder, "adapters")
    kind = _architecture(encoder) if isinstance(encoder, Encoder) else type(encoder).__name__
    if kind not in _PLACES:
        raise ValueError(
            f"Folders of `adapters` are read and written for {', '.join(_PLACES)}. Received: {kind}"
        )
    return _PLACES[kind]


def _weights(encoder: Any, name: str, arrays: Arrays, source: Path) -> dict[_Place, np.ndarray]:
    """The weights of a folder by their places here; with or without the prefix of a model."""
    stem, places = _layout(encoder)
    parts = dict(zip(places, _PARTS, strict=True))
    pattern = re.compile(
        rf"(?:\w+\.)?{re.escape(stem)}\.(\d+)\.({'|'.join(map(re.escape, places))})"
        rf"\.{re.escape(name)}\.adapter_(down\.0|up)\.(weight|bias)"
    )
    found, rest = {}, []
    for key, array in arrays.items():
        match = pattern.fullmatch(key)
        if match is None:
            rest.append(key)
            continue
        layer, part, direction, kind = match.groups()
        which = "kernel" if kind == "weight" else "bias"
        place = int(layer), parts[part], direction.removesuffix(".0"), which
        found[place] = np.transpose(array)
    if rest or not found:
        raise ValueError(
            f"Each weight must be of a bottleneck in a layer of {stem}, called {name!r}. "
            f"Received: {', '.join(sorted(rest)[:6]) or 'no weights'} beside {source}"
        )
    return found


def _variables(encoder: Any, name: str) -> Iterator[tuple[_Place, Any]]:
    """The weights of the bottlenecks here, by their places."""
    for layer, block in enumerate(encoder.blocks):
        for part, bottleneck in zip(_PARTS, slot(block, name).bottlenecks, strict=True):
            for direction in () if bottleneck is None else ("down", "up"):
                dense = getattr(bottleneck, direction)
                yield (layer, part, direction, "kernel"), dense.kernel
                yield (layer, part, direction, "bias"), dense.bias


def _assign(encoder: Any, name: str, weights: dict[_Place, np.ndarray], source: Path) -> None:
    variables = dict(_variables(encoder, name))
    wrong = [
        place
        for place in {**variables, **weights}
        if place not in variables
        or place not in weights
        or tuple(variables[place].shape) != weights[place].shape
    ]
    if wrong:
        raise ValueError(
            "The folder must hold the bottlenecks of the encoder's layers, and no others. "
            f"Received: {len(wrong)} that are missing, too many or of another shape, such as "
            f"{'/'.join(map(str, wrong[0]))}, beside {source}"
        )
    for place, weight in variables.items():
        weight.assign(weights[place])
