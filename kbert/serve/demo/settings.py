"""Settings of a demo; the flags of `kbert-demo` are made from them."""

from kbert.core.options import option
from kbert.serve.http.settings import HttpOptions


class DemoOptions(HttpOptions):
    """Settings of a demo: presets, address and limits.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range, or there is no preset.

    Example:
        >>> DemoOptions(preset="quickstart/preset").port
        8502
    """

    preset: tuple[str, ...] = option(
        help="Folder or name of a trained model, such as --preset_dir of the other programs. "
        "Repeat the flag for more models.",
        repeated=True,
    )
    lines: str | None = option(
        None,
        help="File of texts, one per line, plain or .gz, in which the nearest are searched. Uses "
        "the first preset that embeds texts (kbert.tasks.TextEmbedder), or else the mean of "
        "the first preset's token vectors.",
    )
    most_lines: int = option(10_000, help="Maximum number of lines read from --lines.", at_least=1)
    port: int = HttpOptions.with_default("port", 8502)
    max_body_bytes: int = HttpOptions.with_default("max_body_bytes", 2**16)
    max_text_bytes: int = option(
        10_000, help="Maximum size of a text in a request, in bytes of UTF-8.", at_least=1
    )
    max_waiting: int = option(
        8,
        help="Maximum number of requests that wait for the models; further ones get 503.",
        at_least=1,
    )
    max_connections: int = HttpOptions.with_default("max_connections", 64)

    def check(self) -> None:
        if not self.preset:
            raise ValueError("A demo requires at least one preset. Received: none")
