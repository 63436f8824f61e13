"""Students: smaller models of the teacher's kind, initialised with some of its layers."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from absl import logging

from kbert.configs.encoder import EncoderConfig
from kbert.core.types import DType
from kbert.models import Encoder
from kbert.models.edits import variants_of
from kbert.models.weights import get_arrays, named_weights, set_arrays
from kbert.tasks import EncoderTask

RANDOM, EVERY_OTHER, EMBEDDINGS = "random", "every_other", "embeddings"

_PADDING = "encoder/embeddings/padding"  # in encoders that count positions by ids


def student(
    teacher: Encoder | EncoderTask,
    num_layers: int | None = None,
    init: str | Sequence[int] = EVERY_OTHER,
    *,
    dtype: DType = None,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Encoder | EncoderTask:
    """Returns a student for a teacher: fewer layers or other sizes, the same vocabulary.

    DistilBERT is initialised with every other layer of its teacher, without segments and pooler
    (Sanh et al. 2019, section 3, https://arxiv.org/abs/1910.01108):

        kbert.student(bert, 6, [0, 2, 4, 7, 9, 11], num_segments=0, pooler_activation=None)

    TinyBERT is narrower and randomly initialised (Jiao et al. 2020, section 4.2):

        kbert.student(bert, 4, "random", hidden_size=312, num_heads=12, intermediate_size=1200)

    MobileBERT has its teacher's embeddings and heads, and newly initialised layers
    (https://arxiv.org/abs/2004.02984, section 3.4):

        kbert.student(ib_bert, init="embeddings", part={"name": "bottleneck"}, activation="relu",
                      intermediate_size=512, pooler_activation="identity", dropout=0.0)

    If the teacher's layers share weights (ALBERT), so do the student's. In a student without
    segments, the teacher's first segment embedding is added to the position embeddings, so that a
    single text has the same embeddings.

    Args:
        teacher: an encoder, or a task on one; of an ensemble the first member. For a task, the
            student is a task of the same kind and settings. Heads get the teacher's weights if they
            fit, and are newly initialised otherwise.
        num_layers: number of the student's layers; None = the teacher's.
        init: initial weights of the layers. "every_other": layer i of M copies the teacher's layer
            i · L / M of L, rounded down, both counted from 0. A list: the teacher's layers to copy,
            counted from 0. "embeddings": of the encoder, only the embeddings are copied. "random":
            nothing is copied, heads neither.
        dtype: Keras dtype policy or its name; None = the teacher's.
        settings: arguments of the task's constructor that differ from the teacher's.
        **changes: other fields of the config that differ from the teacher's.

    Returns:
        An encoder or a task, not compiled.

    Raises:
        ValueError: the teacher is no encoder of the BERT family, the vocabulary differs, the
            teacher does not have a layer, sizes do not fit its layers, or layers with adapters
            would be copied.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=4, num_heads=2,
        ...                        intermediate_size=16)
        >>> small = student(Encoder(config), num_layers=2)
        >>> small.config.num_layers, small.config.hidden_size
        (2, 8)
    """
    teacher = getattr(teacher, "members", [teacher])[0]
    encoder = teacher.encoder if isinstance(teacher, EncoderTask) else teacher
    if not isinstance(encoder, Encoder):
        raise ValueError(
            "student() requires an encoder of the BERT family, or a task on one. Received: a "
            f"{type(encoder).__name__}"
        )
    config = _config(encoder.config, num_layers, changes)
    layers = _layers(init, config.num_layers, encoder.config.num_layers)
    if layers is not None:
        variants_of(encoder).refuse_config()
    dtype = encoder.dtype_policy if dtype is None else dtype
    small = Encoder(config, dtype=dtype)
    if config.padding_id == encoder.config.padding_id:
        small.weights_from = encoder.weights_from
    if layers is not None:
        set_arrays(small, "encoder", _arrays(encoder, small, layers), "the teacher")
    elif init == EMBEDDINGS:
        _take_over_embeddings(small, encoder)
    if not isinstance(teacher, EncoderTask):
        return small
    task = type(teacher)(small, teacher.tokenizer, **_settings(teacher, config, settings or {}))
    if init != RANDOM:
        _take_over_heads(task, teacher)
    return task


def _config(config: EncoderConfig, num_layers: int | None, changes: dict) -> EncoderConfig:
    """Returns the student's config; ValueError if its vocabulary differs from the teacher's.

    Args:
        config: config of the teacher's encoder.
        num_layers: number of the student's layers; None = the teacher's.
        changes: other fields that differ.
    """
    fields = {**config.to_dict(), **changes}
    if num_layers is not None:
        fields["num_layers"] = num_layers
    if config.num_layer_groups is not None and "num_layer_groups" not in changes:
        fields["num_layer_groups"] = min(config.num_layer_groups, fields["num_layers"])
    student_config = type(config).from_dict(fields)
    if student_config.vocabulary_size != config.vocabulary_size:
        raise ValueError(
            "Student and teacher must have the same vocabulary. Received: "
            f"vocabulary_size={student_config.vocabulary_size} and {config.vocabulary_size}"
        )
    return student_config


def _layers(init: str | Sequence[int], count: int, depth: int) -> list[int] | None:
    """Returns the teacher's layer, from 0, that each layer copies; None if none is copied.

    Args:
        init: argument of `student`.
        count: number of the student's layers.
        depth: number of the teacher's layers.
    """
    if init in (RANDOM, EMBEDDINGS):
        return None
    if init == EVERY_OTHER:
        return [i * depth // count for i in range(count)]
    if isinstance(init, str):
        raise ValueError(
            f'init must be "{EVERY_OTHER}", "{EMBEDDINGS}", "{RANDOM}" or a list of the '
            f"teacher's layers. Received: {init!r}"
        )
    layers = [int(layer) for layer in init]
    if len(layers) != count or any(not 0 <= layer < depth for layer in layers):
        raise ValueError(
            f"init must name a layer of the teacher, from 0 to {depth - 1}, for each of the "
            f"student's {count}. Received: {layers}"
        )
    return layers


def _arrays(teacher: Encoder, small: Encoder, layers: list[int]) -> dict[str, np.ndarray]:
    """Returns name of the student's weight -> the teacher's values.

    Args:
        teacher: the teacher's encoder.
        small: the student's encoder.
        layers: teacher's layer, from 0, that each layer of the student copies.

    Raises:
        ValueError: a weight of the student has another shape or no counterpart.
    """
    groups = len(small.blocks)
    first_layer = [-(-group * small.config.num_layers // groups) for group in range(groups)]
    positions = "encoder/embeddings/position"
    arrays = get_arrays(teacher.embeddings, "encoder/embeddings")
    if not small.config.num_segments and teacher.config.num_segments:
        segment = arrays.pop("encoder/embeddings/segment")
        if positions not in arrays:
            raise ValueError(
                "A student without segments requires a teacher with learned positions, to which "
                "the first segment embedding is added. "
                f"Received: num_segments=0, a teacher with positions={teacher.config.positions!r}"
            )
        for name in (positions, _PADDING):
            if name in arrays:
                arrays[name] = arrays[name] + segment[0]
    if small.config.padding_id is None:
        arrays.pop(_PADDING, None)
    if positions in arrays:
        arrays[positions] = arrays[positions][: small.config.max_positions]
    for group, layer in enumerate(first_layer):
        block = teacher.layer_blocks[layers[layer]]
        arrays |= get_arrays(block, f"encoder/layers/{group}")
    if small.norm is not None and teacher.norm is not None:
        arrays |= get_arrays(teacher.norm, "encoder/norm")
    if small.pooler is not None:  # newly initialised if the teacher has none
        arrays |= get_arrays(teacher.pooler or small.pooler, "encoder/pooler")
    _check_sizes(small, arrays)
    return arrays


def _take_over_embeddings(small: Encoder, teacher: Encoder) -> None:
    """Copies the teacher's embedding weights to `small`; a norm of another class is not copied."""
    prefix = "encoder/embeddings"
    arrays = get_arrays(small.embeddings, prefix)
    teacher_arrays = get_arrays(teacher.embeddings, prefix)
    if type(small.embeddings.norm) is not type(teacher.embeddings.norm):
        teacher_arrays = {
            name: x for name, x in teacher_arrays.items() if not name.startswith(f"{prefix}/norm/")
        }
    teacher_arrays = {name: x for name, x in teacher_arrays.items() if name in arrays}
    positions = f"{prefix}/position"
    if positions in teacher_arrays:
        teacher_arrays[positions] = teacher_arrays[positions][: small.config.max_positions]
    differing_names = [name for name, x in teacher_arrays.items() if x.shape != arrays[name].shape]
    if differing_names:
        raise ValueError(
            "A student with its teacher's embeddings must have their sizes: use "
            f'init="{RANDOM}". Received: {", ".join(differing_names)} of other shapes'
        )
    set_arrays(small.embeddings, prefix, {**arrays, **teacher_arrays}, "the teacher")


def _check_sizes(small: Encoder, arrays: dict[str, np.ndarray]) -> None:
    """Raises ValueError unless `arrays` has every weight of `small`, in its shape."""
    shapes = {name: tuple(w.shape) for name, w in named_weights(small, "encoder").items()}
    differing_names = [n for n, shape in shapes.items() if n in arrays and arrays[n].shape != shape]
    differing_names += [name for name in shapes if name not in arrays]
    if differing_names:
        raise ValueError(
            "A student of other sizes cannot be initialised with its teacher's layers: use "
            f'init="{RANDOM}". Received: {", ".join(differing_names[:3])} of other shapes, '
            f"{len(differing_names)} in all"
        )


def _settings(teacher: EncoderTask, config: EncoderConfig, changes: Mapping) -> dict[str, Any]:
    """Returns the arguments of the student task: the teacher's, with `changes`.

    Without a pooler, heads on it are off. `max_length` is at most the student's `max_positions`.
    """
    settings = {**teacher.settings, **changes}
    if config.pooler_activation is None:  # without pooler, no heads on it
        settings |= {n: False for n in ("next_sentence", "sentence_order") if n in settings}
    longest = settings.get("max_length")
    if longest is not None:
        settings["max_length"] = min(longest, config.max_positions)
    return settings


def _take_over_heads(task: EncoderTask, teacher: EncoderTask) -> None:
    """Copies the weights of the teacher's heads that fit `task`; logs those that do not."""
    for prefix, part in task.parts.items():
        if prefix in task.model_parts:
            continue
        source = teacher.parts.get(prefix)
        if source is None:
            logging.info("The head %s is newly initialised: the teacher has none", prefix)
        elif getattr(task, "labels", None) != getattr(teacher, "labels", None):
            logging.info(
                "The head %s is newly initialised: its labels differ from the teacher's", prefix
            )
        elif [tuple(w.shape) for w in part.weights] != [tuple(w.shape) for w in source.weights]:
            logging.info(
                "The head %s is newly initialised: its width differs from the teacher's", prefix
            )
        else:
            set_arrays(part, prefix, get_arrays(source, prefix), "the teacher")
