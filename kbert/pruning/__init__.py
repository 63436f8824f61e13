"""Pruning: what an encoder can do without is taken out of it, and it is smaller and faster.

importance = kbert.pruning.head_importance(task, texts, answers)
small = kbert.pruning.prune_heads(task, kbert.pruning.least_important(importance, 0.4))
small = kbert.pruning.keep_layers(small, "alternate", 8)
small.fit(texts, answers)
"""

from kbert.pruning.heads import least_important, neuron_magnitudes, prune_heads, prune_neurons
from kbert.pruning.importance import head_importance, neuron_importance
from kbert.pruning.layer_drop import LayerDrop
from kbert.pruning.layers import keep_layers
from kbert.pruning.magnitude import MagnitudePruning, sparsity
from kbert.pruning.movement import MovementPruning, apply_movement, with_movement
from kbert.pruning.named import parse
from kbert.pruning.vocabulary import kept_tokens, prune_vocabulary

__all__ = [
    "LayerDrop",
    "MagnitudePruning",
    "MovementPruning",
    "apply_movement",
    "head_importance",
    "keep_layers",
    "kept_tokens",
    "least_important",
    "neuron_importance",
    "neuron_magnitudes",
    "parse",
    "prune_heads",
    "prune_neurons",
    "prune_vocabulary",
    "sparsity",
    "with_movement",
]
