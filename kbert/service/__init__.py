"""A service for exported models, over HTTP and gRPC, and its client.

Example:
    >>> ServiceOptions(model=["reviews=serving/reviews"], port=0).max_texts
    128
"""

from kbert.service.background import Background
from kbert.service.client import AsyncClient, Client, ServiceError
from kbert.service.server import run, serve
from kbert.service.settings import ServiceOptions

__all__ = ["AsyncClient", "Background", "Client", "ServiceError", "ServiceOptions", "run", "serve"]
