"""Configurations of models: frozen dataclasses, checked when they are made."""

from kbert.configs.base import Config, register_config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.reformer import ReformerConfig
from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.configs.static import StaticConfig
from kbert.configs.transformer_xl import TransformerXlConfig
from kbert.configs.universal_transformer import UniversalTransformerConfig
from kbert.configs.xlnet import XlnetConfig

__all__ = [
    "Config",
    "DecoderConfig",
    "ElmoConfig",
    "EncoderConfig",
    "ReformerConfig",
    "Seq2SeqConfig",
    "StaticConfig",
    "TransformerXlConfig",
    "UniversalTransformerConfig",
    "XlnetConfig",
    "register_config",
]
