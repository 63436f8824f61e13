"""A SavedModel that TensorFlow Serving's session loader takes, with every weight stored once.

`tf.saved_model.save` of a Keras model writes two handles a variable, and the session loader fills
only one of them; `ExportArchive.track(model)` writes every variable under two keys. An archive of
plain functions that capture the variables avoids both.
"""

import os
import re
import tempfile
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import keras
import tensorflow as tf

from kbert.files import Path, copy, copy_tree, is_remote, remove_tree


@dataclass(frozen=True)
class Signature:
    """One entry point of a SavedModel.

    Args:
        function: takes tensors, returns a dict of named tensors.
        inputs: one spec an argument; a spec's name is the name a client uses.
    """

    function: Callable[..., dict[str, tf.Tensor]]
    inputs: Sequence[tf.TensorSpec]


def _versions(directory: str) -> list[int]:
    return [int(path.name) for path in Path(directory).iterdir() if re.fullmatch(r"\d+", path.name)]


def _publish(written: str, directory: str) -> str:
    """Renames a finished folder to the next free version; another writer may have come first."""
    version = max(_versions(directory), default=0) + 1
    while True:
        path = os.path.join(directory, str(version))
        try:
            os.rename(written, path)
        except OSError:
            if not os.path.isdir(path):
                raise
            version += 1
        else:
            return path


def _upload(written: str, directory: str) -> str:
    """Copies a finished folder to the next version, where no folder can be renamed at once.

    The file without which it is no SavedModel comes last, so nobody loads half of one.
    """
    path = Path(directory, str(max(_versions(directory), default=0) + 1))
    graph = Path(f"{written}.graph")
    Path(written, "saved_model.pb").replace(graph)
    copy_tree(written, path)
    copy(graph, path / "saved_model.pb")
    return os.fspath(path)


def export_saved_model(
    directory: str | os.PathLike,
    signatures: Mapping[str, Signature],
    *,
    resources: Sequence[tf.Module] = (),
) -> str:
    """Writes `directory/<n+1>/`, where n is the newest version there.

    The model server sees a version only when it is complete: it is written under a hidden name
    and renamed. To an object store (`gs://…`) its files are copied, `saved_model.pb` last; two
    writers at a time can there take the same number.

    Args:
        directory: the model's folder, one numbered subfolder a version. Made if missing.
        signatures: name -> entry point. The first is also `serving_default`.
        resources: modules whose lookup tables the functions use. Variables need no entry.

    Returns:
        The path of the version written.

    Raises:
        RuntimeError: on a backend whose graphs a SavedModel cannot hold as they are.

    Example:
        >>> import tempfile
        >>> import tensorflow as tf
        >>> double = Signature(lambda x: {"y": 2 * x}, [tf.TensorSpec([None], tf.float32, "x")])
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = export_saved_model(folder, {"double": double})
        ...     print(path.removeprefix(folder), sorted(tf.saved_model.load(path).signatures))
        /1 ['double', 'serving_default']
    """
    if keras.backend.backend() != "tensorflow":
        raise RuntimeError(
            "A SavedModel that takes text is written under the TensorFlow backend only. "
            "Save the task with save_to_preset(folder), then, in a process started with "
            "KERAS_BACKEND=tensorflow, load it with from_preset(folder) and export it there. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    directory = os.fspath(directory)
    Path(directory).mkdir(parents=True, exist_ok=True)
    archive = keras.export.ExportArchive()
    for name, signature in signatures.items():
        archive.add_endpoint(name, signature.function, input_signature=list(signature.inputs))
    for resource in resources:
        archive.track(resource)
    # Nobody differentiates a served model, and gradients of a loop cannot be saved.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)
    if is_remote(directory):
        with tempfile.TemporaryDirectory() as folder:
            partial = os.path.join(folder, "model")
            archive.write_out(partial, options=options, verbose=False)
            return _upload(partial, directory)
    partial = os.path.join(directory, f".{uuid.uuid4().hex}.partial")
    try:
        archive.write_out(partial, options=options, verbose=False)
        return _publish(partial, directory)
    finally:
        remove_tree(partial)
