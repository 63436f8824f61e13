"""Terms of a distillation loss: what they compare, and with which weight.

A term takes the outputs of student and teacher for the same batch (`Reading`) and returns pairs by
name. Its `returned` requests the additional outputs of the encoders that it needs; no others are
computed.

Layers are counted as in the papers: blocks from 1; 0 are the embeddings.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from kbert.configs.base import check_count, check_real
from kbert.core.types import Pair, Tensor
from kbert.distillation import losses
from kbert.distillation.layer_maps import layer_map
from kbert.distillation.reading import Reading
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.losses import Prediction

HIDDEN = {"return_hidden_states": True}
INTERNALS = {"return_internals": True}
POSITIONS = ("masked", "all")
RELATIONS = ("attention", "query", "key", "value")
INTERNAL_OF = {"attention": "scores"}  # others have the same name as the internal tensor


@dataclasses.dataclass(frozen=True, kw_only=True)
class Term:
    """A term of the loss.

    Args:
        weight: factor of its value in the sum of the terms.
    """

    weight: float = 1.0

    # Additional outputs of the encoders that it needs, and whether it compares heads.
    returned: ClassVar[Mapping[str, bool]] = {}
    reads_heads: ClassVar[bool] = False
    # Names of its values on a progress line.
    shown: ClassVar[tuple[str, ...]] = ()
    # Whether it compares hidden states of different widths.
    projects: ClassVar[bool] = False
    # Fields that were added after the first version.
    LATER: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        check_real("weight", self.weight, "above 0", lambda x: x > 0)

    @property
    def record(self) -> str:
        """The term and its settings, for the record of a run.

        Fields in `LATER` are left out if they have their default, so that older runs can resume.
        """
        settings = ", ".join(
            f"{field.name}={getattr(self, field.name)!r}"
            for field in dataclasses.fields(self)
            if field.name not in self.LATER or getattr(self, field.name) != field.default
        )
        return f"{type(self).__name__}({settings})"

    def check(self, student: EncoderTask, teacher: EncoderTask) -> None:
        """Raises ValueError if the term cannot compare these two models; here it never does."""

    def reads_of(self, teacher: EncoderTask, student: EncoderTask) -> set[str]:
        """Returns the teacher's outputs, other than heads, that the term compares; for a cache.

        "hidden_states/0" are the embeddings and "hidden_states/2" the output of block 2. The
        internals of its attention are "scores/2", "query/2", "key/2" and "value/2".
        """
        return set()

    def pairs(
        self, student: Reading, teacher: Reading, real: Tensor, project: Callable[[Tensor], Tensor]
    ) -> dict[str, Pair]:
        """Returns the values of the term, without its weight.

        Args:
            student: the student's outputs for the batch.
            teacher: the teacher's outputs for the batch.
            real: weight of each token, (R, T) float32 for R rows of the encoder: 1, or the weight
                of its row, and 0 for padding.
            project: function that maps the student's hidden states to the teacher's width.

        Returns:
            Name -> (weighted sum, sum of weights), scalars. The loss is the sum of their
            quotients.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `pairs`.")


@dataclasses.dataclass(frozen=True, kw_only=True)
class OwnLoss(Term):
    """The student's own loss, as without a teacher: masked words or labels.

    For a fine-tuned decoder it is the loss of the task, without the auxiliary language-model loss.

    Args:
        weight: factor of the value in the sum of the terms.
        losses: names of the student's losses to add up; empty = all.
    """

    losses: Sequence[str] = ()

    reads_heads: ClassVar[bool] = True
    LATER: ClassVar[tuple[str, ...]] = ("losses",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "losses", tuple(self.losses))

    def chosen(self, own: Mapping[str, Pair]) -> dict[str, Pair]:
        """Returns those of the student's losses `own`, by name, that the setting `losses` selects.

        Raises:
            ValueError: the student has no loss with one of the names.
        """
        if unknown := [name for name in self.losses if name not in own]:
            raise ValueError(
                f"`losses` must be names of the student's losses, {', '.join(own)}. "
                f"Received: losses={', '.join(unknown)}"
            )
        return {name: pair for name, pair in own.items() if name in self.losses or not self.losses}


