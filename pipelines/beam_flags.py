"""Flags of the programs whose work Apache Beam can do."""

import shlex

from absl import flags


def define() -> None:
    """Declares --runner and --beam_flags."""
    flags.DEFINE_enum(
        "runner", "local", ["local", "beam"], "Who does the work: this machine, or Apache Beam."
    )
    flags.DEFINE_string(
        "beam_flags",
        "",
        "Beam's own flags, as --runner=FlinkRunner. Default: its local runner.",
    )


def read(options: flags.FlagValues) -> list[str] | None:
    """Beam's own flags; None where this machine does the work.

    Raises:
        ValueError: there are flags for Beam without it.
    """
    if options.runner == "beam":
        return shlex.split(options.beam_flags)
    if options.beam_flags:
        raise ValueError(
            "--beam_flags belong to --runner=beam. "
            f"Received: --runner={options.runner}, --beam_flags={options.beam_flags!r}"
        )
    return None
