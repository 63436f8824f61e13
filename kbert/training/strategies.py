"""The devices of a run: one device, all of a host, several hosts, TPUs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from typing import Any, TypeAlias

import keras

from kbert.core.devices import STRATEGIES
from kbert.core.late import has_tensorflow, tf
from kbert.core.types import MaybeNone, Tensors
from kbert.training.layout import FullySharded, model_parallel

JaxEngine: TypeAlias = keras.distribution.DataParallel | keras.distribution.ModelParallel

_ON_JAX = ("model_parallel", "fully_sharded")  # strategies that split weights
_TIMEOUT_SECONDS = 30  # without a heartbeat, or waiting for other hosts at the end


@dataclasses.dataclass(frozen=True, kw_only=True)
class Strategy:
    """A way to distribute a run over devices, with one interface for both engines.

    Attributes:
        name: One of `STRATEGIES`.
        num_replicas: Number of devices that share a global batch, or of groups of devices with one
            model each.
        num_hosts: Number of processes of the run.
        host_index: Index of this process; 0 is the chief, which alone writes and prints.
        engine: Implementation: a `tf.distribute.Strategy`; on JAX a
            `keras.distribution.DataParallel` or `ModelParallel`, or `None` on one device.
    """

    name: str
    num_replicas: int
    num_hosts: int
    host_index: int
    engine: tf.distribute.Strategy | JaxEngine | MaybeNone

    @property
    def is_chief(self) -> bool:
        """Whether this process writes checkpoints and prints."""
        return self.host_index == 0

    def scope(self) -> contextlib.AbstractContextManager[Any]:
        """Context in which model and optimizer are created and trained."""
        return contextlib.nullcontext() if self.engine is None else self.engine.scope()

    def distribute(
        self, dataset: tf.data.Dataset
    ) -> tf.data.Dataset | tf.distribute.DistributedDataset:
        """Returns a dataset for `fit` that splits each batch over this host's devices.

        Args:
            dataset: batches with this host's rows of every global batch.
        """
        if not has_tensorflow():
            return ((batch,) for batch in dataset)  # Keras expects tuples from a generator
        if self.num_hosts == 1 or keras.backend.backend() == "jax":
            return dataset  # `fit` splits the batches
        local_replicas = self.num_replicas // self.num_hosts
        rows = next(iter(tf.nest.flatten(dataset.element_spec))).shape[0]

        def parts(batch: Tensors) -> tf.data.Dataset:  # for batches with a varying number of rows
            return tf.data.Dataset.from_tensor_slices(
                tf.nest.map_structure(lambda x: tf.stack(tf.split(x, local_replicas)), batch)
            )

        return self.engine.distribute_datasets_from_function(
            lambda _: (
                dataset.flat_map(parts)
                if rows is None
                else dataset.rebatch(rows // local_replicas, drop_remainder=True)
            )
        )

    def agrees(self, number: int) -> bool:
        """Whether all hosts call this with the same number; waits for all of them."""
        if self.num_hosts == 1:
            return True
        if keras.backend.backend() == "jax":
            from jax.experimental import multihost_utils

            return len(set(multihost_utils.process_allgather(number).tolist())) == 1
        x = self.engine.run(lambda: tf.constant([1.0, number, number**2], tf.float64))
        count, total, squares = self.engine.reduce("SUM", x, axis=None).numpy()
        return count * squares == total * total  # no variance

    def check_batch(self, batch_size: int, micro_batches: int) -> None:
        """Raises ValueError if a global batch does not divide over devices and micro-batches."""
        if batch_size % (self.num_replicas * micro_batches):
            raise ValueError(
                "batch_size must be divisible by devices times micro_batches. "
                f"Received: batch_size={batch_size}, {self.num_replicas} devices, "
                f"micro_batches={micro_batches}"
            )


def make_strategy(name: str = "one_device", model_devices: int | None = None) -> Strategy:
    """Sets up a strategy. Call it first in a run, before any model or tensor exists.

    Args:
        name: `"one_device"`; `"mirrored"`, all GPUs of this host (its logical CPUs if it has no
            GPU); `"multi_worker"`, several hosts, each started with the same command; `"tpu"`, all
            TPU cores; `"model_parallel"` (JAX), all devices, each model on `model_devices` of them;
            `"fully_sharded"` (JAX), all devices, each with a part of every weight and of the
            optimizer's state, see `kbert.training.layout`.
            Hosts find each other by `TF_CONFIG` (TensorFlow), by
            `KERAS_DISTRIBUTION_JOB_ADDRESSES`, `_NUM_PROCESSES` and `_PROCESS_ID` (JAX), or by
            Slurm's variables.
        model_devices: Number of devices that a model is split over; `"model_parallel"` requires it,
            `"fully_sharded"` accepts it.

    Returns:
        The strategy.

    Raises:
        ValueError: The name is unknown, or `model_devices` does not fit the strategy or the
            devices.
        RuntimeError: There is no TPU, or this TensorFlow has no TPU support.

    Example:
        >>> make_strategy("one_device").is_chief
        True
    """
    if name not in STRATEGIES:
        raise ValueError(f"The strategy must be one of {STRATEGIES}. Received: {name!r}")
    if name == "model_parallel" and model_devices is None:
        raise ValueError(
            "The strategy model_parallel requires model_devices, the devices of one model. "
            "Received: model_devices=None"
        )
    if name not in _ON_JAX and model_devices is not None:
        raise ValueError(
            f"model_devices requires one of the strategies {', '.join(_ON_JAX)}. "
            f"Received: strategy={name!r}, model_devices={model_devices}"
        )
    if keras.backend.backend() == "jax":
        return _on_jax(name, model_devices)
    if name in _ON_JAX:
        raise ValueError(
            f"The strategy {name} requires JAX: set KERAS_BACKEND=jax. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    return _on_tensorflow(name)


def current_strategy() -> Strategy:
    """Returns the strategy in whose scope this is called; one device outside of all scopes.

    Example:
        >>> current_strategy().num_hosts
        1
    """
    if keras.backend.backend() == "jax":
        distribution = keras.distribution.distribution()
        return make_strategy() if distribution is None else _of_jax("multi_worker", distribution)
    return _of_tensorflow("current", tf.distribute.get_strategy())


def _on_tensorflow(name: str) -> Strategy:
    """Returns the strategy with a name of `STRATEGIES`, for TensorFlow."""
    if name == "one_device":
        engine = tf.distribute.get_strategy()
    elif name == "mirrored":
        devices = tf.config.list_logical_devices("GPU") or tf.config.list_logical_devices("CPU")
        engine = tf.distribute.MirroredStrategy([device.name for device in devices])
    elif name == "multi_worker":
        engine = tf.distribute.MultiWorkerMirroredStrategy(_resolver())
    else:
        engine = _tpu_strategy()
    return _of_tensorflow(name, engine)


def _of_tensorflow(name: str, engine: tf.distribute.Strategy) -> Strategy:
    """Wraps TensorFlow's strategy as a `Strategy` with that name."""
    is_multi_worker = isinstance(engine, tf.distribute.MultiWorkerMirroredStrategy)
    num_hosts, host_index = _cluster(engine.cluster_resolver) if is_multi_worker else (1, 0)
    return Strategy(
        name=name,
        num_replicas=engine.num_replicas_in_sync,
        num_hosts=num_hosts,
        host_index=host_index,
        engine=engine,
    )


