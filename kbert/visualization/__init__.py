"""Pictures of a model's answers and attention: matplotlib figures, drawn without a window.

Attention is also shown on interactive pages.
"""

from typing import TYPE_CHECKING

from kbert.core import late
from kbert.visualization.learning_curve import learning_curve as learning_curve
from kbert.visualization.positions import positions as positions
from kbert.visualization.token_scores import token_scores as token_scores
from kbert.visualization.trade_off import trade_off as trade_off

if TYPE_CHECKING:
    from kbert.visualization.answers import (
        probability_bars as probability_bars,
        tagged_words as tagged_words,
    )
    from kbert.visualization.attention_drawing import (
        attention as attention,
        attention_map as attention_map,
    )
    from kbert.visualization.attention_page import AttentionPage as AttentionPage
    from kbert.visualization.attention_reading import read_attention as read_attention
    from kbert.visualization.matrices import (
        confusion_matrix as confusion_matrix,
        similarity_heatmap as similarity_heatmap,
    )
    from kbert.visualization.probes import probe_curves as probe_curves
    from kbert.visualization.report_page import ReportPage as ReportPage
    from kbert.visualization.scores import (
        glue_scores as glue_scores,
        layer_scores as layer_scores,
    )
    from kbert.visualization.sizes import model_sizes as model_sizes
    from kbert.visualization.surfaces import (
        loss_contours as loss_contours,
        loss_curves as loss_curves,
    )
    from kbert.visualization.vectors import (
        neighbours_map as neighbours_map,
        projection as projection,
    )
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
