"""Training on one device or many: the step, optimizers, schedules, checkpoints."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.training.optimization.adafactor import Adafactor as Adafactor
    from kbert.training.optimization.freezing import freeze as freeze, thaw as thaw
    from kbert.training.optimization.layer_rates import layer_scales as layer_scales
    from kbert.training.optimization.optimizers import AdamW as AdamW, Lamb as Lamb
    from kbert.training.optimization.schedules import (
        WarmupDecay as WarmupDecay,
        fine_tuning_schedule as fine_tuning_schedule,
    )
    from kbert.training.precision import fastest_precision as fastest_precision
    from kbert.training.run.averaging import (
        average_checkpoints as average_checkpoints,
        use_moving_average as use_moving_average,
    )
    from kbert.training.run.checkpoints import Checkpoints as Checkpoints
    from kbert.training.run.history import History as History
    from kbert.training.run.objective import Objective as Objective
    from kbert.training.run.phases import (
        Epochs as Epochs,
        Phase as Phase,
        parse_phases as parse_phases,
    )
    from kbert.training.run.run import Run as Run
    from kbert.training.run.settings import RunSettings as RunSettings
    from kbert.training.run.values import NonFiniteLoss as NonFiniteLoss
    from kbert.training.step.mixin import TrainStep as TrainStep
    from kbert.training.strategies import make_strategy as make_strategy
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
