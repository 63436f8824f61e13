"""The message about an unreadable record in a shard, as found in the error of a pipeline."""

import re

UNREADABLE = (
    "Cannot read ",
    ": missing, truncated or corrupt (verify_corpus, or StoredRows.verify for rows, checks every "
    "record)",
)


def unreadable_record(error: Exception) -> str | None:
    """Extracts the message about an unreadable record from an error of `tf.data`.

    The message names the record and its file. The result is None if the error has another cause.

    Args:
        error: exception raised by an iterator, or by a graph that reads from one. Its text has
            many lines.

    Example:
        >>> unreadable_record(ValueError("else")) is None
        True
    """
    beginning, end = map(re.escape, UNREADABLE)
    match = re.search(f"{beginning}.*?{end}", str(error))
    return match and match[0]
