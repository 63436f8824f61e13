"""Models: layers and a config put together. No loss, no optimizer."""

from kbert.models.description import Description, describe, family_table
from kbert.models.elmo import Elmo
from kbert.models.elmo_description import ElmoDescription
from kbert.models.elmo_encoder import ElmoEncoder
from kbert.models.encoder import Encoder
from kbert.models.family import family

__all__ = [
    "Description",
    "Elmo",
    "ElmoDescription",
    "ElmoEncoder",
    "Encoder",
    "describe",
    "family",
    "family_table",
]
