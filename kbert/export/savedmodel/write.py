"""A SavedModel that TensorFlow Serving's session loader takes, with every weight stored once.

`tf.saved_model.save` of a Keras model writes two handles a variable, and the session loader fills
only one of them; `ExportArchive.track(model)` writes every variable under two keys. An archive of
plain functions that capture the variables avoids both.
"""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence

import keras
import numpy as np
from absl import logging

from kbert.core.finite import refuse_not_finite
from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.export.savedmodel.tf_serving import warm_up_requests, write_settings, write_warm_up
from kbert.io.paths import Path, copy, copy_tree, is_remote, remove_tree
from kbert.signatures.requests import MAX_BYTES, Signature, bounded
from kbert.signatures.rows import largest

_LEAST = 1e-6  # where all numbers are 0, a unit


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
    check: Callable[[str], None] | None = None,
    max_bytes: int = MAX_BYTES,
) -> str:
    """Writes `directory/<n+1>/`, where n is the newest version there.

    The model server sees a version only when it is complete: it is written under a hidden name, run
    once as the server will (`run_once`) and renamed. To an object store (`gs://…`) its files are
    copied, `saved_model.pb` last; two writers at a time can there take the same number.

    TensorFlow Serving warms up with the requests in `assets.extra` of a version. Its settings,
    `batching_parameters.txt` and `models.config`, are written beside the versions where they are
    missing.

    Args:
        directory: the model's folder, one numbered subfolder a version. Made if missing.
        signatures: name -> entry point. The first is also `serving_default`.
        resources: modules whose lookup tables the functions use. Variables need no entry.
        check: called with the finished folder before it is a version; what it raises keeps it from
            becoming one.
        max_bytes: the longest text that a request may have, as of `bounded`.

    Returns:
        The path of the version written.

    Raises:
        ValueError: `max_bytes` is below 1, or the SavedModel fails, or answers NaN or infinity.
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
    entries = {name: bounded(x, max_bytes) for name, x in signatures.items()}
    Path(directory).mkdir(parents=True, exist_ok=True)
    archive = keras.export.ExportArchive()
    for name, signature in entries.items():
        archive.add_endpoint(name, signature.function, input_signature=list(signature.inputs))
    for resource in resources:
        archive.track(resource)
    # Nobody differentiates a served model, and gradients of a loop cannot be saved.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)

    def write(folder: str) -> None:
        archive.write_out(folder, options=options, verbose=False)
        write_warm_up(folder, Path(directory).name, signatures)
        run_once(folder, signatures)
        if check is not None:
            check(folder)

    if is_remote(directory):
        with tempfile.TemporaryDirectory() as folder:
            partial = os.path.join(folder, "model")
            write(partial)
            path = _upload(partial, directory)
            write_settings(directory, path)
            return path
    partial = os.path.join(directory, f".{uuid.uuid4().hex}.partial")
    try:
        write(partial)
        path = _publish(partial, directory)
    finally:
        remove_tree(partial)
    write_settings(directory, path)
    return path


def run_once(folder: str, signatures: Mapping[str, Signature]) -> None:
    """Loads a SavedModel as TensorFlow Serving does and asks each entry point with a request.

    Args:
        folder: the SavedModel's folder.
        signatures: name -> entry point; those that have no texts to warm up with are not asked.

    Raises:
        ValueError: an entry point fails, or its numbers are not finite.

    Example:
        >>> from kbert.signatures.requests import text_tokens
        >>> def entry(text):
        ...     return {"score": tf.math.log(-tf.cast(tf.strings.length(text), tf.float32))}
        >>> signature = Signature(entry, [tf.TensorSpec([None], tf.string, "text")], text_tokens())
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     try:
        ...         export_saved_model(folder, {"log": signature})
        ...     except ValueError as error:
        ...         print(str(error).split(". ")[-1], os.listdir(folder))
        Received: NaN or infinity in 'score' of 'log' []
    """
    requests = {name: list(warm_up_requests(entry)) for name, entry in signatures.items()}
    if not any(requests.values()):
        return
    v1 = tf.compat.v1
    with tf.Graph().as_default() as loaded, v1.Session(graph=loaded) as session:
        with _quiet():
            meta = v1.saved_model.load(session, [tf.saved_model.SERVING], folder)
        for name, texts in requests.items():
            if not texts:
                continue
            entry = meta.signature_def[name]
            given = {entry.inputs[key].name: values for key, values in texts[-1].items()}
            wanted = {key: tensor.name for key, tensor in entry.outputs.items()}
            try:
                answers = session.run(wanted, given)
            except tf.errors.OpError as error:
                raise ValueError(
                    "A SavedModel is kept if it answers a request of texts, and this one does not. "
                    f"Received: {name!r}: {' '.join(error.message.split())[:500]}"
                ) from error
            refuse_not_finite(answers, f"{name!r}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without TensorFlow's advice against the session loader, which servers have."""
    logger = tf.get_logger()
    level = logger.level
    logger.setLevel("ERROR")
    try:
        yield
    finally:
        logger.setLevel(level)


