"""Clients of a service: texts in, answers out.

They need only the standard library and NumPy, not TensorFlow.

Shapes: `N` texts, `D` width of an embedding.
"""

import asyncio
import collections
import http.client
import json
import math
import ssl
import time
import urllib.parse
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

Texts = Sequence[str] | Mapping[str, Sequence[Any]]
_LONGEST_WAIT = 5.0  # most seconds between two attempts


class ServiceError(Exception):
    """A service refused a request, or could not be reached.

    Attributes:
        status: HTTP status; 0 if there was no response.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Client:
    """Client of a `kbert-serve` service; several threads may share one.

    More texts than `batch_size` are sent in several requests, one after the other. If the service
    is overloaded (status 429), the request is repeated after the time in `Retry-After`, until
    `timeout`.

    Args:
        address: address that the service prints, such as http://127.0.0.1:8501.
        token: token of the service; None = it needs none.
        timeout: seconds for a request, including repetitions.
        batch_size: texts of a request.
        certificates: PEM file of trusted certificates for https; None = those of the system.

    Raises:
        ValueError: the address is not an HTTP address, or `batch_size` is below 1.

    Example:
        >>> client = Client("http://127.0.0.1:1", timeout=1)
        >>> client.embed(["rain"])  # nobody listens there
        Traceback (most recent call last):
        ...
        kbert.serve.client.ServiceError: http://127.0.0.1:1 cannot be reached (...
    """

    def __init__(
        self,
        address: str,
        *,
        token: str | None = None,
        timeout: float = 60.0,
        batch_size: int = 64,
        certificates: str | None = None,
    ) -> None:
        parts = urllib.parse.urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/"):
            raise ValueError(
                f"`address` must be http://HOST:PORT or https://HOST:PORT. Received: {address!r}"
            )
        if batch_size < 1:
            raise ValueError(f"`batch_size` must be at least 1. Received: {batch_size}")
        self._address, self._timeout, self._batch_size = address.rstrip("/"), timeout, batch_size
        self._headers = {"Content-Type": "application/json"}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        host, port = parts.hostname, parts.port
        self._connect: Callable[[], http.client.HTTPConnection]
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=certificates)
            self._connect = lambda: http.client.HTTPSConnection(
                host, port, timeout=timeout, context=context
            )
        else:
            self._connect = lambda: http.client.HTTPConnection(host, port, timeout=timeout)
        self._free: collections.deque[http.client.HTTPConnection] = collections.deque()

    def predict(
        self,
        model: str,
        texts: Texts,
        *,
        signature: str | None = None,
        version: int | None = None,
    ) -> list[Any]:
        """Returns the answers of a model.

        Args:
            model: name of the model at the service.
            texts: N texts; for a signature with several inputs, such as pairs, a dict from the name
                of each input to its list.
            signature: name of the signature; None = the model's default.
            version: number of the version; None = the newest.

        Returns:
            For each text a dict of outputs, or the output itself if there is only one.

        Raises:
            ServiceError: the request was refused, or the service cannot be reached.
            ValueError: the texts or an input are no list, or a value is not JSON.
        """
        version_path = "" if version is None else f"/versions/{version}"
        path = f"/v1/models/{urllib.parse.quote(model, safe='')}{version_path}:predict"
        extra = {} if signature is None else {"signature_name": signature}
        answers: list[Any] = []
        for rows in self._batches(_rows(texts)):
            answers += self._ask(path, {**extra, "instances": rows})["predictions"]
        return answers

    def embed(self, texts: Sequence[str], *, model: str | None = None) -> np.ndarray:
        """Returns the embeddings of texts.

        Args:
            texts: N texts, one or more.
            model: name of the model; None = the only model that embeds texts.

        Returns:
            (N, D) float32.

        Raises:
            ServiceError: the request was refused, or the service cannot be reached.
            ValueError: there are no texts, so D is unknown.
        """
        embeddings = self._ask_texts("/embed", texts, model, "embeddings")
        if not embeddings:
            raise ValueError("`texts` must have at least one text. Received: none")
        return np.asarray(embeddings, np.float32)

    def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Alias of `embed`, with the name that it has in clients of bert-as-service."""
        return self.embed(texts)

    def fill_mask(
        self, texts: Sequence[str], *, model: str | None = None
    ) -> list[list[list[dict[str, Any]]]]:
        """Returns the best tokens for each mask of texts.

        Args:
            texts: N texts with [MASK], or the mask token of the model's tokenizer.
            model: name of the model; None = the only model that fills masks.

        Returns:
            For each text, for each mask, a list of {"token", "probability"}, the best first.

        Raises:
            ServiceError: the request was refused, or the service cannot be reached.
        """
        return self._ask_texts("/fill_mask", texts, model, "answers")

    def close(self) -> None:
        """Closes the connections; a later request opens a new one."""
        while self._free:
            self._free.pop().close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _ask_texts(self, path: str, texts: Sequence[str], model: str | None, key: str) -> list[Any]:
        """Sends texts in batches to a short route; returns one answer per text.

        Args:
            path: path of the route, such as "/embed".
            texts: N texts.
            model: name of the model; None = the only one with the ability.
            key: key of the answers in a response.
        """
        extra = {} if model is None else {"model": model}
        answers: list[Any] = []
        for some in self._batches(_as_list(texts)):
            answers += self._ask(path, {**extra, "texts": some})[key]
        return answers

    def _batches(self, rows: list[Any]) -> list[list[Any]]:
        """Splits rows into lists of at most `batch_size` rows."""
        step = self._batch_size
        return [rows[i : i + step] for i in range(0, len(rows), step)]

    def _ask(self, path: str, content: Mapping[str, Any]) -> Any:
        """Sends a POST request and returns the JSON answer; waits and retries if the status is 429.

        Args:
            path: path of the route.
            content: JSON object of the body.

        Raises:
            ServiceError: the request was refused, or the service cannot be reached.
            ValueError: a text has a surrogate, which is no valid Unicode, or a value is not JSON.
        """
        try:
            body = json.dumps(content, ensure_ascii=False, allow_nan=False, default=_plain).encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"Texts must be valid Unicode. Received: {error}") from None
        except (TypeError, ValueError) as error:
            received = error if isinstance(error, TypeError) else "NaN or infinity"
            raise ValueError(
                "Texts and inputs must be strings, booleans, finite numbers (JSON has no NaN and "
                f"no infinity) or lists of these. Received: {received}"
            ) from None
        end = time.monotonic() + self._timeout
        while True:
            status, wait, answer = self._send(path, body)
            if status == 200:
                return answer
            wait = min(wait, _LONGEST_WAIT)
            if status != 429 or time.monotonic() + wait > end:
                text = answer.get("error") if isinstance(answer, dict) else None
                raise ServiceError(status, text or f"The service responded with status {status}.")
            time.sleep(wait)

    def _send(self, path: str, body: bytes) -> tuple[int, float, Any]:
        """Sends a request over a free or a new connection, without retrying refused ones.

        Args:
            path: path of the route.
            body: JSON in UTF-8.

        Returns:
            HTTP status, seconds to wait before a retry, and the answer: a JSON value, or the begin
            of a text that is not JSON.
        """
        while True:
            try:
                connection, was_open = self._free.pop(), True
            except IndexError:
                connection, was_open = self._connect(), False
            try:
                connection.request("POST", path, body, self._headers)
                response = connection.getresponse()
                content = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                # A reused connection may have been closed meanwhile, before any answer: retry.
                if was_open and not isinstance(error, TimeoutError):
                    continue
                raise ServiceError(0, f"{self._address} cannot be reached ({error!r})") from error
            if response.will_close:
                connection.close()
            else:
                self._free.append(connection)
            try:
                answer = json.loads(content)
            except ValueError:  # a proxy in between may answer in another format
                answer = content[:200].decode(errors="replace")
            return response.status, _seconds(response.getheader("Retry-After")), answer


