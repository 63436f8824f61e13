"""Converts an encoder that was trained with a causal mask to a decoder."""

from typing import Any

import keras

from kbert.configs.decoder import DecoderConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.transformer import GLOBAL, TransformerConfig
from kbert.models.encoder import Encoder
from kbert.models.generators.decoder import Decoder
from kbert.models.weights import get_arrays, set_arrays

# Fields of both kinds of config.
_SAME = (
    *("vocabulary_size", "hidden_size", "num_layers", "num_heads", "intermediate_size"),
    *("max_positions", "activation", "dropout", "attention_dropout", "layer_norm_epsilon"),
    *("initializer_range", "positions", "rotary_base", "local_rotary_base", "feed_forward"),
    *("norm", "block", "embedding_norm", "use_bias", "bias_exceptions", "head_activation"),
)
# Fields that a decoder's config lacks -> the only value that can be converted.
_ONLY = {"num_key_value_heads": None, "output": "transformed", "edits": ()}


def config_of_decoder(config: EncoderConfig) -> DecoderConfig:
    """Returns the config of a decoder that computes the same as an encoder with a causal mask.

    The window of an encoder reaches half its width before a token. The decoder's window is that
    half and the token itself.

    Raises:
        ValueError: no decoder corresponds to the config.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16, attention_pattern=("global", 6))
        >>> config_of_decoder(config).attention_pattern
        ('global', 4)
    """
    for holds, text, received in (
        (config.kind == EncoderConfig.kind, "the kind 'encoder'", f"kind={config.kind!r}"),
        (config.part is None, "no `part`", f"part={config.part}"),
        *(
            (getattr(config, name) == value, f"{name}={value!r}", f"{name}={getattr(config, name)}")
            for name, value in _ONLY.items()
        ),
        (
            config.positions in DecoderConfig.CHOICES["positions"],
            f"positions among {', '.join(DecoderConfig.CHOICES['positions'])}",
            f"positions={config.positions!r}",
        ),
        (
            config.embedding_width == config.hidden_size,
            "an `embedding_size` equal to `hidden_size`",
            f"embedding_size={config.embedding_size}, hidden_size={config.hidden_size}",
        ),
        (
            config.num_segments == 0 or config.positions == "learned",
            "num_segments=0, unless its positions are learned",
            f"num_segments={config.num_segments}, positions={config.positions!r}",
        ),
    ):
        if not holds:
            raise ValueError(
                f"An encoder that becomes a decoder must have {text}. Received: {received}"
            )
    pattern = (w if w == GLOBAL else int(w) // 2 + 1 for w in config.attention_pattern)
    return DecoderConfig(
        **{name: getattr(config, name) for name in _SAME},
        attention_pattern=tuple(pattern),
        output="transformed",
    )


def as_decoder(encoder: Encoder, masked_lm: keras.layers.Layer) -> Decoder:
    """Builds a decoder with a copy of the weights of an encoder and its masked-LM head.

    Its outputs are those of the encoder with a "causal_mask" of ones, and its logits are those of
    the head.

    Args:
        encoder: a `kbert.Encoder`; a pooler is not copied.
        masked_lm: `MaskedLMHead` of the encoder.

    Raises:
        ValueError: no decoder corresponds to the encoder's config.
    """
    decoder = Decoder(config_of_decoder(encoder.config), dtype=encoder.dtype_policy)
    arrays: dict[str, Any] = {
        f"decoder/head/{name.removeprefix('masked_lm/')}": array
        for name, array in get_arrays(masked_lm, "masked_lm").items()
    }
    encoder_arrays = get_arrays(encoder, "encoder")
    segment = encoder_arrays.pop("encoder/embeddings/segment", None)
    config: TransformerConfig = encoder.config
    for name, array in encoder_arrays.items():
        part = name.removeprefix("encoder/")
        # A decoder has no pooler, and no padding before or among its tokens.
        if part.startswith("pooler/") or part == "embeddings/padding":
            continue
        if part == "embeddings/position":
            array = array if segment is None else array + segment[0]
            part = "positions/position"
        part = part.replace("embeddings/norm/", "embedding_norm/")
        if not part.startswith("layers/"):
            arrays[f"decoder/{part}"] = array
            continue
        _, group, inner_name = part.split("/", 2)
        for layer in range(config.num_layers):  # several may share a block
            if layer * config.num_blocks // config.num_layers == int(group):
                arrays[f"decoder/layers/{layer}/{inner_name}"] = array
    set_arrays(decoder, "decoder", arrays, "the encoder")
    return decoder
