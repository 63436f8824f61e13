"""Communication of the processes of a run on several hosts, in addition to gradients.

Both engines have a key-value store that all hosts share: TensorFlow's coordination service, and
that of `jax.distributed`. Through it hosts agree on the step after which they stop, and the chief
sends the values that all hosts must base decisions on.
"""

import contextlib
import itertools
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol

import keras
from absl import logging

from kbert.core.late import has_tensorflow, tf

# Prefix of message keys: the number of the run in this process, which is the same on every host.
_RUNS = itertools.count()
_POLL_SECONDS = 0.5
# Longer than a step, and than the time in which the engines detect a dead host.
_PATIENCE_SECONDS = 600.0
_NEVER = 2**62


class Store(Protocol):
    """A key-value store that all hosts share; a key is set once."""

    def set(self, key: str, value: str) -> None:
        """Sets the value of a key that no host has set."""

    def get(self, key: str, seconds: float) -> str | None:
        """Waits up to `seconds` for the value of a key; returns None on timeout."""


class TensorFlowStore:
    """Store of the coordination service that `MultiWorkerMirroredStrategy` starts."""

    def __init__(self) -> None:
        from tensorflow.python.eager import context

        self._context = context.context()

    def set(self, key: str, value: str) -> None:
        """Sets the value of a key that no host has set."""
        self._context.set_config_key_value(key, value)

    def get(self, key: str, seconds: float) -> str | None:
        """Waits up to `seconds` for the value of a key; returns None on timeout."""
        try:
            return self._context.get_config_key_value(key, max(1, int(seconds * 1000)))
        except tf.errors.DeadlineExceededError:
            return None


class JaxStore:
    """Store of `jax.distributed`."""

    def __init__(self) -> None:
        from jax._src import distributed

        client: Any = distributed.global_state.client
        self._client = client

    def set(self, key: str, value: str) -> None:
        """Sets the value of a key that no host has set."""
        self._client.key_value_set(key, value)

    def get(self, key: str, seconds: float) -> str | None:
        """Waits up to `seconds` for the value of a key; returns None on timeout."""
        import jax

        try:
            return self._client.blocking_key_value_get(key, max(1, int(seconds * 1000)))
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" in str(error):
                return None
            raise


