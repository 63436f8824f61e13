"""Dynamic batching: runs texts of many requests together.

Texts that arrive while a batch is computed form the next batch: no request waits for others that
may come. A batch starts with the text that has waited longest and adds texts of similar length, so
that it has little padding.

Everything except the runs themselves happens in the thread of an event loop. A run whose callers
have all given up is stopped between the chunks that it computes.
"""

import asyncio
import bisect
import functools
import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from absl import logging

from kbert.serve.http.errors import Refused, drop_frames
from kbert.serve.service.errors import Retired, is_bad_input, is_out_of_memory, most_said
from kbert.serve.service.loaded import Arrays, Entry, row_sizes
from kbert.serve.service.metrics import Metrics
from kbert.serve.service.settings import ServiceOptions
from kbert.serve.service.stopping import Stop

# Allowed padding of a batch, in bytes of text: this much (cheaper than another run), plus this
# share of the text itself. More makes larger batches, which all requests in them wait for.
_FREE_PADDING = 128
_PADDED_SHARE = 0.1
# Runtimes keep compiled kernels of each shape, so batches come in few sizes: 1 to 4, 6, 8, 12, …
_SIZES = {1} | {n * 2**power for n in (2, 3) for power in range(20)}


class _Request:
    """A caller's request: its parts, which may be computed in several batches.

    Args:
        parts: number of parts.
        future: future of the list of the parts' outputs.

    Attributes:
        results: outputs of each part; None until it is computed.
        missing: number of parts that are not computed yet.
    """

    def __init__(self, parts: int, future: asyncio.Future) -> None:
        self.results: list[Arrays | None] = [None] * parts
        self.missing = parts
        self.future = future


class _Part:
    """Rows of a request that are computed together: one row, or all if they cannot be separated.

    Args:
        request: the request.
        place: index in `results` of the request; -1 if the part is the whole request.
        entry: the signature.
        inputs: name -> array of each input, (rows, …).
        rows: number of rows.
        size: size of the row in bytes, by which parts of similar length are found.
    """

    def __init__(
        self, request: _Request, place: int, entry: Entry, inputs: Arrays, rows: int, size: int
    ) -> None:
        self.request, self.place = request, place
        self.entry, self.inputs, self.rows, self.size = entry, inputs, rows, size
        self.number = -1  # the order of arrival
        shapes = tuple((name, inputs[name].shape[1:]) for name in sorted(inputs))
        # Parts with the same key can share a batch; a part that cannot share has a unique key.
        self.key: Any = (entry.name, shapes) if place >= 0 else id(self)


class _Batch:
    """Parts that are computed in one run, and the `Stop` of the run."""

    def __init__(self, parts: list[_Part]) -> None:
        self.parts, self.stop = parts, Stop()

    def stop_if_unwanted(self) -> None:
        """Stops the run if nobody waits for any of its requests."""
        if all(part.request.future.done() for part in self.parts):
            self.stop.set()


def _order(part: _Part) -> tuple[int, int]:
    return part.size, part.number


