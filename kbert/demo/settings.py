"""The settings of a demo, from which the flags of `kbert-demo` are made."""

from kbert.core.options import Options, option


class DemoOptions(Options):
    """What is shown, where, and within which limits.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range, or there is no preset.

    Example:
        >>> DemoOptions(preset="quickstart/preset").host
        '127.0.0.1'
    """

    preset: tuple[str, ...] = option(
        help="Folder or name of a trained model, as --preset_dir of the other programs. Repeat it "
        "for more models.",
        repeated=True,
    )
    lines: str | None = option(
        None,
        help="File of texts, one a line, plain or .gz, among which the nearest are found. By the "
        "first preset that gives vectors (kbert.tasks.TextEmbedder), or else by the means of the "
        "first preset's tokens.",
    )
    most_lines: int = option(10_000, help="Lines that are read of it, at most.", at_least=1)
    host: str = option("127.0.0.1", help="Address to listen at; 0.0.0.0 for all of this machine.")
    port: int = option(8502, help="Port; 0 for any that is free, which is printed.", at_least=0)
    max_body_bytes: int = option(2**16, help="Largest request.", at_least=1)
    max_text_bytes: int = option(
        10_000, help="Largest text of a request, in bytes of UTF-8.", at_least=1
    )
    max_waiting: int = option(
        8, help="Most requests that wait for the models; one beyond gets 503.", at_least=1
    )
    max_connections: int = option(64, help="Most open connections.", at_least=1)
    timeout_seconds: float = option(
        30.0, help="Longest time that a client may be silent or send its request.", above=0
    )

    def check(self) -> None:
        if not self.preset:
            raise ValueError("A demo has one preset at least. Received: none")
