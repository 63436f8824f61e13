"""Converts Hugging Face's `config.json` to a config and back."""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from absl import logging

from kbert.checkpoints.checkpoint import PROBLEM_TYPES, default_labels
from kbert.checkpoints.huggingface.architectures import Architecture, is_decisive
from kbert.checkpoints.huggingface.unread_keys import says_nothing
from kbert.checkpoints.keys import check_keys, known_activation, make_config
from kbert.configs.base import Config
from kbert.core.protocols import TokenizerLike

_SHOWN = 5  # names in a message


def read_config(architecture: Architecture, content: Mapping[str, Any], source: str) -> Config:
    """Converts a `config.json` to a config. Every key must be used or known to be irrelevant.

    `hidden_act` decides the form of GELU: "gelu" is the erf form, except in GPT.

    Args:
        architecture: table of the architecture.
        content: key -> value of `config.json`.
        source: where the config is from, for messages.

    Returns:
        The config, without a pooler: the weights determine whether there is one.

    Raises:
        ValueError: a key is unknown, or kbert does not support a value.

    Example:
        >>> from kbert.checkpoints.huggingface.architectures import find
        >>> content = {"model_type": "bert", "vocab_size": 10, "hidden_size": 4,
        ...            "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
        >>> read_config(find("bert", "memory"), content, "memory").activation
        'gelu'
    """
    content = architecture.modernised(content)
    check_keys(
        content,
        fields=architecture.fields,
        defaults=architecture.defaults,
        required=architecture.required,
        ignored=architecture.ignored,
        harmless=says_nothing,
        decisive=is_decisive,
        title=f"Hugging Face's {architecture.title}",
        source=source,
    )
    fields = architecture.read_fields(content, source)
    activation, activations = fields["activation"], architecture.activations
    fields["activation"] = known_activation(activation, activations, "The activation", source)
    head_activation = architecture.head_activation(content, source)
    if head_activation not in (None, fields["activation"]):
        fields["head_activation"] = head_activation
    fields |= {**architecture.fixed, **architecture.unsaid}
    return make_config(architecture.config_class, fields, source)


def write_config(
    architecture: Architecture, config: Any, tokenizer: TokenizerLike | None = None
) -> dict[str, Any]:
    """Converts a config to the content of a `config.json`; reverses `read_config`.

    Args:
        architecture: table of the architecture.
        config: config of the model.
        tokenizer: tokenizer whose special ids `config.json` repeats, or None.

    Returns:
        Key -> value of `config.json`.

    Raises:
        ValueError: the architecture cannot be this model; the message gives the reasons.
    """
    incompatibilities = architecture.incompatibilities(config)
    if incompatibilities:
        raise ValueError(
            f"Hugging Face's {architecture.title} does not support this model: "
            f"{'; '.join(incompatibilities)}. Received: {config}"
        )
    their_name = {
        name: their_name for their_name, name in reversed(list(architecture.activations.items()))
    }
    content = architecture.write_fields(config, tokenizer)
    (key,) = (key for key, field in architecture.fields.items() if field == "activation")
    return {"model_type": architecture.model_type, **content, key: their_name[config.activation]}


def read_labels(content: Mapping[str, Any], count: int, source: str) -> tuple[str, ...]:
    """Returns the class names in the order of the logits.

    The names are from `id2label`, as in transformers, or from `label2id` if `id2label` is missing.
    If `label2id` does not name all classes either, they are "LABEL_0" and so on. A `label2id` that
    contradicts the names logs a warning: a program that encodes labels by it would have trained the
    model on that order.

    Args:
        content: key -> value of `config.json`; both keys may be missing.
        count: number of classes of the head.
        source: where the config is from, for messages.

    Raises:
        ValueError: `id2label` does not name exactly the classes of the head; or neither `id2label`
            nor `label2id` names them, and `num_labels` is another number.

    Example:
        >>> read_labels({"id2label": {"1": "good", "0": "bad"}}, 2, "memory")
        ('bad', 'good')
        >>> read_labels({"label2id": {"good": 1, "bad": 0}}, 2, "memory")
        ('bad', 'good')
    """
    names, ids = content.get("id2label"), content.get("label2id")
    ids = ids if isinstance(ids, dict) else {}
    classes = [str(i) for i in range(count)]
    by_id = {str(i): name for name, i in ids.items()}
    if names is None and len(by_id) == len(ids) and {*by_id} == {*classes}:
        return tuple(by_id[i] for i in classes)
    if names is None and content.get("num_labels", count) == count:
        labels = default_labels(count)
    else:
        by_id = {str(i): str(x) for i, x in names.items()} if isinstance(names, dict) else {}
        if {*by_id} != {*classes}:
            raise ValueError(
                f"`id2label` must name the classes 0 to {count - 1} of the head in the weights. "
                f"Received: {names!r:.200} in {source}"
            )
        labels = tuple(by_id[i] for i in classes)
    id_of_label = dict(zip(labels, classes, strict=True))
    by_class: dict[str, set[Any]] = {}
    for name, i in ids.items():
        by_class.setdefault(str(i), set()).add(name)
    contradicted = any(id_of_label.get(name, str(i)) != str(i) for name, i in ids.items())
    unnamed = any(name not in by_class.get(i, {name}) for name, i in id_of_label.items())
    if contradicted or unnamed or (ids and not {*id_of_label} & {*ids}):
        logging.warning(
            "%s: the classes are %s, from `id2label` as in transformers; `label2id` contradicts "
            "it: %.200r",
            *(source, ", ".join(labels[:_SHOWN]), ids),
        )
    return labels