class AsyncClient:
    """Asynchronous `Client`, for an event loop.

    `connections` threads send the requests; further requests wait for a free thread. More texts
    than `batch_size` are sent in several requests at the same time.

    Args:
        address: address that the service prints, such as http://127.0.0.1:8501.
        connections: most requests under way at once.
        **settings: other arguments of `Client`: token, timeout, batch_size and certificates.

    Example:
        >>> async def ask():
        ...     async with AsyncClient("http://127.0.0.1:1") as client:
        ...         return await client.embed(["rain"])
        >>> asyncio.run(ask())
        Traceback (most recent call last):
        ...
        kbert.serve.client.ServiceError: http://127.0.0.1:1 cannot be reached (...
    """

    def __init__(self, address: str, *, connections: int = 32, **settings: Any) -> None:
        self._client = Client(address, **settings)
        self._pool = ThreadPoolExecutor(connections, thread_name_prefix="kbert-client")

    async def predict(
        self,
        model: str,
        texts: Texts,
        *,
        signature: str | None = None,
        version: int | None = None,
    ) -> list[Any]:
        """Returns the answers of a model for each text; see `Client.predict`."""
        rows = self._client._batches(_rows(texts))
        return await self._gather(
            lambda some: self._client.predict(model, some, signature=signature, version=version),
            [_columns(some) for some in rows],
        )

    async def embed(self, texts: Sequence[str], *, model: str | None = None) -> np.ndarray:
        """Returns the embeddings (N, D) float32 of N texts; see `Client.embed`."""
        batches = self._client._batches(_as_list(texts)) or [[]]
        parts = await self._gather(lambda some: [self._client.embed(some, model=model)], batches)
        return np.concatenate(parts)

    async def encode(self, texts: Sequence[str]) -> np.ndarray:
        """Alias of `embed`, like `Client.encode`."""
        return await self.embed(texts)

    async def fill_mask(
        self, texts: Sequence[str], *, model: str | None = None
    ) -> list[list[list[dict[str, Any]]]]:
        """Returns the best tokens for each mask of each text; see `Client.fill_mask`."""
        batches = self._client._batches(_as_list(texts))
        return await self._gather(lambda some: self._client.fill_mask(some, model=model), batches)

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *error: object) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._client.close()

    async def _gather(self, ask: Callable[[Any], list], batches: Sequence[Any]) -> list[Any]:
        """Sends all batches at the same time; returns their answers in order, in one list.

        Args:
            ask: blocking function that sends one batch and returns a list of answers.
            batches: arguments of `ask`.
        """
        loop = asyncio.get_running_loop()
        waiting = (loop.run_in_executor(self._pool, ask, some) for some in batches)
        return [
            answer for batch_answers in await asyncio.gather(*waiting) for answer in batch_answers
        ]


