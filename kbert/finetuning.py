"""The name of `kbert.experiments` in version 0.1; removed in the next version."""

import warnings

from kbert.experiments import *  # noqa: F403

warnings.warn("kbert.finetuning is now kbert.experiments", DeprecationWarning, stacklevel=2)
