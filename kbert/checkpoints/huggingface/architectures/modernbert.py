"""Hugging Face's ModernBERT, and models with its architecture: Ettin, mmBERT.

(Warner et al. 2024, https://arxiv.org/abs/2412.13663.)
"""

from collections.abc import Mapping
from typing import Any, ClassVar, cast

import numpy as np
from absl import logging

from kbert.checkpoints.huggingface.architectures.base import (
    ACTIVATIONS,
    IGNORED,
    REQUIRED,
    SIZES,
    Architecture,
    clipped,
    dense,
    norm,
)
from kbert.checkpoints.keys import known_activation
from kbert.checkpoints.renames import Rule
from kbert.checkpoints.sizes import MOST_LAYERS
from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Arrays

_FULL, _SLIDING = "full_attention", "sliding_attention"
_THETAS = {_FULL: ("global_rope_theta", 160_000.0), _SLIDING: ("local_rope_theta", 10_000.0)}
_POOLINGS = {"cls": "first", "mean": "mean"}
# Key -> part of `has_bias`.
_BIASES = {"attention_bias": "attention", "mlp_bias": "feed_forward", "classifier_bias": "heads"}
# transformers has one name for the dense layer and norm of all heads. `fold` renames them to the
# second for a classifier, where they are kbert's pooler, and to the third for tokens and spans.
_HEAD, _POOLER, _TOKENS = "head.", "pooler.", "token_head."
# Keys that transformers before version 5 wrote instead of the last two in `_PATTERN`.
_FORMER = ("global_attn_every_n_layers", "global_rope_theta", "local_rope_theta")
_PATTERN = ("local_attention", "layer_types", "rope_parameters")


