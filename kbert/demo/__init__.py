"""Trained models to try in a browser: by a small server, or as a site that needs none.

Example:
    >>> DemoOptions(preset=["quickstart/preset"], port=0).max_waiting
    8
"""

from kbert.demo.server import serve
from kbert.demo.settings import DemoOptions
from kbert.demo.site import write_site

__all__ = ["DemoOptions", "serve", "write_site"]
