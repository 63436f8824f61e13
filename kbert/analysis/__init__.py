"""What a model has learned: loss surfaces, probes of layers, syntax in attention heads."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.analysis.probing import Probe as Probe, probe as probe
    from kbert.analysis.surfaces import (
        LossSurface as LossSurface,
        copy_weights as copy_weights,
        loss_surface as loss_surface,
        random_direction as random_direction,
    )
    from kbert.analysis.syntax import (
        SyntacticHeads as SyntacticHeads,
        syntactic_heads as syntactic_heads,
        tree_depths as tree_depths,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
