"""Training that is right on one device or many: the step, optimizers, schedules, checkpoints."""

from kbert.training.checkpoints import Checkpoints
from kbert.training.monitor import NonFiniteLoss
from kbert.training.optimizers import AdamW, Lamb
from kbert.training.phases import Phase, parse_phases
from kbert.training.run import History, train
from kbert.training.schedules import WarmupDecay
from kbert.training.step import TrainStep
from kbert.training.strategies import make_strategy

__all__ = [
    "AdamW",
    "Checkpoints",
    "History",
    "Lamb",
    "NonFiniteLoss",
    "Phase",
    "TrainStep",
    "WarmupDecay",
    "make_strategy",
    "parse_phases",
    "train",
]
