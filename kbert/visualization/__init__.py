"""Pictures of a model's answers and attention: matplotlib figures, drawn without a window.

Of attention there are interactive pages too.
"""

from kbert.visualization.answers import probability_bars, tagged_words
from kbert.visualization.attention_drawing import attention, attention_map
from kbert.visualization.attention_page import AttentionPage
from kbert.visualization.attention_reading import read_attention
from kbert.visualization.learning_curve import learning_curve
from kbert.visualization.matrices import confusion_matrix, similarity_heatmap
from kbert.visualization.positions import positions
from kbert.visualization.report_page import ReportPage
from kbert.visualization.scores import layer_scores
from kbert.visualization.trade_off import trade_off
from kbert.visualization.vectors import neighbours_map, projection

__all__ = [
    "AttentionPage",
    "ReportPage",
    "attention",
    "attention_map",
    "confusion_matrix",
    "layer_scores",
    "learning_curve",
    "neighbours_map",
    "positions",
    "probability_bars",
    "projection",
    "read_attention",
    "similarity_heatmap",
    "tagged_words",
    "trade_off",
]
