"""Movement pruning: masks the weights that training moves towards zero.

(Sanh, Wolf & Rush 2020, "Movement Pruning: Adaptive Sparsity by Fine-Tuning",
https://arxiv.org/abs/2005.07683, section 4.)

scored = kbert.edit.pruning.with_movement(task)
pruning = kbert.edit.pruning.MovementPruning(0.85, begin_step=500, end_step=2500)
scored.fit(texts, labels, epochs=6, callbacks=[pruning])
sparse = kbert.edit.pruning.apply_movement(scored)

Shapes: `n` weights of one kernel, or of all kernels.
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
# Share of the weights masked in one update above which `fit` warns. The cubic schedule reaches
# three times its mean. MiniLM learns at 0.012 % and collapses at 0.33 % (docs/pruning.md).
_MOST_AT_ONCE = 3e-4


def with_movement(model: Any) -> Any:
    """Returns a copy of a model or task with the edit "movement" (`kbert.edit.Movement`).

    In each dense layer of the blocks, every weight of the kernel gets a score and a mask entry. The
    scores are trained with the kernel, and `MovementPruning` in `fit` sets the mask by them. At
    first nothing is masked, so the outputs do not change. The model is saved, loaded and resumed
    like any other. There are three numbers per weight instead of one; with AdamW's moments, seven
    instead of three.

    Args:
        model: a `kbert.Encoder` of any family, a `kbert.Decoder`, or a task on one; it is not
            changed.

    Returns:
        A new encoder, decoder or task, not compiled.

    Raises:
        TypeError: the model is none of these.
        ValueError: it has scores already, adapters, or an edit that must come after the scores; or
            its class does not support edits.

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
    """Returns a copy without scores and masks, with masked weights set to 0 in the kernels.

    The outputs are the same. The copy is an ordinary model, and can be saved and exported in any
    format; `sparsity` returns its share of zeros.

    Args:
        model: result of `with_movement`, or a preset of it; it is not changed.

    Returns:
        A new encoder, decoder or task, not compiled.

    Raises:
        TypeError: the model is no encoder, decoder or task on one.
        ValueError: it has no such edit.
    """
    return without_edit(model, Movement.kind, "with_movement", _masked)


class MovementSettings(PruningSettings):
    """Settings of `MovementPruning`.

    Args:
        {options}
    """

    globally: bool = option(
        False,
        help="Whether the share is of all kernels together instead of each kernel: some lose more.",
    )


