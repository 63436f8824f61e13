"""What every room stands on: options, registered names, types. Without TensorFlow and Keras."""

from kbert.core.options import Options, option

__all__ = ["Options", "option"]
