"""Weights as name -> array tables, and the folders they come from. Knows configs, not models."""

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.folder import FORMATS, read_checkpoint, write_checkpoint
from kbert.checkpoints.huggingface.huggingface import write_huggingface
from kbert.checkpoints.keras_hub.checkpoint import to_keras_hub, write_keras_hub
from kbert.checkpoints.keys import ignoring
from kbert.checkpoints.preset import write_preset
from kbert.checkpoints.pytorch.file import read_pytorch
from kbert.checkpoints.vocabulary import extend_vocabulary

__all__ = [
    "FORMATS",
    "Checkpoint",
    "extend_vocabulary",
    "ignoring",
    "read_checkpoint",
    "read_pytorch",
    "to_keras_hub",
    "write_checkpoint",
    "write_huggingface",
    "write_keras_hub",
    "write_preset",
]
