"""Weights as name -> array tables, and the folders they come from. Knows configs, not models."""

from kbert.checkpoints.checkpoint import Checkpoint
from kbert.checkpoints.folder import read_checkpoint
from kbert.checkpoints.huggingface import write_huggingface
from kbert.checkpoints.matching import check_arrays
from kbert.checkpoints.preset import write_preset
from kbert.checkpoints.safetensors import read_safetensors, write_safetensors
from kbert.checkpoints.vocabulary import extend_vocabulary

__all__ = [
    "Checkpoint",
    "check_arrays",
    "extend_vocabulary",
    "read_checkpoint",
    "read_safetensors",
    "write_huggingface",
    "write_preset",
    "write_safetensors",
]
