"""The auxiliary language-model loss on the texts of a task.

Shapes: B rows of a batch, R rows that are read of them, T tokens, H hidden width, K tokens that are
predicted, V vocabulary.
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
    """The weight of the language model's loss for an encoder; 0 = it is not computed.

    Args:
        encoder: the task's.
        asked: None = 0.5 for a decoder, else 0.

    Raises:
        ValueError: the weight is below 0, or there is one for an encoder that is no decoder.

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
            "auxiliary_lm_weight is 0 or more, and on encoders that are no decoders 0: they are no "
            f"language models. Received: auxiliary_lm_weight={asked!r} on a "
            f"{type(encoder).__name__}"
        )
    return float(asked)


def language_model_loss(encoder: DecoderEncoder, read: Mapping[str, Any], weights: Any) -> Pair:
    """Cross entropy of the tokens of rows, each predicted from those before it.

    The start token is not predicted, all that follow are, delimiter and extract token too
    (`lm_losses` in openai/finetune-transformer-lm, train.py, which takes the mean of each row
    first; here all tokens of a batch count alike).

    Args:
        encoder: the decoder that has read them.
        read: "token_ids" and "padding_mask" (R, T), "sequence" (R, T, H). Of each row of a batch
            there are as many as of the next, and they are neighbours.
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
    """Logits (K, V), targets (K,) and weights (K,) of the places that are real.

    The vocabulary is large, so a place of padding costs much. TensorFlow leaves them out; elsewhere
    the number of tokens must be known beforehand, and padding is computed with weight 0.
    """
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        places = tf.where(real)  # (K, 2)
        sequence, targets = tf.gather_nd(sequence, places), tf.gather_nd(targets, places)
        return encoder.logits(sequence), targets, tf.ones_like(targets)
    return encoder.logits(sequence), targets, real