def _as_list(values: Any, what: str = "`texts` must be a list of strings") -> list[Any]:
    """Returns values as a list; ValueError for a string, a table or an object without items.

    Args:
        values: texts, or the values of one input.
        what: rule in the message of the error.
    """
    # Iterating over a table would give the names of its columns, over a string its letters.
    is_table = isinstance(values, Mapping) or hasattr(values, "columns")
    is_table = is_table or hasattr(values, "column_names")
    is_scalar = isinstance(values, str | bytes) or getattr(values, "ndim", 1) == 0
    if is_scalar or is_table or not isinstance(values, Iterable):
        raise ValueError(f"{what}. Received: {values!r:.80} ({type(values).__name__})")
    return list(values)


def _rows(texts: Texts) -> list[Any]:
    """Converts texts to the rows of a request.

    Returns:
        One row per text: the text, or for several inputs a dict of input name -> value.

    Raises:
        ValueError: the inputs differ in length, or `texts` or an input is a string, a table or a
            number.
    """
    if not isinstance(texts, Mapping):
        return _as_list(texts)
    columns = [
        _as_list(column, f"The input {name!r} must be a list of values, one per row")
        for name, column in texts.items()
    ]
    if len({len(column) for column in columns}) != 1:
        raise ValueError(
            "All inputs must have the same number of rows. Received: "
            f"{dict(zip(texts, map(len, columns), strict=True))}"
        )
    return [dict(zip(texts, row, strict=True)) for row in zip(*columns, strict=True)]


def _columns(rows: list[Any]) -> Texts:
    """Converts rows to texts, or dicts to a dict of lists: the reverse of `_rows`."""
    if rows and isinstance(rows[0], dict):
        return {name: [row[name] for row in rows] for name in rows[0]}
    return rows


def _plain(value: Any) -> Any:
    """Converts a NumPy array or number to Python's types for JSON; TypeError for other types."""
    # Python has no type for a longdouble: `tolist` returns it unchanged.
    if isinstance(value, np.ndarray | np.generic) and not isinstance(value, np.longdouble):
        return value.tolist()
    raise TypeError(f"{value!r:.80} ({type(value).__name__})")


def _seconds(header: str | None) -> float:
    """Returns the seconds in a Retry-After header: 0.1 or more, 1 without header, 5 for a date."""
    try:
        value = float(header or "1")
    except ValueError:  # a date
        return _LONGEST_WAIT
    return max(0.1, value) if math.isfinite(value) else _LONGEST_WAIT
