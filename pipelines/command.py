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

# Prefixes of sources that are not files: data sets, installed documentation, standard input.
_NO_FILES = ("tfds:", "docs:", "-")
_THREAD_SECONDS = 1.0  # for threads to end after a server has stopped
INTERRUPTED = 128 + signal.SIGINT  # the exit status, as in a shell


@dataclasses.dataclass(frozen=True, kw_only=True)
class Program:
    """A program: its flags, its work, and the inputs that must exist before it begins.

    TensorFlow and Keras are imported only after the command line has been checked.

    Attributes:
        name: name of the program, which begins its error messages.
        doc: text of the help.
        define_flags: function that declares the flags.
        work: function that does the work of the parsed flags.
        errors: errors that the user can fix, besides ValueError, OSError and ImportError.
        files: flags of data; a file must match each flag that is given.
        models: flags of models, by folder or name.
        shards: flags of folders of a corpus.
        is_finished: whether the work is finished, so that showing it needs no model.
        listing: title of a further section of the help, and a function that returns its text.
        check: function that raises ValueError for flags that do not fit together.
        needs_tensorflow: whether the work needs TensorFlow and Keras.
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

        absl reads both from the script that was started. A console script is only a stub of two
        lines, so they are passed to absl here.
        """
        flags_before = set(flags.FLAGS)
        self.define_flags()
        for name in set(flags.FLAGS) - flags_before:
            flags.FLAGS.register_key_flag_for_module(sys.argv[0], flags.FLAGS[name])
        text = self.doc
        if self.listing is not None:
            title, table = self.listing
            text += f"\n{title}:\n\n{textwrap.indent(table(), '  ')}\n"
        sys.modules["__main__"].__doc__ = text.replace("%", "%%")  # absl formats it
        # The settings of a custom task are flags too, so its module is imported before them.
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
            argv: the command line without its flags.
        """
        if len(argv) > 1:
            sys.exit(f"{self.name} accepts flags only. Received: {argv[1:]}")
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
    """Raises FileNotFoundError for a model that is not a folder, a file or a name on the hub.

    Args:
        given: a folder, a file or a name, or several; None is skipped.
    """
    for name in [given] if isinstance(given, str) else given or ():
        if "://" not in name and not exists(name) and repositories.parse_name(name) is None:
            locate(name)


def check_shards(given: str | None) -> None:
    """Raises FileNotFoundError for a missing folder of a corpus; skips remote folders.

    Args:
        given: value of a flag that names one folder, or several with their shares; or None.
    """
    folders = parse_folders(given) if given else ()
    for folder in [folders] if isinstance(folders, str) else folders:
        if not is_remote(folder) and not exists(folder):
            raise FileNotFoundError(
                "--data_dir must be a folder written by kbert-prepare-corpus. Received: "
                f"{folder!r}, which does not exist"
            )


def check_files(given: str | list[str] | None) -> None:
    """Raises FileNotFoundError for a path or a pattern that no file matches.

    Args:
        given: a path or a pattern, or None; or several, also separated by commas. Names of data
            sets and other sources that are not files are skipped.
    """
    paths = [given] if isinstance(given, str) else split_sources(given or ())
    for path in paths:
        is_local = path and not path.startswith(_NO_FILES) and not is_remote(path)
        if is_local and not exists(path):
            expand(path)


def split_sources(values: Iterable[str]) -> list[str]:
    """Splits values at commas, except the names of existing files."""
    parts = ([value] if exists(value) else value.split(",") for value in values)
    return [source.strip() for part in parts for source in part if source.strip()]


def define_ignore_flag() -> None:
    """Declares --ignore, for the programs that read models of other libraries."""
    flags.DEFINE_list(
        "ignore",
        [],
        "Unknown keys of a Hugging Face config.json to ignore, because they do not affect what "
        "the model computes.",
    )


def _is_news(record: python_logging.LogRecord) -> bool:
    """Returns whether to show a log record: TensorFlow's own up to INFO need `--verbosity=1`."""
    tensorflow_file = getattr(sys.modules.get("tensorflow"), "__file__", None)
    is_ours = tensorflow_file is None or not record.pathname.startswith(
        os.path.dirname(tensorflow_file) + os.sep
    )
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
    """Formats a warning without file and source line, which do not help a user."""
    return f"{category.__name__}: {message}\n"


@contextlib.contextmanager
def one_line_errors(program: str, *more: type[Exception]) -> Iterator[None]:
    """Ends the program with one line for errors that a user can fix, and with 130 after Ctrl-C.

    Args:
        program: name of the program, which begins the line.
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
        logging.debug("", exc_info=True)  # --verbosity=1 shows the traceback
        sys.exit(f"{program}: {reason or error}")


def end_threads() -> None:
    """Ends the process at once if threads still run after a second, such as loading a model.

    Otherwise Python would wait for the threads, for minutes.
    """
    end = time.monotonic() + _THREAD_SECONDS
    threads = [
        thread
        for thread in threading.enumerate()
        if thread is not threading.current_thread() and not thread.daemon
    ]
    for thread in threads:
        thread.join(max(end - time.monotonic(), 0))
    if any(thread.is_alive() for thread in threads):
        logging.warning(
            "The program ends without waiting for what is still being loaded or computed"
        )
        logging.flush()
        sys.stdout.flush()
        os._exit(0)
