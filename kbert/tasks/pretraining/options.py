"""Settings of the tasks that are pretrained."""

from kbert.core.options import Options, option

# What moves the embeddings of both models: the losses of both, the generator's where they share
# them, or for each model its own loss.
ALL, DISENTANGLED, SEPARATE = "all", "gradient_disentangled", "separate"
EMBEDDING_SHARING = (ALL, DISENTANGLED, SEPARATE)


class FillMaskOptions(Options):
    """What is asked of a mask.

    Args:
        {options}
    """

    top_k: int = option(5, help="Answers for each mask, the most probable first.", at_least=1)
    candidates: tuple[str, ...] | None = option(
        None,
        help="Instead of the best answers the probabilities of these, in this order; each is one "
        "entry of the vocabulary.",
    )
