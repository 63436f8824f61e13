"""Models: layers that are assembled from a config, without loss and optimizer."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.models.awd_lstm.awd_lstm import AwdLstm as AwdLstm
    from kbert.models.captured_outputs import capturing as capturing
    from kbert.models.description import (
        Description as Description,
        describe as describe,
        family_table as family_table,
    )
    from kbert.models.elmo.description import ElmoDescription as ElmoDescription
    from kbert.models.elmo.elmo import Elmo as Elmo
    from kbert.models.elmo.encoder import ElmoEncoder as ElmoEncoder
    from kbert.models.encoder import Encoder as Encoder
    from kbert.models.generators.decoder import Decoder as Decoder
    from kbert.models.generators.decoder_encoder import DecoderEncoder as DecoderEncoder
    from kbert.models.generators.description import (
        GeneratorDescription as GeneratorDescription,
        Seq2SeqDescription as Seq2SeqDescription,
    )
    from kbert.models.generators.prefix_seq2seq import PrefixSeq2Seq as PrefixSeq2Seq
    from kbert.models.generators.seq2seq import Seq2Seq as Seq2Seq
    from kbert.models.generators.seq2seq_encoder import Seq2SeqEncoder as Seq2SeqEncoder
    from kbert.models.generators.unilm_seq2seq import UniLMSeq2Seq as UniLMSeq2Seq
    from kbert.models.initial_attention import attend_to_neighbours as attend_to_neighbours
    from kbert.models.parts import Part as Part
    from kbert.models.reformer.reformer import Reformer as Reformer
    from kbert.models.static import Static as Static
    from kbert.models.transformer_xl import TransformerXl as TransformerXl
    from kbert.models.universal_transformer import UniversalTransformer as UniversalTransformer
    from kbert.models.xlnet.xlnet import Xlnet as Xlnet
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
