"""The start of every program: flags, errors, interrupts."""

import contextlib
import dataclasses
import logging as python_logging
import os
import signal
import sys
import textwrap
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator

from absl import app, flags, logging

from kbert.catalog import repositories
from kbert.checkpoints.keys import ignoring
from kbert.data.corpus.shares import parse_folders
from kbert.data.unreadable import unreadable_record
from kbert.hub import locate
from kbert.io.paths import exists, is_remote
from kbert.text.sources import expand

from . import interrupts, quiet

# Data sets, installed documentation, standard input.
_NO_FILES = ("tfds:", "docs:", "-")
_THREAD_SECONDS = 1.0  # for threads to end behind a server
INTERRUPTED = 128 + signal.SIGINT  # the exit status, as in a shell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A program: its flags, what it does, and what must be there before it begins.

    TensorFlow and Keras are imported once the command line has been found to be right.

    Attributes:
        name: which begins its errors.
        doc: the text of its help.
        define_flags: declares its flags.
        work: does what the parsed flags say.
        errors: what the user can fix besides ValueError, OSError and ImportError.
        files: flags of data, each of which a file must match, if it is given.
        models: flags of folders or names of models.
        shards: flags of folders of a corpus.
        is_finished: whether the work is done, and needs no model any more to be shown.
        listing: a title of more help, and what gives it.
        check: raises ValueError for flags that do not fit together.
        needs_tensorflow: whether the work does, with Keras.
    """

    name: str
    doc: str
    define_flags: Callable[[], None]
    work: Callable[[flags.FlagValues], None]
    errors: tuple[type[Exception], ...] = ()
    files: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    shards: tuple[str, ...] = ()
    is_finished: Callable[[flags.FlagValues], bool] = lambda options: False
    listing: tuple[str, Callable[[], str]] | None = None
    check: Callable[[flags.FlagValues], None] = lambda options: None
    needs_tensorflow: Callable[[flags.FlagValues], bool] = lambda options: True

    def run(self) -> None:
        """Defines the flags, parses them and does the work; `--help` shows `doc` and these flags.

        absl looks for both in the script that was started, which for a console script is a stub of
        two lines: so they are passed to it here.
        """
        before = set(flags.FLAGS)
        self.define_flags()
        for name in set(flags.FLAGS) - before:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
        text = self.doc
        if self.listing is not None:
            title, table = self.listing
            text += f"\n{title}:\n\n{textwrap.indent(table(), '  ')}\n"
        sys.modules["__main__"].__doc__ = text.replace("%", "%%")  # absl formats it
        # The settings of the user's own task are flags too: its module is imported before those.
        sys.argv[1:] = sorted(sys.argv[1:], key=lambda given: "-task_module=" not in given)
        warnings.formatwarning = _message_alone
        for logger in (python_logging.getLogger("tensorflow"), logging.get_absl_logger()):
            logger.addFilter(_is_news)
        try:
            app.run(self.main)
        except KeyboardInterrupt:  # outside of `one_line_errors`
            sys.exit(INTERRUPTED)

    def main(self, argv: list[str]) -> None:
        """Checks the command line and does the work.

        Args:
            argv: what is left of it without the flags.
        """
        if len(argv) > 1:
            sys.exit(f"{self.name} takes flags only. Received: {argv[1:]}")
        options = flags.FLAGS
        ignored = options.ignore if "ignore" in options else ()
        with one_line_errors(self.name, *self.errors), ignoring(ignored):
            self.check(options)
            for name in self.files:
                check_files(options[name].value)
            for name in () if self.is_finished(options) else self.models:
                check_model(options[name].value)
            for name in self.shards:
                check_shards(options[name].value)
            if self.needs_tensorflow(options):
                quiet.import_tensorflow()
            interrupts.raise_as_usual()
            self.work(options)


def check_model(given: str | list[str] | None) -> None:
    """Raises FileNotFoundError for what is no folder or file and no name of the hub.

    Args:
        given: a folder, a file or a name, or several; None is passed over.
    """
    for each in [given] if isinstance(given, str) else given or ():
        if "://" not in each and not exists(each) and repositories.parse_name(each) is None:
            locate(each)


def check_shards(given: str | None) -> None:
    """Raises FileNotFoundError for a folder of a corpus that is not there.

    Args:
        given: what a flag says of folders, or None.
    """
    folders = parse_folders(given) if given else ()
    for folder in [folders] if isinstance(folders, str) else folders:
        if not is_remote(folder) and not exists(folder):
            raise FileNotFoundError(
                "Training reads a folder that kbert-prepare-corpus has written. Received: "
                f"{folder!r}, which is not there"
            )


def check_files(given: str | list[str] | None) -> None:
    """Raises FileNotFoundError for a path or a pattern that no file matches.

    Args:
        given: a path or a pattern, or None; or several, also with commas between them. Names of
            data sets and what is no file are passed over.
    """
    paths = [given] if isinstance(given, str) else split_sources(given or ())
    for path in paths:
        is_local = path and not path.startswith(_NO_FILES) and not is_remote(path)
        if is_local and not exists(path):
            expand(path)


def split_sources(values: Iterable[str]) -> list[str]:
    """Commas separate sources, except in the name of a file that is there."""
    parts = ([value] if exists(value) else value.split(",") for value in values)
    return [source.strip() for part in parts for source in part if source.strip()]


def define_ignore_flag() -> None:
    """Flags of the programs that read models of other libraries."""
    flags.DEFINE_list(
        "ignore",
        [],
        "Keys of a Hugging Face config.json that say nothing about the model, where kbert does not "
        "know them.",
    )


def _is_news(record: python_logging.LogRecord) -> bool:
    """Not TensorFlow's notices of each file and each sum; `--verbosity=1` shows them."""
    theirs = getattr(sys.modules.get("tensorflow"), "__file__", None)
    is_ours = theirs is None or not record.pathname.startswith(os.path.dirname(theirs) + os.sep)
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
    except Exception as error:
        reason = unreadable_record(error)
        if reason is None and not isinstance(error, (ValueError, OSError, ImportError, *more)):
            raise
        logging.debug("", exc_info=True)  # --verbosity=1 shows where it came from
        sys.exit(f"{program}: {reason or error}")


def end_threads() -> None:
    """Ends the process where a thread does not end: one that loads a model, or computes.

    Python would wait for it, for minutes.
    """
    end = time.monotonic() + _THREAD_SECONDS
    others = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in others:
        thread.join(max(end - time.monotonic(), 0))
    if any(thread.is_alive() for thread in others):
        logging.warning("The program ends; what is loaded or computed is waited for by nobody")
        logging.flush()
        sys.stdout.flush()
        os._exit(0)
