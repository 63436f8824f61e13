"""Memory of a training step, by formula.

What a layer keeps for the backward pass was counted in its graph: the forward tensors that
gradients read. The count depends on whether the layer uses the functions of `kbert.layers.fused`
(TensorFlow, and a wide enough model) or plain operations. The step as a whole is not compiled; XLA
would recompute some of what is counted here and so need less.

Shapes: `B` batch, `T` tokens, `H` hidden width, `F` feed-forward width, `N` heads, `P` masked
positions, `V` vocabulary, `E` embedding width.
"""

import dataclasses
import math
from typing import Any

from kbert.configs.awd_lstm import AwdLstmConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.reformer import LSH, ReformerConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.devices import PRECISIONS
from kbert.layers import fused
from kbert.layers.chunked_attention import chunk_size, is_in_chunks
from kbert.layers.token_embeddings import tokens_of_chunk

_FULL = 4  # bytes of a float32

# Tensors (B, T, F) that an activation keeps, including its result. In training the others of a GELU
# are float32 in any precision (`kbert.layers.activations`).
_KEPT = {"gelu_tanh": 5, "gelu": 4, "silu": 2, "relu": 1, "tanh": 1}
_FULL_INSIDE = ("gelu_tanh", "gelu")
# Tensors (B, T, H) of a layer. In float32 in any precision: two of each normalisation. In the
# compute dtype: the layer's input, query, key, value, the merged heads and the input of the
# feed-forward part.
_KEPT_FULL, _KEPT_COMPUTED = 4, 6
# Logits, their softmax, and the gradient, all (B, P, V).
_LOGITS = 3
# Tensors of the largest size that the backward pass of one layer needs besides what was kept.
_BACKWARD = 4
# With recomputation, for how many layers the kept tensors exist at once. Measured: besides those of
# one layer there are some of the layer whose backward pass ran before.
_RECOMPUTED = 1.5
# Tensors of reversible layers at once: those of a stream's width with their gradients, and in the
# backward pass those of the feed-forward part's width and of the scores' size.
_STREAMS, _FORWARDED, _SCORES = 12, 4, 6
# Bytes of the layers' compiled functions, and of the compiled update for each weight tensor: fitted
# to steps of encoders of 30 to 206 tensors (tests/models/test_memory.py).
_COMPILED, _COMPILED_WEIGHT = 110 << 20, 900_000
# Bytes of the loops over chunks of attention, measured at 1,024 to 4,096 tokens.
_CHUNKED = 150 << 20


@dataclasses.dataclass(frozen=True)
class TrainingMemory:
    """Memory of a training step on one device, in bytes.

    Attributes:
        weights: weights of encoder and heads in float32, and their copies in a smaller dtype.
        gradients: one float32 for each weight; for the token table one for each use: embeddings
            (of a source and of a target) and output.
        moments: slots of the optimizer for each weight.
        activations: tensors that the forward pass keeps for the backward pass, and the work space
            of one layer.
        logits: logits of the masked-LM head or of the targets, their softmax and gradient; those of
            one chunk of tokens where losses are computed in chunks.
        compiled: memory of XLA for the compiled functions of a step (`kbert.layers.fused`, AdamW).
    """

    weights: int
    gradients: int
    moments: int
    activations: int
    logits: int
    compiled: int = 0

    @property
    def total(self) -> int:
        """Sum of all parts."""
        return sum(dataclasses.astuple(self))


