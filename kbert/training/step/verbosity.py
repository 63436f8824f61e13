"""The verbosity that Keras gets."""

import sys


def keras_verbosity(verbose: str | int) -> int:
    """Keras' `verbose`; "auto" is 1, a bar, in a terminal or a notebook, else 2, a line an epoch.

    Keras takes "auto" for a bar wherever output goes, and its backspaces and colours fill files.

    Raises:
        ValueError: for another string.

    Example:
        >>> keras_verbosity(0), keras_verbosity(1)
        (0, 1)
    """
    if not isinstance(verbose, str):
        return verbose
    if verbose != "auto":
        raise ValueError(
            f'`verbose` must be 0, 1, 2 or "auto", as Keras has it. Received: {verbose!r}'
        )
    return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2
