"""Functions of layers, compiled: for answers in this process, and as SavedModel signatures."""

from kbert.serving.savedmodel import Signature, export_saved_model

__all__ = ["Signature", "export_saved_model"]
