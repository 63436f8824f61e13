"""Vector search: exact nearest neighbours, hard-negative mining, reranking."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.search.index import Hits as Hits, Index as Index
    from kbert.search.negatives import Negatives as Negatives, mine_negatives as mine_negatives
    from kbert.search.reranking import Reranker as Reranker, rerank as rerank
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
