"""How the models of the family were pretrained, as published: a table of plain values.

Values are those of the code and its README where these say them, for they made the released
weights; else of the paper. Two things are the same in every recipe here and were not everywhere:
biases and LayerNorm do not decay (fairseq, which trained RoBERTa and SpanBERT, decays them), and
the masks of an epoch are new ones (Google's data were masked once, 10 to 40 times over).
"""

import dataclasses
import difflib
from typing import Any

from kbert.training.optimizers import OPTIMIZER_SETTINGS

OBJECTIVES = ("masked_lm", "span_boundary", "replaced_tokens", "language_model")
# What the rows' segments have to do with each other -> what is predicted of it.
SENTENCE_OBJECTIVES = {"pairs": "next_sentence", "halves": "sentence_order"}


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
        objective: "masked_lm"; "span_boundary", which fills masked spans from their ends too;
            "replaced_tokens", ELECTRA's; or "language_model", ELMo's, which masks nothing and has
            no segments: what follows about these is None.
        generator_share: width of ELECTRA's generator over the discriminator's; else None.
        negatives: sampled words that ELMo's targets are told from; else None.
        segments: how text is laid out in rows, see `kbert.data.pretraining_dataset`. It decides
            about the sentence objective.
        short_sequence_share: share of rows cut shorter.
        masking: which tokens are masked together.
        masked_share: share of the tokens that is predicted.
        replacement: shares of these that become [MASK], and a random token.
        optimizer: "adamw", "lamb" or "adagrad".
        learning_rate: its peak.
        beta_1, beta_2, epsilon, bias_correction, weight_decay: of the first two.
        initial_accumulator_value: of Adagrad's sums of squares; else None.
        clip_norm: largest norm of all gradients; 0 clips nothing.
        warmup_steps: steps of the rise.
        decay: what follows it.
        decay_join: how the two meet, see `kbert.training.WarmupDecay`.
        train_steps: updates of the run.
        batch_size: rows of a batch.
        phases: lengths in turn with their shares of the steps, as length:share.
    """

    name: str
    tokenizer: str
    source: str
    model: str
    objective: str = "masked_lm"
    generator_share: float | None = None
    negatives: int | None = None
    segments: str | None
    short_sequence_share: float | None
    masking: str | None
    masked_share: float | None = 0.15
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
    train_steps: int
    batch_size: int
    phases: str

    @property
    def sentence_objective(self) -> str | None:
        """ "next_sentence", "sentence_order" or None."""
        return SENTENCE_OBJECTIVES.get(self.segments)

    def settings(self) -> dict[str, Any]:
        """Flag of `kbert-pretrain` -> value."""
        told = ("name", "tokenizer", "source")
        return {k: v for k, v in dataclasses.asdict(self).items() if k not in told}

    def describe(self) -> str:
        """All values as a table to print; of optimizers' settings those that its own has."""
        rows = dataclasses.asdict(self) | {"sentence_objective": self.sentence_objective}
        others = set().union(*OPTIMIZER_SETTINGS.values()) - {*OPTIMIZER_SETTINGS[self.optimizer]}
        rows = {name: value for name, value in rows.items() if name not in others}
        return "\n".join(f"{name:21} {_shown(value)}" for name, value in rows.items())


_BERT = {
    "segments": "pairs",
    "short_sequence_share": 0.1,
    "learning_rate": 1e-4,
    "train_steps": 1_000_000,
    "batch_size": 256,
    "phases": "128:0.9,512:0.1",
}
_FAIRSEQ = {"bias_correction": True, "decay_join": "after", "phases": "512:1"}
_ELECTRA = {
    "source": "configure_pretraining.py of google-research/electra",
    "objective": "replaced_tokens",
    "segments": "consecutive",
    "short_sequence_share": 0.05,
    "masking": "independent",
    "replacement": (0.85, 0.0),
    "decay_join": "product",
}

