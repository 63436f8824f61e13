"""Settings of the pretraining tasks."""

from kbert.core.options import Options, option

# Which losses train the embeddings. "all": both losses train shared tables.
# "gradient_disentangled": only the generator's loss trains the shared tables. "separate": each
# model has its own tables.
ALL, DISENTANGLED, SEPARATE = "all", "gradient_disentangled", "separate"
EMBEDDING_SHARING = (ALL, DISENTANGLED, SEPARATE)


class FillMaskOptions(Options):
    """Settings of the answers for masks.

    Args:
        {options}
    """

    top_k: int = option(
        5, help="Number of answers for each mask, the most probable first.", at_least=1
    )
    candidates: tuple[str, ...] | None = option(
        None,
        help="Return the probabilities of these entries of the vocabulary, in this order, instead "
        "of the best answers.",
    )
