"""The name of `kbert.configs.base` in version 0.1; removed in the next version."""

import warnings

from kbert.configs.base import Config  # noqa: F401
from kbert.configs.encoder import EncoderConfig  # noqa: F401

warnings.warn("kbert.config is now kbert.configs", DeprecationWarning, stacklevel=2)