def read_problem_type(content: Mapping[str, Any], source: str) -> str | None:
    """Returns the problem type of a classifier, a key of `PROBLEM_TYPES`; None if there is none.

    Args:
        content: key -> value of `config.json`.
        source: where the config is from, for messages.

    Raises:
        ValueError: transformers has no such problem type.

    Example:
        >>> read_problem_type({"problem_type": "regression"}, "memory")
        'regression'
    """
    problem_type = content.get("problem_type")
    # A list, as the value may not be hashable.
    if problem_type is not None and problem_type not in list(PROBLEM_TYPES):
        raise ValueError(
            f"`problem_type` must be one of {', '.join(PROBLEM_TYPES)}. "
            f"Received: {problem_type!r} in {source}"
        )
    return problem_type


def read_head_dropout(
    architecture: Architecture, content: Mapping[str, Any], head: str, usual: float, source: str
) -> float | None:
    """Returns the dropout rate before the last layer of a fine-tuned head.

    Args:
        architecture: table of the architecture.
        content: key -> value of `config.json`.
        head: name of the head, one of `CLASSIFIERS`.
        usual: dropout rate of the encoder.
        source: where the config is from, for messages.

    Returns:
        The rate; None if it is the encoder's.

    Raises:
        ValueError: the value is not a rate.

    Example:
        >>> from kbert.checkpoints.huggingface.architectures import find
        >>> read_head_dropout(find("distilbert", "memory"), {}, "classifier", 0.1, "memory")
        0.2
    """
    key, absent = architecture.head_dropouts.get(head, (None, None))
    rate = content.get(cast(str, key), absent)
    if rate is None or rate == usual:
        return None
    if not isinstance(rate, int | float) or not 0 <= rate < 1:
        raise ValueError(
            f"`{key}` must be at least 0 and less than 1, or null. Received: {rate!r} in {source}"
        )
    return float(rate)


def write_head_dropout(
    architecture: Architecture, head: str, rate: float | None, usual: float
) -> dict[str, float]:
    """Returns config key -> rate for the dropout of a head; reverses `read_head_dropout`.

    The dict is empty if the architecture has no key, or if an absent key means the encoder's rate
    and `rate` is None. A rate other than the encoder's that has no key logs a warning.

    Args:
        architecture: table of the architecture.
        head: name of the head, one of `CLASSIFIERS`.
        rate: dropout rate of the task; None = the encoder's.
        usual: dropout rate of the encoder.
    """
    key, absent = architecture.head_dropouts.get(head, (None, None))
    if key is None and rate not in (None, usual):
        logging.warning(
            "Hugging Face's %s does not support a dropout of this head: dropout=%s",
            *(architecture.title, rate),
        )
    if key is None or (rate is None and absent is None):
        return {}
    return {key: usual if rate is None else rate}


def write_labels(labels: Sequence[str] | None, count: int) -> dict[str, Any]:
    """Returns `id2label` and `label2id` of class names; reverses `read_labels`.

    Args:
        labels: class names; None = transformers' defaults, "LABEL_0" and so on.
        count: number of classes of the head.

    Raises:
        ValueError: there are more or fewer names than classes.
    """
    names = default_labels(count) if labels is None else labels
    if len(names) != count:
        raise ValueError(
            f"A head of {count} classes must have as many labels. Received: {len(names)} labels"
        )
    return {
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
    }