RECIPES: dict[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="bert",
            tokenizer="wordpiece",
            source="README and code of google-research/bert; batch size: section A.2 of the paper",
            model="bert-base-uncased",
            masking="token",
            **_BERT,
        ),
        Recipe(
            name="bert-wwm",
            tokenizer="wordpiece",
            source="README of google-research/bert, whole word masking; all else as bert",
            model="bert-large-uncased-whole-word-masking",
            masking="whole_word",
            **_BERT,
        ),
        Recipe(
            name="roberta",
            tokenizer="bpe",
            source="examples/roberta of facebookresearch/fairseq: README and config base.yaml",
            model="roberta-base",
            segments="full_sentences",
            short_sequence_share=0.0,
            masking="token",
            learning_rate=5e-4,
            beta_2=0.98,
            clip_norm=0.0,
            train_steps=125_000,
            batch_size=2048,
            **_FAIRSEQ,
        ),
        Recipe(
            name="albert",
            tokenizer="unigram",
            source="README and code of google-research/albert",
            model="albert-base-v2",
            segments="halves",
            short_sequence_share=0.1,
            masking="ngram",
            optimizer="lamb",
            learning_rate=1.76e-3,
            warmup_steps=3_125,
            train_steps=125_000,
            batch_size=4096,
            phases="512:1",
        ),
        Recipe(
            name="spanbert",
            tokenizer="wordpiece",
            source="README of facebookresearch/SpanBERT; 32 x 4,096 tokens a batch",
            model="SpanBERT/spanbert-base-cased",
            objective="span_boundary",
            segments="single",
            short_sequence_share=0.0,
            masking="span",
            learning_rate=1e-4,
            epsilon=1e-8,
            train_steps=2_400_000,
            batch_size=256,
            **_FAIRSEQ,
        ),
        Recipe(
            name="electra",
            tokenizer="wordpiece",
            model="google/electra-small-discriminator",
            generator_share=0.25,
            learning_rate=5e-4,
            train_steps=1_000_000,
            batch_size=128,
            phases="128:1",
            **_ELECTRA,
        ),
        Recipe(
            name="electra-base",
            tokenizer="wordpiece",
            model="google/electra-base-discriminator",
            generator_share=1 / 3,
            learning_rate=2e-4,
            train_steps=766_000,
            batch_size=256,
            phases="512:1",
            **_ELECTRA,
        ),
        Recipe(
            name="electra-large",
            tokenizer="wordpiece",
            model="google/electra-large-discriminator",
            generator_share=0.25,
            masked_share=0.25,
            learning_rate=2e-4,
            train_steps=400_000,
            batch_size=2048,
            phases="512:1",
            **_ELECTRA,
        ),
        Recipe(
            name="elmo",
            tokenizer="words",
            source="bin/train_elmo.py and bilm/training.py of allenai/bilm-tf; 10 epochs of the "
            "768,648,884 tokens of the 1 Billion Word Benchmark on 3 GPUs of 128 rows each",
            model="elmo-original",
            objective="language_model",
            negatives=8192,
            segments=None,
            short_sequence_share=None,
            masking=None,
            masked_share=None,
            replacement=None,
            optimizer="adagrad",
            learning_rate=0.2,
            initial_accumulator_value=1.0,
            clip_norm=10.0,
            warmup_steps=0,
            decay="constant",
            train_steps=1_000_840,
            batch_size=384,
            phases="20:1",
        ),
    )
}


def recipe(name: str) -> Recipe:
    """The recipe of a published model.

    Args:
        name: "bert", "bert-wwm", "roberta", "albert", "spanbert", "electra" (small),
            "electra-base", "electra-large" or "elmo".

    Returns:
        The recipe.

    Raises:
        ValueError: no recipe has that name; the message lists the close ones.

    Example:
        >>> albert = recipe("albert")
        >>> albert.optimizer, albert.masking, albert.sentence_objective
        ('lamb', 'ngram', 'sentence_order')
    """
    if name not in RECIPES:
        close = difflib.get_close_matches(name, RECIPES, n=3, cutoff=0.4)
        hint = f"Close: {', '.join(close)}." if close else f"Known: {', '.join(RECIPES)}."
        raise ValueError(f"No recipe has this name. {hint} Received: {name!r}")
    return RECIPES[name]


def table() -> str:
    """All recipes, a line each, in the columns that tell them apart.

    Example:
        >>> table().splitlines()[1].split()
        ['bert', 'masked_lm', 'token', 'pairs', 'adamw', '0.0001', '256', '1,000,000']
    """
    columns = {
        "recipe": "name",
        "objective": "objective",
        "masking": "masking",
        "segments": "segments",
        "optimizer": "optimizer",
        "rate": "learning_rate",
        "batch": "batch_size",
        "steps": "train_steps",
    }
    cells = [list(columns)]
    cells += [
        [_shown(getattr(row, field)) for field in columns.values()] for row in RECIPES.values()
    ]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = ("  ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) for line in cells)
    return "\n".join(line.rstrip() for line in lines)


def _shown(value) -> str:
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
