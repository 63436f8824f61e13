"""Pictures of what a model says and sees: matplotlib figures, drawn without a window."""

from kbert.visualization.answers import probability_bars, tagged_words
from kbert.visualization.matrices import confusion_matrix, similarity_heatmap
from kbert.visualization.scores import layer_scores
from kbert.visualization.vectors import neighbours_map

__all__ = [
    "confusion_matrix",
    "layer_scores",
    "neighbours_map",
    "probability_bars",
    "similarity_heatmap",
    "tagged_words",
]
