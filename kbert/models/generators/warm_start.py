"""Initialises an encoder-decoder from the weights of an encoder."""

import numpy as np

from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.types import Arrays


def config_of_encoder(config: EncoderConfig, num_decoder_layers: int | None) -> Seq2SeqConfig:
    """Returns the config of an encoder-decoder whose source side is an encoder with `config`.

    `num_decoder_layers` is the number of layers of the target side; None = as many as the encoder.

    Raises:
        ValueError: the encoder's embeddings and layers have different widths, or it has features
            that an encoder-decoder lacks.

    Example:
        >>> config = EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16)
        >>> config_of_encoder(config, 1).decoder_layers
        1
    """
    if config.embedding_width != config.hidden_size:
        raise ValueError(
            "`embedding_size` of the encoder must equal its `hidden_size`: source, target and "
            "output share one token table. Received: an encoder with "
            f"embedding_size={config.embedding_size}, hidden_size={config.hidden_size}"
        )
    # The head is not used, and there is no padding before or among the tokens.
    later = set(config.LATER) - {"head_activation", "padding_id"}
    unsupported_fields = {name: value for name, value in config.to_dict().items() if name in later}
    if unsupported_fields or config.kind != EncoderConfig.kind:
        raise ValueError(
            "An encoder-decoder can only be initialised from an encoder like BERT: "
            "kind='encoder', and every field that is listed here must have its default. Received: "
            f"kind={config.kind!r}, {unsupported_fields}"
        )
    same = (
        *("vocabulary_size", "hidden_size", "num_layers", "num_heads", "intermediate_size"),
        *("max_positions", "activation", "dropout", "attention_dropout", "layer_norm_epsilon"),
        "initializer_range",
    )
    return Seq2SeqConfig(
        **{name: getattr(config, name) for name in same},
        num_decoder_layers=num_decoder_layers,
        positions="learned",
        embeddings="normalised",
        block="post_norm",
    )


def arrays_of_encoder(
    encoder: EncoderConfig, arrays: Arrays, config: Seq2SeqConfig
) -> dict[str, np.ndarray]:
    """Returns an encoder's weights under the names of an encoder-decoder.

    Segment embeddings are added to the positions: the first for the source, the last for the
    target. A pooler and other weights without a counterpart are omitted.

    Args:
        encoder: config of the encoder.
        arrays: weights of the encoder, "encoder/…".
        config: config of the encoder-decoder from `config_of_encoder`.
    """
    tables = {name: arrays[f"encoder/embeddings/{name}"] for name in ("token", "position")}
    segments = arrays.get("encoder/embeddings/segment", np.zeros((1, 1), np.float32))
    learned = {"seq2seq/embeddings/token": tables["token"]}
    sides = {
        "encoder": (segments[0], config.num_layers),
        "decoder": (segments[-1], config.decoder_layers),
    }
    for side, (segment, layers) in sides.items():
        learned[f"seq2seq/{side}_positions/position"] = tables["position"] + segment
        for name in ("gamma", "beta"):
            norm = arrays[f"encoder/embeddings/norm/{name}"]
            learned[f"seq2seq/{side}_embedding_norm/{name}"] = norm
        for layer in range(min(layers, encoder.num_layers)):
            block = f"encoder/layers/{layer * encoder.num_blocks // encoder.num_layers}/"
            for name, array in arrays.items():
                if name.startswith(block):
                    learned[f"seq2seq/{side}_layers/{layer}/{name.removeprefix(block)}"] = array
    return learned
