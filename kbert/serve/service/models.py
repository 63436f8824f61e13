"""The served models: loads, watches and retires the versions in their folders."""

import asyncio
import ctypes
import gc
import re
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeAlias

from absl import logging

from kbert.core.types import PathLike
from kbert.io.paths import Path
from kbert.serve.http.errors import Refused, drop_frames
from kbert.serve.service.batching import Batcher
from kbert.serve.service.errors import Retired
from kbert.serve.service.loaded import (
    EXPORT,
    SAVED_MODEL,
    Arrays,
    Entry,
    LoadedModel,
    check_rows,
    row_sizes,
)
from kbert.serve.service.metrics import Metrics
from kbert.serve.service.settings import ServiceOptions

_VERSION = re.compile(r"[1-9][0-9]{0,17}|0")
_STOP_SECONDS = 2.0  # time for a stopped run to reach the end of its chunk
_TRIM_SECONDS = 60.0  # between returns of freed memory, each of which takes some 30 ms of a thread
_COLLECTIONS, _COLLECTION_SECONDS = 5, 0.2  # of a retired version, and the pause before each
_LONGEST_WAIT = 60.0  # most seconds between attempts to load a version that failed

# A request's function from a loaded version to its signature and the inputs.
Prepare: TypeAlias = Callable[[LoadedModel], tuple[Entry, Arrays]]


def _is_whole(folder: Path) -> bool:
    """Returns whether a folder has a complete SavedModel or export."""
    return any((folder / name).is_file() for name in (SAVED_MODEL, EXPORT))


def version_folders(folder: PathLike) -> dict[int, Path]:
    """Returns the complete versions of a model: number -> folder, the newest first.

    Args:
        folder: folder with a subfolder per version, named by its number; or a version itself, which
            gets the number that is its name, or else 1.
    """
    folder = Path(folder)
    if _is_whole(folder):
        return {int(folder.name) if _VERSION.fullmatch(folder.name) else 1: folder}
    folders = {int(p.name): p for p in folder.iterdir() if _VERSION.fullmatch(p.name)}
    complete = [number for number in folders if _is_whole(folders[number])]
    return {number: folders[number] for number in sorted(complete, reverse=True)}


def _load(folder: Path, threads: int) -> LoadedModel:
    """Loads a version and runs each signature of texts once; `threads` as in `LoadedModel`."""
    loaded = LoadedModel(folder, threads)
    loaded.warm_up()
    return loaded


class Version:
    """A version in memory, and the batcher that runs it.

    Args:
        number: number of the version.
        loaded: its model.
        batcher: batcher with the requests for it.
    """

    def __init__(self, number: int, loaded: LoadedModel, batcher: Batcher) -> None:
        self.number, self.loaded, self.batcher = number, loaded, batcher


