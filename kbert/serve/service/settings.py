"""Settings of a service; the flags of `kbert-serve` are made from them."""

import re

from kbert.core.options import option
from kbert.serve.http.settings import HttpOptions

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")


class ServiceOptions(HttpOptions):
    """Settings of a service: models, addresses and limits.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range, a model is not NAME=FOLDER, or a key comes without a
            certificate.

    Example:
        >>> ServiceOptions(model=["reviews=serving/reviews"]).folders()
        {'reviews': 'serving/reviews'}
    """

    model: tuple[str, ...] = option(
        help="NAME=FOLDER, where FOLDER has version folders 1, 2, … with an export each, or is "
        "itself the export, as the only version. Repeat the flag for more models.",
        repeated=True,
    )
    max_connections: int = HttpOptions.with_default(
        "max_connections",
        512,
        help="Maximum number of open connections, for HTTP and for gRPC each. Over HTTP, idle ones "
        "are closed for new ones, and if every connection has a request, a further one gets "
        "503; over gRPC a further one is closed.",
    )
    grpc_port: int | None = option(
        None,
        help="Port for gRPC (TensorFlow Serving's PredictionService). Default: no gRPC.",
        at_least=0,
    )
    num_versions: int = option(
        1,
        help="Number of versions of a model that are served at once, the newest ones.",
        at_least=1,
    )
    poll_seconds: float = option(
        2.0, help="Seconds between checks for new version folders; 0 = never.", at_least=0
    )
    max_batch_size: int = option(
        64, help="Maximum number of texts that are computed together.", at_least=1
    )
    batch_threads: int | None = option(
        None,
        help="Batches of a model that are computed at the same time. Default: one per core; 1 on a "
        "GPU, or if --intra_op_threads is not 1.",
        at_least=1,
    )
    intra_op_threads: int = option(
        1,
        help="Threads that compute one batch; 0 = one per core, for long texts that arrive one at "
        "a time.",
        at_least=0,
    )
    max_waiting: int = option(
        1024,
        help="Maximum number of texts that wait for a model; further requests get 429 and "
        "Retry-After.",
        at_least=1,
    )
    max_texts: int = option(128, help="Maximum number of texts in a request.", at_least=1)
    max_text_bytes: int = option(
        10_000,
        help="Maximum size in bytes of UTF-8 of a text, or of all texts of a row together.",
        at_least=1,
    )
    max_answer_values: int = option(
        4_000_000, help="Maximum number of numbers and strings in an answer.", at_least=1
    )
    stop_seconds: float = option(
        30.0,
        help="Maximum time from SIGTERM to the end, to finish accepted requests. Requests that are "
        "not computed by then are refused.",
        above=0,
    )
    drain_seconds: float = option(
        0.0,
        help="Time after SIGTERM in which requests are still accepted while /health reports that "
        "the service stops, so that a load balancer notices. Part of --stop_seconds.",
        at_least=0,
    )
    tls_certificate: str | None = option(
        None, help="PEM file of the certificate and of those that signed it; enables HTTPS."
    )
    tls_key: str | None = option(None, help="PEM file of the certificate's key.")
    token_file: str | None = option(
        None,
        help="File with the token that requests must have, as in Authorization: Bearer TOKEN. "
        "Only /health and /live do not require it.",
    )

    def check(self) -> None:
        self.folders()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError(
                "`tls_certificate` and `tls_key` must be given together. Received: "
                f"tls_certificate={self.tls_certificate!r}, tls_key={self.tls_key!r}"
            )
        if self.drain_seconds >= self.stop_seconds:
            raise ValueError(
                "`drain_seconds` is a part of `stop_seconds` and must be less. Received: "
                f"drain_seconds={self.drain_seconds}, stop_seconds={self.stop_seconds}"
            )
        if self.max_texts > self.max_waiting:
            raise ValueError(
                "`max_texts` must be at most `max_waiting`, so that every request may wait. "
                f"Received: max_texts={self.max_texts}, max_waiting={self.max_waiting}"
            )

    def folders(self) -> dict[str, str]:
        """Returns model name -> folder; ValueError if `model` is empty or invalid."""
        folder_of: dict[str, str] = {}
        for item in self.model:
            name, equals, folder = item.partition("=")
            if not (equals and folder and _NAME.fullmatch(name)):
                raise ValueError(
                    "`model` must be NAME=FOLDER, with a name of letters, digits and . _ - only. "
                    f"Received: {item!r}"
                )
            if name in folder_of:
                raise ValueError(f"Names of models must be unique. Received: {name!r} twice")
            folder_of[name] = folder
        if not folder_of:
            raise ValueError("A service requires at least one model. Received: none")
        return folder_of