class ModernBert(Architecture):
    """ModernBERT: rotary positions, windows, gated feed-forward parts, pre-norms, no biases."""

    model_type = "modernbert"
    title = "ModernBERT"
    class_prefix = "ModernBert"
    prefix = "model"
    heads: ClassVar[tuple[str, ...]] = (_HEAD, _POOLER, _TOKENS, "decoder.", "classifier.")
    fields: ClassVar[Mapping[str, str]] = {
        **SIZES,
        "max_position_embeddings": "max_positions",
        "hidden_activation": "activation",
        "embedding_dropout": "dropout",
        "attention_dropout": "attention_dropout",
        "norm_eps": "layer_norm_epsilon",
        "initializer_range": "initializer_range",
    }
    defaults: ClassVar[Mapping[str, Any]] = {
        "hidden_activation": "gelu",
        "max_position_embeddings": 8192,
        "embedding_dropout": 0.0,
        "attention_dropout": 0.0,
        "norm_eps": 1e-5,
        "initializer_range": 0.02,
    }
    required: ClassVar[Mapping[str, tuple]] = {
        **REQUIRED,
        "decoder_bias": (True, False),
        # No code reads it; the second value is in the files of Ettin and mmBERT.
        "position_embedding_type": ("absolute", "sans_pos", None),
    }
    # Settings of the loss, of kernels and of initialisation; special ids; `layer_norm_eps`, which
    # repeats another key in published files; and keys read in `read_fields` or `head_activation`.
    ignored = (
        IGNORED
        | frozenset(
            "sparse_prediction sparse_pred_ignore_index repad_logits_with_grad reference_compile "
            "deterministic_flash_attn initializer_cutoff_factor cls_token_id sep_token_id "
            "layer_norm_eps classifier_activation classifier_pooling mlp_dropout "
            "norm_bias".split()
        )
        | {*_BIASES, *_FORMER, *_PATTERN}
    )
    own_fields: ClassVar[tuple[str, ...]] = (
        *("attention_pattern", "rotary_base", "local_rotary_base", "norm", "use_bias"),
        *("num_layer_groups", "embedding_size", "pooling", "bias_exceptions", "head_activation"),
    )
    fixed: ClassVar[Mapping[str, Any]] = {
        "num_segments": 0,
        "positions": "rotary",
        "block": "pre_norm_except_first",
        "feed_forward": "gated",
        "embedding_norm": True,
        "pooler_norm": True,
        "token_transform": True,
    }
    head_dropouts: ClassVar[Mapping[str, tuple[str, float | None]]] = dict.fromkeys(
        ("classifier", "choice", "tokens"), ("classifier_dropout", 0.0)
    )
    pooler_activations = ("gelu", *sorted({*ACTIVATIONS.values()} - {"gelu"}))
    min_segments = 0

    def rules(self, config: Any, head: str | None) -> list[Rule]:
        table = [
            Rule(
                "encoder/embeddings/token",
                ("model.embeddings.tok_embeddings.weight",),
                aliases=("decoder.weight",),
            ),
            *norm("encoder/embeddings/norm", "model.embeddings.norm"),
        ]
        for i in range(config.num_layers):
            layer, source = f"encoder/layers/{i}", f"model.layers.{i}"
            table += [
                *dense(f"{layer}/attention/qkv", f"{source}.attn.Wqkv"),
                *dense(f"{layer}/attention/output", f"{source}.attn.Wo"),
                *norm(f"{layer}/attention_input_norm", f"{source}.attn_norm"),
                *dense(f"{layer}/feed_forward/intermediate", f"{source}.mlp.Wi"),
                *dense(f"{layer}/feed_forward/output", f"{source}.mlp.Wo"),
                *norm(f"{layer}/feed_forward_input_norm", f"{source}.mlp_norm"),
            ]
        table += [
            *norm("encoder/norm", "model.final_norm"),
            *dense("encoder/pooler", f"{_POOLER}dense"),
            *norm("encoder/pooler/norm", f"{_POOLER}norm"),
            *dense("masked_lm/transform", f"{_HEAD}dense"),
            *norm("masked_lm/norm", f"{_HEAD}norm"),
            Rule("masked_lm/bias", ("decoder.bias",)),
        ]
        head = head or "span"  # on writing, a span head is None: it is not among `CLASSIFIERS`
        if head in ("tokens", "span"):
            table += [
                *dense(f"{head}/transform", f"{_TOKENS}dense"),
                *norm(f"{head}/norm", f"{_TOKENS}norm"),
            ]
        return [*table, *dense(f"{head}/dense", "classifier")]

    def classifier(self, content: Mapping[str, Any], arrays: Arrays) -> str | None:
        head = super().classifier(content, arrays)
        classes = str(content.get("architectures"))
        if head == "tokens" and "TokenClassification" not in classes:
            head = "classifier"  # `super` expects a pooler in the names, but this one is `head.`
        return "span" if head is not None and "QuestionAnswering" in classes else head

    def read_fields(self, content: Mapping[str, Any], source: str) -> dict[str, Any]:
        fields = super().read_fields(content, source)
        biases = {key: bool(content.get(key, False)) for key in _BIASES}
        other_bias = biases.pop("mlp_bias")
        if content.get("mlp_dropout", 0.0) != fields["dropout"]:
            logging.warning(
                "kbert's encoder has one dropout rate, that of ModernBERT's embedding_dropout, "
                "%s; mlp_dropout is not used: %s in %s",
                *(fields["dropout"], content.get("mlp_dropout", 0.0), source),
            )
        if "QuestionAnswering" in str(content.get("architectures")):
            rate = content.get("classifier_dropout") or 0.0
            if rate:
                logging.warning(
                    "classifier_dropout is not used, as kbert's head for answers has no dropout: "
                    "%s in %s",
                    *(rate, source),
                )
        kinds = _layer_types(content, fields["num_layers"], source)
        pooling = content.get("classifier_pooling", "cls")
        if pooling not in list(_POOLINGS):  # a list, as the value may not be hashable
            raise ValueError(
                f"`classifier_pooling` must be one of {', '.join(_POOLINGS)}. "
                f"Received: {pooling!r} in {source}"
            )
        thetas = {kind: _theta(content, kind, source) for kind in (_FULL, _SLIDING)}
        has_windows = _SLIDING in kinds
        window = self._window(content, fields["max_positions"], source) if has_windows else None
        return {
            **fields,
            "pooling": _POOLINGS[pooling],
            "use_bias": other_bias,
            "bias_exceptions": tuple(_BIASES[key] for key, x in biases.items() if x != other_bias),
            "norm": "layer" if content.get("norm_bias", False) else "layer_no_bias",
            "attention_pattern": tuple(GLOBAL if kind == _FULL else window for kind in kinds),
            "rotary_base": thetas[_FULL],
            "local_rotary_base": thetas[_SLIDING] if has_windows else None,
        }

    def _window(self, content: Mapping[str, Any], max_positions: Any, source: str) -> int:
        """Returns the window, twice the number of tokens that a token sees on either side.

        An odd window is rounded down. The window is at most twice `max_positions`.
        """
        window = window_of(content, "local_attention", 2, source) // 2 * 2
        return clipped(window, 2 * max_positions) if isinstance(max_positions, int) else window

    def write_fields(self, config: Any, tokenizer: TokenizerLike | None) -> dict[str, Any]:
        windows = [config.window(layer) for layer in range(config.num_layers)]
        kinds = [_FULL if window is None else _SLIDING for window in windows]
        base = config.rotary_base or 10_000.0
        thetas = {_FULL: base, _SLIDING: config.local_rotary_base or base}
        fields = {
            **super().write_fields(config, tokenizer),
            "mlp_dropout": config.dropout,
            **{key: config.has_bias(part) for key, part in _BIASES.items()},
            "classifier_activation": next(
                their_name
                for their_name, name in ACTIVATIONS.items()
                if name == config.transform_activation
            ),
            "norm_bias": config.norm == "layer",
            "classifier_pooling": "mean" if getattr(config, "pooling", "") == "mean" else "cls",
            "local_attention": next((window for window in windows if window is not None), 128),
            "layer_types": kinds,
            "rope_parameters": {
                kind: {"rope_type": "default", "rope_theta": theta}
                for kind, theta in thetas.items()
            },
        }
        if tokenizer is None:
            # Else transformers uses the ids of ModernBERT's vocabulary.
            roles = ("pad", "cls", "sep", "bos", "eos")
            return {**fields, **dict.fromkeys(f"{role}_token_id" for role in roles)}
        ids = {"cls_token_id": tokenizer.cls_id, "sep_token_id": tokenizer.sep_id}
        return {**fields, **ids, "bos_token_id": tokenizer.cls_id, "eos_token_id": tokenizer.sep_id}

    def head_activation(self, content: Mapping[str, Any], source: str) -> str | None:
        name = content.get("classifier_activation", "gelu")
        return known_activation(name, ACTIVATIONS, "`classifier_activation`", source)

    def usual_pooler(self, config: Any) -> str:
        return cast(str, config.transform_activation)

    def pooler_activation(self, content: Mapping[str, Any], head: str | None) -> str:
        return cast(str, self.head_activation(content, "the config"))

    def fold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        head = self.classifier(content, arrays)
        if head is None:
            return with_decoder_bias(arrays, f"{_HEAD}dense.weight")
        prefix = _TOKENS if head in ("tokens", "span") else _POOLER
        return {_moved(name, _HEAD, prefix): array for name, array in arrays.items()}

    def unfold(self, arrays: Arrays, content: Mapping[str, Any]) -> Arrays:
        return {
            _moved(_moved(name, _POOLER, _HEAD), _TOKENS, _HEAD): array
            for name, array in arrays.items()
        }

    def misfits(self, config: Any) -> list[str]:
        windows = {config.window(layer) for layer in range(config.num_layers)} - {None}
        reasons = super().misfits(config) if isinstance(config, EncoderConfig) else []
        if len(windows) > 1:
            reasons.append("its windows have one size")
        if config.norm == "rms":
            reasons.append("its norms subtract the mean")
        if "gate" in config.bias_exceptions:
            reasons.append("its gates have a bias if its other feed-forward layers have one")
        if getattr(config, "pooler_activation", None) not in (None, config.transform_activation):
            reasons.append("its pooler has the activation of its other heads")
        if getattr(config, "pooling", "first") not in _POOLINGS.values():  # a decoder has none
            reasons.append(f"its pooling is {' or '.join(_POOLINGS.values())}")
        return reasons


