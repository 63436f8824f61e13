"""Where models come from: folders, archives and the Hugging Face hub."""

from kbert.hub.names import REPOSITORIES
from kbert.hub.presets import locate

__all__ = ["REPOSITORIES", "locate"]
