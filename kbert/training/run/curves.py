"""Curves for TensorBoard, written without TensorBoard installed."""

import os

from kbert.core.late import tf
from kbert.core.types import PathLike


class Curves:
    """Writes scalars for `tensorboard --logdir`.

    Args:
        folder: Folder to write to; created when the first value is written.

    Example:
        >>> import tempfile
        >>> folder = tempfile.mkdtemp()
        >>> Curves(folder).write(1, "train", {"loss": 2.5})
        >>> len(os.listdir(folder))
        1
    """

    def __init__(self, folder: PathLike) -> None:
        self._writer = tf.summary.create_file_writer(os.fspath(folder))
        # The metadata of tf.summary.scalar; that function itself needs TensorBoard's package.
        self._metadata = tf.compat.v1.SummaryMetadata(data_class="DATA_CLASS_SCALAR")
        self._metadata.plugin_data.plugin_name = "scalars"

    def write(self, step: int, group: str, values: dict[str, float]) -> None:
        """Adds a point at `step` to the curve `group/name` of each name -> value."""
        with self._writer.as_default(step=step):
            for name, value in values.items():
                tf.summary.write(f"{group}/{name}", tf.constant(value), metadata=self._metadata)
        self._writer.flush()