def compare(
    folder: str, signatures: Mapping[str, Signature], texts: Sequence[str]
) -> dict[str, float]:
    """How far the numbers of a SavedModel are from those of other functions of the same names.

    Entry points that take texts, each input a list of strings, are called with the texts; what they
    give that are no floats, or of another shape on either side, such as answers of another length,
    is not compared.

    Args:
        folder: of the SavedModel.
        signatures: name -> what it is compared with.
        texts: two or more.

    Returns:
        "entry point/output" -> the largest difference, in units of the largest number given.

    Example:
        >>> import tempfile
        >>> def entry(factor):
        ...     spec = tf.TensorSpec([None], tf.string, "text")
        ...     count = lambda x: {"y": factor * tf.cast(tf.strings.length(x), tf.float32)}
        ...     return {"count": Signature(count, [spec])}
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     compare(export_saved_model(folder, entry(1.0)), entry(2.0), ["a", "four"])
        {'count/y': 0.5}
    """
    loaded = tf.saved_model.load(folder).signatures
    found = {}
    for entry, signature in signatures.items():
        if any(x.dtype != tf.string or x.shape.rank != 1 for x in signature.inputs):
            continue
        columns = [tf.constant(list(texts))] * len(signature.inputs)
        run = graph(signature.function, autograph=False, input_signature=list(signature.inputs))
        wanted = run(*columns)
        names = [x.name for x in signature.inputs]
        given = loaded[entry](**dict(zip(names, columns, strict=True)))
        for name, ours in wanted.items():
            ours, theirs = (np.asarray(x) for x in (ours, given[name]))
            if ours.dtype != np.float32 or ours.shape != theirs.shape or not ours.size:
                continue
            unit = max(float(np.abs(ours).max()), _LEAST)
            found[f"{entry}/{name}"] = float(np.abs(ours - theirs).max()) / unit
    return found


def refuse_differences(
    folder: str,
    signatures: Mapping[str, Signature],
    texts: Sequence[str],
    precision: str,
    tolerance: float,
) -> None:
    """Raises ValueError where `compare` finds more than the tolerance; says what it found.

    Args:
        folder: as for `compare`.
        signatures: likewise, in float32.
        texts: likewise.
        precision: of the SavedModel.
        tolerance: the largest difference.
    """
    found = compare(folder, signatures, texts)
    if not found:
        logging.warning("No entry point takes texts alone and gives numbers: nothing was compared")
        return
    worst = largest(found)
    logging.info(
        "savedmodel, %s: largest difference to float32 %.2g (%s)", precision, found[worst], worst
    )
    if not found[worst] <= tolerance:
        raise ValueError(
            f"A SavedModel in {precision} may differ from float32 by {tolerance:g} at most, in "
            "units of the largest number that it gives; `tolerance` sets another bound. "
            f"Received: {found[worst]:.3g} in {worst!r}"
        )