def with_decoder_bias(arrays: Arrays, transform: str) -> Arrays:
    """Adds a bias of zeros for the token logits of a model without `decoder_bias`.

    Args:
        arrays: name in transformers -> array.
        transform: name of a weight of the masked-LM head; without it nothing is added.
    """
    tokens = arrays.get("model.embeddings.tok_embeddings.weight")
    if transform not in arrays or "decoder.bias" in arrays or tokens is None:
        return arrays
    return {**arrays, "decoder.bias": np.zeros(len(tokens), tokens.dtype)}


def window_of(content: Mapping[str, Any], key: str, least: int, source: str) -> int:
    """Returns the attention window in a config, in tokens.

    Args:
        content: key -> value of `config.json`.
        key: config key of the window; absent = 128.
        least: smallest valid window.
        source: where the config is from, for the error message.

    Raises:
        ValueError: the window is not a whole number of tokens, or is too small.
    """
    window = content.get(key, 128)
    if not isinstance(window, int) or isinstance(window, bool) or window < least:
        raise ValueError(
            f"`{key}` must be a whole number of tokens, at least {least}. "
            f"Received: {window!r} in {source}"
        )
    return window


def _layer_types(content: Mapping[str, Any], num_layers: Any, source: str) -> list[str]:
    """Returns the layers' kinds of attention, as the shortest list that they repeat.

    The kinds are "full_attention" and "sliding_attention", from `layer_types` or the older
    `global_attn_every_n_layers`. Raises ValueError for invalid values.
    """
    kinds = content.get("layer_types")
    if kinds is None:
        every = content.get("global_attn_every_n_layers", 3)
        if not isinstance(every, int) or not 1 <= every <= MOST_LAYERS:
            raise ValueError(
                f"`global_attn_every_n_layers` must be a number of layers, {MOST_LAYERS} at most. "
                f"Received: {every!r} in {source}"
            )
        return [_FULL, *(_SLIDING for _ in range(every - 1))]
    is_valid = isinstance(kinds, list) and all(kind in (_FULL, _SLIDING) for kind in kinds)
    if not is_valid or len(kinds) != num_layers or len(kinds) > MOST_LAYERS:
        raise ValueError(
            f"`layer_types` must name {_FULL!r} or {_SLIDING!r} for each of the layers. "
            f"Received: {kinds!r:.80} in {source}"
        )
    for period in range(1, len(kinds)):
        if all(kind == kinds[i % period] for i, kind in enumerate(kinds)):
            return kinds[:period]
    return kinds


def _theta(content: Mapping[str, Any], kind: str, source: str) -> float:
    """Returns the rotary base of one kind of attention, under the keys of any version.

    Raises ValueError if `rope_parameters` scale the positions.

    Args:
        content: key -> value of `config.json`.
        kind: "full_attention" or "sliding_attention".
        source: where the config is from, for the error message.
    """
    key, default = _THETAS[kind]
    theta = content.get(key, default)
    rope = content.get("rope_parameters")
    if rope is None:
        return theta
    if isinstance(rope, dict) and {*rope} <= {*_THETAS} and rope.get(kind) is None:
        return theta
    parameters: Any = rope.get(kind) if isinstance(rope, dict) else None
    extra = (
        set(parameters) - {"rope_type", "rope_theta"}
        if isinstance(parameters, dict)
        else {"nothing"}
    )
    if extra or parameters.get("rope_type", "default") != "default":
        raise ValueError(
            f"`rope_parameters` must give a `rope_theta` of the type 'default' for {kind}. "
            f"Received: {rope!r:.120} in {source}"
        )
    return parameters.get("rope_theta", theta)


def _moved(name: str, prefix: str, to: str) -> str:
    return to + name.removeprefix(prefix) if name.startswith(prefix) else name
