"""Compiled functions of layers: as SavedModel signatures, and as models for other runtimes."""

from kbert.serving.exported import RUNTIMES, TOLERANCES, export_rows, open_runtime, refuse_full
from kbert.serving.requests import MAX_BYTES, Signature, text_tokens
from kbert.serving.rows import RowFunction
from kbert.serving.savedmodel import export_saved_model, refuse_differences
from kbert.serving.stored import StoredWeights

__all__ = [
    "MAX_BYTES",
    "RUNTIMES",
    "TOLERANCES",
    "RowFunction",
    "Signature",
    "StoredWeights",
    "export_rows",
    "export_saved_model",
    "open_runtime",
    "refuse_differences",
    "refuse_full",
    "text_tokens",
]
