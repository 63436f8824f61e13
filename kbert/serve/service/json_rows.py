"""JSON requests and responses in the formats of TensorFlow Serving's REST API.

Row format: `instances`, a list of rows -> `predictions`. Column format: `inputs`, the rows of each
input -> `outputs`. Bytes are `{"b64": "…"}`.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert.serve.http.errors import Refused
from kbert.serve.http.json_body import describe
from kbert.serve.service.loaded import Arrays, Entry, Spec, check_rows

_KINDS = {"b": "booleans", "i": "whole numbers", "u": "whole numbers", "f": "numbers"}


def refuse_unknown(request: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raises `Refused` if the request has keys that are not in `known`."""
    unknown = [key[:100] for key in request if key not in known]
    if unknown:
        raise Refused(
            400, f"A request must only have the keys {', '.join(known)}. Received: {unknown[:10]}"
        )


def text_of(request: Mapping[str, Any], key: str, default: Any) -> Any:
    """Returns the string under a key of a request, or the default; `Refused` for other types."""
    value = request.get(key, default)
    if value is not default and not isinstance(value, str):
        raise Refused(400, f"`{key}` must be a string. Received: {describe(value)}")
    return value


def read_inputs(request: Mapping[str, Any], entry: Entry, most: int) -> Arrays:
    """Reads the inputs of a signature from a request in row or column format.

    Args:
        request: request with either `instances` or `inputs`.
        entry: the signature.
        most: most rows of a request.

    Returns:
        Name -> array of each input.

    Raises:
        Refused: the request has both or neither, the values do not fit the signature, or there are
            too many rows.
    """
    if ("instances" in request) == ("inputs" in request):
        raise Refused(
            400,
            "A request must have either `instances` (rows) or `inputs` (columns). Received: "
            f"{'both' if 'inputs' in request else 'neither'}",
        )
    names = list(entry.inputs)
    if "inputs" in request:
        columns = request["inputs"]
        if len(names) == 1 and not _is_named(columns):
            columns = {names[0]: columns}
        if not isinstance(columns, dict):
            raise Refused(
                400,
                f"`inputs` must be an object with the inputs {', '.join(names)}. Received: "
                f"{describe(columns)}",
            )
        _check_names(columns, names)
        limit = most if entry.is_rows else None
        return {name: read_array(columns[name], entry.inputs[name], name, limit) for name in names}
    rows = request["instances"]
    if not isinstance(rows, list):
        raise Refused(400, f"`instances` must be a list of rows. Received: {describe(rows)}")
    if not entry.is_rows:
        raise Refused(
            400,
            f"The signature {entry.name!r} has no rows: use `inputs`. Received: `instances`",
        )
    check_rows(len(rows), most)
    if len(names) == 1 and not any(map(_is_named, rows)):
        rows = [{names[0]: row} for row in rows]
    for row in rows:
        if not isinstance(row, dict):
            raise Refused(
                400,
                f"Each of `instances` must be an object with the inputs {', '.join(names)}. "
                f"Received: {describe(row)}",
            )
        _check_names(row, names)
    return {
        name: read_array([row[name] for row in rows], entry.inputs[name], name, most)
        for name in names
    }


def read_array(value: Any, spec: Spec, name: str, most: int | None) -> np.ndarray:
    """Converts a JSON value to an input of a signature.

    Args:
        value: nested lists.
        spec: type and shape of the input.
        name: name of the input, for messages.
        most: most rows of a request; None = the input is not a list of rows.

    Raises:
        Refused: the value has another type or rank, lists of different lengths, too many rows, or
            a number out of bounds.

    Example:
        >>> spec = Spec(np.dtype("float32"), (None, None), "float32")
        >>> read_array([[1, 2.5]], spec, "weights", most=8)
        array([[1. , 2.5]], dtype=float32)
    """

    def refuse(received: str) -> Refused:
        return Refused(400, f"The input {name!r} must be {spec.describe()}. Received: {received}")

    if spec.shape is None:
        raise refuse("a request in JSON, which requires a shape")
    if most is not None and spec.shape and isinstance(value, list):
        check_rows(len(value), most)
    shape: list[int] = []
    level = [value]
    for _ in spec.shape:
        for x in level:
            if not isinstance(x, list):
                raise refuse(f"{describe(x)} instead of a list")
        sizes = {len(x) for x in level}
        if len(sizes) > 1:
            raise refuse(f"lists of different lengths, {min(sizes)} and {max(sizes)}")
        shape.append(sizes.pop() if sizes else 0)
        level = [x for items in level for x in items]
    if spec.is_string:
        leaves = np.empty(len(level), object)
        leaves[:] = [_read_string(x, refuse) for x in level]
        return leaves.reshape(shape)
    kind = spec.dtype.kind
    for x in level:
        if not _is_of_kind(x, kind):
            raise refuse(f"{describe(x)} instead of {_KINDS.get(kind, 'other values')}")
    try:
        with np.errstate(over="ignore"):
            array = np.array(level, spec.dtype)
        # JSON has no infinity: it stands for a number beyond the largest of a float type.
        infinite = np.flatnonzero(~np.isfinite(array))
    except (OverflowError, ValueError, TypeError) as error:
        raise refuse(str(error)[:200]) from None
    if len(infinite):
        raise refuse(f"{describe(level[infinite[0]])}, out of bounds for {spec.tensorflow}")
    return array.reshape(shape)


