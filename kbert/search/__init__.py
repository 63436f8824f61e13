"""Search by vectors: exact nearest neighbours, hard negatives, a second stage that reorders."""

from kbert.search.index import Hits, Index
from kbert.search.negatives import Negatives, mine_negatives
from kbert.search.reranking import Reranker, rerank

__all__ = ["Hits", "Index", "Negatives", "Reranker", "mine_negatives", "rerank"]
