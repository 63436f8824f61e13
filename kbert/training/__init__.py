"""Training that is right on one device or many: the step, optimizers, schedules, checkpoints."""

from kbert.training.averaging import average_checkpoints
from kbert.training.checkpoints import Checkpoints
from kbert.training.fine_tuning import FineTuningHistory, fine_tune
from kbert.training.freezing import freeze, thaw
from kbert.training.layer_rates import layer_scales
from kbert.training.optimizers import AdamW, Lamb
from kbert.training.phases import Phase, parse_phases
from kbert.training.run import History, train
from kbert.training.schedules import WarmupDecay, fine_tuning_schedule
from kbert.training.step import TrainStep
from kbert.training.step_values import NonFiniteLoss
from kbert.training.strategies import make_strategy

__all__ = [
    "AdamW",
    "Checkpoints",
    "FineTuningHistory",
    "History",
    "Lamb",
    "NonFiniteLoss",
    "Phase",
    "TrainStep",
    "WarmupDecay",
    "average_checkpoints",
    "fine_tune",
    "fine_tuning_schedule",
    "freeze",
    "layer_scales",
    "make_strategy",
    "parse_phases",
    "thaw",
    "train",
]