def estimate_memory(
    config: EncoderConfig,
    parameters: int,
    *,
    batch_size: int,
    sequence_length: int,
    precision: str = "float32",
    optimizer_slots: int = 2,
    recompute: bool = False,
) -> TrainingMemory:
    """Estimates the memory of a masked-LM pretraining step; see `Description.training_memory`.

    Args:
        config: config of the encoder.
        parameters: number of parameters of the encoder.
        batch_size: sequences in a step on one device, or in a micro-batch.
        sequence_length: tokens in a sequence.
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        optimizer_slots: numbers that the optimizer stores for each weight.
        recompute: whether the backward pass computes each layer again.

    Returns:
        The parts, in bytes.

    Raises:
        ValueError: a number is out of range, or the precision is unknown.

    Example:
        >>> config = EncoderConfig(vocabulary_size=100, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=32)
        >>> estimate_memory(config, 10_000, batch_size=2, sequence_length=16).moments
        81648
    """
    check_step(config, batch_size, precision, optimizer_slots, sequence_length=sequence_length)
    table = config.vocabulary_size * config.embedding_width
    trained = parameters + _heads(config)
    # All weights but the token table are cast to the smaller dtype.
    copies = 0 if precision == "float32" else (parameters - table) * PRECISIONS[precision]
    if recompute:  # the casts are recomputed too
        copies //= config.num_blocks
    masked = batch_size * (math.ceil(0.15 * sequence_length) + 1)  # B · P
    windows = [config.window(layer) for layer in range(config.num_layers)]
    of_window = {
        window: layer_memory(config, batch_size, sequence_length, precision, window)
        for window in set(windows)
    }
    kept_bytes = sum(of_window[window][0] for window in windows)
    layer, work = max(of_window.values())
    if isinstance(config, ReformerConfig):
        kept_bytes, work = _reversible(config, batch_size, sequence_length, precision), 0
    elif isinstance(config, AwdLstmConfig):
        kept_bytes, work = _recurrent(config, batch_size * sequence_length, precision), 0
    elif recompute:
        inputs = batch_size * sequence_length * config.hidden_size * PRECISIONS[precision]
        kept_bytes = min(kept_bytes, config.num_layers * inputs + int(_RECOMPUTED * layer))
    return TrainingMemory(
        weights=_FULL * trained + copies,
        gradients=_FULL * (trained + table),
        moments=_FULL * trained * optimizer_slots,
        activations=kept_bytes + work,
        logits=logits_memory(masked, config.vocabulary_size, config.embedding_width, _LOGITS),
        compiled=compiled_memory(config.hidden_size, 16 * config.num_blocks + 14),
    )


def check_step(
    config: Any, batch_size: int, precision: str, optimizer_slots: int, **lengths: int
) -> None:
    """Raises ValueError if a step is impossible; `lengths` are name -> tokens of a sequence."""
    if precision not in PRECISIONS:
        raise ValueError(
            f"`precision` must be one of {', '.join(PRECISIONS)}. Received: {precision!r}"
        )
    if batch_size < 1 or optimizer_slots < 0:
        raise ValueError(
            "`batch_size` must be at least 1 and `optimizer_slots` at least 0. Received: "
            f"batch_size={batch_size}, optimizer_slots={optimizer_slots}"
        )
    for name, length in lengths.items():
        if not 1 <= length <= config.max_positions:
            raise ValueError(
                f"`{name}` must be between 1 and {config.max_positions} (the model's "
                f"max_positions). Received: {length}"
            )


