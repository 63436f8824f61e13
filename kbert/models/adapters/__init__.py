"""Adapters: few trained weights in the slots of an encoder that stays as it is."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.models.adapters.attention import (
        Prefix as Prefix,
        ProjectedAttention as ProjectedAttention,
    )
    from kbert.models.adapters.base import (
        Adapter as Adapter,
        activate as activate,
        add as add,
        merge as merge,
        parse as parse,
        register_adapter as register_adapter,
        remove as remove,
        restore as restore,
        running as running,
        using as using,
    )
    from kbert.models.adapters.bottleneck import Houlsby as Houlsby, Pfeiffer as Pfeiffer
    from kbert.models.adapters.lora import BitFit as BitFit, Lora as Lora
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
