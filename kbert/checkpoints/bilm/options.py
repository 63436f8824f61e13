"""Converts the options.json of a biLM to an `ElmoConfig` and back.

Every key is used or known not to affect the model; any other raises an error.
"""

from collections.abc import Mapping
from typing import Any

from kbert.checkpoints.keys import check_keys, make_config
from kbert.configs.elmo import ElmoConfig

# Key -> field of ElmoConfig; all keys are in bin/train_elmo.py of allenai/bilm-tf.
_LSTM = {
    "dim": "lstm_size",
    "projection_dim": "projection_size",
    "n_layers": "num_layers",
    "cell_clip": "cell_clip",
    "proj_clip": "projection_clip",
    "use_skip_connections": "skip_connections",
}
_CHARACTERS = {
    "filters": "filters",
    "activation": "activation",
    "max_characters_per_token": "max_characters",
    "n_highway": "num_highway",
}
# The original's default for an absent key, by field of ElmoConfig.
_ABSENT = {
    "num_layers": 1,
    "cell_clip": None,
    "projection_clip": None,
    "skip_connections": False,
    "num_highway": 0,
}
# Keys of a training run's file: training settings, and the size of a softmax that is not released.
_TRAINING = (
    *("all_clip_norm_val", "batch_size", "n_epochs", "n_negative_samples_batch"),
    *("n_tokens_vocab", "n_train_tokens", "sample_softmax", "unroll_steps"),
)
_ACTIVATIONS = ("relu", "tanh")


def read_options(content: Mapping[str, Any], source: str) -> ElmoConfig:
    """Returns the config described by the content of an `options.json`.

    Args:
        content: key -> value of the file.
        source: name of the file, for messages.

    Raises:
        ValueError: a key is unknown or missing, or kbert does not support a value.
    """
    check_keys(
        content,
        fields=("char_cnn", "lstm", "dropout"),
        defaults=("dropout",),
        required={"bidirectional": (True,)},
        ignored=_TRAINING,
        title="a biLM",
        source=source,
    )
    lstm, characters = _part(content, "lstm", source), _part(content, "char_cnn", source)
    optional = ("n_layers", "cell_clip", "proj_clip", "use_skip_connections")
    check_keys(lstm, fields=_LSTM, defaults=optional, title="a biLM's lstm", source=source)
    check_keys(
        characters,
        fields=(*_CHARACTERS, "embedding"),
        defaults=("n_highway",),
        # 261 in a training run's file; 262 with the padding that prediction adds.
        required={"n_characters": (262, 261), "activation": _ACTIVATIONS},
        title="a biLM's char_cnn",
        source=source,
    )
    embedding = _part(characters, "embedding", source)
    check_keys(embedding, fields=("dim",), title="a biLM's embedding", source=source)
    fields = {field: lstm[key] for key, field in _LSTM.items() if key in lstm}
    fields |= {field: characters[key] for key, field in _CHARACTERS.items() if key in characters}
    fields["character_size"] = embedding["dim"]
    if "dropout" in content:
        fields["dropout"] = content["dropout"]
    config = make_config(ElmoConfig, _ABSENT | fields, source)
    _check_projection(config, source)
    return config


def write_options(config: ElmoConfig) -> dict[str, Any]:
    """Returns the content of options.json for a config; reverses `read_options`.

    Raises:
        ValueError: bilm-tf has no such model: the activation is neither ReLU nor tanh, there are
            fewer filters than `projection_size`, or `projection_size` is not less than `lstm_size`.
    """
    if config.activation not in _ACTIVATIONS:
        raise ValueError(
            f"bilm-tf supports only the activations {' and '.join(_ACTIVATIONS)}. Received: "
            f"activation={config.activation!r}"
        )
    if config.num_filters < config.projection_size:
        raise ValueError(
            "bilm-tf requires at least as many filters as `projection_size`. Received: "
            f"{config.num_filters} filters, projection_size={config.projection_size}"
        )
    _check_projection(config, "the config")
    lstm = {key: getattr(config, field) for key, field in _LSTM.items()}
    characters = {key: getattr(config, field) for key, field in _CHARACTERS.items()}
    return {
        "lstm": {key: value for key, value in lstm.items() if value is not None},
        "char_cnn": {
            **characters,
            "embedding": {"dim": config.character_size},
            "n_characters": 262,
        },
        "dropout": config.dropout,
    }


def _part(content: Mapping[str, Any], key: str, source: str) -> dict[str, Any]:
    """Returns the JSON object under a key of the options; raises ValueError if it is no object."""
    part = content[key]
    if not isinstance(part, dict):
        raise ValueError(f"`{key}` must be a JSON object. Received: {part!r} in {source}")
    return part


def _check_projection(config: Any, source: str) -> None:
    """Raises ValueError unless `projection_size` is less than `lstm_size`."""
    # With equal sizes the original has no projection, but kbert does.
    if config.projection_size >= config.lstm_size:
        raise ValueError(
            "The projection of a cell's output must be smaller than its state. Received: "
            f"projection_dim={config.projection_size}, dim={config.lstm_size} in {source}"
        )
