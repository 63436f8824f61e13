"""Scores of predictions against labels: pure functions on arrays and strings."""

from typing import TYPE_CHECKING

from kbert.core import late
from kbert.core.text_table import text_table as text_table
from kbert.metrics.bleu import bleu as bleu
from kbert.metrics.multi_label import multi_label as multi_label
from kbert.metrics.rouge import rouge as rouge

if TYPE_CHECKING:
    from kbert.metrics.bleu import Bleu as Bleu, chrf as chrf
    from kbert.metrics.classification import (
        accuracy as accuracy,
        exact_groups as exact_groups,
        f1 as f1,
        macro_f1 as macro_f1,
        matthews as matthews,
    )
    from kbert.metrics.clustering import v_measure as v_measure
    from kbert.metrics.correlation import pearson as pearson, spearman as spearman
    from kbert.metrics.entities import (
        Entity as Entity,
        EntityReport as EntityReport,
        entity_report as entity_report,
        entity_spans as entity_spans,
        find_scheme as find_scheme,
    )
    from kbert.metrics.multi_label import (
        best_threshold as best_threshold,
        multi_label_report as multi_label_report,
    )
    from kbert.metrics.pairs import pair_scores as pair_scores
    from kbert.metrics.report import (
        Report as Report,
        classification_report as classification_report,
    )
    from kbert.metrics.retrieval import mrr as mrr, ndcg as ndcg, recall as recall
    from kbert.metrics.rouge import Rouge as Rouge
    from kbert.metrics.squad import squad_scores as squad_scores
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
