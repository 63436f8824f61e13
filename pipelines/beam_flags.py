"""Flags of the programs that can run on Apache Beam."""

import shlex

from absl import flags


def define() -> None:
    """Declares --runner and --beam_flags."""
    flags.DEFINE_enum(
        "runner",
        "local",
        ["local", "beam"],
        "Where the work runs: on this machine (local), or on Apache Beam.",
    )
    flags.DEFINE_string(
        "beam_flags",
        "",
        "Flags for Beam, such as --runner=FlinkRunner. Default: Beam's local runner.",
    )


def read(options: flags.FlagValues) -> list[str] | None:
    """Returns the value of --beam_flags as a list; None if the work is done on this machine.

    Args:
        options: the parsed flags.

    Raises:
        ValueError: there are flags for Beam without --runner=beam.
    """
    if options.runner == "beam":
        return shlex.split(options.beam_flags)
    if options.beam_flags:
        raise ValueError(
            f"--beam_flags requires --runner=beam. Received: --runner={options.runner}, "
            f"--beam_flags={options.beam_flags!r}"
        )
    return None
