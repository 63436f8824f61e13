"""The start of every program: flags, errors, interrupts."""

import contextlib
import logging as python_logging
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator

import tensorflow as tf
from absl import app, flags, logging

from kbert.checkpoints.keys import ignoring
from kbert.data.corpus.blocks import unreadable_record

from . import interrupts

_TENSORFLOW = os.path.dirname(tf.__file__) + os.sep
INTERRUPTED = 128 + signal.SIGINT  # the exit status, as in a shell


def run(main: Callable[[list[str]], None], define_flags: Callable[[], None], doc: str) -> None:
    """Defines the flags, parses them and calls `main`; `--help` shows `doc` and these flags.

    absl looks for both in the script that was started, which for a console script is a stub of
    two lines: so they are passed to it here.
    """
    before = set(flags.FLAGS)
    define_flags()
    for name in set(flags.FLAGS) - before:
        flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
    sys.modules["__main__"].__doc__ = doc.replace("%", "%%")  # absl formats it
    # The settings of the user's own task are flags too: its module is imported before those.
    sys.argv[1:] = sorted(sys.argv[1:], key=lambda given: "-task_module=" not in given)
    warnings.formatwarning = _message_alone
    for logger in (tf.get_logger(), logging.get_absl_logger()):
        logger.addFilter(_is_news)
    try:
        interrupts.raise_as_usual()
        app.run(lambda argv: _with_ignored_keys(main, argv))
    except KeyboardInterrupt:  # outside of `one_line_errors`
        sys.exit(INTERRUPTED)


def define_ignore_flag() -> None:
    """Flags of the programs that read models of other libraries."""
    flags.DEFINE_list(
        "ignore",
        [],
        "Keys of a Hugging Face config.json that say nothing about the model, where kbert does not "
        "know them.",
    )


def _with_ignored_keys(main: Callable[[list[str]], None], argv: list[str]) -> None:
    with ignoring(flags.FLAGS.ignore if "ignore" in flags.FLAGS else ()):
        main(argv)


def _is_news(record: python_logging.LogRecord) -> bool:
    """Not TensorFlow's notices of each file and each sum; `--verbosity=1` shows them."""
    is_ours = not record.pathname.startswith(_TENSORFLOW)
    return (
        is_ours or record.levelno > python_logging.INFO or logging.get_verbosity() >= logging.DEBUG
    )


def _message_alone(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    line: str | None = None,
) -> str:
    """A warning without the file and the line of source, which are of no use to a user."""
    return f"{category.__name__}: {message}\n"


@contextlib.contextmanager
def one_line_errors(program: str, *more: type[Exception]) -> Iterator[None]:
    """Ends the program with one line for errors that a user can fix, and with 130 after Ctrl-C.

    Args:
        program: its name, which begins the line.
        *more: further errors that the user can fix, besides ValueError, OSError and ImportError
            (an extra is not installed).
    """
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except tf.errors.OpError as error:
        reason = unreadable_record(error)
        if reason is None:
            raise
        logging.debug("", exc_info=True)
        sys.exit(f"{program}: {reason}")
    except (ValueError, OSError, ImportError, *more) as error:
        logging.debug("", exc_info=True)  # --verbosity=1 shows where it came from
        sys.exit(f"{program}: {error}")
