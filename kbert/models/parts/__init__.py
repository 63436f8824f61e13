"""Parts of encoders that one family has in code: what they share, and those that kbert has."""

from kbert.models.parts.base import Part, part_of, register_part
from kbert.models.parts.disentangled import Disentangled

__all__ = ["Disentangled", "Part", "part_of", "register_part"]