class Batcher:
    """Runs the signatures of one version of a model, in batches.

    Args:
        model: name of the model in the metrics.
        options: settings of the service: sizes and limits.
        metrics: counters of the service.
    """

    def __init__(self, model: str, options: ServiceOptions, metrics: Metrics) -> None:
        self._model, self._options, self._metrics = model, options, metrics
        self._threads = options.batch_threads or 1
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix=f"batch-{model}")
        self._parts: dict[int, _Part] = {}  # waiting parts by number, the oldest first
        self._groups: dict[Any, list[_Part]] = {}  # waiting parts by key, each list sorted by size
        self._waiting = 0  # rows of the waiting parts
        self._running: set[_Batch] = set()
        self._count = 0
        self._seconds_per_row = 0.0
        self._is_closed = False
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(
        self, entry: Entry, inputs: Arrays, rows: int, *, ragged: bool = False
    ) -> Sequence[Arrays]:
        """Computes the outputs of a signature.

        Args:
            entry: the signature.
            inputs: name -> array of each input; they must have passed `entry.check`.
            rows: number of rows, as returned by `entry.check`.
            ragged: whether rows may share a batch with others even if their outputs are then padded
                to the widest.

        Returns:
            A list of outputs: one item for each row, or one for all rows if they cannot be
            separated.

        Raises:
            Refused: too many texts wait, the model rejects these, memory does not suffice, or the
                service is stopping.
            Retired: the version is retired.
        """
        if self._is_closed:
            raise Retired
        if self._waiting + rows > self._options.max_waiting:
            seconds = math.ceil(self._seconds_per_row * self._waiting)
            raise Refused(
                429,
                f"Too many texts are waiting: at most {self._options.max_waiting} may wait. Try "
                f"again later. Received: {rows} in addition to {self._waiting}",
                retry_after=min(max(seconds, 1), 60),
            )
        request = self._add(entry, inputs, rows, ragged)
        self._metrics.texts.labels(self._model).inc(rows)
        try:
            return await request.future
        finally:  # the caller may have given up
            self._forget(request)

    async def close(self) -> None:
        """Accepts no more requests; returns when all accepted ones are computed or stopped."""
        self._is_closed = True
        await self._idle.wait()
        self._pool.shutdown(wait=False)

    def stop(self) -> None:
        """Refuses all accepted requests and stops their runs."""
        self._is_closed = True
        requests = [part.request for part in self._parts.values()]
        requests += [part.request for batch in self._running for part in batch.parts]
        for request in requests:
            if not request.future.done():
                refusal = Refused(503, "The service is stopping.", retry_after=1)
                request.future.set_exception(refusal)
            self._forget(request)

    def _add(self, entry: Entry, inputs: Arrays, rows: int, ragged: bool) -> _Request:
        """Adds a request to the waiting parts and returns it; arguments as in `run`.

        Each row becomes a part if rows can be separated, else the whole request is one part.
        """
        loop = asyncio.get_running_loop()
        splits = entry.merges or (ragged and entry.is_rows and entry.has_row_outputs)
        request = _Request(rows if splits else 1, loop.create_future())
        if splits:
            sizes = row_sizes(inputs, rows).tolist()
            parts = [
                _Part(request, i, entry, {k: x[i : i + 1] for k, x in inputs.items()}, 1, sizes[i])
                for i in range(rows)
            ]
        else:
            parts = [_Part(request, -1, entry, inputs, rows, 0)]
        for part in parts:
            part.number = self._count
            self._count += 1
            self._parts[part.number] = part
            bisect.insort(self._groups.setdefault(part.key, []), part, key=_order)
        self._count_waiting(rows)
        self._idle.clear()
        # Start in the next turn of the loop: requests of the same moment become one batch.
        loop.call_soon(self._start)
        return request

    def _forget(self, request: _Request) -> None:
        """Removes the waiting parts of an unfinished request, and stops runs nobody waits for."""
        if request.missing:
            self._take([part for part in self._parts.values() if part.request is request])
            for batch in self._running:
                batch.stop_if_unwanted()
            self._rest()

    def _count_waiting(self, change: int) -> None:
        """Adds a number of rows, which may be negative, to the waiting ones."""
        self._waiting += change
        self._metrics.waiting.labels(self._model).inc(change)

    def _take(self, parts: Sequence[_Part]) -> None:
        """Removes parts from the waiting ones."""
        for part in parts:
            del self._parts[part.number]
            group = self._groups[part.key]
            del group[bisect.bisect_left(group, _order(part), key=_order)]
            if not group:
                del self._groups[part.key]
        self._count_waiting(-sum(part.rows for part in parts))

    def _start(self) -> None:
        """Starts batches of waiting parts in all free threads."""
        loop = asyncio.get_running_loop()
        while self._parts and len(self._running) < self._threads:
            batch = _Batch(self._choose())
            self._take(batch.parts)
            self._running.add(batch)
            future = loop.run_in_executor(self._pool, _run_timed, batch.parts, batch.stop)
            future.add_done_callback(functools.partial(self._finish, batch))

    def _choose(self) -> list[_Part]:
        """Returns the parts of the next batch: the oldest, and others of similar length.

        At most `max_batch_size` rows, of which there are few different numbers, and few enough to
        leave some for every free thread.
        """
        oldest = next(iter(self._parts.values()))
        group = self._groups[oldest.key]
        low = bisect.bisect_left(group, _order(oldest), key=_order)
        high, total, rows = low + 1, oldest.size, oldest.rows
        chosen = low, high
        share = math.ceil(self._waiting / (self._threads - len(self._running)))
        while rows < min(share, self._options.max_batch_size):
            shorter = group[low - 1] if low else None
            longer = group[high] if high < len(group) else None
            if shorter is None and longer is None:
                break
            # Add the neighbour that is nearer in length to the batch.
            below = math.inf if shorter is None else group[low].size - shorter.size
            above = math.inf if longer is None else longer.size - group[high - 1].size
            added = shorter if longer is None or (shorter and below <= above) else longer
            assert added is not None
            widest = max(group[high - 1].size, added.size)
            padding = (rows + 1) * widest - (total + added.size)
            if padding > _FREE_PADDING + _PADDED_SHARE * total:
                break
            low, high = (low - 1, high) if added is shorter else (low, high + 1)
            total, rows = total + added.size, rows + added.rows
            if rows in _SIZES or rows == self._options.max_batch_size:
                chosen = low, high
        return group[slice(*chosen)]

    def _finish(self, batch: _Batch, done: asyncio.Future) -> None:
        """Counts a finished batch, gives the results to its requests and starts the next batch.

        Args:
            batch: the batch.
            done: future of the result of `_run_timed`.
        """
        self._running.discard(batch)
        results, seconds, runs = done.result()
        rows = sum(part.rows for part in batch.parts)
        if not batch.stop.is_set:
            seconds_per_row = seconds / rows
            self._seconds_per_row += (seconds_per_row - self._seconds_per_row) * 0.2
        self._metrics.batches.labels(self._model, batch.parts[0].entry.name).inc(runs)
        self._metrics.batch_texts.labels(self._model).observe(rows)
        self._metrics.batch_seconds.labels(self._model).observe(seconds)
        for part, result in zip(batch.parts, results, strict=True):
            request = part.request
            if request.future.done():  # the caller has given up, or another part has failed
                continue
            if isinstance(result, Exception):
                request.future.set_exception(result)
                continue
            request.results[part.place] = result
            request.missing -= 1
            if not request.missing:
                request.future.set_result(request.results)
        self._start()
        self._rest()

    def _rest(self) -> None:
        """Sets the event that `close` waits for, if nothing is waiting or running."""
        if not self._parts and not self._running:
            self._idle.set()


