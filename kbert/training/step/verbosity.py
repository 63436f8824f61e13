"""What Keras is told to show."""

import sys


def keras_verbosity(verbose: str | int) -> int:
    """Keras' `verbose`; "auto" is 1, a bar, in a terminal or a notebook, else 2, a line an epoch.

    Keras takes "auto" for a bar wherever output goes, and its backspaces and colours fill files.

    Example:
        >>> keras_verbosity(0), keras_verbosity(1)
        (0, 1)
    """
    if verbose != "auto":
        return verbose
    return 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2