def write_rows(entry: Entry, parts: Sequence[Arrays], rows: int) -> Any:
    """Returns a response in row format: for each row its outputs by name, or its only output.

    Args:
        entry: the signature.
        parts: outputs by name of each part of the request.
        rows: number of rows in the request.

    Raises:
        Refused: an output does not have one row for each row of the request.
    """
    outputs = joined(parts)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise Refused(
                400,
                f"The output {name!r} of {entry.name!r} does not have one row for each of {rows}: "
                f"use `inputs`. Received: shape {array.shape}",
            )
    ready = {name: _plain(array) for name, array in outputs.items()}
    if len(ready) == 1:
        return list(*ready.values())
    return [dict(zip(ready, values, strict=True)) for values in zip(*ready.values(), strict=True)]


def write_columns(parts: Sequence[Arrays]) -> Any:
    """Returns a response in column format: the outputs by name, or the only output.

    Args:
        parts: outputs by name of each part of the request.
    """
    ready = {name: _plain(array) for name, array in joined(parts).items()}
    return next(iter(ready.values())) if len(ready) == 1 else ready


def write_masks(parts: Sequence[Arrays]) -> list[list[list[dict[str, Any]]]]:
    """Returns the best tokens for each mask of each text, from the outputs of `fill_mask`.

    Args:
        parts: `tokens` and `probabilities` (rows, masks, k) of each part of the request.

    Returns:
        For each text, for each of its masks, a list of {"token", "probability"}, the best first.
    """
    answers = []
    for part in parts:
        for tokens, probabilities in zip(part["tokens"], part["probabilities"], strict=True):
            answers.append(
                [
                    [
                        {"token": text(token), "probability": probability}
                        for token, probability in zip(best, values, strict=True)
                    ]
                    for best, values in zip(tokens, probabilities, strict=True)
                    if any(best)  # all tokens are empty in padding after a text's last mask
                ]
            )
    return answers


def joined(parts: Sequence[Arrays]) -> Arrays:
    """Concatenates the outputs of all parts of a request, by name."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def text(value: bytes) -> Any:
    """Returns bytes as a JSON string; as {"b64": …} if they are not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(value).decode()}


def _plain(array: np.ndarray) -> Any:
    """Converts an output to a value that the JSON writer supports.

    Strings (bytes) become nested lists, types such as bfloat16 float32, and a scalar a Python
    value.
    """
    if array.dtype == object:
        flat = [text(x) for x in array.ravel().tolist()]
        for axis in range(array.ndim - 1, 0, -1):
            size = array.shape[axis]
            # Not len(flat) // size: an axis of size 0 leaves nothing to count the lists by.
            count = int(np.prod(array.shape[:axis]))
            flat = [flat[i * size : (i + 1) * size] for i in range(count)]
        return flat if array.ndim else flat[0]
    if array.dtype.kind not in "biuf":  # bfloat16, which the JSON writer does not support
        array = array.astype(np.float32)
    return np.ascontiguousarray(array) if array.ndim else array.item()


def _is_named(value: Any) -> bool:
    """Returns whether a value is an object of named inputs; {"b64": …} is a single value."""
    return isinstance(value, dict) and list(value) != ["b64"]


def _check_names(given: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raises `Refused` unless the inputs given are exactly those with `names`."""
    if set(given) != set(names):
        received = ", ".join(repr(name[:100]) for name in list(given)[:10]) or "none"
        raise Refused(
            400, f"The inputs of the signature are {', '.join(names)}. Received: {received}"
        )


def _read_string(value: Any, refuse: Any) -> bytes:
    """Returns a JSON string, or {"b64": …}, as bytes; raises the result of `refuse` for others."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and list(value) == ["b64"] and isinstance(value["b64"], str):
        try:
            return base64.b64decode(value["b64"], validate=True)
        except (binascii.Error, ValueError):  # ValueError: characters beyond ASCII
            raise refuse("invalid base64 in `b64`") from None
    raise refuse(f"{describe(value)} instead of a string")


def _is_of_kind(value: Any, kind: str) -> bool:
    """Returns whether a JSON value fits the kind of a NumPy dtype; an integer fits a float."""
    if isinstance(value, bool) or kind == "b":
        return isinstance(value, bool) and kind == "b"
    return isinstance(value, int) or (kind not in "iu" and isinstance(value, float))
