"""Where a stream of batches resumes: three integers, (epoch, window, row)."""

import numpy as np
from numpy.typing import ArrayLike

WINDOW_BLOCKS = 64  # blocks whose rows are mixed


def checked_start(start: ArrayLike | None, windows: int) -> tuple[int, int, int]:
    """Validates the argument `start` of a dataset and returns it as three integers.

    Args:
        start: `position` of a batch, whole or one row of it, or None for the beginning.
        windows: number of windows in an epoch.

    Returns:
        Epoch, window and row. The window after an epoch's last becomes window 0 of the next epoch.

    Raises:
        ValueError: `start` is not a position, or not one of this corpus.

    Example:
        >>> checked_start([[2, 1, 96], [2, 1, 96]], windows=3), checked_start((2, 3, 0), windows=3)
        ((2, 1, 96), (3, 0, 0))
    """
    numbers = np.asarray((0, 0, 0) if start is None else start)
    rows = numbers.reshape(-1, numbers.shape[-1]) if numbers.ndim in (1, 2) else numbers[None]
    if (
        rows.shape[1:] != (3,)
        or not len(rows)
        or not np.issubdtype(numbers.dtype, np.integer)
        or np.any(rows != rows[0])
    ):
        raise ValueError(
            "`start` must be three integers (epoch, window, row), or the whole `position` of a "
            f"batch with the same three in every row. Received: {numbers.dtype} of shape "
            f"{numbers.shape}: {numbers.tolist()!r:.100}"
        )
    epoch, window, row = rows[0].tolist()
    if window == windows:  # the window after an epoch's last is the next epoch's first
        epoch, window = epoch + 1, 0
    if min(epoch, window, row) < 0 or window > windows:
        raise ValueError(
            "`start` must be the (epoch, window, row) of a batch's `position` from the same "
            f"corpus; an epoch of this corpus has {windows} window(s). Received: "
            f"start={(epoch, window, row)}"
        )
    return epoch, window, row
