"""The parts an encoder is made of: Keras layers on `keras.ops` that know no config and no model."""

from kbert.layers.activations import get_activation
from kbert.layers.attention import CrossAttention, SelfAttention
from kbert.layers.bias import attention_bias, causal_bias, example_bias
from kbert.layers.bidirectional_lstm import BidirectionalLSTM
from kbert.layers.block import Block, CrossBlock
from kbert.layers.character_cnn import CharacterCNN
from kbert.layers.dense import Dense
from kbert.layers.dropout import Dropout
from kbert.layers.embeddings import Embeddings, SharedEmbeddings
from kbert.layers.feed_forward import FeedForward
from kbert.layers.gather import gather_positions
from kbert.layers.highway import Highway
from kbert.layers.normalization import LayerNorm
from kbert.layers.positions import LearnedPositions, SinusoidalPositions, sinusoids
from kbert.layers.scalar_mix import ScalarMix
from kbert.layers.token_embeddings import TokenEmbeddings
from kbert.layers.word_softmax import LogUniformSampler, WordSoftmax

__all__ = [
    "BidirectionalLSTM",
    "Block",
    "CharacterCNN",
    "CrossAttention",
    "CrossBlock",
    "Dense",
    "Dropout",
    "Embeddings",
    "FeedForward",
    "Highway",
    "LayerNorm",
    "LearnedPositions",
    "LogUniformSampler",
    "ScalarMix",
    "SelfAttention",
    "SharedEmbeddings",
    "SinusoidalPositions",
    "TokenEmbeddings",
    "WordSoftmax",
    "attention_bias",
    "causal_bias",
    "example_bias",
    "gather_positions",
    "get_activation",
    "sinusoids",
]
