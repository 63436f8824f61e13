"""A teacher's outputs by name: collects them from a forward pass, and restores a `Reading`.

Shapes: B rows of a batch, W texts of a row, R = B · W sequences of the encoder, T tokens.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from keras import ops

from kbert.core.types import Tensor, Tensors
from kbert.distillation.cache.layout import FILL, HEADS, TEXTS, TOKENS, Layout
from kbert.distillation.reading import Reading
from kbert.io import fingerprints
from kbert.models import Encoder
from kbert.models.edits import active_record
from kbert.models.weights import get_arrays
from kbert.tasks import Ensemble, FineTuningTask

FEATURE = "teacher/"  # prefix of the names of outputs in a batch
_HIDDEN = "hidden_states"
_YOUNGER = {
    "feature_layers": None,
    "token_pooling": "mean",
    "normalize": True,
    "projection_activation": None,
}
_OF_HEAD = {"row": (), "token": (TOKENS,), "choice": (TEXTS,)}


def identity(teacher: FineTuningTask) -> dict[str, Any]:
    """Returns everything but the text that a teacher's outputs depend on, as a dict for JSON."""
    if isinstance(teacher, Ensemble):
        return {"ensemble": [identity(member) for member in teacher.members]}
    settings = {name: getattr(teacher, name, None) for name in ("labels", "multi_label", "pooling")}
    # Left out if they have their defaults, as in caches of earlier versions.
    for name, default in _YOUNGER.items():
        if (value := getattr(teacher, name, default)) != default:
            settings[name] = value
    return {
        "kind": type(teacher).__name__,
        "config": {"kind": type(teacher.encoder).__name__, **teacher.encoder.config.to_dict()},
        "settings": {name: value for name, value in settings.items() if value is not None},
        "precision": teacher.encoder.dtype_policy.name,
        "tokenizer": teacher.tokenizer.checksum,
        "weights": fingerprints.blake2b(_weights(teacher)),
        **active_record(teacher),
    }


def _weights(teacher: FineTuningTask) -> Iterator[fingerprints.Part]:
    """Yields name, type and shape, then values, of each weight, ordered by name, for a checksum."""
    for prefix, part in sorted(teacher.parts.items()):
        for name, array in sorted(get_arrays(part, prefix).items()):
            yield f"{name} {array.dtype} {array.shape}"
            yield array


def layout_of(name: str, teacher: FineTuningTask, dtype: str) -> Layout:
    """Returns the layout of a token-wise output.

    Args:
        name: "hidden_states/2", "scores/2", "query/2" …: kind and layer, see `Term.reads_of`.
        teacher: task with an encoder of the BERT family, else ValueError.
        dtype: type of the cached numbers.
    """
    if not isinstance(teacher.encoder, Encoder):
        raise ValueError(
            "For encoders outside the BERT family a cache stores predictions of heads only: use "
            f"SoftTargets, or no cache_dir. Received: {name} of a {type(teacher.encoder).__name__}"
        )
    kind, _ = _parts(name)
    config = teacher.encoder.config
    heads, width = config.num_heads, config.hidden_size
    if kind == _HIDDEN:
        return Layout((TEXTS, TOKENS, width), dtype)
    if kind == "scores":
        return Layout((TEXTS, heads, TOKENS, TOKENS), dtype)
    return Layout((TEXTS, heads, TOKENS, width // heads), dtype)


def returned(names: Iterable[str]) -> dict[str, bool]:
    """Returns the arguments of `Encoder.call` that request token-wise outputs of these names."""
    kinds = {_parts(name)[0] for name in names}
    flags = {"return_hidden_states": _HIDDEN in kinds, "return_internals": bool(kinds - {_HIDDEN})}
    return {name: True for name, is_needed in flags.items() if is_needed}


def head_layout(teacher: FineTuningTask, values: np.ndarray) -> Layout:
    """Returns the layout of a head's predictions `values` (B, …), which are cached in float32."""
    axes = _OF_HEAD[teacher.predicts_per]
    return Layout((*axes, *values.shape[1 + len(axes) :]), "float32", FILL)


def is_head(name: str) -> bool:
    """Whether the output of this name is the prediction of a head."""
    return name.startswith(f"{HEADS}/")


def take(reading: Reading, names: Iterable[str], mask: Tensor, dtype: str) -> dict[str, Tensor]:
    """Returns name -> values (B, …) of token-wise outputs and of the predictions of all heads.

    Args:
        reading: the teacher's outputs for a batch.
        names: names of token-wise outputs.
        mask: the batch's padding mask, (B, T) or (B, W, T).
        dtype: type of the token-wise outputs; predictions are float32.
    """
    texts = ops.shape(mask)[1] if len(mask.shape) == 3 else 1
    outputs = {
        f"{HEADS}/{head}": ops.cast(prediction.values, "float32")
        for head, prediction in reading.predictions.items()
    }
    for name in names:
        kind, layer = _parts(name)
        if kind == _HIDDEN:
            values = reading.outputs[_HIDDEN][layer]
        else:
            values = reading.outputs["internals"][layer - 1][kind]
        by_row = ops.reshape(values, (-1, texts, *ops.shape(values)[1:]))
        outputs[name] = ops.cast(by_row, dtype)
    return outputs


def restore(
    features: Tensors, teacher: FineTuningTask, student: Reading, with_heads: bool
) -> Reading:
    """Returns the teacher's `Reading` of a batch, restored from cached outputs.

    Args:
        features: name of an output -> cached values (B, …).
        teacher: the model that computed them.
        student: the student's outputs for the same batch.
        with_heads: whether predictions are restored.
    """
    layers = teacher.encoder.config.num_layers
    hidden: list[Any] = [None] * (layers + 1)
    internals: list[dict[str, Any]] = [{} for _ in range(layers)]
    predictions = {}
    for name, values in features.items():
        values = ops.cast(values, "float32")
        if is_head(name):
            head = name.removeprefix(f"{HEADS}/")
            if with_heads:
                predictions[head] = student.predictions[head]._replace(values=values)
            continue
        kind, layer = _parts(name)
        values = ops.reshape(values, (-1, *ops.shape(values)[2:]))  # (R, …)
        if kind == _HIDDEN:
            hidden[layer] = values
        else:
            internals[layer - 1][kind] = values
    return Reading(
        task=teacher,
        outputs={"sequence": hidden[-1], _HIDDEN: hidden, "internals": internals},
        logits={},
        predictions=predictions,
        padding_mask=student.padding_mask,
    )


def _parts(name: str) -> tuple[str, int]:
    kind, layer = name.split("/")
    return kind, int(layer)