class Hosts:
    """The hosts of a run, as seen from one of them.

    With a single host nothing is sent, and a stop takes effect at the next `stops_after`.

    Args:
        store: key-value store that the hosts share; None for one host.
        index: index of this host; 0 is the chief.
        count: number of hosts.

    Example:
        >>> alone = Hosts(None, 0, 1)
        >>> with alone.listening():
        ...     alone.stop(15)
        ...     alone.stops_after(7)
        15
        >>> alone.from_chief(lambda: {"loss": 0.5})
        {'loss': 0.5}
    """

    def __init__(self, store: Store | None, index: int, count: int) -> None:
        self._store, self._index, self._count = store, index, count
        self._prefix = f"kbert/{next(_RUNS)}"
        self._messages = itertools.count()
        self._signal: int | None = None
        self._begun = 0  # steps that this host has begun, or will begin before the next check
        self._lock = threading.Lock()
        self._is_asked = False
        self._agreed = threading.Event()
        self._last: int | None = None
        self._error: Exception | None = None
        self._over = threading.Event()

    def stop(self, number: int) -> None:
        """Requests that all hosts stop, for signal `number`; safe in a signal handler."""
        self._signal = number

    def stops_after(self, step: int) -> int | None:
        """Returns the signal for which all hosts stop after this step, or None to continue.

        Every host must call this after each step, with the last step it made. Hosts are not at the
        same step when one of them gets a signal. A step that one host has begun sums gradients over
        all hosts, so the others must join it. So each host publishes which step it has begun, and
        all stop after the last of these.

        Raises:
            RuntimeError: another host does not answer. If the store cannot be reached, its own
                error is raised.
        """
        if self._store is None:
            return self._signal
        with self._lock:
            if not self._is_asked:
                self._begun = step + 1
                return None
        if not self._agreed.wait(_PATIENCE_SECONDS):
            raise RuntimeError(
                "All hosts must agree on the last step. Received: no answer of another host within "
                f"{_PATIENCE_SECONDS:.0f} s, after step {step}"
            )
        if self._error is not None:
            raise self._error
        return self._signal if self._last is not None and step >= self._last else None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Context of a whole run: a thread exchanges stop requests with the other hosts."""
        if self._store is None:
            yield
            return
        thread = threading.Thread(target=self._listen, name="kbert-hosts", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._over.set()
            thread.join(10 * _POLL_SECONDS)
            with self._lock:
                is_asked, self._is_asked = self._is_asked, True
            if not is_asked:
                self._leave()

    def from_chief(self, measure: Callable[[], Mapping[str, float]]) -> dict[str, float]:
        """Runs `measure` on all hosts; returns the chief's values, name -> number, on each of them.

        Hosts with different processors round differently, and must not decide differently.

        Raises:
            RuntimeError: the chief does not send its values.
        """
        values = dict(measure())
        if self._store is None:
            return values
        key = f"{self._prefix}/values/{next(self._messages)}"
        if self._index == 0:
            self._store.set(key, json.dumps(values))
            return values
        sent = self._store.get(key, _PATIENCE_SECONDS)
        if sent is None:
            raise RuntimeError(
                "All hosts require the chief's evaluation. Received: none within "
                f"{_PATIENCE_SECONDS:.0f} s"
            )
        return json.loads(sent)

    def lost_another(self, error: Exception) -> bool:
        """Whether an error of a step is how TensorFlow or JAX reports the loss of another host."""
        if self._store is None:
            return False
        lost = (tf.errors.UnavailableError, tf.errors.AbortedError) if has_tensorflow() else ()
        if isinstance(error, lost):
            return True
        jax = sys.modules.get("jax")  # if it is not imported, the error is not from JAX
        if jax is None or not isinstance(error, jax.errors.JaxRuntimeError):
            return False
        signs = ("Gloo", "NCCL", "UNAVAILABLE", "ABORTED", "heartbeat")
        return any(sign in str(error) for sign in signs)

    def _listen(self) -> None:
        """Thread: publishes this host's stop request, and agrees on the first one of any host."""
        try:
            while not self._over.is_set():
                if self._signal is not None:
                    self._request(self._signal)
                stop_request = self._get("stop", _POLL_SECONDS)
                if stop_request is not None:
                    self._agree(int(stop_request))
                    return
        except Exception as error:  # types differ per engine; the training thread raises it again
            with self._lock:
                self._is_asked, self._error = True, error
            self._agreed.set()

    def _leave(self) -> None:
        """Publishes that this host begins no more steps, for hosts that request a stop later."""
        try:
            self._set(f"begun/{self._index}", str(_NEVER))
        except Exception as error:  # the other hosts have left too: nobody needs the message
            logging.info("Host %d could not announce its end: %s", self._index, error)

    def _request(self, number: int) -> None:
        """Publishes a stop for signal `number`, unless another host has published one."""
        try:
            self._set("stop", str(int(number)))
        except Exception:  # types differ per engine; another host may have set the key already
            if self._get("stop", _POLL_SECONDS) is None:
                raise

    def _agree(self, number: int) -> None:
        """Agrees with all hosts on the last step, the last that any of them has begun.

        Args:
            number: signal of the published stop request.
        """
        with self._lock:
            self._is_asked = True
            begun = self._begun
        self._signal = number
        self._set(f"begun/{self._index}", str(begun))
        begun_steps: list[int] = []
        while len(begun_steps) < self._count:
            value = self._get(f"begun/{len(begun_steps)}", _POLL_SECONDS)
            if value is not None:
                begun_steps.append(int(value))
            elif self._over.is_set():
                return
        self._last = max(begun_steps)
        self._agreed.set()

    def _set(self, key: str, value: str) -> None:
        self._store_of_all.set(f"{self._prefix}/{key}", value)

    def _get(self, key: str, seconds: float) -> str | None:
        return self._store_of_all.get(f"{self._prefix}/{key}", seconds)

    @property
    def _store_of_all(self) -> Store:
        assert self._store is not None
        return self._store


def make_hosts(index: int, count: int) -> Hosts:
    """Returns the hosts of a run, connected by the engine's store; call it on all hosts.

    Args:
        index: index of this host, from 0.
        count: number of hosts; 1 needs no store.

    Example:
        >>> make_hosts(0, 1).stops_after(1) is None
        True
    """
    if count == 1:
        return Hosts(None, index, count)
    store: Any = JaxStore() if keras.backend.backend() == "jax" else TensorFlowStore()
    return Hosts(store, index, count)
