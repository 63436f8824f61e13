"""Compiled functions of layers: for predictions in this process, and as SavedModel signatures."""

from kbert.serving.savedmodel import Signature, export_saved_model

__all__ = ["Signature", "export_saved_model"]
