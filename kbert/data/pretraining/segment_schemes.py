"""Ways to lay out text in rows, as values; `segments` has the functions."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentScheme:
    """A way to lay out text in rows.

    Attributes:
        plan: what makes the plan of a window, a name of `kbert.data.pretraining.segments.PLANS`.
        num_segments: 2 where rows may have a segment B.
        documents: the least number of documents it needs.
        short_share: share of rows cut shorter, as published.
        label: the feature that holds the plan's label, if it has one.
        joins_documents: whether the plan points into joined documents, see `join_documents`.
        continues: whether each row of a batch goes on in the same row of the next batch; the plan
            takes their number.
        aligned: whether texts stand beside their translations, with positions of their own; the
            plan takes the tokens and the separator.
    """

    plan: str
    num_segments: int
    short_share: float
    documents: int = 1
    label: str | None = None
    joins_documents: bool = False
    continues: bool = False
    aligned: bool = False

    def num_specials(self, separators: int) -> int:
        """Special tokens of a row with all its segments: [CLS], those between A and B, [SEP]."""
        return 2 + (separators if self.num_segments == 2 else 0)


SEGMENT_SCHEMES = {
    "pairs": SegmentScheme(
        plan="pairs", num_segments=2, short_share=0.1, documents=2, label="next_sentence_labels"
    ),
    "halves": SegmentScheme(
        plan="swapped_pairs",
        num_segments=2,
        short_share=0.1,
        documents=2,
        label="sentence_order_labels",
    ),
    "consecutive": SegmentScheme(plan="consecutive", num_segments=2, short_share=0.05),
    "single": SegmentScheme(plan="segments", num_segments=1, short_share=0.1),
    "doc_sentences": SegmentScheme(plan="sentences", num_segments=1, short_share=0.0),
    "full_sentences": SegmentScheme(
        plan="sentences_across", num_segments=1, short_share=0.0, joins_documents=True
    ),
    "runs": SegmentScheme(
        plan="runs", num_segments=2, short_share=0.0, joins_documents=True, continues=True
    ),
    "aligned": SegmentScheme(plan="aligned", num_segments=2, short_share=0.0, aligned=True),
}
