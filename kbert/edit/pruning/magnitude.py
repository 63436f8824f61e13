"""Magnitude pruning: sets the smallest weights of kernels to zero during training.

(Zhu & Gupta 2017, "To Prune, or Not to Prune", https://arxiv.org/abs/1710.01878, section 3.)
"""

import fnmatch
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.options import option
from kbert.core.types import Logs, Tensor
from kbert.edit.movement import Movement
from kbert.edit.pruning.schedule import GradualPruning, PruningSettings
from kbert.models import Encoder
from kbert.models.weights import named_weights

# Kernels of all dense layers in the blocks of an encoder.
BLOCKS = ("encoder/layers/*/kernel",)


class MagnitudeSettings(PruningSettings):
    """Settings of `MagnitudePruning`.

    Args:
        {options}
    """

    kernels: tuple[str, ...] = option(
        BLOCKS,
        help="Patterns for the names of weights in a preset, where * matches any characters; by "
        "default all dense layers in the encoder's blocks.",
    )


class MagnitudePruning(GradualPruning):
    """A callback of `fit` that gradually sets the smallest weights to zero and keeps them zero.

    Each kernel has the same share of zeros. After s updates it is

        f + (i - f) · (1 - (s - begin) / (end - begin))³

    where i is the `initial_sparsity` and f the `sparsity`. So many weights are pruned at first,
    when many are redundant, and ever fewer later. The weights with the smallest absolute values are
    chosen every `frequency` updates and at `end_step`. In between, zeros stay zeros: the masks are
    applied within each update, before anything reads the weights. At the end exactly `round(f · n)`
    of a kernel's n weights are zeros.

    A model with zeros is as large and as slow as before: zeros are stored and multiplied like other
    numbers. Archives (zip, gzip) compress it well, and runtimes with sparse kernels can use it. To
    make a model smaller and faster, use `prune_heads`, `prune_neurons` and `keep_layers`.

    Steps are updates of the optimizer; without `compile`, `fit` creates a new optimizer.
    Evaluations before the last choice of weights do not count for the best weights of a run, so
    that these have the full sparsity. An interrupted run resumes exactly. If a model was pruned
    before, its zeros stay, because they are its smallest weights.

    Args:
        {options}

    Raises:
        ValueError: a value is out of range; in `fit`: `end_step` is not before the end of the run,
            a pattern matches nothing, the model has no encoder, the optimizer averages weights, or
            the backend is not TensorFlow.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "good", "bad"])
        >>> config = kbert.EncoderConfig(vocabulary_size=7, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16)
        >>> task = kbert.tasks.TextClassifier(kbert.Encoder(config), tokenizer, ["no", "yes"])
        >>> pruning = MagnitudePruning(0.75, end_step=3)
        >>> _ = task.fit(["good", "bad"], ["yes", "no"], epochs=4, verbose=0, callbacks=[pruning])
        >>> sorted(set(sparsity(task).values()))
        [0.75]
    """

    settings_class = MagnitudeSettings

    def __init__(self, sparsity: float, **settings: Any) -> None:
        super().__init__(sparsity, **settings)
        self._masked: dict[str, _Mask] = {}

    def on_train_begin(self, logs: Logs = None) -> None:
        if getattr(self.model.optimizer, "ema", None) is not None:
            raise ValueError(
                "Magnitude pruning does not support a moving average of the weights, which has no "
                "zeros where weights were nonzero before. Received: an optimizer with "
                f"ema={self.model.optimizer.ema}"
            )
        super().on_train_begin(logs)
        with self.model.distribute_strategy.scope():
            kernels = _kernels(self.model, self.settings.kernels)
            self._masked = {name: _Mask(kernel) for name, kernel in kernels.items()}
        self.model.make_train_function(force=True)  # the traced one lacks the masks

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        # Before an update, not after it: a run that resumes from a checkpoint between two updates
        # then makes the same choice.
        step = self.step
        if not self.may_be_best and (self.is_due(step) or step >= self.end_step):
            for mask in self._masked.values():
                mask.choose(self.sparsity_after(step))
            self.may_be_best = step >= self.end_step

    def on_train_end(self, logs: Logs = None) -> None:
        self.release()
        super().on_train_end(logs)

    def release(self) -> None:
        """Lets the kernels' zeros change again; `fit` calls it also if it fails."""
        for mask in self._masked.values():
            mask.release()
            self.model.train_function = None  # its graph still applies the masks
        self._masked = {}


