"""Pruning: what an encoder can do without is taken out of it, and it is smaller and faster.

importance = kbert.pruning.head_importance(task, texts, answers)
small = kbert.pruning.prune_heads(task, kbert.pruning.least_important(importance, 0.4))
small = kbert.pruning.keep_layers(small, "alternate", 8)
small.fit(texts, answers)
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.pruning.heads import (
        least_important as least_important,
        neuron_magnitudes as neuron_magnitudes,
        prune_heads as prune_heads,
        prune_neurons as prune_neurons,
    )
    from kbert.pruning.importance import (
        head_importance as head_importance,
        neuron_importance as neuron_importance,
    )
    from kbert.pruning.layer_drop import LayerDrop as LayerDrop
    from kbert.pruning.layers import keep_layers as keep_layers
    from kbert.pruning.magnitude import MagnitudePruning as MagnitudePruning, sparsity as sparsity
    from kbert.pruning.movement import (
        MovementPruning as MovementPruning,
        apply_movement as apply_movement,
        with_movement as with_movement,
    )
    from kbert.pruning.named import parse as parse
    from kbert.pruning.vocabulary import (
        kept_tokens as kept_tokens,
        prune_vocabulary as prune_vocabulary,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
