"""Demos of trained models in a browser: a small server, or a static site that needs none.

Example:
    >>> DemoOptions(preset=["quickstart/preset"], port=0).max_waiting
    8
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.serve.demo.server import serve as serve
    from kbert.serve.demo.settings import DemoOptions as DemoOptions
    from kbert.serve.demo.site import write_site as write_site
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
