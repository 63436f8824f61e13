"""Memory of a training step of an encoder-decoder, by formula.

What an encoder's layer keeps is that of `kbert.models.memory`. A decoder's layer also keeps the
tensors of its cross-attention, and all targets have logits. Like there, the numbers of tensors were
counted in the graph.
"""

from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.devices import PRECISIONS
from kbert.layers import fused
from kbert.layers.chunked_attention import is_in_chunks
from kbert.models.memory import (
    TrainingMemory,
    check_step,
    compiled_memory,
    layer_memory,
    logits_memory,
)

_FULL = 4  # bytes of a float32
# Tensors (B, T, V): logits, their softmax and the gradient; with label smoothing also the gradients
# of its two terms and their sums.
_LOGITS, _SMOOTHED = 3, 9
# Layers whose kept tensors exist at once with recomputation, as for encoders.
_RECOMPUTED = 1.5


def estimate_seq2seq_memory(
    config: Seq2SeqConfig,
    *,
    batch_size: int,
    source_length: int,
    target_length: int,
    precision: str = "float32",
    optimizer_slots: int = 2,
    recompute: bool = False,
    label_smoothing: float = 0.0,
) -> TrainingMemory:
    """Estimates the memory of a training step; see `Seq2SeqDescription.training_memory`.

    Args:
        config: config of the encoder-decoder.
        batch_size: rows in a step on one device, or in a micro-batch.
        source_length: tokens of a source (S).
        target_length: tokens of a target (T).
        precision: "float32", "mixed_bfloat16" or "mixed_float16".
        optimizer_slots: numbers that the optimizer stores for each weight.
        recompute: whether the backward pass computes each layer again.
        label_smoothing: label smoothing of the loss; above 0 it needs more memory.

    Returns:
        The parts, in bytes.

    Raises:
        ValueError: a number is out of range, or the precision is unknown.

    Example:
        >>> config = Seq2SeqConfig(vocabulary_size=100, hidden_size=8, num_layers=2, num_heads=2,
        ...                        intermediate_size=16)
        >>> estimate_seq2seq_memory(config, batch_size=2, source_length=9, target_length=5).logits
        12000
    """
    lengths = {"source_length": source_length, "target_length": target_length}
    check_step(config, batch_size, precision, optimizer_slots, **lengths)
    size, trained = PRECISIONS[precision], config.count_parameters()
    tables = config.vocabulary_size + (config.target_vocabulary_size or 0)
    tables += config.target_rows if config.output == "untied" else 0
    # A table has a gradient for each use: source, target and output.
    uses = config.vocabulary_size + 2 * config.target_rows
    copies = 0 if precision == "float32" else (trained - tables * config.hidden_size) * size
    encoder, work = _layer(config, batch_size, source_length, precision)
    decoder, decoder_work = _layer(config, batch_size, target_length, precision)
    decoder += _crossing(config, batch_size, source_length, target_length, precision)
    layers, work = config.num_layers + config.decoder_layers, max(work, decoder_work)
    kept = config.num_layers * encoder + config.decoder_layers * decoder
    if recompute:
        tokens = config.num_layers * source_length + config.decoder_layers * target_length
        inputs = size * batch_size * tokens * config.hidden_size
        kept = min(kept, inputs + int(_RECOMPUTED * max(encoder, decoder)))
        copies //= layers
    logits = _SMOOTHED if label_smoothing else _LOGITS
    return TrainingMemory(
        weights=_FULL * trained + copies,
        gradients=_FULL * (trained + (uses - tables) * config.hidden_size),
        moments=_FULL * trained * optimizer_slots,
        activations=kept + work,
        logits=logits_memory(
            batch_size * target_length, config.target_rows, config.hidden_size, logits
        ),
        compiled=compiled_memory(config.hidden_size, _count_tensors(config)),
    )


def _layer(config: Seq2SeqConfig, batch: int, length: int, precision: str) -> tuple[int, int]:
    """Returns the bytes that a layer without cross-attention keeps, and those of its work space."""
    kept, work = layer_memory(config, batch, length, precision)
    # Query, key, value and merged heads may be wider or narrower than the stream.
    kept += PRECISIONS[precision] * 4 * batch * length * (_heads_width(config) - config.hidden_size)
    if config.activation_dropout:
        kept += PRECISIONS[precision] * batch * length * config.intermediate_size
    return kept, work


def _crossing(config: Seq2SeqConfig, batch: int, source: int, target: int, precision: str) -> int:
    """Returns the bytes that the cross-attention of a layer keeps for its backward pass."""
    size, inside = PRECISIONS[precision], _heads_width(config)
    hidden = batch * target * config.hidden_size
    # Query and merged heads of the target; key and value of the source.
    projected = batch * inside * (2 * target + 2 * source)
    scores = batch * config.num_heads * target * source
    logs = 0
    if is_in_chunks(target):  # the outputs of all heads, and one float32 for each query
        projected, scores = projected + batch * inside * target, 0
        logs = _FULL * batch * config.num_heads * target
    if fused.fuses(config.hidden_size, training=True):
        # The input, and the sum before the norm; probabilities before and after dropout.
        return size * (projected + 2 * hidden + 2 * scores) + logs
    masks = bool(config.dropout)
    probabilities = 2 if config.attention_dropout else 0 if precision == "float32" else 1
    kept = size * projected + hidden * (2 * _FULL + size * (1 + masks))
    return kept + scores * (_FULL + size * probabilities) + logs


def _heads_width(config: Seq2SeqConfig) -> int:
    """Returns the width of all heads together."""
    return config.num_heads * (config.head_size or config.hidden_size // config.num_heads)


def _count_tensors(config: Seq2SeqConfig) -> int:
    """Counts the weight tensors of a model, about: tables and last norms count as 14."""
    norm = 1 + (config.norm == "layer")
    product = 1 + config.use_bias
    of_encoder, of_decoder = 4 * product + 2 * norm, 7 * product + 3 * norm
    return config.num_layers * of_encoder + config.decoder_layers * of_decoder + 14
