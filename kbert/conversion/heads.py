"""The heads of a model that is converted: each whole, of its shapes, and finite."""

from typing import Any

import keras
import numpy as np

from kbert.heads import DiscriminatorHead, MaskedLMHead, SpanBoundaryHead, TokenLogits
from kbert.heads.linear import LinearHead, SpanHead, TokenHead
from kbert.models import Decoder, Encoder
from kbert.models.weights import set_arrays
from kbert.types import Arrays

# First parts of the names of the heads' weights.
HEADS = (
    *("masked_lm", "permutation_lm", "sentence", "span_boundary", "discriminator"),
    *("classifier", "tokens", "span", "choice"),
)
# Of the heads that are one dense layer; those that are not here have as many as there are classes.
_UNITS = {"sentence": 2, "choice": 1}


def check_heads(encoder: Encoder | Decoder, arrays: Arrays, source: str) -> None:
    """Refuses a head that a task could not load.

    Args:
        encoder: the model of the heads; a decoder's only head is a classifier.
        arrays: weight name -> array; arrays of no head are ignored.
        source: where they are from, for the message.

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
    for head in HEADS:
        own = {name: array for name, array in arrays.items() if name.split("/")[0] == head}
        if own:
            set_arrays(_make(head, encoder, own), head, own, source)


def _make(head: str, encoder: Encoder | Decoder, arrays: Arrays) -> keras.layers.Layer:
    config: Any = encoder.config  # a decoder's makes the classifier alone
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
