"""How a record of a shard that cannot be read is named: in the error of a pipeline."""

import re

UNREADABLE = (
    "Cannot read ",
    ": missing, truncated or corrupt (verify_corpus, of rows StoredRows.verify, reads it all)",
)


def unreadable_record(error: Exception) -> str | None:
    """Which record of which file cannot be read, if that is what an error of `tf.data` is about.

    Args:
        error: raised by an iterator or by a graph that reads one: a report of many lines.

    Example:
        >>> unreadable_record(ValueError("else")) is None
        True
    """
    before, after = map(re.escape, UNREADABLE)
    found = re.search(f"{before}.*?{after}", str(error))
    return found and found[0]
