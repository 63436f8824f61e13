"""Models: layers and a config put together. No loss, no optimizer."""

from kbert.models.description import Description, describe, family_table
from kbert.models.encoder import Encoder
from kbert.models.family import family

__all__ = ["Description", "Encoder", "describe", "family", "family_table"]
