"""Converts models from any format that kbert reads to any that it writes, and checks the result."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.conversion.checking import TOLERANCE as TOLERANCE, Check as Check, check as check
    from kbert.conversion.converting import Conversion as Conversion, convert as convert
    from kbert.conversion.lengthening import lengthen as lengthen
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