class Model:
    """A served model with the versions of its folder.

    Args:
        name: name of the model in requests.
        folder: folder that contains version folders, or is one.
        options: settings of the service.
        metrics: counters of the service.

    Attributes:
        versions: number -> `Version` of each served version.
        failed: number -> error of each version that did not load.
    """

    def __init__(self, name: str, folder: str, options: ServiceOptions, metrics: Metrics) -> None:
        self.name, self.folder = name, folder
        self._options, self._metrics = options, metrics
        self.versions: dict[int, Version] = {}
        self.failed: dict[int, str] = {}
        self._tries: dict[int, tuple[float, float]] = {}  # time of the next attempt, next pause
        self._retiring: set[asyncio.Task] = set()
        self._leaving: set[Version] = set()  # the versions that are being retired
        # Computed when the metrics are read: versions are added and removed in several places.
        metrics.version.labels(name).set_function(lambda: max(self.versions, default=0))

    def find(self, number: int | None) -> Version:
        """Returns a version, the newest for None; raises `Refused` for an unknown one."""
        if number is None:
            return self.versions[max(self.versions)]
        if number not in self.versions:
            raise Refused(
                404,
                f"The versions of the model {self.name!r} are "
                f"{', '.join(map(str, sorted(self.versions)))}. Received: {number}",
            )
        return self.versions[number]

    async def refresh(self, pool: ThreadPoolExecutor) -> None:
        """Loads new versions and retires those that they replace.

        A version that fails to load is retried after growing pauses: copying it may be under way.
        If the folder has no version that loads, the present ones stay.

        Args:
            pool: threads in which the folder is read and versions are loaded.

        Raises:
            OSError: the folder cannot be read.
        """
        loop = asyncio.get_running_loop()
        folders = await loop.run_in_executor(pool, version_folders, self.folder)
        served: list[int] = []
        for number, folder in folders.items():
            if len(served) == self._options.num_versions:
                break
            if number not in self.versions and not await self._load(pool, number, folder):
                continue
            served.append(number)
        for removed in set(self.failed) - set(folders):
            del self.failed[removed], self._tries[removed]
        if served:  # an empty folder is more likely a mistake: keep what is served
            for number in set(self.versions) - set(served):
                task = asyncio.create_task(self._retire(self.versions.pop(number)))
                self._retiring.add(task)
                task.add_done_callback(self._retiring.discard)

    async def close(self) -> None:
        """Returns when all accepted requests are computed or stopped."""
        closing = [version.batcher.close() for version in self.versions.values()]
        await asyncio.gather(*closing, *self._retiring)

    def stop(self) -> None:
        """Refuses accepted requests that are not computed yet."""
        for version in (*self.versions.values(), *self._leaving):
            version.batcher.stop()

    async def _load(self, pool: ThreadPoolExecutor, number: int, folder: Path) -> bool:
        """Loads a version, unless an earlier attempt failed a short time ago.

        Args:
            pool: threads in which the version is loaded.
            number: number of the version.
            folder: its folder.

        Returns:
            Whether the version is loaded; the error of a failure is logged and added to `failed`.
        """
        next_try, wait = self._tries.get(number, (0.0, max(self._options.poll_seconds, 0.1)))
        if time.monotonic() < next_try:
            return False
        start = time.monotonic()
        try:
            threads = self._options.intra_op_threads
            loop = asyncio.get_running_loop()
            loaded = await loop.run_in_executor(pool, _load, folder, threads)
        except Exception as error:
            is_known = isinstance(error, ValueError)
            why = str(error) if is_known else repr(error)
            if self.failed.get(number) != why:
                logging.warning("%s, version %d: %s", self.name, number, why, exc_info=not is_known)
            self.failed[number] = why
            self._tries[number] = (time.monotonic() + wait, min(2 * wait, _LONGEST_WAIT))
            drop_frames(error)  # the frames refer to the partly loaded model
            return False
        seconds = time.monotonic() - start
        logging.info("%s, version %d: loaded in %.1f s", self.name, number, seconds)
        self.failed.pop(number, None)
        self._tries.pop(number, None)
        batcher = Batcher(self.name, self._options, self._metrics)
        self.versions[number] = Version(number, loaded, batcher)
        return True

    async def _retire(self, version: Version) -> None:
        """Waits until the accepted requests of a version are answered, and frees its memory."""
        self._leaving.add(version)
        await version.batcher.close()
        self._leaving.discard(version)
        logging.info("%s, version %d: retired", self.name, version.number)
        loaded = weakref.ref(version.loaded)
        del version
        # TensorFlow's loaded objects are reference cycles: uncollected, weights of many versions
        # would stay in memory. Requests that were answered just now may still refer to them.
        for _ in range(_COLLECTIONS):
            await asyncio.sleep(_COLLECTION_SECONDS)
            gc.collect()
            if loaded() is None:
                break
        _give_back()


