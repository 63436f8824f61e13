"""Functions to SavedModel signatures, in the form that TensorFlow Serving loads."""

from kbert.serving.savedmodel import Signature, export_saved_model

__all__ = ["Signature", "export_saved_model"]
