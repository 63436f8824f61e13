"""Apache Beam, where it does the work of a program: its flags, and that it is there."""

from collections.abc import Sequence
from typing import Any

from kbert.core.late import optional


def pipeline_options(flags: Sequence[str], what: str) -> Any:
    """Beam's options from its own flags, which are checked before any work.

    Args:
        flags: such as "--runner=FlinkRunner".
        what: the work, as an error names it.

    Returns:
        The `PipelineOptions`.

    Raises:
        ImportError: Apache Beam is not installed.
        ValueError: there is no such flag.
    """
    beam = optional("apache_beam.options.pipeline_options", "beam", f"{what} on Apache Beam")
    options = beam.PipelineOptions(list(flags))
    known = options.get_all_options(retain_unknown_options=False)
    named = [flag.removeprefix("--").split("=")[0].replace("-", "_") for flag in flags]
    unknown = [name for name, flag in zip(named, flags, strict=True) if "--" in flag]
    if unknown := [x for x in unknown if x not in known and x.removeprefix("no_") not in known]:
        raise ValueError(f"Beam has no such flag. Received: {', '.join(unknown)}")
    return options
