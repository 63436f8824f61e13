"""Layout of a model's weights over several devices, each with a part of every layer.

(Shoeybi et al. 2019, "Megatron-LM", https://arxiv.org/abs/1909.08053.) The first product of
attention and of the feed-forward part is split by columns, the second by rows. Token tables are
split by columns too, as the size of a vocabulary rarely divides. Small weights are replicated on
every device: positions, normalisation, poolers, task heads. The optimizer's slots have the layout
of their weights; Adafactor's means of rows and of columns are replicated.

The compiler exchanges missing parts, so the numbers are those of one device in any layout. Query,
key and value are one kernel here, and half of it is not half of each. So their heads are exchanged
once per layer, which a kernel laid out by heads would not need.
"""

import keras

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
    if model_devices < 1 or len(devices) % model_devices:
        raise ValueError(
            "The number of devices must be divisible by model_devices (the devices of one model). "
            f"Received: {len(devices)} devices, model_devices={model_devices}"
        )
    shape = (len(devices) // model_devices, model_devices)
    mesh = keras.distribution.DeviceMesh(shape, (BATCH, MODEL), devices)
    layouts = keras.distribution.LayoutMap(mesh)
    for path, axes in _LAYOUTS.items():
        layouts[f".*{path}{_SLOT}"] = axes
    # Every host makes its own rows of the batch: nothing is left for Keras to shard.
    return keras.distribution.ModelParallel(
        layout_map=layouts, batch_dim_name=BATCH, auto_shard_dataset=False
    )
