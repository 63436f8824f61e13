"""Serving over HTTP: a service for exported models, its client, and a demo for browsers.

Example:
    >>> ServiceOptions(model=["reviews=serving/reviews"], port=0).max_texts
    128
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.serve.client import (
        AsyncClient as AsyncClient,
        Client as Client,
        ServiceError as ServiceError,
    )
    from kbert.serve.service.background import BackgroundService as BackgroundService
    from kbert.serve.service.server import (
        needs_tensorflow as needs_tensorflow,
        run as run,
        serve as serve,
    )
    from kbert.serve.service.settings import ServiceOptions as ServiceOptions
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
