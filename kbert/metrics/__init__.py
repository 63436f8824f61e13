"""Scores of predictions against labels: pure functions on arrays and strings."""

from kbert.metrics.bleu import Bleu, bleu, chrf
from kbert.metrics.classification import accuracy, f1, macro_f1, matthews
from kbert.metrics.clustering import v_measure
from kbert.metrics.correlation import pearson, spearman
from kbert.metrics.entities import Entity, EntityReport, entity_report, entity_spans, find_scheme
from kbert.metrics.multi_label import best_threshold, multi_label, multi_label_report
from kbert.metrics.pairs import pair_scores
from kbert.metrics.report import Report, classification_report
from kbert.metrics.retrieval import mrr, ndcg, recall
from kbert.metrics.squad import squad_scores
from kbert.metrics.text_table import text_table

__all__ = [
    "Bleu",
    "Entity",
    "EntityReport",
    "Report",
    "accuracy",
    "best_threshold",
    "bleu",
    "chrf",
    "classification_report",
    "entity_report",
    "entity_spans",
    "f1",
    "find_scheme",
    "macro_f1",
    "matthews",
    "mrr",
    "multi_label",
    "multi_label_report",
    "ndcg",
    "pair_scores",
    "pearson",
    "recall",
    "spearman",
    "squad_scores",
    "text_table",
    "v_measure",
]
