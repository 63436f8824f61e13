"""MobileBERT's terms: layer-wise knowledge transfer, to all layers at once or one after another.

(Sun et al. 2020, https://arxiv.org/abs/2004.02984, sections 3.3 and 3.4; run_pretraining.py of
mobilebert in google-research/google-research.) They suit a student with the teacher's depth and
with its width between layers.
"""

import dataclasses
from collections.abc import Sequence
from typing import ClassVar

import keras
from keras import ops

from kbert.configs.base import check_count
from kbert.core.types import Pair, Tensor
from kbert.distillation import losses
from kbert.distillation.reading import Reading
from kbert.distillation.terms import INTERNALS, OfLayers, Term, check_equal
from kbert.tasks.encoder_task import EncoderTask
from kbert.training.optimization.layer_rates import layer_phases, phase_of


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerTransfer(OfLayers):
    """A term whose value is a mean over layers, which learn all at once or one after another.

    Args:
        weight: factor of the value in the sum of the terms.
        layers: "uniform", "last" or a list of the teacher's layers, see
            `kbert.distillation.layer_map`.
        steps_per_layer: number of updates in which a single layer learns, from the first to the
            last, as in the published student ("progressive knowledge transfer"); the last layer
            learns until the end of the run. In evaluation all layers count. None = all layers learn
            at once ("joint").
    """

    steps_per_layer: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.steps_per_layer is not None:
            check_count("steps_per_layer", self.steps_per_layer, minimum=1)

    def _joined(
        self, totals: list[Tensor], layers: list[tuple[int, int]], student: Reading
    ) -> Tensor:
        """Returns the mean over the layers, in which only the one that learns now counts."""
        if self.steps_per_layer is not None and student.step is not None:
            depth = student.task.encoder.config.num_layers
            phase = phase_of(student.step, self.steps_per_layer, depth)
            totals = [
                total * ops.cast(ops.equal(phase, ours - 1), "float32")
                for total, (ours, _) in zip(totals, layers, strict=True)
            ]
        return sum(totals) / len(layers)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMaps(LayerTransfer):
    """Squared difference of the layers' hidden states, each normalised over its width.

    (Section 3.3.1. `FeatureMeans` and `FeatureVariances` compare the statistics that normalisation
    removes.) The published weight is 100.
    """

    name = "feature_maps"
    projects: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("feature_maps",)

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        return losses.mean_squares(_normalised(found), _normalised(wanted), real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureMeans(LayerTransfer):
    """Squared difference of the means over the width of the layers' hidden states.

    The published weight is 5,000.
    """

    name = "feature_means"

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        return losses.mean_squares(_moments(found)[0], _moments(wanted)[0], real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureVariances(LayerTransfer):
    """Absolute difference of the variances over the width of the layers' hidden states.

    The published weight is 5.
    """

    name = "feature_variances"

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        difference = ops.abs(_moments(found)[1] - _moments(wanted)[1])[..., 0]
        return ops.sum(difference * real), ops.sum(real)


@dataclasses.dataclass(frozen=True, kw_only=True)
class AttentionMaps(LayerTransfer):
    """KL divergence of the layers' attention, averaged over heads for each token (section 3.3.2).

    The published weight is 1.
    """

    name = "attention_maps"
    compares: ClassVar[str] = "scores"
    returned = INTERNALS
    shown: ClassVar[tuple[str, ...]] = ("attention_maps",)

    def check(self, student: EncoderTask, teacher: EncoderTask) -> None:
        super().check(student, teacher)
        check_equal(student, teacher, "num_heads", "Attention is compared head by head")

    def compare(self, found: Tensor, wanted: Tensor, real: Tensor, student: Reading) -> Pair:
        return losses.relation_divergence(found, wanted, student.numbered(real), real)


def progressive(terms: Sequence[Term], student: EncoderTask, steps: int) -> tuple[Term, ...]:
    """Returns the terms with `steps_per_layer` = steps / layers, so that layers share a run.

    Terms that are no `LayerTransfer` are returned as they are.

    Args:
        terms: terms of a loss.
        student: task whose layers learn one after another.
        steps: number of updates of the run.

    Raises:
        ValueError: there are fewer steps than layers.
    """
    num_layers = student.encoder.config.num_layers
    if steps < num_layers:
        raise ValueError(
            f"Training layers in turn requires at least one step per layer, {num_layers} or more. "
            f"Received: {steps} steps"
        )
    return tuple(
        dataclasses.replace(term, steps_per_layer=steps // num_layers)
        if isinstance(term, LayerTransfer)
        else term
        for term in terms
    )


def rate_scales(
    terms: Sequence[Term], student: EncoderTask
) -> dict[str, float | keras.optimizers.schedules.LearningRateSchedule]:
    """Returns factors of the learning rate for layers that learn one after another.

    A layer learns at three times the rate in its own phase, at 0.3 times the rate after it, and not
    before it. Embeddings and heads do not learn (`layer_phases`).

    Args:
        terms: terms of the loss.
        student: task to train.

    Returns:
        Path of a weight -> factor, for `kbert.training.AdamW(rate_scales=…)`; empty if no term is
        progressive.

    Raises:
        ValueError: two terms have different `steps_per_layer`.
    """
    layer_steps = (term.steps_per_layer for term in terms if isinstance(term, LayerTransfer))
    steps = {number for number in layer_steps if number is not None}
    if not steps:
        return {}
    if len(steps) > 1:
        raise ValueError(
            "All terms must have the same steps_per_layer. Received: steps_per_layer="
            f"{', '.join(map(str, sorted(steps)))}"
        )
    return {
        **{weight.path: 0.0 for weight in student.trainable_weights},
        **layer_phases(student.encoder, steps.pop()),
    }


def _moments(x: Tensor) -> tuple[Tensor, Tensor]:
    """Returns mean and variance over the last axis, (…, 1) float32 each."""
    x = ops.cast(x, "float32")
    mean = ops.mean(x, axis=-1, keepdims=True)
    return mean, ops.mean(ops.square(x - mean), axis=-1, keepdims=True)


def _normalised(x: Tensor) -> Tensor:
    mean, variance = _moments(x)
    return (ops.cast(x, "float32") - mean) * ops.rsqrt(variance + 1e-12)
