"""Writes a SavedModel that TensorFlow Serving's session loader can load, with each weight once.

`tf.saved_model.save` of a Keras model writes two handles per variable, and the session loader
initialises only one of them. `ExportArchive.track(model)` writes every variable under two keys. An
archive of plain functions that capture the variables avoids both.
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
from kbert.io import atomic
from kbert.io.paths import Path, copy, copy_tree, is_remote, remove_tree
from kbert.signatures.requests import MAX_BYTES, Signature, bounded
from kbert.signatures.rows import largest

_LEAST = 1e-6  # unit of differences if all numbers are 0


def _versions(directory: str) -> list[int]:
    return [int(path.name) for path in Path(directory).iterdir() if re.fullmatch(r"\d+", path.name)]


def _publish(written: str, directory: str) -> str:
    """Renames a finished folder to the next version that no other writer has created meanwhile.

    Args:
        written: the finished folder.
        directory: folder of the model, with one numbered subfolder per version.

    Returns:
        The path of the version.
    """
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
    """Copies a finished folder to the next version on a store that cannot rename folders.

    `saved_model.pb` comes last, and without it there is no SavedModel. So nobody loads a partial
    one.

    Args:
        written: the finished folder; its `saved_model.pb` is moved away.
        directory: folder of the model, with one numbered subfolder per version.

    Returns:
        The path of the version.
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
    once like in the server (`run_once`) and renamed. On an object store (`gs://…`) its files are
    copied, `saved_model.pb` last; two simultaneous writers can choose the same number there.

    TensorFlow Serving warms up with the requests in `assets.extra` of a version. Its settings,
    `batching_parameters.txt` and `models.config`, are written next to the versions if missing.

    Args:
        directory: folder of the model, with one numbered subfolder per version; created if missing.
        signatures: name -> entry point. The first is also `serving_default`.
        resources: modules whose lookup tables the functions use. Variables need no entry.
        check: function that is called with the finished folder before it becomes a version; an
            error prevents that.
        max_bytes: most bytes of a text, or of a row of strings, in a request; see `bounded`.

    Returns:
        The path of the version written.

    Raises:
        ValueError: `max_bytes` is below 1, or the SavedModel fails or returns NaN or infinity.
        RuntimeError: the backend is not TensorFlow.
        OSError: the disk is full or not writable.

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
            "Writing a SavedModel requires the TensorFlow backend. Save the task with "
            "save_to_preset(folder), then, in a process started with KERAS_BACKEND=tensorflow, "
            "load it with from_preset(folder) and export it there. Received: "
            f"KERAS_BACKEND={keras.backend.backend()}"
        )
    directory = os.fspath(directory)
    entries = {name: bounded(x, max_bytes) for name, x in signatures.items()}
    Path(directory).mkdir(parents=True, exist_ok=True)
    archive = keras.export.ExportArchive()
    for name, signature in entries.items():
        archive.add_endpoint(name, signature.function, input_signature=list(signature.inputs))
    for resource in resources:
        archive.track(resource)
    # A served model needs no gradients, and gradients of a loop cannot be saved.
    options = tf.saved_model.SaveOptions(experimental_custom_gradients=False)

    def write(folder: str) -> None:
        with atomic.naming(directory):
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
    """Loads a SavedModel like TensorFlow Serving and runs a request on each entry point.

    Args:
        folder: folder of the SavedModel.
        signatures: name -> entry point; those without texts to warm up with are skipped.

    Raises:
        ValueError: an entry point fails, or returns NaN or infinity.

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
            feed = {entry.inputs[key].name: values for key, values in texts[-1].items()}
            fetches = {key: tensor.name for key, tensor in entry.outputs.items()}
            try:
                answers = session.run(fetches, feed)
            except tf.errors.OpError as error:
                raise ValueError(
                    "A SavedModel must answer a test request of texts before it is published; "
                    f"this one failed. Received: {name!r}: {' '.join(error.message.split())[:500]}"
                ) from error
            refuse_not_finite(answers, f"{name!r}")


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silences TensorFlow's deprecation warning for the session loader in a `with` block."""
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
    """Returns how much the outputs of a SavedModel differ from those of other functions.

    Only entry points whose inputs are all lists of strings are called. Outputs that are not
    float32, or whose shapes differ because texts differ in length, are not compared.

    Args:
        folder: folder of the SavedModel.
        signatures: name -> function to compare the entry point of this name with.
        texts: texts to run, two or more.

    Returns:
        "entry point/output" -> the largest difference, in units of the function's largest number.

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
    deviations = {}
    for entry, signature in signatures.items():
        if any(x.dtype != tf.string or x.shape.rank != 1 for x in signature.inputs):
            continue
        columns = [tf.constant(list(texts))] * len(signature.inputs)
        run = graph(signature.function, autograph=False, input_signature=list(signature.inputs))
        expected = run(*columns)
        names = [x.name for x in signature.inputs]
        outputs = loaded[entry](**dict(zip(names, columns, strict=True)))
        for name, ours in expected.items():
            ours, theirs = (np.asarray(x) for x in (ours, outputs[name]))
            if ours.dtype != np.float32 or ours.shape != theirs.shape or not ours.size:
                continue
            unit = max(float(np.abs(ours).max()), _LEAST)
            deviations[f"{entry}/{name}"] = float(np.abs(ours - theirs).max()) / unit
    return deviations


def refuse_differences(
    folder: str,
    signatures: Mapping[str, Signature],
    texts: Sequence[str],
    precision: str,
    tolerance: float,
) -> None:
    """Raises ValueError if a SavedModel differs from float32 by more than the tolerance.

    The largest difference, measured by `compare`, is logged. If nothing can be compared, a warning
    is logged instead.

    Args:
        folder: folder of the SavedModel.
        signatures: name -> entry point of the same model in float32.
        texts: texts to run, two or more.
        precision: precision of the SavedModel, for messages.
        tolerance: largest allowed difference.
    """
    deviations = compare(folder, signatures, texts)
    if not deviations:
        logging.warning(
            "No entry point has texts as its only inputs and numbers as outputs: the precision "
            "was not checked"
        )
        return
    worst = largest(deviations)
    logging.info(
        "savedmodel, %s: largest difference from float32 %.2g (%s)",
        precision,
        deviations[worst],
        worst,
    )
    if not deviations[worst] <= tolerance:
        raise ValueError(
            f"A SavedModel in {precision} must not differ from float32 by more than "
            f"{tolerance:g}, relative to the largest number of the float32 output; pass "
            f"`tolerance` for another bound. Received: {deviations[worst]:.3g} in {worst!r}"
        )
