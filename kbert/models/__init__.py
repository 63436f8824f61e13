"""Models: layers and a config put together. No loss, no optimizer."""

from kbert.models.description import Description, describe, family_table
from kbert.models.elmo.description import ElmoDescription
from kbert.models.elmo.elmo import Elmo
from kbert.models.elmo.encoder import ElmoEncoder
from kbert.models.encoder import Encoder, register_encoder
from kbert.models.generators.decoder import Decoder
from kbert.models.generators.decoder_encoder import DecoderEncoder
from kbert.models.generators.description import GeneratorDescription
from kbert.models.generators.prefix_seq2seq import PrefixSeq2Seq
from kbert.models.generators.seq2seq import Seq2Seq
from kbert.models.parts import Part, register_part
from kbert.models.reformer.reformer import Reformer
from kbert.models.static import Static
from kbert.models.transformer_xl import TransformerXl
from kbert.models.universal_transformer import UniversalTransformer
from kbert.models.xlnet.xlnet import Xlnet

__all__ = [
    "Decoder",
    "DecoderEncoder",
    "Description",
    "Elmo",
    "ElmoDescription",
    "ElmoEncoder",
    "Encoder",
    "GeneratorDescription",
    "Part",
    "PrefixSeq2Seq",
    "Reformer",
    "Seq2Seq",
    "Static",
    "TransformerXl",
    "UniversalTransformer",
    "Xlnet",
    "describe",
    "family_table",
    "register_encoder",
    "register_part",
]
