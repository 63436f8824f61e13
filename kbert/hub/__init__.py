"""Locates models in folders, archives and on the Hugging Face hub; downloads data by URL."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.catalog.repositories import REPOSITORIES as REPOSITORIES
    from kbert.hub.download import fetch as fetch
    from kbert.hub.presets import locate as locate
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
