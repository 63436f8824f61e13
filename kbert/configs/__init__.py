"""Configurations of models: frozen dataclasses that are validated at construction."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.configs.awd_lstm import AwdLstmConfig as AwdLstmConfig
    from kbert.configs.base import Config as Config
    from kbert.configs.decoder import DecoderConfig as DecoderConfig
    from kbert.configs.elmo import ElmoConfig as ElmoConfig
    from kbert.configs.encoder import EncoderConfig as EncoderConfig
    from kbert.configs.reformer import ReformerConfig as ReformerConfig
    from kbert.configs.seq2seq import Seq2SeqConfig as Seq2SeqConfig
    from kbert.configs.static import StaticConfig as StaticConfig
    from kbert.configs.transformer_xl import TransformerXlConfig as TransformerXlConfig
    from kbert.configs.universal_transformer import (
        UniversalTransformerConfig as UniversalTransformerConfig,
    )
    from kbert.configs.xlnet import XlnetConfig as XlnetConfig
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