@dataclasses.dataclass(frozen=True, kw_only=True)
class SoftTargets(Term):
    """Distance to the teacher's predicted distributions, for every head that both have.

    Classes are compared by KL · T² (see `losses.soft_targets`), numbers by squared difference.

    Args:
        weight: factor of the value in the sum of the terms.
        temperature: temperature T; 2 in DistilBERT, 1 in TinyBERT.
        positions: positions of a masked-LM head. "masked" compares masked tokens only. "all"
            compares every token, as DistilBERT's training did, with seven times the compute of the
            head. It has no effect on other tasks.
        heads: names of the heads to compare; empty = all that both have.
    """

    temperature: float = 1.0
    positions: str = "masked"
    heads: Sequence[str] = ()

    reads_heads: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("soft_targets", "agreement")
    LATER: ClassVar[tuple[str, ...]] = ("heads",)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "heads", tuple(self.heads))
        check_real("temperature", self.temperature, "above 0", lambda x: x > 0)
        if self.positions not in POSITIONS:
            raise ValueError(
                f"`positions` must be one of {POSITIONS}. Received: {self.positions!r}"
            )

    def pairs(
        self, student: Reading, teacher: Reading, real: Tensor, project: Callable[[Tensor], Tensor]
    ) -> dict[str, Pair]:
        pairs, shared = {}, [*_shared(student, teacher)]
        names = [name for name, *_ in shared]
        if not set(self.heads) <= {*names}:
            raise ValueError(
                f"`heads` must be heads that student and teacher share: {', '.join(names)}. "
                f"Received: {self.heads}"
            )
        for name, ours, theirs in shared:
            if self.heads and name not in self.heads:
                continue
            if self.positions == "all" and name == "masked_lm":
                ours = student.masked_lm_everywhere(real)
                theirs = teacher.masked_lm_everywhere(real)
            pairs[_named("soft_targets", name, student)] = self._pair(ours, theirs)
        return pairs

    def _pair(self, ours: Prediction, theirs: Prediction) -> Pair:
        """Compares the student's prediction of one head with the teacher's."""
        values = ours.values, theirs.values, ours.weights
        if ours.kind == "number":
            student, teacher, weights = values
            return losses.mean_squares(student[..., None], teacher[..., None], weights)
        compare = losses.soft_targets if ours.kind == "classes" else losses.soft_labels
        return compare(*values, self.temperature)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LastHiddenCosine(Term):
    """1 - cosine similarity of the last hidden states of each token (DistilBERT, section 2)."""

    shown: ClassVar[tuple[str, ...]] = ("hidden_cosine",)

    def check(self, student: EncoderTask, teacher: EncoderTask) -> None:
        check_equal(student, teacher, "hidden_size", "A cosine requires vectors of the same width")

    def reads_of(self, teacher: EncoderTask, student: EncoderTask) -> set[str]:
        return {f"hidden_states/{teacher.encoder.config.num_layers}"}

    def pairs(
        self, student: Reading, teacher: Reading, real: Tensor, project: Callable[[Tensor], Tensor]
    ) -> dict[str, Pair]:
        vectors = student.outputs["sequence"], teacher.outputs["sequence"]
        return {"hidden_cosine": losses.cosine_distance(*vectors, real)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbeddingLoss(Term):
    """Squared difference of the embedding layers' outputs (TinyBERT, equation 9)."""

    returned: ClassVar[Mapping[str, bool]] = HIDDEN
    projects: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("embeddings",)

    @property
    def record(self) -> str:
        # Its former name, so that runs of the previous version can resume.
        return f"Embeddings(weight={self.weight!r})"

    def reads_of(self, teacher: EncoderTask, student: EncoderTask) -> set[str]:
        return {"hidden_states/0"}

    def pairs(
        self, student: Reading, teacher: Reading, real: Tensor, project: Callable[[Tensor], Tensor]
    ) -> dict[str, Pair]:
        ours, theirs = (reading.outputs["hidden_states"][0] for reading in (student, teacher))
        return {"embeddings": losses.mean_squares(project(ours), theirs, real)}


@dataclasses.dataclass(frozen=True, kw_only=True)
class OfLayers(Term):
    """A term that sums a comparison over pairs of a student's and a teacher's layer.

    Args:
        weight: factor of the value in the sum of the terms.
        layers: "uniform", "last" or a list of the teacher's layers, see
            `kbert.distillation.layer_map`.
    """

    layers: str | Sequence[int | None] = "uniform"

    name: ClassVar[str]  # name of the value
    # Output of a layer that the term compares, see `Term.reads_of`.
    compares: ClassVar[str] = "hidden_states"
    returned: ClassVar[Mapping[str, bool]] = HIDDEN

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.layers, str):
            object.__setattr__(self, "layers", tuple(self.layers))

    def check(self, student: EncoderTask, teacher: EncoderTask) -> None:
        self.pairs_of_layers(student, teacher)

    def reads_of(self, teacher: EncoderTask, student: EncoderTask) -> set[str]:
        return {f"{self.compares}/{layer}" for _, layer in self.pairs_of_layers(student, teacher)}

    def pairs_of_layers(self, student: EncoderTask, teacher: EncoderTask) -> list[tuple[int, int]]:
        """Returns the (student's layer, teacher's layer) pairs of `layers`, both counted from 1."""
        depths = (task.encoder.config.num_layers for task in (student, teacher))
        layer_pairs = enumerate(layer_map(self.layers, *depths), start=1)
        return [(ours, theirs) for ours, theirs in layer_pairs if theirs is not None]

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        """Returns the loss of one layer of the student, as weighted sum and sum of weights.

        Args:
            found: hidden states (B, T, H) or attention scores of the student's layer.
            wanted: hidden states or attention scores of the teacher's layer.
            real: weights (B, T) of the tokens, 0 for padding.
            student: all outputs of the student.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `compare`.")

    def pairs(
        self, student: Reading, teacher: Reading, real: Tensor, project: Callable[[Tensor], Tensor]
    ) -> dict[str, Pair]:
        layers = self.pairs_of_layers(student.task, teacher.task)
        pairs = []
        for ours, theirs in layers:
            found, wanted = self._read(student, ours), self._read(teacher, theirs)
            found = project(found) if self.projects else found
            pairs.append(self.compare(found, wanted, real, student))
        total = self._joined([total for total, _ in pairs], layers, student)
        return {self.name: (total, pairs[0][1])}  # the weights are the same in every layer

    def _read(self, reading: Reading, layer: int) -> Tensor:
        if self.compares == "scores":
            return reading.outputs["internals"][layer - 1]["scores"]
        return reading.outputs["hidden_states"][layer]

    def _joined(
        self, totals: list[Tensor], layers: list[tuple[int, int]], student: Reading
    ) -> Tensor:
        """Returns the sum of the layers' totals."""
        return sum(totals)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenStates(OfLayers):
    """Squared difference of hidden states, layer by layer (TinyBERT, equation 8)."""

    name = "hidden_states"
    projects: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("hidden_states",)

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        return losses.mean_squares(found, wanted, real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionScores(OfLayers):
    """Squared difference of attention scores before the softmax (TinyBERT, equation 7)."""

    name = "attention_scores"
    compares: ClassVar[str] = "scores"
    returned: ClassVar[Mapping[str, bool]] = INTERNALS
    shown: ClassVar[tuple[str, ...]] = ("attention_scores",)

    def check(self, student: EncoderTask, teacher: EncoderTask) -> None:
        super().check(student, teacher)
        check_equal(student, teacher, "num_heads", "Attention scores are compared head by head")

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        return losses.score_squares(found, wanted, student.numbered(real), real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionRelations(Term):
    """KL divergence of token relations in the student's last layer and one layer of the teacher.

    MiniLM (https://arxiv.org/abs/2002.10957) compares the attention of both last layers and the
    dot products of their values. MiniLMv2 (https://arxiv.org/abs/2012.15828) compares dot products
    of queries, of keys and of values, with any number of heads. Neither needs equal widths.

    Args:
        weight: factor of the values in the sum of the terms.
        relations: one or more of "attention", "query", "key" and "value".
        num_relation_heads: number of heads that queries, keys and values are split into; None = the
            models' own.
        teacher_layer: layer of the teacher, counted from 1; None = the last. The paper uses the
            21st of a teacher with 24 layers.
    """

    relations: Sequence[str] = ("attention", "value")
    num_relation_heads: int | None = None
    teacher_layer: int | None = None

    returned: ClassVar[Mapping[str, bool]] = INTERNALS

    @property
    def shown(self) -> tuple[str, ...]:  # type: ignore[override]  # by the object's relations
        return tuple(f"{name}_relation" for name in self.relations)

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "relations", tuple(self.relations))
        unknown = [name for name in self.relations if name not in RELATIONS]
        if unknown or not self.relations:
            raise ValueError(
                f"`relations` must be one or more of {', '.join(RELATIONS)}. "
                f"Received: {self.relations}"
            )
        for name in ("num_relation_heads", "teacher_layer"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name), minimum=1)

    def check(self, student: EncoderTask, teacher: EncoderTask) -> None:
        depth = teacher.encoder.config.num_layers
        if self.teacher_layer is not None and self.teacher_layer > depth:
            raise ValueError(
                f"teacher_layer must be from 1 to {depth} (the teacher's layers). Received: "
                f"teacher_layer={self.teacher_layer}"
            )
        if "attention" in self.relations or self.num_relation_heads is None:
            rule = "Attention, and relations without num_relation_heads, are compared head by head"
            check_equal(student, teacher, "num_heads", rule)
        for task in (student, teacher):
            width = task.encoder.config.hidden_size
            if self.num_relation_heads is not None and width % self.num_relation_heads:
                raise ValueError(
                    "num_relation_heads must divide the hidden widths of both models. Received: "
                    f"num_relation_heads={self.num_relation_heads}, hidden_size={width}"
                )

    def reads_of(self, teacher: EncoderTask, student: EncoderTask) -> set[str]:
        layer = self.teacher_layer or teacher.encoder.config.num_layers
        return {f"{INTERNAL_OF.get(name, name)}/{layer}" for name in self.relations}

    def pairs(
        self, student: Reading, teacher: Reading, real: Tensor, project: Callable[[Tensor], Tensor]
    ) -> dict[str, Pair]:
        ours = student.outputs["internals"][-1]
        theirs = teacher.outputs["internals"][(self.teacher_layer or 0) - 1]
        return {
            f"{name}_relation": losses.relation_divergence(
                self._scores(ours, name), self._scores(theirs, name), student.numbered(real), real
            )
            for name in self.relations
        }

    def _scores(self, internals: Mapping[str, Tensor], name: str) -> Tensor:
        """Returns the scores (R, heads, T, T) of a relation from the internals of a layer."""
        if name in INTERNAL_OF:
            return internals[INTERNAL_OF[name]]
        return losses.relation(internals[name], self.num_relation_heads)


