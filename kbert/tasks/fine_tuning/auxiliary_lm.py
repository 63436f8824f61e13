"""The auxiliary language-model loss on the texts of a task.

Shapes: B rows of a batch, R sequences that the encoder reads for them, T tokens, H hidden width, K
predicted tokens, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import keras
from keras import ops

from kbert.core.types import Tensor
from kbert.models import DecoderEncoder
from kbert.tasks.losses import Pair, cross_entropy

USUAL_WEIGHT = 0.5  # lambda in section 4.1 of Radford et al. 2018


def auxiliary_weight(encoder: keras.Model, asked: float | None) -> float:
    """Returns the weight of the language-model loss for an encoder; 0 = it is not computed.

    Args:
        encoder: encoder of the task.
        asked: the requested weight; None = 0.5 for a decoder, else 0.

    Raises:
        ValueError: the weight is below 0, or above 0 for an encoder that is not a decoder.

    Example:
        >>> import kbert
        >>> config = kbert.DecoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=12)
        >>> auxiliary_weight(kbert.models.DecoderEncoder.extend(kbert.Decoder(config)), None)
        0.5
    """
    is_decoder = isinstance(encoder, DecoderEncoder)
    if asked is None:
        return USUAL_WEIGHT if is_decoder else 0.0
    if not isinstance(asked, int | float) or asked < 0 or (asked and not is_decoder):
        raise ValueError(
            "auxiliary_lm_weight must be 0 or more, and 0 on encoders other than decoders, which "
            f"are not language models. Received: auxiliary_lm_weight={asked!r} on a "
            f"{type(encoder).__name__}"
        )
    return float(asked)


def language_model_loss(encoder: DecoderEncoder, read: Mapping[str, Any], weights: Any) -> Pair:
    """Cross entropy of next-token prediction on the texts of a batch.

    The start token is not predicted. All later tokens are, including delimiter and extract token.
    (`lm_losses` in openai/finetune-transformer-lm, train.py, which first takes the mean of each
    row; here all tokens of a batch have the same weight.)

    Args:
        encoder: decoder that computed "sequence".
        read: "token_ids" and "padding_mask" (R, T), "sequence" (R, T, H). Each row of the batch has
            the same number of sequences, next to each other.
        weights: (B,) or (B, …), 0 for rows that do not count.

    Returns:
        Float32 scalars (sum of losses, number of tokens).
    """
    batch, length = ops.shape(weights)[0], ops.shape(read["token_ids"])[1]
    counts = ops.any(ops.reshape(weights, (batch, -1)) > 0, axis=1)  # (B,)
    real = ops.reshape(read["padding_mask"], (batch, -1, length)) > 0
    real = ops.logical_and(real, counts[:, None, None])
    real = ops.reshape(real, (-1, length))[:, 1:]  # (R, T - 1)
    targets = read["token_ids"][:, 1:]
    return cross_entropy(*_predictions(encoder, read["sequence"][:, :-1], targets, real))


def _predictions(
    encoder: Any, sequence: Tensor, targets: Tensor, real: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns logits (K, V), targets (K,) and weights (K,) of the K tokens where `real` is True.

    `sequence` (R, T - 1, H) are the hidden states, `targets` (R, T - 1) the next tokens. Logits at
    padding are expensive, so TensorFlow leaves them out. Other backends need static shapes: they
    return (R, T - 1, …), with `real` as the weights.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        positions = tf.where(real)  # (K, 2)
        sequence, targets = tf.gather_nd(sequence, positions), tf.gather_nd(targets, positions)
        return encoder.logits(sequence), targets, tf.ones_like(targets)
    return encoder.logits(sequence), targets, real
