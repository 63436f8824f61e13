"""Initial weights with which an encoder attends to neighbouring tokens from its first step."""

import math

import numpy as np
from keras import ops

from kbert.configs.encoder import EncoderConfig
from kbert.layers.attention import SelfAttention
from kbert.models.encoder import Encoder

# Found on bert-tiny by benchmarks/speedrun.py; both are for the width of the embeddings or the
# model, so that they mean the same at any size.
PEAK = 6.5  # score of the neighbour that a head attends to; the other scores are near 0
VALUE_SCALE = 0.68  # times the square root of a layer's inputs: standard deviation of its kernel
MAX_WAVES = 16
LAYERS = 2  # that begin by attending to neighbours
GOLDEN = (math.sqrt(5) - 1) / 2  # its multiples, modulo 1, are spread evenly however many there are


def attend_to_neighbours(encoder: Encoder) -> None:
    """Sets initial weights of a BERT so that its first two layers attend to the tokens beside each.

    With learned positions and BERT's initial values a model first learns the frequency of tokens,
    and only after thousands of steps to attend to neighbours. Here heads of the first layer begin
    by attending to the previous token, the next one, the last but one and so on, those of the
    second layer to tokens one further away; layers that share weights begin alike. It remains a
    BERT: only values of its weights change, and all are trained. Call it before training a new
    encoder.

    - Position embeddings are waves, sines and cosines in 2W of the columns, where token embeddings
      begin with 0. Their frequencies are spread over all that positions can tell apart, so that two
      different positions have nearly orthogonal embeddings.
    - Keys of the two layers are the waves; queries are those of another position, by a rotation of
      each wave. This is added to the random kernels.
    - Kernels of values and of attention outputs are scaled up to a standard deviation of
      `0.68 / sqrt(width)`, in every layer. BERT's 0.02 is that of its width 768; in a narrow model
      it makes the attention's output too small to learn from.

    (That attention should begin near what trained attention computes: Trockman and Kolter 2023,
    https://arxiv.org/abs/2305.09828. Heads that attend to neighbours: Clark et al. 2019, section
    3.1, https://arxiv.org/abs/1906.04341.)

    Args:
        encoder: an encoder with learned positions and without a part, whose embeddings are as wide
            as its layers.

    Raises:
        ValueError: the encoder has other positions, a part, an embedding table that is narrower,
            not normalised or shared with a generator, heads of one column, grouped keys, or edits.

    Example:
        >>> import kbert
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny"))
        >>> attend_to_neighbours(encoder)
        >>> out = encoder({"token_ids": np.arange(9)[None] + 1000}, return_attention=True)
        >>> previous, following = np.array(out["attention"][0])[0].argmax(-1)
        >>> previous[1:].tolist(), following[:-1].tolist()
        ([0, 1, 2, 3, 4, 5, 6, 7], [1, 2, 3, 4, 5, 6, 7, 8])
    """
    config = encoder.config
    _check(config)
    if getattr(encoder.embeddings, "base_tables", dict)():
        raise ValueError(
            "Initial attention to neighbours needs an encoder with its own embeddings. Received: "
            "one whose embeddings are differences to those of a generator"
        )
    width, head_size = config.hidden_size, encoder.blocks[0].attention.head_size
    waves = min(MAX_WAVES, head_size // 2, width // 4)
    frequencies = math.pi * ((np.arange(waves) + 0.5) * GOLDEN % 1)

    positions = _turned(np.arange(config.max_positions), frequencies)
    # As much of the embeddings' variance as the tokens have in the other columns.
    amplitude = config.initializer_range * math.sqrt((width - 2 * waves) / waves)
    table = np.zeros((config.max_positions, width), "float32")
    table[:, : 2 * waves] = amplitude * positions
    encoder.embeddings.position.assign(table)
    tokens = ops.convert_to_numpy(encoder.embeddings.token).copy()
    tokens[:, : 2 * waves] = 0
    encoder.embeddings.token.assign(tokens)

    for block in encoder.blocks:
        _scale_up(block.attention, width)
    # The norm leaves waves of radius sqrt(width / 2 waves) in each of `waves` planes.
    gain = math.sqrt(PEAK * 2 * math.sqrt(head_size) / width)
    for layer, block in enumerate(encoder.blocks[:LAYERS]):
        qkv = block.attention.qkv
        kernel = ops.convert_to_numpy(qkv.kernel).copy()
        queries, keys, _ = np.split(kernel, 3, axis=1)  # views
        for head in range(block.attention.num_heads):
            distance = (head // 2 + 1 + layer) * (-1 if head % 2 == 0 else 1)
            columns = slice(head * head_size, head * head_size + 2 * waves)
            keys[: 2 * waves, columns] += gain * np.eye(2 * waves)
            queries[: 2 * waves, columns] += gain * _rotation(distance * frequencies)
        qkv.kernel.assign(kernel)


def _check(config: EncoderConfig) -> None:
    if type(config) is not EncoderConfig:
        raise ValueError(
            "Initial attention to neighbours is for encoders of BERT's kind. Received: "
            f"{type(config).__name__}"
        )
    rules = {
        "positions": config.positions == "learned",
        "part": config.part is None,
        "embedding_size": config.embedding_size in (None, config.hidden_size),
        "num_heads": config.hidden_size >= max(4, 2 * config.num_heads),
        "embedding_norm": config.embedding_norm,
        "num_key_value_heads": config.num_key_value_heads in (None, config.num_heads),
        "edits": not config.edits,
    }
    if wrong := [f"{name}={getattr(config, name)!r}" for name, holds in rules.items() if not holds]:
        raise ValueError(
            "Initial attention to neighbours needs learned positions as wide as the layers, "
            "normalised embeddings, heads at least two columns wide, a key for each query, no part "
            "and no edits. Received: "
            f"{', '.join(wrong)}"
        )


def _turned(positions: np.ndarray, frequencies: np.ndarray) -> np.ndarray:
    """Returns (P, 2W): sine and cosine of each frequency (W,), alternately, for positions (P,)."""
    angles = positions[:, None] * frequencies
    return np.stack([np.sin(angles), np.cos(angles)], axis=-1).reshape(len(positions), -1)


def _rotation(angles: np.ndarray) -> np.ndarray:
    """Returns the (2W, 2W) matrix that turns row vectors of W waves by angles (W,)."""
    matrix = np.zeros((2 * len(angles), 2 * len(angles)))
    for wave, angle in enumerate(angles):
        sine, cosine = math.sin(angle), math.cos(angle)
        place = slice(2 * wave, 2 * wave + 2)
        matrix[place, place] = [[cosine, -sine], [sine, cosine]]
    return matrix


def _scale_up(attention: SelfAttention, width: int) -> None:
    """Scales the kernels of values and outputs to `VALUE_SCALE / sqrt(width)`, if they are less."""
    joined = ops.convert_to_numpy(attention.qkv.kernel).copy()
    output = ops.convert_to_numpy(attention.output_dense.kernel).copy()
    for kernel in (joined[:, 2 * width :], output):
        kernel *= max(VALUE_SCALE / math.sqrt(width) / kernel.std(), 1.0)
    attention.qkv.kernel.assign(joined)
    attention.output_dense.kernel.assign(output)
