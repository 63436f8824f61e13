"""How the weights of a model lie on several devices, of which each holds a part of every layer.

(Shoeybi et al. 2019, "Megatron-LM", https://arxiv.org/abs/1909.08053.) The first product of
attention and of the feed-forward part is split by columns, the second by rows. Tables are split by
columns too, for the entries of a vocabulary rarely divide. What is small is on every device:
positions, normalisation, poolers, heads of tasks. The optimizer's slots lie as their weights do.

The compiler exchanges what is missing, so the numbers are those of one device, however weights lie.
Query, key and value are one kernel here, whose halves are not halves of each: their heads are
exchanged once a layer, which a kernel laid out by heads would not need.
"""

import keras

BATCH, MODEL = "batch", "model"
_COLUMNS, _ROWS = (None, MODEL), (MODEL, None)
# Path of a weight, in which a slot of the optimizer writes _ for / -> its axes on the mesh.
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
    """A mesh of devices for JAX: the batch along one axis, each model along the other.

    Args:
        devices: names, as `keras.distribution.list_devices` gives them.
        model_devices: over how many of them each model is split.

    Returns:
        What `Strategy.engine` is.

    Raises:
        ValueError: the devices do not divide into groups of `model_devices`.

    Example:
        >>> model_parallel(["gpu:0", "gpu:1", "gpu:2"], 2)
        Traceback (most recent call last):
        ...
        ValueError: The devices must divide into groups of model_devices, each of which holds a \
model. Received: 3 devices, model_devices=2
    """
    if model_devices < 1 or len(devices) % model_devices:
        raise ValueError(
            "The devices must divide into groups of model_devices, each of which holds a model. "
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
