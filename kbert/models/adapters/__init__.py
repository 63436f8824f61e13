"""Adapters: few trained weights in the slots of an encoder that stays as it is."""

from kbert.models.adapters.attention import Prefix, ProjectedAttention
from kbert.models.adapters.base import (
    Adapter,
    activate,
    add,
    described,
    merge,
    parse,
    register_adapter,
    remove,
    restore,
    running,
    running_options,
    train_alone,
    using,
)
from kbert.models.adapters.bottleneck import Houlsby, Pfeiffer
from kbert.models.adapters.lora import BitFit, Lora

__all__ = [
    "Adapter",
    "BitFit",
    "Houlsby",
    "Lora",
    "Pfeiffer",
    "Prefix",
    "ProjectedAttention",
    "activate",
    "add",
    "described",
    "merge",
    "parse",
    "register_adapter",
    "remove",
    "restore",
    "running",
    "running_options",
    "train_alone",
    "using",
]
