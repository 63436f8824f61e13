"""Layouts of a model's weights over several devices, each with a part of every layer.

`model_parallel` splits the computation too (Shoeybi et al. 2019, "Megatron-LM",
https://arxiv.org/abs/1909.08053). The first product of attention and of the feed-forward part is
split by columns, the second by rows. Token tables are split by columns too, as the size of a
vocabulary rarely divides. Small weights are replicated on every device: positions, normalisation,
poolers, task heads. The optimizer's slots have the layout of their weights; Adafactor's means of
rows and of columns are replicated.

The compiler exchanges missing parts, so the numbers are those of one device in any layout. Query,
key and value are one kernel here, and half of it is not half of each. So their heads are exchanged
once per layer, which a kernel laid out by heads would not need.

`fully_sharded` only stores weights and slots in parts, over the devices that share the batch
(Rajbhandari et al. 2020, "ZeRO", stage 3, https://arxiv.org/abs/1910.02054). Each device computes
its rows of the batch with whole weights, which a step gathers and drops again. Both combine: a
weight that is split over the devices of a model is also stored in parts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

if TYPE_CHECKING:
    from jax.sharding import NamedSharding

BATCH, MODEL = "batch", "model"
_COLUMNS, _ROWS = (None, MODEL), (MODEL, None)
# Path of a weight -> its axes on the mesh. "." matches "/" and the "_" in paths of optimizer slots.
_LAYOUTS = {
    ".embeddings.token": _COLUMNS,
    ".attention.(qkv|query|key|value|key_value|query_key).kernel": _COLUMNS,
    ".attention.(qkv|query|key|value|key_value|query_key).bias": (MODEL,),
    ".attention.output.kernel": _ROWS,
    ".(feed_forward|stacked_[0-9]+).intermediate.kernel": _COLUMNS,
    ".(feed_forward|stacked_[0-9]+).intermediate.bias": (MODEL,),
    ".(feed_forward|stacked_[0-9]+).output.kernel": _ROWS,
}
_SLOT = "(_m|_v|_accumulator)?"


def model_parallel(devices: list[str], model_devices: int) -> keras.distribution.ModelParallel:
    """Returns a distribution for JAX: the batch along one mesh axis, each model along the other.

    Args:
        devices: device names, as `keras.distribution.list_devices` returns them.
        model_devices: number of devices that each model is split over.

    Returns:
        The distribution, for `Strategy.engine`.

    Raises:
        ValueError: the devices do not divide into groups of `model_devices`.

    Example:
        >>> model_parallel(["gpu:0", "gpu:1", "gpu:2"], 2)
        Traceback (most recent call last):
        ...
        ValueError: The number of devices must be divisible by model_devices (the devices of one \
model). Received: 3 devices, model_devices=2
    """
    # Every host makes its own rows of the batch: nothing is left for Keras to shard.
    return keras.distribution.ModelParallel(
        layout_map=_layout_map(devices, model_devices),
        batch_dim_name=BATCH,
        auto_shard_dataset=False,
    )


class FullySharded(keras.distribution.ModelParallel):
    """Distribution for JAX that stores every matrix in parts on the devices that share the batch.

    A trained matrix is cut along its longest axis that divides by the number of these devices, and
    so are the optimizer's slots of its shape. Vectors are replicated, and so are matrices that do
    not divide. A step must compute with `whole` weights: what the compiler would do with the parts
    depends on shapes, and it may exchange activations instead.

    Args:
        devices: device names, as `keras.distribution.list_devices` returns them.
        model_devices: number of devices that each model is split over, as in `model_parallel`.

    Raises:
        ValueError: the devices do not divide into groups of `model_devices`.
    """

    def __init__(self, devices: list[str], model_devices: int = 1) -> None:
        super().__init__(
            layout_map=_layout_map(devices, model_devices),
            batch_dim_name=BATCH,
            auto_shard_dataset=False,
        )

    def get_variable_layout(
        self, variable: keras.Variable
    ) -> keras.distribution.TensorLayout | NamedSharding:
        """Returns the layout of a variable; Keras calls it when the variable is created."""
        from jax.sharding import NamedSharding, PartitionSpec

        layout = super().get_variable_layout(variable)
        # Slots are created with the layout of their weights. Other variables that are not trained,
        # such as the state of a recurrence, are read in every step.
        if isinstance(layout, NamedSharding) or not variable.trainable or len(variable.shape) < 2:
            return layout
        batch_devices, model_devices = self.device_mesh.shape
        axes = list(layout.axes)
        lengths = [
            length if axis is None else length // model_devices
            for length, axis in zip(variable.shape, axes, strict=True)
        ]
        divisible = [i for i, length in enumerate(lengths) if length % batch_devices == 0]
        if not divisible:
            return layout
        longest = max(divisible, key=lambda i: lengths[i])
        axes[longest] = BATCH if axes[longest] is None else (axes[longest], BATCH)
        return NamedSharding(self.device_mesh.backend_mesh, PartitionSpec(*axes))

    def stored(self, variable: keras.Variable) -> NamedSharding | None:
        """Returns the layout of a variable that is stored in parts; None if it is replicated."""
        layout = super().get_variable_layout(variable)
        return None if isinstance(layout, keras.distribution.TensorLayout) else layout


def whole(stored: NamedSharding) -> NamedSharding:
    """Returns the layout of a weight that is gathered from the devices that share the batch.

    Args:
        stored: layout of its parts, from `FullySharded.stored`.
    """
    from jax.sharding import NamedSharding, PartitionSpec

    def without_batch(axis: str | tuple[str, ...] | None) -> str | None:
        return MODEL if axis not in (BATCH, None) else None

    return NamedSharding(stored.mesh, PartitionSpec(*map(without_batch, stored.spec)))


def _layout_map(devices: list[str], model_devices: int) -> keras.distribution.LayoutMap:
    """Returns the layouts of a model split over `model_devices`, by the paths of its variables.

    ValueError if the devices do not divide into groups of `model_devices`.
    """
    if model_devices < 1 or len(devices) % model_devices:
        raise ValueError(
            "The number of devices must be divisible by model_devices (the devices of one model). "
            f"Received: {len(devices)} devices, model_devices={model_devices}"
        )
    shape = (len(devices) // model_devices, model_devices)
    layouts = keras.distribution.LayoutMap(
        keras.distribution.DeviceMesh(shape, (BATCH, MODEL), devices)
    )
    for path, axes in _LAYOUTS.items() if model_devices > 1 else ():
        layouts[f".*{path}{_SLOT}"] = axes
    return layouts
