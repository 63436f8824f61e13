"""What every program of this folder starts with."""

import sys
from collections.abc import Callable

from absl import app, flags


def run(main: Callable[[list[str]], None], define_flags: Callable[[], None], doc: str) -> None:
    """Defines the flags, parses them and calls `main`; `--help` shows `doc` and these flags.

    absl looks for both in the script that was started, which for a console script is a stub of
    two lines: so they are handed to it here.
    """
    before = set(flags.FLAGS)
    define_flags()
    for name in set(flags.FLAGS) - before:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    sys.modules["__main__"].__doc__ = doc
    app.run(main)
