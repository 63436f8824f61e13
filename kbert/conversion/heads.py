"""Loads, checks and runs the heads of a model that is converted.

Shapes: `B` batch, `T` tokens, `H` hidden width, `C` classes, `V` vocabulary.
"""

from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.types import Arrays, Tensor, Tensors
from kbert.heads import DiscriminatorHead, MaskedLMHead, SpanBoundaryHead, TokenLogits
from kbert.heads.linear import LinearHead, SpanHead, TokenHead
from kbert.models import Decoder, Encoder
from kbert.models.weights import set_arrays

# The first part of the weight names of each head.
HEADS = (
    *("masked_lm", "permutation_lm", "sentence", "span_boundary", "discriminator"),
    *("classifier", "tokens", "span", "choice"),
)
# Units of heads that are one dense layer; the others have one unit per class.
_UNITS = {"sentence": 2, "choice": 1}


def check_heads(encoder: Encoder | Decoder, arrays: Arrays, source: str) -> None:
    """Raises ValueError if a task could not load one of the heads.

    Args:
        encoder: encoder or decoder that the heads belong to; a decoder's only head is a classifier.
        arrays: weight name -> array; arrays that belong to no head are ignored.
        source: where the arrays are from, for the error message.

    Raises:
        ValueError: a weight of a head is missing, unexpected, of another shape or not finite.

    Example:
        >>> from kbert import EncoderConfig
        >>> encoder = Encoder(EncoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                                 num_heads=2, intermediate_size=16))
        >>> check_heads(encoder, {"span/dense/bias": np.zeros(2, "float32")}, "memory")
        Traceback (most recent call last):
        ...
        ValueError: The weights do not fit the model. Received: memory
          - missing span/dense/kernel (8, 2)
    """
    load_heads(encoder, arrays, source)


def load_heads(
    encoder: Encoder | Decoder, arrays: Arrays, source: str
) -> dict[str, keras.layers.Layer]:
    """Builds the heads found in `arrays`, with their weights.

    Args:
        encoder: encoder or decoder that the heads belong to; a decoder's only head is a classifier.
        arrays: weight name -> array; arrays that belong to no head are ignored.
        source: where the arrays are from, for the error message.

    Returns:
        Name of the head (the first part of its weight names) -> layer.

    Raises:
        ValueError: a weight of a head is missing, unexpected, of another shape or not finite.
    """
    heads = {}
    for head in HEADS:
        head_arrays = {name: array for name, array in arrays.items() if name.split("/")[0] == head}
        if head_arrays:
            heads[head] = _make(head, encoder, head_arrays)
            set_arrays(heads[head], head, head_arrays, source)
    return heads


def run_heads(heads: dict[str, keras.layers.Layer], outputs: Tensors) -> dict[str, Tensor]:
    """Computes the logits of heads from an encoder's outputs.

    Args:
        heads: heads by name, from `load_heads`.
        outputs: outputs of the encoder: "sequence" (B, T, H) and, with a pooler, "pooled" (B, H).

    Returns:
        Logits by head name: (B, T, V), (B, T, C) or (B, T) for heads on tokens, and (B, C) for
        heads on texts. "span" gives "span_start" and "span_end"; "choice" gives (B,), the texts
        being the alternatives. Heads that read "pooled" are left out if the encoder has no pooler.
    """
    sequence, pooled = outputs["sequence"], outputs.get("pooled")
    batch, length = sequence.shape[:2]
    positions = np.broadcast_to(np.arange(length, dtype="int32"), (batch, length))
    head_logits: dict[str, Tensor] = {}
    for name, head in heads.items():
        if name == "masked_lm":
            head_logits[name] = head(sequence, positions)
        elif name == "span_boundary":  # every token as a span of its own
            head_logits[name] = head(sequence, positions, positions, positions)
        elif name == "span":
            head_logits["span_start"], head_logits["span_end"] = head(sequence)
        elif name in ("permutation_lm", "discriminator", "tokens"):
            head_logits[name] = head(sequence)
        elif pooled is not None:
            logits = head(pooled)
            head_logits[name] = ops.squeeze(logits, axis=-1) if name == "choice" else logits
    return head_logits


def _make(head: str, encoder: Encoder | Decoder, arrays: Arrays) -> keras.layers.Layer:
    """Makes the layer of a head, without its weights.

    Args:
        head: name of the head, one of `HEADS`.
        encoder: encoder or decoder that the head belongs to.
        arrays: weights of the head by name; the bias gives the number of classes.
    """
    config: Any = encoder.config  # a decoder's config only makes the classifier
    if head == "masked_lm":
        return MaskedLMHead(config, encoder.token_embedding)
    if head == "permutation_lm":
        return TokenLogits(config, encoder.token_embedding, name=head)
    if head == "span_boundary":
        return SpanBoundaryHead(config, encoder.token_embedding)
    if head == "discriminator":
        return DiscriminatorHead(config)
    if head == "span":
        return SpanHead(config)
    classes = np.size(arrays.get(f"{head}/dense/bias", 1))
    if head == "tokens":
        return TokenHead(config, classes)
    return LinearHead(config, _UNITS.get(head, classes), name=head)
