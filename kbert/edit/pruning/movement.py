"""Movement pruning: kernels lose the weights that training moves towards zero.

(Sanh, Wolf & Rush 2020, "Movement Pruning: Adaptive Sparsity by Fine-Tuning",
https://arxiv.org/abs/2005.07683, section 4.)

scored = kbert.edit.pruning.with_movement(task)
pruning = kbert.edit.pruning.MovementPruning(0.85, begin_step=500, end_step=2500)
scored.fit(texts, labels, epochs=6, callbacks=[pruning])
sparse = kbert.edit.pruning.apply_movement(scored)

Shapes: `n` weights of a kernel, or of all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from absl import logging

from kbert.core.graphs import graph
from kbert.core.late import tf
from kbert.core.options import option
from kbert.core.types import Arrays, Logs
from kbert.edit.base import check_edit, products
from kbert.edit.movement import Movement
from kbert.edit.pruning.rebuilding import with_edit, without_edit
from kbert.edit.pruning.schedule import GradualPruning, PruningSettings

_SCORES, _MASK = f"/{Movement.kind}/scores", f"/{Movement.kind}/mask"
_KERNEL = "/kernel"
# Of the weights in one update, three times the cubic schedule's mean. MiniLM learns at 0.012 %
# and collapses at 0.33 % (docs/pruning.md).
_MOST_AT_ONCE = 3e-4


def with_movement(model: Any) -> Any:
    """The same model, or task, with the edit "movement" (`kbert.edit.Movement`).

    Each kernel of a dense layer in the blocks has scores, which are trained with it, and a mask,
    which a `MovementPruning` in `fit` chooses by them; one of both for each weight. Nothing is
    masked before, so the outputs are those of the model. It is saved, loaded and resumed like any
    other. Of each weight there are three numbers in place of one; seven with AdamW's moments, in
    place of three.

    Args:
        model: a `kbert.Encoder` of any family, a `kbert.Decoder`, or a task on one; it stays as it
            is.

    Returns:
        A new one, not compiled.

    Raises:
        TypeError: the model is neither.
        ValueError: it has scores already, adapters, or an edit that comes behind them; or its
            class takes no edits.

    Example:
        >>> import kbert
        >>> encoder = with_movement(kbert.Encoder(kbert.family("bert-tiny")))
        >>> dict(encoder.config.edits[0])
        {'kind': 'movement'}
        >>> apply_movement(encoder).config.edits
        ()
    """
    return with_edit(model, Movement.kind, _with_scores)


def apply_movement(model: Any) -> Any:
    """The model without scores and masks: what was masked is 0 in its kernels.

    The outputs are the same. It is an ordinary one, of any format; `sparsity` counts its zeros.

    Args:
        model: what `with_movement` gave, or a preset of it; it stays as it is.

    Returns:
        A new encoder or task, not compiled.

    Raises:
        TypeError: the model is neither an encoder nor a task on one.
        ValueError: it has no such edit.
    """
    return without_edit(model, Movement.kind, "with_movement", _masked)


class MovementSettings(PruningSettings):
    """Of `MovementPruning`.

    Args:
        {options}
    """

    globally: bool = option(
        False, help="Whether the share is of all kernels together, and not of each: some lose more."
    )


class MovementPruning(GradualPruning):
    """A callback of `fit` that masks ever more of the weights that move towards zero.

    Of every kernel those with the lowest scores are masked, by the cubic schedule of
    `MagnitudePruning`. The paper's warm-up is the updates before `begin_step`, its cool-down those
    after `end_step`, in which the share stays. A score grows where training moves its weight away
    from zero, and falls where towards zero (see `kbert.layers.movement`). A masked weight stays as
    it is, but for weight decay; its score goes on learning, so that it may come back. Masks are
    chosen anew every `frequency` updates, to the end of the run: 1 is the paper's, more save time.
    From `end_step` on exactly `round(sparsity · n)` of a kernel's n weights are masked.

    Of weights with equal scores, such as all before the first update and those of frozen layers,
    the smallest in absolute value are masked first.

    Scores count by their order alone, and they begin at 0: by AdamW, or any optimizer whose steps
    are proportional to its rate, the masks are the same whatever the scores' learning rate is. So
    they have that of the weights; the paper's own, 1e-2, chooses no others. They do not decay. A
    kernel of queries, keys and values counts as one, where the paper has three.

    It is for fine-tuning a pretrained model to few weights: in the paper it is better than
    magnitudes where less than 15% are left, and worse where more than 70% are (section 6).

    Steps are updates that the optimizer has made; `fit` makes a new one where `compile` was not
    called. Evaluations before `end_step` do not count for the best weights of a run. Scores and
    masks are saved with the weights: a run that was ended resumes exactly.

    Args:
        {options}

    Raises:
        ValueError: a value out of range; in `fit`: steps beyond those of the run, a model without
            scores, or another backend than TensorFlow.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> task = with_movement(task)
        >>> pruning = MovementPruning(0.75, end_step=3)
        >>> _ = task.fit(["good", "bad"], ["yes", "no"], epochs=4, verbose=0, callbacks=[pruning])
        >>> sorted(set(kbert.edit.pruning.sparsity(apply_movement(task)).values()))
        [0.75]
    """

    settings_class = MovementSettings

    def __init__(self, sparsity: float, **settings: Any) -> None:
        super().__init__(sparsity, **settings)
        self._groups: list[list[Any]] = []  # dense layers with scores

    def prepare(self, model: Any) -> Any:
        """`with_movement`."""
        return with_movement(model)

    def finish(self, model: Any) -> Any:
        """`apply_movement`."""
        return apply_movement(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        steepest = 3 * self.settings.sparsity / (self.end_step - self.begin_step)
        if steepest > _MOST_AT_ONCE:
            logging.warning(
                "Up to %.2g %% of the weights are masked in one update, all of them in the "
                "direction of the gradient: more than %.2g %% has made models learn nothing. "
                "Take more updates, or prune by magnitude",
                *(100 * steepest, 100 * _MOST_AT_ONCE),
            )
        layers = _scored(self.model)
        self._groups = [layers] if self.settings.globally else [[layer] for layer in layers]

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        # Before an update and not after it, as of MagnitudePruning.
        step = self.step
        reached = step >= self.end_step
        # An optimizer may begin behind `end_step`; a run that resumes there has its choice already.
        late = reached and not self.may_be_best and not self._has_all()
        if self.is_due(step) or step == self.end_step or late:
            for group in self._groups:
                _choose(group, self.sparsity_after(step))
        self.may_be_best = reached

    def on_train_end(self, logs: Logs = None) -> None:
        super().on_train_end(logs)
        self._groups = []

    def _has_all(self) -> bool:
        """Whether as many weights are masked as at the end."""
        for group in self._groups:
            masks = [layer.movement.mask.numpy() for layer in group]
            masked = sum(int((mask == 0).sum()) for mask in masks)
            if masked != round(self.settings.sparsity * sum(mask.size for mask in masks)):
                return False
        return True


def _scored(model: Any) -> list[Any]:
    """The dense layers with scores of a task, or of a distiller's student."""
    task = getattr(model, "student", model)
    found = getattr(task, "model", task)
    edits = getattr(getattr(found, "config", None), "edits", ())
    check_edit(edits, Movement.kind, "with_movement")
    return products(found)


