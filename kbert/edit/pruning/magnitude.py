"""Kernels whose small weights become zeros while a model is trained.

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

# Of all dense layers in the blocks of an encoder.
BLOCKS = ("encoder/layers/*/kernel",)


class MagnitudeSettings(PruningSettings):
    """Of `MagnitudePruning`.

    Args:
        {options}
    """

    kernels: tuple[str, ...] = option(
        BLOCKS,
        help="Patterns for the names that weights have in a preset, where * stands for any "
        "characters; by default those of all dense layers in the encoder's blocks.",
    )


class MagnitudePruning(GradualPruning):
    """A callback of `fit` that sets ever more of the smallest weights to zero, and keeps them so.

    Of every kernel the same share: after s updates it is

        f + (i - f) · (1 - (s - begin) / (end - begin))³

    where i is the `initial_sparsity` and f the `sparsity`: many weights at first, where many are of
    no use, and ever fewer. The smallest in absolute value are chosen every `frequency` updates, and
    at the end; between, zeros stay zeros: the masks are applied within each update, before anything
    reads the weights. At the end exactly `round(f · n)` of a kernel's n weights are zeros.

    A model with zeros is as large and as slow as before: zeros are stored and multiplied like other
    numbers. It is compressed well by what archives it (zip, gzip), and is for runtimes with sparse
    kernels. What is faster and smaller here is `prune_heads`, `prune_neurons` and `keep_layers`.

    Steps are updates that the optimizer has made; `fit` makes a new one where `compile` was not
    called. Evaluations before the last weights are chosen do not count for the best weights of a
    run: these have the full sparsity. A run that was ended resumes exactly. Where a model was
    pruned before, its zeros stay, as the smallest there are.

    Args:
        {options}

    Raises:
        ValueError: a value out of range; in `fit`: steps beyond those of the run, patterns that
            match nothing, a model without an encoder, an optimizer that averages weights, or
            another backend than TensorFlow.

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
                "A moving average of weights has no zeros where they had been others before. "
                f"Received: an optimizer with ema={self.model.optimizer.ema}"
            )
        super().on_train_begin(logs)
        with self.model.distribute_strategy.scope():
            kernels = _kernels(self.model, self.settings.kernels)
            self._masked = {name: _Mask(kernel) for name, kernel in kernels.items()}
        self._trace_anew()

    def on_train_batch_begin(self, batch: int, logs: Logs = None) -> None:
        # Before an update and not after it: what is saved between two of them, a run that resumes
        # continues with the same choice.
        step = self.step
        if not self.may_be_best and (self.is_due(step) or step >= self.end_step):
            for mask in self._masked.values():
                mask.choose(self.sparsity_after(step))
            self.may_be_best = step >= self.end_step

    def on_train_end(self, logs: Logs = None) -> None:
        for mask in self._masked.values():
            mask.release()
        self._masked = {}
        self._trace_anew()
        super().on_train_end(logs)

    def _trace_anew(self) -> None:
        """A step that was traced before knows nothing of the masks, or still knows them."""
        self.model.make_train_function(force=True)


def sparsity(model: Any, kernels: str | Sequence[str] = BLOCKS) -> dict[str, float]:
    """The share of zeros in each kernel; what is masked (`MovementPruning`) counts as zeros.

    Args:
        model: an encoder, or a task on one.
        kernels: patterns for their names, see `MagnitudePruning`.

    Returns:
        Name in a preset -> share.

    Raises:
        ValueError: no kernel has such a name, or there is no encoder.
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
    """Keeps the zeros of a kernel as its constraint, which optimizers apply within an update.

    Args:
        kernel: its zeros stay.
    """

    def __init__(self, kernel: keras.Variable) -> None:
        # That of a run which an error ended is still there.
        before = kernel.constraint
        self._before: Any = before._before if isinstance(before, _Mask) else before
        self._kernel = kernel
        self._left = keras.Variable(kernel.numpy() != 0, dtype="bool", trainable=False, name="left")
        kernel.constraint = self

    def __call__(self, kernel: Tensor) -> Tensor:
        if self._before is not None:
            kernel = self._before(kernel)
        return ops.where(self._left, kernel, ops.zeros_like(kernel))

    def choose(self, share: float) -> None:
        """Makes the smallest weights zeros, those that are zeros already first."""
        values = self._kernel.numpy()
        number = round(share * values.size)
        sizes = np.where(self._left.numpy(), np.abs(values), -1.0).ravel()
        left = np.ones(sizes.shape, bool)
        left[np.argsort(sizes, kind="stable")[: max(number, int((sizes < 0).sum()))]] = False
        self._left.assign(left.reshape(values.shape))
        self._kernel.assign(np.where(left.reshape(values.shape), values, 0))

    def release(self) -> None:
        """The kernel is free again; its zeros are weights as others."""
        self._kernel.constraint = self._before


def _kernels(model: Any, patterns: Sequence[str]) -> Mapping[str, keras.Variable]:
    """Name in a preset -> weight of two axes or more."""
    named = _named(model)
    found: dict[str, keras.Variable] = {}
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
        found |= matched
    return found


def _named(model: Any) -> dict[str, keras.Variable]:
    """Name in a preset -> weight."""
    task = getattr(model, "student", model)  # of a distiller
    parts = {"encoder": task} if isinstance(task, Encoder) else getattr(task, "parts", {})
    named: dict[str, keras.Variable] = {}
    for prefix, layer in parts.items():
        named |= named_weights(layer, prefix)
    return named
