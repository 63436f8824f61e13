"""Models: layers and a config put together. No loss, no optimizer."""

from kbert.models.encoder import Encoder
from kbert.models.family import Description, describe, family

__all__ = ["Description", "Encoder", "describe", "family"]
