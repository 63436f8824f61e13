"""Decoding options of the programs that generate text."""

from kbert.core.options import option
from kbert.decoding.options import DecodingOptions


class GenerationOptions(DecodingOptions):
    """Settings of how a text is continued, and where it ends.

    Args:
        {options}
    """

    stop: tuple[str, ...] = option(
        (),
        help="Text that also ends a continuation, which is cut off before it. May be repeated.",
        repeated=True,
    )


class TranslationOptions(DecodingOptions):
    """Settings of how a translation is decoded; the default is a beam of width 4.

    Args:
        {options}
    """

    method: str = DecodingOptions.with_default("method", "beam")