def _with_scores(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    new = {name: np.zeros(shapes[name], "float32") for name in shapes if name.endswith(_SCORES)}
    new |= {name: np.ones(shapes[name], "float32") for name in shapes if name.endswith(_MASK)}
    return {**arrays, **new}


def _masked(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    found = {name: arrays[name] for name in shapes}
    for name, mask in arrays.items():
        if name.endswith(_MASK):
            kernel = name.removesuffix(_MASK) + _KERNEL
            found[kernel] = np.where(mask == 0, 0, arrays[kernel]).astype("float32")
    return found


def _choose(layers: list[Any], share: float) -> None:
    """Masks that share of the weights of some layers, taken together."""
    scores = [tf.reshape(layer.movement.scores.value, [-1]) for layer in layers]
    sizes = [tf.abs(tf.reshape(layer.kernel.value, [-1])) for layer in layers]
    number = sum(x.shape[0] for x in scores)
    left = _highest(tf.concat(scores, 0), tf.concat(sizes, 0), number - round(share * number))
    parts = tf.split(left, [x.shape[0] for x in scores])
    for layer, part in zip(layers, parts, strict=True):
        mask = layer.movement.mask
        mask.assign(tf.reshape(part, mask.shape))


def _chosen(scores: tf.Tensor, sizes: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """(n,), 1 for so many of the highest scores; of equal ones the larger weight, then the first.

    Exactly so many, however many are equal: at the start all are.
    """
    lowest = _nth(scores, number)
    tied = scores == lowest
    wanted = number - _count(scores > lowest)

    def of_tied() -> tf.Tensor:
        those = tf.where(tied, sizes, -1.0)
        smallest = _nth(those, wanted)
        level = those == smallest
        rest = wanted - _count(those > smallest)
        return (those > smallest) | (level & (tf.cumsum(tf.cast(level, tf.int32)) <= rest))

    kept = tf.cond(_count(tied) == wanted, lambda: tied, of_tied)
    return tf.cast((scores > lowest) | kept, tf.float32)


def _highest(scores: Any, sizes: Any, number: Any) -> tf.Tensor:
    return _graph()(scores, sizes, number)


@functools.cache
def _graph() -> Callable:
    """One graph for all kernels, on the device where they are."""
    values = tf.TensorSpec([None], tf.float32)
    specs = [values, values, tf.TensorSpec([], tf.int32)]
    return graph(_chosen, autograph=False, input_signature=specs)


def _nth(values: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """The number-th highest of some float32 values.

    Found bit by bit, for floats are in the order of their bits, the negative ones backwards: 32
    passes over memory, where TensorFlow's sort takes six times as long on a CPU.
    """
    keys = _swapped(tf.bitcast(values, tf.int32))
    found = tf.constant(-(2**31), tf.int32)
    for bit in range(31, -1, -1):
        # Of the sign's bit the higher half are those without it.
        higher = tf.zeros([], tf.int32) if bit == 31 else found + (1 << bit)
        found = tf.where(_count(keys >= higher) >= number, higher, found)
    return tf.bitcast(_swapped(found), tf.float32)


def _swapped(bits: tf.Tensor) -> tf.Tensor:
    return tf.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _count(chosen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(chosen, tf.int32))
