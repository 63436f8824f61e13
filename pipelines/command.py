"""What every program of this folder starts with."""

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator

from absl import app, flags, logging


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


@contextlib.contextmanager
def one_line_errors(program: str, *more: type[Exception]) -> Iterator[None]:
    """Ends the program with one line for what a user can mend, and with 130 after Ctrl-C.

    Args:
        program: its name, which begins the line.
        *more: errors besides ValueError and OSError that are the user's to mend.
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except (ValueError, OSError, *more) as error:
        logging.debug("", exc_info=True)  # --verbosity=1 shows where it came from
        sys.exit(f"{program}: {error}")