def _resolver() -> tf.distribute.cluster_resolver.ClusterResolver | None:
    """Returns a resolver of Slurm's cluster, or None to let TensorFlow read `TF_CONFIG`.

    None if `TF_CONFIG` is set, or if this is not one of several tasks of a Slurm job step.
    """
    tasks = int(os.environ.get("SLURM_STEP_NUM_TASKS", 1))
    if tasks == 1 or "TF_CONFIG" in os.environ:
        return None
    # By default it counts GPUs with nvidia-smi and divides them among tasks; Slurm has done that.
    return tf.distribute.cluster_resolver.SlurmClusterResolver(
        gpus_per_node=2**16, gpus_per_task=1, auto_set_gpu=False
    )


def _cluster(resolver: tf.distribute.cluster_resolver.ClusterResolver) -> tuple[int, int]:
    """Returns the number of hosts and the index of this host; a chief comes before the workers."""
    jobs = resolver.cluster_spec().as_dict()
    if not jobs:
        return 1, 0
    order = [(job, i) for job in ("chief", "worker") for i in range(len(jobs.get(job, ())))]
    return len(order), order.index((resolver.task_type, resolver.task_id))


def _tpu_strategy() -> tf.distribute.Strategy:
    """Returns a strategy over all TPU cores of this host; RuntimeError without a TPU."""
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="local")
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (tf.errors.NotFoundError, ValueError) as error:
        raise RuntimeError(
            "This TensorFlow finds no TPU. Released TensorFlow has no TPU support since 2.21: "
            f"set KERAS_BACKEND=jax for TPUs. Received: TensorFlow {tf.__version__}: {error}"
        ) from error


def _on_jax(name: str, model_devices: int | None) -> Strategy:
    """Returns the strategy with a name of `STRATEGIES`, for JAX; "multi_worker" connects hosts.

    Args:
        name: name of the strategy.
        model_devices: number of devices that each model is split over; None = 1.
    """
    if name == "one_device":
        return Strategy(name=name, num_replicas=1, num_hosts=1, host_index=0, engine=None)
    if name == "multi_worker":
        _connect_jax()
    devices = keras.distribution.list_devices()
    if name == "tpu" and not devices[0].startswith("tpu"):
        raise RuntimeError(f"JAX finds no TPU. Received: devices {devices}")
    if name == "fully_sharded":
        return _of_jax(name, FullySharded(devices, model_devices or 1))
    if model_devices is not None:
        return _of_jax(name, model_parallel(devices, model_devices))
    # Every host makes its own rows of the batch: nothing is left for Keras to shard.
    engine = keras.distribution.DataParallel(devices=devices, auto_shard_dataset=False)
    return _of_jax(name, engine)


def _connect_jax() -> None:
    """Like `keras.distribution.initialize`, but detects the end of another host sooner."""
    import jax
    from keras.src.backend.jax.distribution_lib import initialize_rng

    variables = {
        name: os.environ.get(f"KERAS_DISTRIBUTION_{name}")
        for name in ("JOB_ADDRESSES", "NUM_PROCESSES", "PROCESS_ID")
    }
    addresses, count, index = variables.values()
    jax.distributed.initialize(
        addresses and addresses.split(",")[0],
        int(count) if count else None,
        int(index) if index else None,
        heartbeat_timeout_seconds=_TIMEOUT_SECONDS,
        shutdown_timeout_seconds=_TIMEOUT_SECONDS,
    )
    initialize_rng()  # the same on all hosts


def _of_jax(name: str, engine: JaxEngine) -> Strategy:
    """Wraps Keras' distribution for JAX as a `Strategy` with that name."""
    import jax

    sizes = dict(zip(engine.device_mesh.axis_names, engine.device_mesh.shape, strict=True))
    return Strategy(
        name=name,
        num_replicas=sizes[engine.batch_dim_name],
        num_hosts=jax.process_count(),
        host_index=jax.process_index(),
        engine=engine,
    )
