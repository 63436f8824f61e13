"""Pruning: removes parts that an encoder can do without, to make it smaller and faster.

importance = kbert.edit.pruning.head_importance(task, texts, answers)
small = kbert.edit.pruning.prune_heads(task, kbert.edit.pruning.least_important(importance, 0.4))
small = kbert.edit.pruning.keep_layers(small, "alternate", 8)
small.fit(texts, answers)
"""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.edit.pruning.heads import (
        least_important as least_important,
        neuron_magnitudes as neuron_magnitudes,
        prune_heads as prune_heads,
        prune_neurons as prune_neurons,
    )
    from kbert.edit.pruning.importance import (
        head_importance as head_importance,
        neuron_importance as neuron_importance,
    )
    from kbert.edit.pruning.layer_drop import LayerDrop as LayerDrop
    from kbert.edit.pruning.layers import keep_layers as keep_layers
    from kbert.edit.pruning.magnitude import (
        MagnitudePruning as MagnitudePruning,
        sparsity as sparsity,
    )
    from kbert.edit.pruning.movement import (
        MovementPruning as MovementPruning,
        apply_movement as apply_movement,
        with_movement as with_movement,
    )
    from kbert.edit.pruning.named import parse as parse
    from kbert.edit.pruning.vocabulary import (
        kept_tokens as kept_tokens,
        prune_vocabulary as prune_vocabulary,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
