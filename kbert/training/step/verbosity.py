"""The `verbose` argument that is passed to Keras."""

import sys


def keras_verbosity(verbose: str | int) -> int:
    """Returns Keras' `verbose`: "auto" is 1 (bar) in a terminal or notebook, else 2 (line).

    0, 1 and 2 (one line per epoch) stay. In Keras "auto" is a bar wherever the output goes, and
    its backspaces and colours fill log files.

    Raises:
        ValueError: `verbose` is another string.

    Example:
        >>> keras_verbosity(0), keras_verbosity(1)
        (0, 1)
    """
    if not isinstance(verbose, str):
        return verbose
    if verbose != "auto":
        raise ValueError(f'`verbose` must be 0, 1, 2 or "auto", as in Keras. Received: {verbose!r}')
    return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2