class Models:
    """All models of a service.

    Args:
        options: settings of the service: the models and their limits.
        metrics: counters of the service.
    """

    def __init__(self, options: ServiceOptions, metrics: Metrics) -> None:
        self._options = options
        self._models = {
            name: Model(name, folder, options, metrics)
            for name, folder in options.folders().items()
        }
        self._is_closed = False
        # One thread: loading takes CPU time from requests.
        self._loader = ThreadPoolExecutor(1, thread_name_prefix="loader")

    async def load(self) -> None:
        """Loads every model; raises ValueError if a model has no version that loads."""
        for model in self._models.values():
            try:
                await model.refresh(self._loader)
            except OSError as error:
                raise ValueError(f"The folder cannot be read ({error})") from error
            if not model.versions:
                why = "; ".join(model.failed.values()) or f"Received: {model.folder}"
                raise ValueError(
                    f"The folder of {model.name!r} must hold a SavedModel or an export to another "
                    f"runtime (kbert-export writes both), or version folders 1, 2, … of which one "
                    f"loads. {why}"
                )

    async def watch(self) -> None:
        """Checks for new versions, and returns freed memory to the system, until cancelled."""
        await asyncio.gather(self._poll(), self._trim())

    async def _trim(self) -> None:
        """Returns freed memory to the system now and then, until cancelled.

        Between TensorFlow's kernels, which it caches for each shape, the memory of finished batches
        stays in pieces that fit no later batch.
        """
        while True:
            await asyncio.sleep(_TRIM_SECONDS)
            try:
                await asyncio.to_thread(_give_back)
            except RuntimeError as error:  # no thread can be started now
                logging.warning("Memory was not returned to the system: %s", error)

    async def _poll(self) -> None:
        """Checks for new versions, until cancelled; not at all if `poll_seconds` is 0."""
        while self._options.poll_seconds:
            await asyncio.sleep(self._options.poll_seconds)
            for model in self._models.values():
                try:
                    await model.refresh(self._loader)
                except OSError as error:  # the loaded versions are still served
                    logging.warning("%s: the folder cannot be read (%s)", model.name, error)
                except Exception:  # other models and later versions are still checked
                    logging.exception("%s: the check for new versions failed", model.name)

    async def close(self) -> None:
        """Accepts no more requests, stops runs, refuses waiting requests, and ends the threads."""
        self._is_closed = True
        self._loader.shutdown(wait=False, cancel_futures=True)
        for model in self._models.values():
            model.stop()
        closing = [asyncio.create_task(model.close()) for model in self._models.values()]
        _, late = await asyncio.wait(closing, timeout=_STOP_SECONDS)
        for task in late:
            task.cancel()

    def has(self, name: str) -> bool:
        """Returns whether there is a model with the name."""
        return name in self._models

    def find(self, name: str) -> Model:
        """Returns a model by name; raises `Refused` for an unknown name."""
        if name not in self._models:
            raise Refused(
                404,
                f"The models of the service are {', '.join(map(repr, sorted(self._models)))}. "
                f"Received: {name[:100]!r}",
            )
        return self._models[name]

    def only(self, name: str | None, has: Callable[[LoadedModel], Any], what: str) -> str:
        """Returns the name of the model that has an ability, such as filling masks.

        Args:
            name: name in the request; None = the only model with the ability.
            has: function from a `LoadedModel` to the signature with the ability, or None.
            what: the ability in words, for messages.

        Raises:
            Refused: the model does not exist or lacks the ability; without a name, not exactly one
                model has it.
        """
        if name is not None:
            if has(self.find(name).find(None).loaded) is None:
                raise Refused(400, f"`model` must be one that {what}. Received: {name[:100]!r}")
            return name
        matching_names = [
            name for name, model in self._models.items() if has(model.find(None).loaded) is not None
        ]
        if len(matching_names) != 1:
            raise Refused(
                400 if matching_names else 404,
                f"`model` must be given unless exactly one model {what}. Received: none, of "
                f"{len(matching_names)} ({', '.join(sorted(matching_names))})",
            )
        return matching_names[0]

    async def run(
        self,
        name: str,
        number: int | None,
        prepare: Prepare,
        *,
        ragged: bool = False,
    ) -> tuple[int, Entry, Sequence[Arrays]]:
        """Runs a signature of a model.

        Args:
            name: name of the model.
            number: number of the version; None = the newest.
            prepare: function from the `LoadedModel` to the signature's `Entry` and its inputs.
            ragged: whether rows may share a batch with others even if their outputs are then padded
                to the widest.

        Returns:
            The version's number, the signature, the parts of the outputs.

        Raises:
            Refused: the model or version does not exist, the inputs do not fit or exceed a limit,
                too many texts wait, or the service is stopping.
        """
        model = self.find(name)
        while not self._is_closed:
            version = model.find(number)
            entry, inputs = prepare(version.loaded)
            rows = entry.check(inputs)
            check_limits(inputs, rows, self._options)
            try:
                parts = await version.batcher.run(entry, inputs, rows, ragged=ragged)
            except Retired:  # retired since `find`: run the newer version
                continue
            values = sum(x.size for part in parts for x in part.values())
            if values > self._options.max_answer_values:
                raise Refused(
                    413,
                    f"An answer must have at most {self._options.max_answer_values} values: send "
                    f"fewer texts in one request. Received: a request whose answer has {values}",
                )
            return version.number, entry, parts
        raise Refused(503, "The service is stopping.", retry_after=1)

    def status(self, name: str, number: int | None) -> dict[str, Any]:
        """Returns the status of the versions of a model in TensorFlow Serving's format.

        Args:
            name: name of the model.
            number: number of the version; None = all versions, also those that failed to load.

        Raises:
            Refused: the model or version does not exist.
        """
        model = self.find(name)
        if number is not None and number not in model.failed:
            model.find(number)
        states: dict[int, tuple[str, str, str]] = {
            version: ("END", "UNKNOWN", why) for version, why in model.failed.items()
        }
        states |= dict.fromkeys(model.versions, ("AVAILABLE", "OK", ""))
        return {
            "model_version_status": [
                {
                    "version": str(version),
                    "state": state,
                    "status": {"error_code": code, "error_message": why},
                }
                for version, (state, code, why) in sorted(states.items(), reverse=True)
                if number in (None, version)
            ]
        }


def _give_back() -> None:
    """Returns freed memory to the system, on Linux with glibc, which keeps it otherwise."""
    if sys.platform == "linux" and hasattr(glibc := ctypes.CDLL(None), "malloc_trim"):
        glibc.malloc_trim(0)


def check_limits(inputs: Mapping[str, Any], rows: int, options: ServiceOptions) -> None:
    """Raises `Refused` if a request has no texts, too many, or too large ones.

    Args:
        inputs: name -> array of each input.
        rows: number of rows from `Entry.check`: 1 for a signature whose inputs are not rows.
        options: settings of the service.
    """
    if not rows:
        raise Refused(400, "A request must have at least one text or row. Received: none")
    check_rows(rows, options.max_texts)
    strings = {k: x for k, x in inputs.items() if x.dtype == object and x.size}
    if not strings:
        return
    largest = max(int(row_sizes({k: x}, len(x) if x.ndim else 1).max()) for k, x in strings.items())
    if largest > options.max_text_bytes:
        raise Refused(
            413,
            f"A text must have at most {options.max_text_bytes} bytes. Received: one of {largest}",
        )
