"""Training that is right on one device or many: the step, optimizers, schedules, checkpoints."""

from kbert.training.optimization.freezing import freeze, thaw
from kbert.training.optimization.layer_rates import layer_scales
from kbert.training.optimization.optimizers import AdamW, Lamb
from kbert.training.optimization.schedules import WarmupDecay, fine_tuning_schedule
from kbert.training.precision import fastest_precision
from kbert.training.run.averaging import average_checkpoints, use_moving_average
from kbert.training.run.checkpoints import Checkpoints
from kbert.training.run.history import History
from kbert.training.run.phases import Epochs, Phase, parse_phases
from kbert.training.run.run import train
from kbert.training.run.values import NonFiniteLoss
from kbert.training.step.mixin import TrainStep
from kbert.training.strategies import make_strategy

__all__ = [
    "AdamW",
    "Checkpoints",
    "Epochs",
    "History",
    "Lamb",
    "NonFiniteLoss",
    "Phase",
    "TrainStep",
    "WarmupDecay",
    "average_checkpoints",
    "fastest_precision",
    "fine_tuning_schedule",
    "freeze",
    "layer_scales",
    "make_strategy",
    "parse_phases",
    "thaw",
    "train",
    "use_moving_average",
]
