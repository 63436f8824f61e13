"""Building blocks of encoders: Keras layers on `keras.ops`, independent of configs and models."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.layers.activations import get_activation as get_activation
    from kbert.layers.attention import (
        CrossAttention as CrossAttention,
        SelfAttention as SelfAttention,
    )
    from kbert.layers.bias import (
        attention_bias as attention_bias,
        causal_bias as causal_bias,
        example_bias as example_bias,
    )
    from kbert.layers.bidirectional_lstm import BidirectionalLSTM as BidirectionalLSTM
    from kbert.layers.block import Block as Block, CrossBlock as CrossBlock
    from kbert.layers.character_cnn import CharacterCNN as CharacterCNN
    from kbert.layers.chunked_attention import chunk_attention_from as chunk_attention_from
    from kbert.layers.dense import Dense as Dense
    from kbert.layers.dropout import Dropout as Dropout
    from kbert.layers.embeddings import (
        Embeddings as Embeddings,
        SharedEmbeddings as SharedEmbeddings,
    )
    from kbert.layers.feed_forward import FeedForward as FeedForward
    from kbert.layers.gather import gather_positions as gather_positions
    from kbert.layers.highway import Highway as Highway
    from kbert.layers.mean_max_pooling import MeanMaxPooling as MeanMaxPooling
    from kbert.layers.normalization import LayerNorm as LayerNorm
    from kbert.layers.positions import (
        LearnedPositions as LearnedPositions,
        SinusoidalPositions as SinusoidalPositions,
        sinusoids as sinusoids,
    )
    from kbert.layers.relative_bias import (
        BiasedAttention as BiasedAttention,
        RelativeBiases as RelativeBiases,
    )
    from kbert.layers.scalar_mix import ScalarMix as ScalarMix
    from kbert.layers.text_preprocessor import TextPreprocessor as TextPreprocessor
    from kbert.layers.token_embeddings import TokenEmbeddings as TokenEmbeddings
    from kbert.layers.word_softmax import (
        LogUniformSampler as LogUniformSampler,
        WordSoftmax as WordSoftmax,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
