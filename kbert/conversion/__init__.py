"""Models from any format that kbert reads to any that it writes, with a report and a proof."""

from kbert.conversion.check import TOLERANCE, Check, check
from kbert.conversion.convert import Conversion, convert
from kbert.conversion.lengthening import lengthen

__all__ = ["TOLERANCE", "Check", "Conversion", "check", "convert", "lengthen"]
