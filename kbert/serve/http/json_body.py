"""Bodies in JSON."""

from typing import Any

from kbert.serve.http.errors import Refused


def parse(body: bytes | bytearray) -> dict[str, Any]:
    """The object of a request's body.

    Raises:
        Refused: it is no JSON in UTF-8, or no object.

    Example:
        >>> parse(b'{"instances": ["rain"]}')
        {'instances': ['rain']}
    """
    import orjson

    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError as error:  # no UTF-8, half a character, a deep nest too
        raise Refused(400, f"The body must be JSON, in UTF-8. Received: {error}") from None
    if not isinstance(value, dict):
        raise Refused(400, f"The body must be a JSON object. Received: {describe(value)}")
    return value


def dump(answer: Any) -> bytes:
    """JSON of an answer; NumPy's arrays and numbers in it as lists and numbers, NaN as null."""
    import orjson

    return orjson.dumps(answer, option=orjson.OPT_SERIALIZE_NUMPY)


def describe(value: Any) -> str:
    """A JSON value in a few words, however large it is or deep.

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
