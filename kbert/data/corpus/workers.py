"""Runs the jobs of `prepare_corpus` in this process or in workers, with results in order."""

import collections
import concurrent.futures
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from kbert.core.late import tf
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.text_ops import import_without_keras

# Queued jobs per worker, in addition to the running one: chunks wait in memory for a free worker.
_WAITING_PER_WORKER = 1
_worker_tokenizer = None


class Workers:
    """Calls functions with a tokenizer as first argument, in this process or in several.

    Worker processes are spawned (TensorFlow does not survive a fork). They use one thread each and
    no GPU. They end with their parent, even if it is killed.

    Args:
        tokenizer: first argument of every call; rebuilt from its config in each process.
        num_workers: number of processes; 0 or 1 uses the current process.
    """

    def __init__(self, tokenizer: Tokenizer, num_workers: int) -> None:
        self._tokenizer = tokenizer
        self._num_workers = num_workers
        self._pool: concurrent.futures.ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        if self._num_workers > 1:
            self._pool = concurrent.futures.ProcessPoolExecutor(
                self._num_workers,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_start_worker,
                initargs=(type(self._tokenizer), self._tokenizer.get_config()),
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool:
            self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, function: Callable, jobs: Iterable[tuple]) -> Iterator[Any]:
        """Yields `function(tokenizer, *job)` for each job, in the order of the jobs.

        Jobs are read as workers become free, so `jobs` may be a generator. A worker that the system
        kills raises RuntimeError.
        """
        if not self._pool:
            for job in jobs:
                yield function(self._tokenizer, *job)
            return
        limit = self._num_workers * (1 + _WAITING_PER_WORKER)
        running: collections.deque = collections.deque()
        try:
            for job in jobs:
                running.append(self._pool.submit(_call, function, job))
                if len(running) >= limit:
                    yield running.popleft().result()
            while running:
                yield running.popleft().result()
        except BrokenProcessPool as error:
            raise RuntimeError(
                "A worker process was killed; the system kills processes when memory runs out "
                "(about 1 GB is needed for each worker). Finished work is kept: run the same "
                "command again to resume, with fewer workers if memory is short."
            ) from error


def _call(function: Callable, job: tuple) -> Any:
    return function(_worker_tokenizer, *job)


def _start_worker(tokenizer_type: type[Tokenizer], config: dict) -> None:
    """Prepares a worker process: it has its own tokenizer, one thread and no GPU.

    Args:
        tokenizer_type: class of the tokenizer.
        config: settings of the tokenizer, for `from_config`.
    """
    global _worker_tokenizer
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    import_without_keras()
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    _worker_tokenizer = tokenizer_type.from_config(config)


def _exit_with_parent() -> None:
    """Ends a worker with its parent, since a parent killed by SIGKILL cannot stop its workers."""
    parent = multiprocessing.parent_process()
    assert parent, "only workers run this"
    parent.join()
    os._exit(1)
