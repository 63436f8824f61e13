"""Waiting for another thread, process or page.

A test ends when what it waits for happens. The limit is only there so that a hung test ends too: on
a slow machine, or beside other programs, everything takes as long as it takes.
"""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 900.0  # seconds


def until(condition: Callable[[], Any], what: str = "what the test waits for") -> Any:
    """The value of `condition()`, once it is true."""
    ends = time.monotonic() + PATIENCE
    while not (found := condition()):
        assert time.monotonic() < ends, f"after {PATIENCE:.0f} seconds still not: {what}"
        time.sleep(0.01)
    return found
