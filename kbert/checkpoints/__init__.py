"""Weights as name -> array tables, and the folders they come from. Knows configs, not models."""

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.folder import FORMATS, read_checkpoint, write_checkpoint
from kbert.checkpoints.keys import ignoring
from kbert.checkpoints.preset import write_preset
from kbert.checkpoints.vocabulary import extend_vocabulary

__all__ = [
    "FORMATS",
    "Checkpoint",
    "extend_vocabulary",
    "ignoring",
    "read_checkpoint",
    "write_checkpoint",
    "write_preset",
]
