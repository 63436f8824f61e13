"""JSON bodies of requests and responses."""

from typing import Any

from kbert.serve.http.errors import Refused


def parse(body: bytes | bytearray) -> dict[str, Any]:
    """Parses the body of a request as a JSON object.

    Raises:
        Refused: the body is not JSON in UTF-8, or not an object.

    Example:
        >>> parse(b'{"instances": ["rain"]}')
        {'instances': ['rain']}
    """
    import orjson

    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:  # also for invalid UTF-8 and for deep nesting
        raise Refused(400, f"The body must be JSON, in UTF-8. Received: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, f"The body must be a JSON object. Received: {describe(value)}")
    return value


def dump(answer: Any) -> bytes:
    """Serialises an answer to JSON: NumPy arrays become lists, NumPy numbers numbers, NaN null."""
    import orjson

    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def describe(value: Any) -> str:
    """Describes a JSON value of any size or depth in a few words.

    >>> describe([1, 2]), describe("rain"), describe({"a": 1})
    ('a list of 2', "'rain'", 'an object of 1')
    """
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return f"an object of {len(value)}"
    if isinstance(value, str):
        return repr(value[:80])
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    return str(value)[:80]
