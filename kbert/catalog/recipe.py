"""What a recipe says of a pretraining."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

OBJECTIVES = (
    *("masked_lm", "span_boundary", "replaced_tokens", "masked_and_causal", "permutation_lm"),
    *("language_model", "causal_lm", "memory_lm", "translation"),
)
# What the rows' segments have to do with each other -> what is predicted of it.
SENTENCE_OBJECTIVES: dict[str | None, str] = {"pairs": "next_sentence", "halves": "sentence_order"}
_MOMENTS = ("weight_decay", "beta_1", "beta_2", "epsilon", "bias_correction")
# Name -> its arguments besides the learning rate, in programs and recipes.
OPTIMIZER_SETTINGS = {
    "adamw": _MOMENTS,
    "stable_adamw": _MOMENTS,
    "muon": ("weight_decay", "beta_1", "beta_2", "epsilon"),
    "lamb": _MOMENTS,
    "adagrad": ("initial_accumulator_value",),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model was pretrained. Every value but the first three is a flag of `kbert-pretrain`.

    Batch sizes and numbers of steps are those of clusters: for a smaller run give your own. The
    learning rate belongs to the batch size (RoBERTa: 1e-4 at 256 rows, 5e-4 at 2,048, 7e-4 at
    8,192), and of a shorter run the warm-up is a tenth at most.

    Attributes:
        name: in the table.
        tokenizer: its kind: "wordpiece", "bpe", "unigram" or "words".
        source: where the values are from.
        model: name in `kbert.family`.
        set: settings of the model that differ from its family's, as name=value; else None.
        objective: "masked_lm"; "span_boundary", which fills masked spans from their ends too;
            "replaced_tokens", ELECTRA's and DeBERTa-v3's; "masked_and_causal", GPT-BERT's;
            "permutation_lm", XLNet's; or one that masks nothing and has no segments, so that what
            follows about these is None: "language_model", ELMo's; "causal_lm", GPT's;
            "memory_lm", Transformer-XL's; "translation", the Transformer's.
        generator_share, generator_depth: width and layers of the generator over the
            discriminator's, of "replaced_tokens"; else None.
        embedding_sharing: what moves the embeddings of both; else None.
        negatives: sampled words that ELMo's targets are told from; else None.
        label_smoothing: probability that a translator's targets leave to all other tokens; else
            None.
        mixture_temperature: power of the sizes of several corpora that they are read in proportion
            to; None = each text equally often.
        segments: how text is laid out in rows, see `kbert.data.pretraining_dataset`. It decides
            about the sentence objective.
        short_sequence_share: share of rows cut shorter.
        masking: which tokens are masked together.
        masked_share: share of the tokens that is predicted.
        final_masked_share: what it becomes over the run; None = it stays.
        causal_share: share of the rows that are causal; None = none.
        z_loss: weight of the z-loss; None = none.
        memory_length: tokens before its row that a row of "permutation_lm" or "memory_lm"
            remembers; else None.
        replacement: shares of these that become [MASK], and a random token.
        optimizer: see `kbert.training.optimization.optimizers.OPTIMIZERS`.
        learning_rate: its peak.
        beta_1, beta_2, epsilon, bias_correction, weight_decay: of all but Adagrad.
        initial_accumulator_value: of Adagrad's sums of squares; else None.
        clip_norm: largest norm of all gradients; 0 clips nothing.
        warmup_steps: steps of the rise.
        decay: what follows it.
        decay_join: how the two meet, see `kbert.training.WarmupDecay`.
        decay_share: share of the run in which "wsd" falls; else None.
        steps: updates of the run.
        batch_size: rows of a batch; None where it is counted in tokens.
        phases: lengths in turn with their shares of the steps, as length:share; None as well.
        batch_tokens: tokens of each side of a batch of sentence pairs; else None.
        average_checkpoints: how many of the last checkpoints the model's weights are the mean of.
        ema: decay of the moving average that they are; None = none.
    """

    name: str
    tokenizer: str
    source: str
    model: str
    set: tuple[str, ...] | None = None
    objective: str = "masked_lm"
    generator_share: float | None = None
    generator_depth: float | None = None
    embedding_sharing: str | None = None
    negatives: int | None = None
    label_smoothing: float | None = None
    mixture_temperature: float | None = None
    segments: str | None
    short_sequence_share: float | None
    masking: str | None
    masked_share: float | None = 0.15
    final_masked_share: float | None = None
    causal_share: float | None = None
    z_loss: float | None = None
    memory_length: int | None = None
    replacement: tuple[float, float] | None = (0.8, 0.1)
    optimizer: str = "adamw"
    learning_rate: float
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-6
    bias_correction: bool = False
    weight_decay: float = 0.01
    initial_accumulator_value: float | None = None
    clip_norm: float = 1.0
    warmup_steps: int = 10_000
    decay: str = "linear"
    decay_join: str = "switch"
    decay_share: float | None = None
    steps: int
    batch_size: int | None
    phases: str | None
    batch_tokens: int | None = None
    average_checkpoints: int = 1
    ema: float | None = None

    @property
    def sentence_objective(self) -> str | None:
        """What is asked of two texts: "next_sentence", "sentence_order" or None."""
        return SENTENCE_OBJECTIVES.get(self.segments)

    def settings(self) -> dict[str, Any]:
        """Flag of `kbert-pretrain` -> value."""
        told = ("name", "tokenizer", "source")
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in told}

    def describe(self) -> str:
        """All values as a table to print: those that its objective and its optimizer have."""
        rows = dataclasses.asdict(self) | {"sentence_objective": self.sentence_objective}
        others = set().union(*OPTIMIZER_SETTINGS.values()) - {*OPTIMIZER_SETTINGS[self.optimizer]}
        rows = {k: v for k, v in rows.items() if k not in others and v is not None}
        return "\n".join(f"{name:21} {shown(value)}" for name, value in rows.items())


def by_name(name: str, recipes: Mapping[str, Any], what: str = "recipe") -> Any:
    """The recipe of a table that has this name.

    Args:
        name: of a recipe.
        recipes: name -> recipe.
        what: of which kind they are, for the message.

    Raises:
        ValueError: there is none; the message lists the close ones.
    """
    if name not in recipes:
        close = difflib.get_close_matches(name, recipes, n=3, cutoff=0.4)
        hint = f"Close: {', '.join(close)}." if close else f"Known: {', '.join(recipes)}."
        raise ValueError(f"No {what} has this name. {hint} Received: {name!r}")
    return recipes[name]


def shown(value: Any) -> str:
    """A value as tables print it."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
