"""Settings of the tasks that embed texts."""

from kbert.core.options import Options, option
from kbert.tasks.fine_tuning.options import RowOptions

POOLINGS = ("mean", "cls", "max", "weighted")
PROMPTS = ("query", "document")
# The functions are in `kbert.tasks.embedding.losses`.
OBJECTIVES = ("ranking", "symmetric_ranking", "cosent", "angle", "cosine", "triplet", "teacher")


class TextEmbedderOptions(RowOptions):
    """Settings of `TextEmbedder`.

    Args:
        {options}
    """

    token_pooling: str = option(
        "mean",
        help="How tokens' vectors become one: their mean, the first token's, the largest of each "
        "entry, or a mean in which later tokens count more.",
        choices=POOLINGS,
    )
    normalize: bool = option(True, help="Whether a vector is given length 1.")
    query_prompt: str | None = option(None, help='Put before a query, such as "query: ".')
    document_prompt: str | None = option(None, help="Put before a text that is searched for.")
    projection: int | None = option(
        None, help="Width of a dense layer behind the pooling. None: no layer.", at_least=1
    )
    projection_activation: str | None = option(
        None, help="Of that layer. None: linear.", choices=("tanh", "relu", "gelu")
    )
    objective: str | None = option(
        None,
        help="What it is trained by. ranking: pairs, and triplets, against the other texts of a "
        "batch; texts alone against themselves under other dropout (SimCSE). symmetric_ranking: "
        "in both directions. cosent, angle, cosine: pairs with scores. triplet: triplets by "
        "themselves. teacher: texts with vectors. None: cosent for pairs with scores, teacher for "
        "texts with vectors, else ranking.",
        choices=OBJECTIVES,
    )
    cosine_scale: float = option(
        20.0, help="Factor of cosines in ranking, cosent and angle: 1 / temperature.", above=0
    )
    cosine_margin: float = option(
        0.2, help="Of triplet: how much nearer the right text's cosine shall be.", above=0
    )
    matryoshka: tuple[int, ...] = option(
        (),
        help="Also train the first so many entries of a vector to be vectors of texts: 64,128,256.",
        at_least=1,
    )


class EmbeddingOptions(Options):
    """Options of embedding files: the prompt before each text.

    Args:
        {options}
    """

    prompt: str | None = option(
        None,
        help="Put the task's query_prompt or document_prompt before each text.",
        choices=PROMPTS,
    )


class TextDenoiserOptions(RowOptions):
    """Settings of `TextDenoiser`.

    Args:
        {options}
    """

    token_pooling: str = option(
        "cls",
        help="How tokens' vectors become one: their mean, the first token's, the largest of each "
        "entry, or a mean in which later tokens count more.",
        choices=POOLINGS,
    )
    deletion_rate: float = option(
        0.6, help="Share of a text's tokens that are deleted.", at_least=0, below=1
    )
    decoder_layers: int | None = option(
        None, help="Layers of the decoder. None: as many as the encoder's.", at_least=1
    )
