"""Published distillation recipes: loss terms by name, and the settings of their runs.

A recipe has the terms of a loss and the settings of a run. The run reads shards of text (`general`)
or the data of a task, stage after stage (`stages`).
"""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kbert.core.text_table import text_table


@dataclasses.dataclass(frozen=True)
class NamedTerm:
    """A term of a loss.

    Attributes:
        name: name of the term's class in the table of late bindings.
        values: constructor arguments of that class.
    """

    name: str
    values: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """A run with one loss.

    Attributes:
        name: name of the folder that the stage is written to.
        terms: terms of the loss; in this module as `NamedTerm`s.
        epochs: passes over the data of the task.
        learning_rate: peak learning rate.
    """

    name: str
    terms: Sequence[Any]
    epochs: int
    learning_rate: float

    @property
    def reads_heads(self) -> bool:
        """Whether the loss also trains the head, so that the student can be evaluated."""
        return any(term.reads_heads for term in self.terms)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DistillationRecipe:
    """Loss terms and settings of a distillation.

    Attributes:
        name: name of the recipe in the table.
        summary: what is compared, in a few words.
        source: where the values are from.
        student: arguments of `kbert.student` for the published student, on text.
        terms: terms of the loss on text; empty if the recipe is for tasks only.
        general: flag of `kbert-distill` -> value, on text. The batch size is that of a cluster.
        progressive: whether, on text, the student's layers are trained one after the other.
        first: on text, name of the recipe that runs before this one and whose student is trained
            further here; None = none.
        first_share: share of the updates that the recipe `first` gets.
        stages: stages on the data of a task, in order; empty if the recipe is for text only.
    """

    name: str
    summary: str
    source: str
    student: Mapping[str, Any]
    terms: Sequence[Any] = ()
    general: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    progressive: bool = False
    first: str | None = None
    first_share: float = 0.0
    stages: Sequence[Stage] = ()


def _term(name: str, **values: Any) -> NamedTerm:
    return NamedTerm(name, values)


_DISTILBERT = (
    _term("soft_targets", temperature=2.0, weight=5.0, positions="all"),
    _term("own", weight=2.0),
    _term("hidden_cosine", weight=1.0),
)
_TINYBERT = (_term("embeddings"), _term("hidden_states"), _term("attention_scores"))
# Sequences of full sentences and no sentence objective: no student here has a head for one.
_TEXT = {"segments": "full_sentences", "short_sequence_share": 0.0, "phases": "128:1"}
# Warm-up and decay meet at the peak, as in the schedules of transformers and BertAdam.
_ADAMW = {
    "optimizer": "adamw",
    "bias_correction": True,
    "decay": "linear",
    "decay_join": "after",
}

# The student is as deep as its teacher, IB-BERT, and starts with IB-BERT's embeddings and heads.
_MOBILEBERT = {
    "init": "embeddings",
    "intermediate_size": 512,
    "activation": "relu",
    "dropout": 0.0,
    "pooler_activation": "identity",
    "part": {"name": "bottleneck"},
}
_MOBILEBERT_RUN = {
    "segments": "pairs",
    "short_sequence_share": 0.1,
    "phases": "512:1",
    "optimizer": "lamb",
    "bias_correction": False,
    "learning_rate": 1.5e-3,
    "weight_decay": 0.01,
    "clip_norm": 1.0,
    "batch_size": 2048,
}

DISTILLATIONS: dict[str, DistillationRecipe] = {
    recipe.name: recipe
    for recipe in (
        DistillationRecipe(
            name="distilbert",
            summary="soft targets, own loss, cosine of last hidden states: 5, 2, 1 at T = 2",
            source="train.py and distiller.py in research_projects/distillation of transformers; "
            "the stage on a task: the same loss with BERT's settings for fine-tuning",
            student={"num_layers": 6, "num_segments": 0, "pooler_activation": None},
            terms=_DISTILBERT,
            general={
                **_TEXT,
                **_ADAMW,
                "phases": "512:1",
                "learning_rate": 5e-4,
                "weight_decay": 0.0,
                "clip_norm": 5.0,
                "warmup_share": 0.05,
                "batch_size": 250,
            },
            stages=(Stage(name="distilled", terms=_DISTILBERT, epochs=3, learning_rate=5e-5),),
        ),
        DistillationRecipe(
            name="tinybert-general",
            summary="embeddings, hidden states and attention scores of every layer",
            source="general_distill.py of huawei-noah's TinyBERT",
            student={
                "num_layers": 4,
                "init": "random",
                "hidden_size": 312,
                "num_heads": 12,
                "intermediate_size": 1200,
            },
            terms=_TINYBERT,
            general={
                **_TEXT,
                **_ADAMW,
                "learning_rate": 5e-5,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
                "warmup_share": 0.1,
                "batch_size": 256,
            },
        ),
        DistillationRecipe(
            name="tinybert-task",
            summary="first every layer as tinybert-general, then soft targets at T = 1",
            source="task_distill.py of huawei-noah's TinyBERT; epochs: section 4.2 of the paper",
            student={},
            stages=(
                Stage(name="intermediate", terms=_TINYBERT, epochs=20, learning_rate=5e-5),
                Stage(
                    name="prediction",
                    terms=(_term("soft_targets"),),
                    epochs=3,
                    learning_rate=3e-5,
                ),
            ),
        ),
        DistillationRecipe(
            name="minilm",
            summary="attention and relation of values of the last layer",
            source="section 4.1 of the paper, https://arxiv.org/abs/2002.10957",
            student={"num_layers": 6, "init": "random", "hidden_size": 384, "num_heads": 12,
                     "intermediate_size": 1536},
            terms=(_term("relations"),),
            general={
                **_TEXT,
                **_ADAMW,
                "phases": "512:1",
                "learning_rate": 5e-4,
                "weight_decay": 0.01,
                "clip_norm": 1.0,
                "warmup_share": 0.01,
                "batch_size": 1024,
            },
        ),
        DistillationRecipe(
            name="mobilebert-transfer",
            summary="feature maps, their means and variances, attention: 100, 5000, 5, 1, "
            "layer after layer",
            source="README and code of mobilebert in google-research/google-research",
            student=_MOBILEBERT,
            terms=(
                _term("feature_maps", weight=100.0),
                _term("feature_means", weight=5000.0),
                _term("feature_variances", weight=5.0),
                _term("attention_maps"),
            ),
            general={**_MOBILEBERT_RUN, "decay": "constant", "warmup_share": 0.0},
            progressive=True,
        ),
        DistillationRecipe(
            name="mobilebert",
            summary="first as mobilebert-transfer, then masked words and soft targets, half each, "
            "and next sentences",
            source="README and code of mobilebert in google-research/google-research",
            student=_MOBILEBERT,
            terms=(
                _term("own", weight=0.5, losses=("mlm_loss",)),
                _term("soft_targets", weight=0.5, heads=("masked_lm",)),
                _term("own", losses=("nsp_loss",)),
            ),
            general={**_MOBILEBERT_RUN, "decay": "linear", "warmup_share": 0.02},
            first="mobilebert-transfer",
            first_share=240 / 740,
        ),
    )
}  # fmt: skip


def table() -> str:
    """Formats all recipes as a text table, one line each."""
    rows = []
    for row in DISTILLATIONS.values():
        where = {"text": bool(row.terms), "tasks": bool(row.stages)}
        rows.append([row.name, " and ".join(n for n, on in where.items() if on), row.summary])
    return text_table(["recipe", "on", "what is compared"], rows)
