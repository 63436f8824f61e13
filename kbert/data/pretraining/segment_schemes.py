"""Settings of the segment schemes; the functions are in `kbert.data.pretraining.segments`."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class SegmentScheme:
    """A way to lay out text in rows.

    Attributes:
        plan: name in `kbert.data.pretraining.segments.PLANS` of the function that plans a window.
        num_segments: maximum number of segments in a row: 2 if rows may have a segment B, else 1.
        short_share: share of rows with a shorter target length, as published.
        documents: least number of documents that the plan needs.
        label: name of the feature for the plan's label, if it has one.
        joins_documents: whether the plan points into joined documents, see `join_documents`.
        continues: whether each row of a batch continues in the same row of the next batch; the plan
            function then takes the number of rows.
        aligned: whether texts are paired with their translations, whose positions begin at 0 again;
            the plan function then takes the tokens and the separator.
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
        """Returns the number of special tokens in a row with all segments of the scheme.

        `separators` is the number of [SEP] between two segments.
        """
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
