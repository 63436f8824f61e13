"""Models from any format that kbert reads to any that it writes, with a report and a proof."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.conversion.checking import TOLERANCE as TOLERANCE, Check as Check, check as check
    from kbert.conversion.converting import Conversion as Conversion, convert as convert
    from kbert.conversion.lengthening import lengthen as lengthen
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
