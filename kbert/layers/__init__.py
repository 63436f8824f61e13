"""The parts an encoder is made of: Keras layers on `keras.ops` that know no config and no model."""

from kbert.layers.activations import get_activation
from kbert.layers.attention import SelfAttention, attention_bias
from kbert.layers.block import Block
from kbert.layers.dense import Dense
from kbert.layers.dropout import Dropout
from kbert.layers.embeddings import Embeddings, SharedEmbeddings
from kbert.layers.feed_forward import FeedForward
from kbert.layers.normalization import LayerNorm
from kbert.layers.scalar_mix import ScalarMix

__all__ = [
    "Block",
    "Dense",
    "Dropout",
    "Embeddings",
    "FeedForward",
    "LayerNorm",
    "ScalarMix",
    "SelfAttention",
    "SharedEmbeddings",
    "attention_bias",
    "get_activation",
]
