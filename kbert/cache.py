"""Where kbert keeps what it can make or fetch again."""

import os


def cache_folder() -> str:
    """`$KBERT_CACHE`, or `kbert` under `$XDG_CACHE_HOME` (default `~/.cache`)."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.environ.get("KBERT_CACHE") or os.path.join(base, "kbert")
