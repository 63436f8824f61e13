"""Where models come from: folders, archives and the Hugging Face hub; data by its address."""

from kbert.catalog.repositories import REPOSITORIES
from kbert.hub.download import fetch
from kbert.hub.presets import locate

__all__ = ["REPOSITORIES", "fetch", "locate"]
