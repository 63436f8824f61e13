"""Configurations of models: frozen dataclasses, checked when they are made."""

from kbert.configs.base import Config, register_config
from kbert.configs.decoder import DecoderConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig

__all__ = [
    "Config",
    "DecoderConfig",
    "ElmoConfig",
    "EncoderConfig",
    "Seq2SeqConfig",
    "register_config",
]
