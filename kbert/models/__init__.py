"""Models: layers and a config put together. No loss, no optimizer."""

from kbert.models.decoder import Decoder
from kbert.models.decoder_encoder import DecoderEncoder
from kbert.models.description import Description, describe, family_table
from kbert.models.elmo import Elmo
from kbert.models.elmo_description import ElmoDescription
from kbert.models.elmo_encoder import ElmoEncoder
from kbert.models.encoder import Encoder
from kbert.models.family import family
from kbert.models.generator_description import GeneratorDescription
from kbert.models.prefix_seq2seq import PrefixSeq2Seq
from kbert.models.seq2seq import Seq2Seq

__all__ = [
    "Decoder",
    "DecoderEncoder",
    "Description",
    "Elmo",
    "ElmoDescription",
    "ElmoEncoder",
    "Encoder",
    "GeneratorDescription",
    "PrefixSeq2Seq",
    "Seq2Seq",
    "describe",
    "family",
    "family_table",
]
