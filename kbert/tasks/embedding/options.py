"""Settings of the tasks that embed texts."""

from kbert.core.options import Options, option
from kbert.tasks.fine_tuning.options import LayerOptions, RowOptions

POOLINGS = ("mean", "cls", "max", "weighted")
PROMPTS = ("query", "document")
# The functions are in `kbert.tasks.embedding.losses`.
OBJECTIVES = ("ranking", "symmetric_ranking", "cosent", "angle", "cosine", "triplet", "teacher")


class TextEmbedderOptions(RowOptions, LayerOptions):
    """Settings of `TextEmbedder`.

    Args:
        {options}
    """

    token_pooling: str = option(
        "mean",
        help="Pooling of the token vectors: their mean, the first token's, the maximum of each "
        "dimension, or a mean with larger weights for later tokens.",
        choices=POOLINGS,
    )
    normalize: bool = option(True, help="Normalise embeddings to length 1.")
    query_prompt: str | None = option(None, help='Prefix of queries, such as "query: ".')
    document_prompt: str | None = option(None, help="Prefix of the texts to be searched.")
    projection: int | None = option(
        None,
        help="Width of a dense layer after the pooling. None: no layer.",
        at_least=1,
        fixed=True,
    )
    projection_activation: str | None = option(
        None,
        help="Activation of that layer. None: linear.",
        choices=("tanh", "relu", "gelu"),
        fixed=True,
    )
    objective: str | None = option(
        None,
        help="Training objective. ranking: pairs and triplets against the other texts of a batch; "
        "single texts against themselves under other dropout (SimCSE). symmetric_ranking: the "
        "same in both directions. cosent, angle, cosine: pairs with scores. triplet: triplets "
        "alone. teacher: texts with embeddings. None: cosent for pairs with scores, teacher for "
        "texts with embeddings, else ranking.",
        choices=OBJECTIVES,
    )
    cosine_scale: float = option(
        20.0, help="Scale of cosines in ranking, cosent and angle: 1 / temperature.", above=0
    )
    cosine_margin: float = option(
        0.2, help="Margin between the cosines of positive and negative in triplet.", above=0
    )
    matryoshka: tuple[int, ...] = option(
        (),
        help="Widths of leading parts of an embedding to train as embeddings too: 64,128,256.",
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


class DecodingOptions(RowOptions):
    """Settings of an embedder that decoders train.

    Args:
        {options}
    """

    token_pooling: str = option(
        "cls",
        help="Pooling of the token vectors: their mean, the first token's, the maximum of each "
        "dimension, or a mean with larger weights for later tokens.",
        choices=POOLINGS,
        fixed=True,
    )
    decoder_layers: int | None = option(
        None,
        help="Layers of a decoder. None: as many as the encoder has.",
        at_least=1,
        fixed=True,
    )


class TextDenoiserOptions(DecodingOptions):
    """Settings of `TextDenoiser`.

    Args:
        {options}
    """

    deletion_rate: float = option(
        0.6, help="Share of a text's tokens that are deleted.", at_least=0, below=1
    )