def logits_memory(tokens: int, entries: int, width: int, tensors: int) -> int:
    """Returns the bytes of the logits of `tokens` over `entries`, with their gradients.

    There are `tensors` of their size, for all tokens or for one chunk of them at a time. Each chunk
    also has the product that it adds to the gradient of the table, which is `width` wide.
    """
    size = tokens_of_chunk(entries)
    if tokens <= size:
        return _FULL * tensors * tokens * entries
    size = -(-tokens // -(-tokens // size))
    return _FULL * entries * (tensors * size + width)


def compiled_memory(width: int, num_weights: int) -> int:
    """Returns the bytes that XLA allocates for compiled functions until the process ends.

    They were measured, as no formula is known; 0 if layers of `width` columns use no compiled
    functions. `num_weights` is the number of weight tensors.
    """
    return _COMPILED + _COMPILED_WEIGHT * num_weights if fused.fuses(width, training=True) else 0


def _heads(config: EncoderConfig) -> int:
    """Counts the weights of the masked-LM head and, with a pooler, of the next-sentence head."""
    columns = config.output_columns
    width = config.embedding_width + columns
    masked_lm = config.hidden_size * width + 3 * width + (columns + 1) * config.vocabulary_size
    if config.output == "untied":
        masked_lm = (config.hidden_size + 1) * config.vocabulary_size
    return masked_lm + (2 * config.hidden_size + 2 if config.pooler_activation else 0)


def _reversible(config: ReformerConfig, batch: int, length: int, precision: str) -> int:
    """Returns the bytes that all layers of a Reformer keep for the backward pass.

    They are both residual streams, the hash buckets, and the largest attention or feed-forward part
    of any layer. `batch` sequences of `length` tokens are computed together in `precision`.
    """
    size, tokens = PRECISIONS[precision], batch * length
    streams = _STREAMS * _FULL * tokens * config.stream_size
    forward = size * _FORWARDED * tokens * config.intermediate_size
    largest, buckets = forward, 0
    for layer in range(config.num_layers):
        kind = config.layer_attention(layer)
        chunk = config.chunk_length(kind)
        is_cut = length > chunk
        sides = ("before", "after")
        chunks = 1 + is_cut * sum(getattr(config, f"{kind}_chunks_{side}") for side in sides)
        rounds = config.num_hashes if kind == LSH and is_cut else 1
        scores = tokens * config.num_heads * rounds * chunks * min(length, chunk)
        vectors = tokens * config.num_heads * config.head_size
        vectors *= 2 + rounds * (6 + 2 * chunks)
        largest = max(largest, _FULL * _SCORES * scores + size * vectors)
        if kind == LSH and is_cut:
            buckets += _FULL * tokens * config.num_heads * rounds
    return streams + buckets + largest


def _recurrent(config: AwdLstmConfig, tokens: int, precision: str) -> int:
    """Returns the bytes that all layers of an AWD-LSTM keep for `tokens` tokens in `precision`.

    Each layer keeps its input, its gates before and after their activations with their gradients,
    and the squashed cell and output; in float32 its cells and hidden states.
    """
    kept = [
        PRECISIONS[precision] * (width + 14 * u) + _FULL * 2 * u for width, u in config.layer_sizes
    ]
    return tokens * sum(kept)


def layer_memory(
    config: EncoderConfig | Seq2SeqConfig,
    batch: int,
    length: int,
    precision: str,
    window: int | None = None,
) -> tuple[int, int]:
    """Returns the bytes one layer keeps for its backward pass, and those of its work space.

    `batch` sequences of `length` tokens are computed together in `precision`. `window` is the
    layer's attention window in tokens; None = global attention.
    """
    size = PRECISIONS[precision]
    hidden = batch * length * config.hidden_size
    forwarded = batch * length * config.intermediate_size
    if config.feed_forward == "gated":  # the other half, and the product of both
        forwarded *= 2
    keys, copies = length, 0
    if window is not None and 3 * window // 2 < length:  # blocks: query, 3 x key and value
        keys, copies = 3 * window // 2, 7
    scores, logs = batch * config.num_heads * length * keys, 0
    working, loops = scores, 0
    if keys == length and is_in_chunks(length):
        # The outputs of all heads, and one float32 for each query, instead of probabilities.
        scores, working = 0, scores // length * chunk_size(length)
        copies, logs, loops = copies + 1, _FULL * batch * config.num_heads * length, _CHUNKED
    if fused.fuses(config.hidden_size, training=True):
        # Inputs of the four products, query, key and value, the two sums before the norms; input
        # and output of the activation; probabilities before and after dropout.
        kept_bytes = size * ((8 + copies) * hidden + 2 * forwarded + 2 * scores) + logs
        return kept_bytes, _BACKWARD * size * max(forwarded, working) + loops
    # Dropout keeps its mask. For the probabilities it also keeps its result, and the softmax keeps
    # its own in float32.
    masks = 2 * bool(config.dropout)
    probabilities = 2 if config.attention_dropout else 0 if precision == "float32" else 1
    kept_bytes = hidden * (_FULL * _KEPT_FULL + size * (_KEPT_COMPUTED + copies + masks))
    inside = _FULL if config.activation in _FULL_INSIDE else size
    kept_bytes += (size + inside * (_KEPT[config.activation] - 1)) * forwarded
    kept_bytes += scores * (_FULL + size * probabilities) + logs
    return kept_bytes, _BACKWARD * max(inside * forwarded, size * working) + loops