class MovementPruning(GradualPruning):
    """A callback of `fit` that gradually masks the weights that move towards zero.

    In each kernel, the weights with the lowest scores are masked, by the cubic schedule of
    `MagnitudePruning`. The updates before `begin_step` are the paper's warm-up. Those after
    `end_step` are its cool-down, in which the share of masked weights stays the same. A score grows
    where training moves its weight away from zero, and falls where it moves towards zero (see
    `kbert.edit.movement`). A masked weight changes by weight decay only. Its score is still
    trained, so the weight may return. Masks are chosen again every `frequency` updates until the
    end of the run: 1 is the paper's value, larger values save time. From `end_step` on exactly
    `round(sparsity · n)` of a kernel's n weights are masked.

    Among equal scores, the weights with the smallest absolute values are masked first. All scores
    are equal before the first update, and those of frozen layers stay so.

    Only the order of the scores matters, and they start at 0. So with AdamW, or any optimizer whose
    steps are proportional to the learning rate, the scores' learning rate does not affect the
    masks. The scores therefore use the learning rate of the weights; the paper's own, 1e-2, would
    give the same masks. The scores do not decay. The joint kernel of queries, keys and values
    counts as one kernel, where the paper has three.

    Use it to fine-tune a pretrained model to few weights. In the paper it is better than magnitude
    pruning if less than 15% of the weights are left, and worse if more than 70% are (section 6).

    Steps are updates of the optimizer; without `compile`, `fit` creates a new optimizer.
    Evaluations before `end_step` do not count for the best weights of a run. Scores and masks are
    saved with the weights, so that an interrupted run resumes exactly.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range; in `fit`: `end_step` is not before the end of the run,
            the model has no scores, or the backend is not TensorFlow.

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
        """Returns `with_movement(model)`."""
        return with_movement(model)

    def finish(self, model: Any) -> Any:
        """Returns `apply_movement(model)`."""
        return apply_movement(model)

    def on_train_begin(self, logs: Logs = None) -> None:
        super().on_train_begin(logs)
        steepest = 3 * self.settings.sparsity / (self.end_step - self.begin_step)
        if steepest > _MOST_AT_ONCE:
            logging.warning(
                "Up to %.2g %% of the weights are masked in one update, all of them in the "
                "direction of the gradient: with more than %.2g %%, models have failed to learn. "
                "Use more updates, or prune by magnitude",
                *(100 * steepest, 100 * _MOST_AT_ONCE),
            )
        layers = _scored(self.model)
        self._groups = [layers] if self.settings.globally else [[layer] for layer in layers]

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        # Before an update, not after it, as in MagnitudePruning.
        step = self.step
        is_reached = step >= self.end_step
        # An optimizer may start after `end_step`; a run that resumes there has its masks already.
        starts_late = is_reached and not self.may_be_best and not self._has_all()
        if self.is_due(step) or step == self.end_step or starts_late:
            for group in self._groups:
                _choose(group, self.sparsity_after(step))
        self.may_be_best = is_reached

    def on_train_end(self, logs: Logs = None) -> None:
        super().on_train_end(logs)
        self._groups = []

    def _has_all(self) -> bool:
        """Whether as many weights are masked as `sparsity` demands at the end."""
        for group in self._groups:
            masks = [layer.movement.mask.numpy() for layer in group]
            masked = sum(int((mask == 0).sum()) for mask in masks)
            if masked != round(self.settings.sparsity * sum(mask.size for mask in masks)):
                return False
        return True


def _scored(model: Any) -> list[Any]:
    """Returns the dense layers with scores of a model, a task or a distiller's student.

    Raises:
        ValueError: the model has no edit "movement".
    """
    task = getattr(model, "student", model)
    encoder = getattr(task, "model", task)
    edits = getattr(getattr(encoder, "config", None), "edits", ())
    check_edit(edits, Movement.kind, "with_movement")
    return products(encoder)


def _with_scores(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    """Returns the arrays plus scores of 0 and masks of 1; a `Cut`, see `rebuilding`."""
    added_arrays = {
        name: np.zeros(shapes[name], "float32") for name in shapes if name.endswith(_SCORES)
    }
    added_arrays |= {
        name: np.ones(shapes[name], "float32") for name in shapes if name.endswith(_MASK)
    }
    return {**arrays, **added_arrays}


def _masked(arrays: dict[str, np.ndarray], shapes: Mapping[str, Any]) -> Arrays:
    """Returns the arrays of the model without the edit, with 0 for masked weights; a `Cut`.

    Args:
        arrays: name -> array of the model with scores and masks.
        shapes: name -> shape in the model without them.
    """
    new_arrays = {name: arrays[name] for name in shapes}
    for name, mask in arrays.items():
        if name.endswith(_MASK):
            kernel_name = name.removesuffix(_MASK) + _KERNEL
            new_arrays[kernel_name] = np.where(mask == 0, 0, arrays[kernel_name]).astype("float32")
    return new_arrays


def _choose(layers: list[Any], share: float) -> None:
    """Sets the masks of several dense layers: masks the weights with the lowest scores.

    A share (0 to 1) of all their weights is masked, ranked together.
    """
    scores = [tf.reshape(layer.movement.scores.value, [-1]) for layer in layers]
    sizes = [tf.abs(tf.reshape(layer.kernel.value, [-1])) for layer in layers]
    num_weights = sum(x.shape[0] for x in scores)
    mask_values = _highest(
        tf.concat(scores, 0), tf.concat(sizes, 0), num_weights - round(share * num_weights)
    )
    parts = tf.split(mask_values, [x.shape[0] for x in scores])
    for layer, part in zip(layers, parts, strict=True):
        mask = layer.movement.mask
        mask.assign(tf.reshape(part, mask.shape))


def _chosen(scores: tf.Tensor, sizes: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns (n,) float32: 1 for the `number` highest scores, 0 for the rest.

    Among equal scores the larger weight is chosen, then the first. Exactly `number` are chosen,
    even if many scores are equal: at the start all are.

    Args:
        scores: scores (n,).
        sizes: absolute values (n,) of the weights.
        number: how many are chosen, an int32 scalar.
    """
    lowest = _nth(scores, number)
    is_tied = scores == lowest
    num_tied_chosen = number - _count(scores > lowest)

    def choose_ties() -> tf.Tensor:
        tied_sizes = tf.where(is_tied, sizes, -1.0)
        smallest = _nth(tied_sizes, num_tied_chosen)
        is_at_level = tied_sizes == smallest
        num_at_level = num_tied_chosen - _count(tied_sizes > smallest)
        return (tied_sizes > smallest) | (
            is_at_level & (tf.cumsum(tf.cast(is_at_level, tf.int32)) <= num_at_level)
        )

    chosen_ties = tf.cond(_count(is_tied) == num_tied_chosen, lambda: is_tied, choose_ties)
    return tf.cast((scores > lowest) | chosen_ties, tf.float32)


def _highest(scores: Any, sizes: Any, number: Any) -> tf.Tensor:
    return _graph()(scores, sizes, number)


@functools.cache
def _graph() -> Callable:
    """Returns the graph of `_chosen`: one for kernels of all sizes, which runs on their device."""
    values = tf.TensorSpec([None], tf.float32)
    specs = [values, values, tf.TensorSpec([], tf.int32)]
    return graph(_chosen, autograph=False, input_signature=specs)


def _nth(values: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """Returns the `number`-th highest of float32 values (n,); 1 is the highest.

    It is found bit by bit, because floats are ordered like their bits (negative ones in reverse).
    That is 32 passes over memory; TensorFlow's sort takes six times as long on a CPU.
    """
    keys = _swapped(tf.bitcast(values, tf.int32))
    nth_key = tf.constant(-(2**31), tf.int32)
    for bit in range(31, -1, -1):
        # For the sign bit, the higher half are the values without it.
        higher = tf.zeros([], tf.int32) if bit == 31 else nth_key + (1 << bit)
        nth_key = tf.where(_count(keys >= higher) >= number, higher, nth_key)
    return tf.bitcast(_swapped(nth_key), tf.float32)


def _swapped(bits: tf.Tensor) -> tf.Tensor:
    return tf.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


def _count(chosen: tf.Tensor) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(chosen, tf.int32))
