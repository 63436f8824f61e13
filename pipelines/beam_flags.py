"""Flags of the programs that can run on Apache Beam."""

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
    """Returns Beam's own flags; None if the work is done on this machine.

    Raises:
        ValueError: there are flags for Beam without --runner=beam.
    """
    if options.runner == "beam":
        return shlex.split(options.beam_flags)
    if options.beam_flags:
        raise ValueError(
            "--beam_flags belong to --runner=beam. "
            f"Received: --runner={options.runner}, --beam_flags={options.beam_flags!r}"
        )
    return None