def _run_timed(batch: list[_Part], stop: Stop) -> tuple[list[Arrays | Exception], float, int]:
    """Computes a batch; if it fails, each part by itself.

    Args:
        batch: parts of one signature.
        stop: object by which the run can be stopped.

    Returns:
        The outputs or the error of each part, the seconds it took, and the number of runs.
    """
    start = time.perf_counter()
    results: list[Arrays | Exception] = []
    runs = 1
    try:
        results += _run(batch, stop)
    except Exception as error:
        if stop.is_set:  # nobody waits for it
            results += [Refused(503, "The request was cancelled.") for _ in batch]
        elif len(batch) == 1:
            results.append(_refusal(error))
        else:  # run each part alone: one text that the model rejects must not fail the others
            part_runs = [_run_timed([part], stop) for part in batch]
            results += [result for part_results, _, _ in part_runs for result in part_results]
            runs += len(batch)
        drop_frames(error)  # the frames refer to the inputs of all parts
    return results, time.perf_counter() - start, runs


def _run(batch: list[_Part], stop: Stop) -> list[Arrays]:
    """Returns the outputs of each part of a batch, computed in one run."""
    entry = batch[0].entry
    if len(batch) == 1:
        return [entry.run(batch[0].inputs, stop)]
    names = batch[0].inputs
    inputs = {k: np.concatenate([part.inputs[k] for part in batch]) for k in names}
    outputs = entry.run(inputs, stop)
    if any(len(x) != len(batch) for x in outputs.values()):
        raise ValueError(
            "A signature must return one row for each text to compute several requests together. "
            f"Received: {[x.shape for x in outputs.values()]} of {len(batch)}"
        )
    return [{k: x[i : i + 1] for k, x in outputs.items()} for i in range(len(batch))]


def _refusal(error: Exception) -> Exception:
    """Converts the error of a run to the error for the client; logs unexpected errors."""
    if is_bad_input(error):
        return Refused(400, f"The model does not accept these inputs: {most_said(error)}")
    if is_out_of_memory(error):
        return Refused(503, "The memory is not sufficient for this request.", retry_after=1)
    logging.error("A model failed", exc_info=error)
    return error