def agreements(student: Reading, teacher: Reading) -> dict[str, Pair]:
    """Returns how often both models predict the same class, for each shared classification head.

    Returns:
        "agreement", with the head's name if there are several -> (weighted count, sum of weights).
    """
    return {
        _named("agreement", name, student): losses.agreement(
            ours.values, theirs.values, ours.weights
        )
        for name, ours, theirs in _shared(student, teacher)
        if ours.kind == "classes"
    }


def _shared(student: Reading, teacher: Reading) -> list[tuple[str, Prediction, Prediction]]:
    """Returns (name, student's prediction, teacher's prediction) for each head that both have."""
    shared_names = (name for name in student.predictions if name in teacher.predictions)
    return [(name, student.predictions[name], teacher.predictions[name]) for name in shared_names]


def _named(what: str, head: str, student: Reading) -> str:
    """Returns the name `what` of a value, with the head's name if the student has several."""
    return what if len(student.predictions) == 1 else f"{what}_{head}"


def check_equal(student: EncoderTask, teacher: EncoderTask, field: str, rule: str) -> None:
    """Raises ValueError unless both models agree in a field of their configs; `rule` says why."""
    ours, theirs = (getattr(task.encoder.config, field) for task in (student, teacher))
    if ours != theirs:
        raise ValueError(
            f"{rule}: student and teacher must agree in {field}. Received: {ours} and {theirs}"
        )