def sparsity(model: Any, kernels: str | Sequence[str] = BLOCKS) -> dict[str, float]:
    """Returns the share of zeros in each kernel; masked weights (`MovementPruning`) count as zeros.

    Args:
        model: an encoder, or a task on one.
        kernels: one or more patterns for names of kernels, see `MagnitudePruning`.

    Returns:
        Name of the kernel in a preset -> share of zeros.

    Raises:
        ValueError: a pattern matches no kernel, or there is no encoder.
    """
    patterns = (kernels,) if isinstance(kernels, str) else tuple(kernels)
    named, shares = _named(model), {}
    for name, kernel in _kernels(model, patterns).items():
        zeros = kernel.numpy() == 0
        mask = named.get(f"{name.rpartition('/')[0]}/{Movement.kind}/mask")
        if mask is not None and name.endswith("/kernel"):
            zeros |= mask.numpy() == 0
        shares[name] = float(zeros.mean())
    return shares


class _Mask:
    """A constraint of a kernel that keeps its zeros; optimizers apply it within an update.

    Args:
        kernel: kernel whose zeros stay.
    """

    def __init__(self, kernel: keras.Variable) -> None:
        self._before: Any = kernel.constraint
        self._kernel = kernel
        self._left = keras.Variable(kernel.numpy() != 0, dtype="bool", trainable=False, name="left")
        kernel.constraint = self

    def __call__(self, kernel: Tensor) -> Tensor:
        if self._before is not None:
            kernel = self._before(kernel)
        return ops.where(self._left, kernel, ops.zeros_like(kernel))

    def choose(self, share: float) -> None:
        """Sets a share of the kernel's weights to zero: those masked already, then the smallest.

        If more are masked already, these stay zero.
        """
        values = self._kernel.numpy()
        number = round(share * values.size)
        sizes = np.where(self._left.numpy(), np.abs(values), -1.0).ravel()
        is_kept = np.ones(sizes.shape, bool)
        is_kept[np.argsort(sizes, kind="stable")[: max(number, int((sizes < 0).sum()))]] = False
        self._left.assign(is_kept.reshape(values.shape))
        self._kernel.assign(np.where(is_kept.reshape(values.shape), values, 0))

    def release(self) -> None:
        """Restores the previous constraint, so that zeros of the kernel may change again."""
        self._kernel.constraint = self._before


def _kernels(model: Any, patterns: Sequence[str]) -> Mapping[str, keras.Variable]:
    """Returns matching weights with two or more axes: name in a preset -> weight."""
    named = _named(model)
    kernels: dict[str, keras.Variable] = {}
    for pattern in patterns:
        matched = {
            name: weight
            for name, weight in named.items()
            if fnmatch.fnmatchcase(name, pattern) and len(weight.shape) > 1
        }
        if not matched:
            raise ValueError(
                "`kernels` must match names of kernels of the model, such as "
                f"encoder/layers/0/attention/qkv/kernel. Received: {pattern!r} for a "
                f"{type(model).__name__}"
            )
        kernels |= matched
    return kernels


def _named(model: Any) -> dict[str, keras.Variable]:
    """Returns all weights of a model or task: name in a preset -> weight."""
    task = getattr(model, "student", model)  # a distiller's student
    parts = {"encoder": task} if isinstance(task, Encoder) else getattr(task, "parts", {})
    named: dict[str, keras.Variable] = {}
    for prefix, layer in parts.items():
        named |= named_weights(layer, prefix)
    return named
