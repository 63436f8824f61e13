"""Recipes: the settings of published pretraining runs."""

import dataclasses
import difflib
from collections.abc import Mapping
from typing import Any

OBJECTIVES = (
    *("masked_lm", "span_boundary", "replaced_tokens", "masked_and_causal", "unilm"),
    "permutation_lm",
    *("language_model", "causal_lm", "memory_lm", "denoising", "translation"),
)
# How the segments of a sequence are related -> the sentence objective that predicts it.
SENTENCE_OBJECTIVES: dict[str | None, str] = {"pairs": "next_sentence", "halves": "sentence_order"}
_MOMENTS = ("weight_decay", "beta_1", "beta_2", "epsilon", "bias_correction")
# Optimizer -> its arguments in addition to the learning rate, in programs and recipes.
OPTIMIZER_SETTINGS = {
    "adamw": _MOMENTS,
    "stable_adamw": _MOMENTS,
    "muon": ("weight_decay", "beta_1", "beta_2", "epsilon"),
    "lamb": _MOMENTS,
    "adagrad": ("initial_accumulator_value",),
    "adafactor": ("weight_decay", "scale_parameter"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """Settings of a pretraining run. All but the first three are flags of `kbert-pretrain`.

    Batch sizes and numbers of steps are those of clusters; set your own for a smaller run. The
    learning rate belongs to the batch size (RoBERTa: 1e-4 at 256 sequences, 5e-4 at 2,048, 7e-4 at
    8,192). In a shorter run the warm-up is at most a tenth of the steps.

    Attributes:
        name: name of the recipe in the table.
        tokenizer: kind of tokenizer: "wordpiece", "bpe", "unigram" or "words".
        source: where the values are from.
        model: name of the model in `kbert.family`.
        set: model settings that differ from those of `kbert.family`, as name=value; None = none.
        objective: training objective: "masked_lm"; "span_boundary", which also predicts masked
            spans from their boundaries; "replaced_tokens" (ELECTRA, DeBERTa-v3);
            "masked_and_causal" (GPT-BERT); "unilm"; "permutation_lm" (XLNet); "language_model"
            (ELMo); "causal_lm" (GPT); "memory_lm" (Transformer-XL, ULMFiT); "denoising" (BART,
            T5); "translation" (the Transformer). The last five mask no tokens by themselves and
            have no segments: the settings of masking and segments are None.
        noise: what "denoising" corrupts, see `kbert.data.denoising_dataset`; else None.
        generator_share, generator_depth: width and number of layers of the generator, as a share of
            the discriminator's, for "replaced_tokens"; else None.
        embedding_sharing: how generator and discriminator share embeddings, for
            "replaced_tokens"; None = that objective's default, or another objective.
        negatives: number of negative words of ELMo's sampled softmax; else None.
        label_smoothing: probability that the targets of a translation give to all other tokens;
            else None.
        mixture_temperature: exponent of the corpus sizes, in proportion to which several corpora
            are sampled; None = every text equally often.
        segments: how text is laid out in sequences, see `kbert.data.pretraining_dataset`. It also
            determines the sentence objective.
        short_sequence_share: share of sequences that are made shorter.
        masking: which tokens are masked together.
        masked_share: share of the tokens that are predicted.
        final_masked_share: value that `masked_share` reaches at the end of the run; None = it stays
            the same.
        causal_share: share of the sequences that are trained causally; None = none.
        attention_shares: weights by which the kinds of sequences of "unilm" are drawn; else None.
        z_loss: weight of the z-loss; None = none.
        memory_length: number of tokens before a sequence that the memory of "permutation_lm" or
            "memory_lm" covers; else None.
        replacement: shares of the predicted tokens that become [MASK] and a random token.
        optimizer: name of the optimizer, see
            `kbert.core.late.TABLE["optimizer"]`.
        learning_rate: peak learning rate.
        beta_1, beta_2, epsilon, bias_correction, weight_decay: arguments of every optimizer but
            Adagrad; Muon has no `bias_correction`, Adafactor only `weight_decay`.
        initial_accumulator_value: initial value of Adagrad's sums of squares; else None.
        scale_parameter: whether Adafactor scales its rate by the weights.
        clip_norm: global norm that gradients are clipped to; 0 = no clipping.
        warmup_steps: steps of the linear rise of the learning rate.
        decay: schedule of the learning rate after warm-up.
        decay_join: how warm-up and decay are joined, see `kbert.training.WarmupDecay`.
        decay_share: share of the run in which "wsd" falls; else None.
        steps: updates of the run.
        batch_size: sequences per batch; None if batches are measured in tokens.
        phases: sequence lengths in order, with their shares of the steps, as length:share or
            length:share:batch_size; None if batches are measured in tokens.
        batch_tokens: tokens on each side of a batch of sentence pairs; else None.
        average_checkpoints: number of last checkpoints that are averaged into the final weights.
        ema: decay of the moving average that becomes the final weights; None = none.
    """

    name: str
    tokenizer: str
    source: str
    model: str
    set: tuple[str, ...] | None = None
    objective: str = "masked_lm"
    noise: str | None = None
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
    attention_shares: tuple[float, float, float, float] | None = None
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
    scale_parameter: bool = True
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
        """Sentence objective: "next_sentence", "sentence_order" or None."""
        return SENTENCE_OBJECTIVES.get(self.segments)

    def settings(self) -> dict[str, Any]:
        """Returns flag of `kbert-pretrain` -> value."""
        told = ("name", "tokenizer", "source")
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in told}

    def describe(self) -> str:
        """Formats the values as a table, without those that objective or optimizer do not use."""
        rows = dataclasses.asdict(self) | {"sentence_objective": self.sentence_objective}
        others = set().union(*OPTIMIZER_SETTINGS.values()) - {*OPTIMIZER_SETTINGS[self.optimizer]}
        rows = {k: v for k, v in rows.items() if k not in others and v is not None}
        return "\n".join(f"{name:21} {shown(value)}" for name, value in rows.items())


def by_name(name: str, recipes: Mapping[str, Any], what: str = "recipe") -> Any:
    """Returns the recipe with a given name.

    Args:
        name: name of a recipe.
        recipes: name -> recipe.
        what: kind of the recipes, for the error message.

    Raises:
        ValueError: no recipe has that name; the message lists the close ones.
    """
    if name not in recipes:
        close = difflib.get_close_matches(name, recipes, n=3, cutoff=0.4)
        hint = f"Close: {', '.join(close)}." if close else f"Known: {', '.join(recipes)}."
        raise ValueError(f"No {what} has this name. {hint} Received: {name!r}")
    return recipes[name]


def shown(value: Any) -> str:
    """Formats a value for a printed table."""
    if value is None:
        return "-"
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
