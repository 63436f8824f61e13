"""How the programs write texts."""

from kbert.core.options import option
from kbert.decoding.options import DecodingOptions


class GenerationOptions(DecodingOptions):
    """How a text goes on, and where it ends.

    Args:
        {options}
    """

    stop: tuple[str, ...] = option(
        (),
        help="Where a continuation ends too: it is cut off before this text. May be repeated.",
        repeated=True,
    )


class TranslationOptions(DecodingOptions):
    """How a translation is searched for: by a beam of 4 where nothing is said.

    Args:
        {options}
    """

    method: str = DecodingOptions.with_default("method", "beam")
