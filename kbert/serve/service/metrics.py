"""Metrics of the service, in Prometheus' text format."""

from typing import Any

_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    """Counters of one service.

    Attributes:
        requests: number of requests by model, route and status.
        request_seconds: time from a request's head to its response, by route.
        texts: number of accepted texts by model.
        batches, batch_texts, batch_seconds: runs by model and signature; texts and time of a batch.
        waiting: number of texts that wait now, by model.
        version: number of the newest served version, by model.

    Example:
        >>> metrics = Metrics()
        >>> metrics.texts.labels("reviews").inc(3)
        >>> [line for line in metrics.text().decode().splitlines() if "texts_total{" in line]
        ['kbert_texts_total{model="reviews"} 3.0']
    """

    def __init__(self) -> None:
        import prometheus_client as prometheus

        self._registry = prometheus.CollectorRegistry()
        options: dict[str, Any] = {"registry": self._registry}
        prometheus.ProcessCollector(**options)  # memory, processor time, open files

        def counter(name: str, text: str, *labels: str) -> Any:
            return prometheus.Counter(name, text, labels, **options)

        self.requests = counter("kbert_requests", "Requests.", "model", "route", "status")
        self.request_seconds = prometheus.Histogram(
            "kbert_request_seconds", "Duration of a request.", ["route"], **options
        )
        self.texts = counter("kbert_texts", "Accepted texts.", "model")
        self.batches = counter("kbert_batches", "Runs of a signature.", "model", "signature")
        self.batch_texts = prometheus.Histogram(
            "kbert_batch_texts", "Texts per run.", ["model"], buckets=_SIZES, **options
        )
        self.batch_seconds = prometheus.Histogram(
            "kbert_batch_seconds", "Duration of a run.", ["model"], **options
        )
        self.waiting = prometheus.Gauge(
            "kbert_waiting_texts", "Texts that are waiting.", ["model"], **options
        )
        self.version = prometheus.Gauge(
            "kbert_newest_version", "Newest version that is served.", ["model"], **options
        )

    def text(self) -> bytes:
        """Returns all metrics in the format that Prometheus reads."""
        import prometheus_client as prometheus

        return prometheus.generate_latest(self._registry)
