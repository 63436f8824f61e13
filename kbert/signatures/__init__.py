"""Exports that a model declares: entry points for text, and functions on rows of token ids."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.signatures.requests import (
        MAX_BYTES as MAX_BYTES,
        Signature as Signature,
        text_tokens as text_tokens,
    )
    from kbert.signatures.row_export import EncoderRows as EncoderRows, RowExport as RowExport
    from kbert.signatures.rows import RowFunction as RowFunction
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
