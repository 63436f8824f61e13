"""Models from any format that kbert reads to any that it writes, with a report and a proof."""

from typing import TYPE_CHECKING

from kbert.conversion.check import check as check
from kbert.conversion.convert import convert as convert
from kbert.core import late

if TYPE_CHECKING:
    from kbert.conversion.check import TOLERANCE as TOLERANCE, Check as Check
    from kbert.conversion.convert import Conversion as Conversion
    from kbert.conversion.lengthening import lengthen as lengthen
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
