"""Hugging Face's `config.json`, in both directions."""

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
    """A `config.json` -> a config. Every key is used or known to say nothing.

    `hidden_act` decides the form of GELU: "gelu" is the erf form there, but in GPT.

    Args:
        architecture: the table.
        content: the JSON object.
        source: where it is from, for messages.

    Returns:
        The config, without a pooler: whether there is one is for the weights to say.

    Raises:
        ValueError: an unknown key, or a value that kbert's encoder has no equal for.

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
    activation, known = fields["activation"], architecture.activations
    fields["activation"] = known_activation(activation, known, "The activation", source)
    of_heads = architecture.head_activation(content, source)
    if of_heads not in (None, fields["activation"]):
        fields["head_activation"] = of_heads
    fields |= {**architecture.fixed, **architecture.unsaid}
    return make_config(architecture.config_class, fields, source)


def write_config(
    architecture: Architecture, config: Any, tokenizer: TokenizerLike | None = None
) -> dict[str, Any]:
    """A config -> the content of a `config.json`, the reverse of `read_config`.

    Args:
        architecture: the table.
        config: the model's; no more than the architecture can be.
        tokenizer: whose special ids the config repeats, or None.

    Returns:
        The JSON object.

    Raises:
        ValueError: the architecture cannot be this model; the message says why.
    """
    incompatibilities = architecture.incompatibilities(config)
    if incompatibilities:
        raise ValueError(
            f"Hugging Face's {architecture.title} cannot be this model: "
            f"{'; '.join(incompatibilities)}. Received: {config}"
        )
    there = {here: there for there, here in reversed(list(architecture.activations.items()))}
    content = architecture.write_fields(config, tokenizer)
    (key,) = (key for key, field in architecture.fields.items() if field == "activation")
    return {"model_type": architecture.model_type, **content, key: there[config.activation]}


def read_labels(content: Mapping[str, Any], count: int, source: str) -> tuple[str, ...]:
    """The names of classes, in the order of the logits.

    `id2label` decides, as in transformers; where it is missing, `label2id` does. A `label2id` that
    says otherwise is named in a warning: programs that encode labels by it were trained so.

    Args:
        content: the JSON object; both keys may be missing.
        count: how many classes the head has.
        source: where it is from, for messages.

    Raises:
        ValueError: `id2label` names another number of classes.

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
    at = dict(zip(labels, classes, strict=True))
    by_class: dict[str, set[Any]] = {}
    for name, i in ids.items():
        by_class.setdefault(str(i), set()).add(name)
    contradicted = any(at.get(name, str(i)) != str(i) for name, i in ids.items())
    unnamed = any(name not in by_class.get(i, {name}) for name, i in at.items())
    if contradicted or unnamed or (ids and not {*at} & {*ids}):
        logging.warning(
            "%s: the classes are %s, by `id2label` as in transformers; `label2id` says otherwise: "
            "%.200r",
            *(source, ", ".join(labels[:_SHOWN]), ids),
        )
    return labels


def read_problem_type(content: Mapping[str, Any], source: str) -> str | None:
    """What a classifier is for, one of `PROBLEM_TYPES`; None where the config does not say it.

    Args:
        content: the JSON object.
        source: where it is from, for messages.

    Raises:
        ValueError: transformers has no such type.

    Example:
        >>> read_problem_type({"problem_type": "regression"}, "memory")
        'regression'
    """
    problem_type = content.get("problem_type")
    if problem_type is not None and problem_type not in list(PROBLEM_TYPES):  # of any kind
        raise ValueError(
            f"`problem_type` must be one of {', '.join(PROBLEM_TYPES)}. "
            f"Received: {problem_type!r} in {source}"
        )
    return problem_type


def read_head_dropout(
    architecture: Architecture, content: Mapping[str, Any], head: str, usual: float, source: str
) -> float | None:
    """The rate of dropout before the last layer of a fine-tuned head.

    Args:
        architecture: the table.
        content: the JSON object.
        head: which of `CLASSIFIERS`.
        usual: the encoder's rate.
        source: where it is from, for messages.

    Returns:
        The rate; None where it is the encoder's.

    Raises:
        ValueError: it is no rate.

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
    """The reverse of `read_head_dropout`; a rate that has no place is named in a warning.

    Args:
        architecture: the table.
        head: which of `CLASSIFIERS`.
        rate: the task's; None = the encoder's.
        usual: the encoder's rate.
    """
    key, absent = architecture.head_dropouts.get(head, (None, None))
    if key is None and rate not in (None, usual):
        logging.warning(
            "Hugging Face's %s has no place for the dropout of this head: dropout=%s",
            *(architecture.title, rate),
        )
    if key is None or (rate is None and absent is None):
        return {}
    return {key: usual if rate is None else rate}


def write_labels(labels: Sequence[str] | None, count: int) -> dict[str, Any]:
    """The reverse of `read_labels`.

    Args:
        labels: the names; None = transformers' own, "LABEL_0" and so on.
        count: how many classes the head has.

    Raises:
        ValueError: there are more or fewer names.
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
