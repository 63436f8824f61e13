"""Compiled functions of layers: as SavedModel signatures, and as models for other runtimes."""

from kbert.serving.exported import RUNTIMES, export_rows, open_runtime
from kbert.serving.rows import RowFunction
from kbert.serving.savedmodel import Signature, export_saved_model
from kbert.serving.stored import StoredWeights

__all__ = [
    "RUNTIMES",
    "RowFunction",
    "Signature",
    "StoredWeights",
    "export_rows",
    "export_saved_model",
    "open_runtime",
]
