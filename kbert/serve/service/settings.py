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
        help="NAME=FOLDER, where FOLDER holds version folders 1, 2, … with an export each, or "
        "is one of them, which then is served alone. Repeat it for more models.",
        repeated=True,
    )
    max_connections: int = HttpOptions.with_default(
        "max_connections",
        512,
        help="Most open connections, of HTTP and of gRPC each. Over HTTP idle ones make room for "
        "new ones, and where all have a request under way one beyond gets 503; over gRPC one "
        "beyond is closed.",
    )
    grpc_port: int | None = option(
        None,
        help="Port of gRPC, TensorFlow Serving's PredictionService. Default: none.",
        at_least=0,
    )
    num_versions: int = option(
        1, help="How many versions of a model are served at once, the newest ones.", at_least=1
    )
    poll_seconds: float = option(
        2.0, help="Seconds between looks for new version folders; 0 = never.", at_least=0
    )
    max_batch_size: int = option(64, help="Most texts that are computed together.", at_least=1)
    batch_threads: int | None = option(
        None,
        help="Batches of a model that are computed at the same time. Default: one a core; 1 on a "
        "GPU, and where --intra_op_threads is not 1.",
        at_least=1,
    )
    intra_op_threads: int = option(
        1,
        help="Threads that a batch's products are shared by; 0 = one a core, for long texts that "
        "come one at a time.",
        at_least=0,
    )
    max_waiting: int = option(
        1024,
        help="Most texts that wait for a model; a request beyond gets 429 and Retry-After.",
        at_least=1,
    )
    max_texts: int = option(128, help="Most texts of a request.", at_least=1)
    max_text_bytes: int = option(
        10_000, help="Largest text in bytes of UTF-8, or all texts of a row together.", at_least=1
    )
    max_answer_values: int = option(
        4_000_000, help="Most numbers and strings that an answer may hold.", at_least=1
    )
    stop_seconds: float = option(
        30.0,
        help="After SIGTERM, longest time until the end: to finish what was accepted. What is not "
        "computed by then is refused.",
        above=0,
    )
    drain_seconds: float = option(
        0.0,
        help="After SIGTERM, time in which requests are still taken, while /health says that the "
        "service stops: what a balancer needs to notice. Part of --stop_seconds.",
        at_least=0,
    )
    tls_certificate: str | None = option(
        None, help="PEM file of the certificate and those that signed it: serves HTTPS."
    )
    tls_key: str | None = option(None, help="PEM file of its key.")
    token_file: str | None = option(
        None,
        help="File of a token that requests must bear, as in Authorization: Bearer TOKEN. All but "
        "/health need it.",
    )

    def check(self) -> None:
        self.folders()
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise ValueError(
                "TLS takes both, `tls_certificate` and `tls_key`. Received: "
                f"tls_certificate={self.tls_certificate!r}, tls_key={self.tls_key!r}"
            )
        if self.drain_seconds >= self.stop_seconds:
            raise ValueError(
                "`drain_seconds` is a part of `stop_seconds`, and below it. Received: "
                f"drain_seconds={self.drain_seconds}, stop_seconds={self.stop_seconds}"
            )
        if self.max_texts > self.max_waiting:
            raise ValueError(
                "A request must find room among those that wait: `max_texts` is `max_waiting` at "
                f"most. Received: max_texts={self.max_texts}, max_waiting={self.max_waiting}"
            )

    def folders(self) -> dict[str, str]:
        """Returns the folder of each model by name."""
        found: dict[str, str] = {}
        for item in self.model:
            name, equals, folder = item.partition("=")
            if not (equals and folder and _NAME.fullmatch(name)):
                raise ValueError(
                    "`model` is NAME=FOLDER, the name of letters, digits, and . _ - alone. "
                    f"Received: {item!r}"
                )
            if name in found:
                raise ValueError(f"Each model has a name of its own. Received: {name!r} twice")
            found[name] = folder
        if not found:
            raise ValueError("A service has one model at least. Received: none")
        return found
