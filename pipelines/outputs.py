"""Checks the folders that a command will write, before the hours of work that fill them."""

import itertools
from collections.abc import Sequence

from absl import flags

from kbert.checkpoints.preset import check_target
from kbert.data.corpus.shares import parse_folders
from kbert.io.paths import Path, check_folder


def keep_what_is_read(
    options: flags.FlagValues, read: Sequence[str], written: Sequence[str]
) -> None:
    """Raises ValueError if a command would write to a folder that it reads.

    Args:
        options: the parsed flags.
        read: flags of models and data; flags that the program does not have are skipped.
        written: flags of folders that are written.
    """
    for name, folder in itertools.product((x for x in read if x in options), written):
        source, target = options[name].value, options[folder].value
        if None in (source, target):
            continue
        folders = parse_folders(source) if name == "data_dir" else source
        sources = [folders] if isinstance(folders, str) else list(folders)
        if Path(target).resolve() in [Path(path).resolve() for path in sources]:
            raise ValueError(
                f"--{folder} must not be the folder of --{name}, which would be overwritten. "
                f"Received: --{name}={source}, --{folder}={target}"
            )


def check_outputs(options: flags.FlagValues, kind: str | None) -> None:
    """Raises if the final model cannot be written, or would replace a model of another task.

    Args:
        options: the parsed flags, with `preset_dir` and `export_dir`.
        kind: kind of the task that is written; None for a model without a task.
    """
    if options.preset_dir:
        check_target(options.preset_dir, kind)
    if options.export_dir:
        check_folder(options.export_dir)
