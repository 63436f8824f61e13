"""Training of word vectors: one loop for all methods, which a killed run resumes exactly."""

import contextlib
import time
import warnings
from collections.abc import Iterable
from typing import Any

import numpy as np

from kbert.core.options import takes
from kbert.core.types import PathLike
from kbert.io import arrays, atomic
from kbert.io.outputs import Output
from kbert.io.paths import Path
from kbert.io.progress import Progress
from kbert.word_vectors.corpus import read_corpus
from kbert.word_vectors.glove import Glove
from kbert.word_vectors.learner import Learner
from kbert.word_vectors.negative_sampling import Cbow, FastText, SkipGram
from kbert.word_vectors.options import TrainingOptions
from kbert.word_vectors.vectors import WordVectors

METHODS: dict[str, type[TrainingOptions]] = {x.kind: x for x in (SkipGram, Cbow, FastText, Glove)}
_SECONDS = 300  # between two checkpoints
_CHECKPOINT = "checkpoint.safetensors"


def train_word_vectors(
    texts: Iterable[str],
    method: TrainingOptions | None = None,
    *,
    model_dir: PathLike | None = None,
    verbose: str | int = "auto",
) -> WordVectors:
    """Learns a vector for each word of texts.

    On a CPU, the same seed gives the same vectors. Training needs 8 bytes of memory for each token
    of the texts (its word and its sentence), 16 for each number of the vectors, and GloVe about 40
    for each pair of words that occur together.

    Args:
        texts: sentences; the words of one are each other's context. They are read once. For files
            and `docs:` see `kbert.text.documents`, which yields a list of sentences per document.
        method: `SkipGram`, `Cbow`, `FastText` or `Glove`, with its settings; None = `SkipGram()`.
        model_dir: folder for a checkpoint every five minutes. The same call with the same folder
            resumes a killed training, with the result of an uninterrupted one. None = no
            checkpoints.
        verbose: progress bar: 1 = always, 0 = never, "auto" = if training takes over 2 seconds.

    Returns:
        The vectors, the most frequent words first; those of `FastText` have n-grams.

    Raises:
        ValueError: there are fewer than two words, `model_dir` has a training of other texts or
            settings, or the learning rate is so high that vectors become infinite.
        RuntimeError: another process trains in `model_dir`.

    Example:
        >>> texts = ["the cat eats fish", "the dog eats meat"] * 20
        >>> vectors = train_word_vectors(texts, SkipGram(width=8, epochs=2))
        >>> vectors.words[:2], vectors.matrix.shape
        (['eats', 'the'], (6, 8))
    """
    method = method or SkipGram()  # type: ignore[call-arg]  # all have a default
    if type(method) not in METHODS.values():
        raise ValueError(
            f"`method` must be one of {', '.join(x.__name__ for x in METHODS.values())}, with its "
            f"settings. Received: {method!r:.80}"
        )
    corpus = read_corpus(texts, method.min_count, method.lowercase)
    learner = method.learner(corpus)
    with contextlib.ExitStack() as stack:
        checkpoint = None
        if model_dir is not None:
            stack.enter_context(atomic.refusing_others(model_dir))
            identity = {"method": method.kind, **method.identity(), "corpus": corpus.fingerprint()}
            checkpoint = _Checkpoint(model_dir, identity, learner)
        _train(learner, method, checkpoint, verbose)
    return learner.word_vectors()


@takes(SkipGram)
def train_skip_gram(
    texts: Iterable[str], *, verbose: str | int = "auto", **settings: Any
) -> WordVectors:
    """Deprecated: `train_word_vectors(texts, SkipGram(…))`, whose result it returns.

    Args:
        texts: sentences.
        verbose: progress bar, as for `train_word_vectors`.
        **settings: fields of `SkipGram`.
        {options}
    """
    warnings.warn(
        "train_skip_gram is deprecated: use train_word_vectors(texts, SkipGram(…))",
        DeprecationWarning,
        stacklevel=2,
    )
    method = SkipGram.from_arguments(settings, "train_skip_gram")
    return train_word_vectors(texts, method, verbose=verbose)


class _Checkpoint:
    """All that is trained, in a file of a folder, with the position of the next batch.

    Args:
        folder: the folder.
        identity: what the vectors are made of.
        learner: the learner.

    Raises:
        ValueError: the folder has a checkpoint of something else, or a damaged one.
    """

    def __init__(self, folder: PathLike, identity: dict, learner: Learner) -> None:
        self._path = Path(folder) / _CHECKPOINT
        self._learner = learner
        Output(self._path, identity, Path(folder) / "run.json").save()

    def restore(self) -> tuple[int, int, int]:
        """Restores the learner; returns epoch, block and first example of the next batch."""
        if not self._path.exists():
            return 0, 0, 0
        found = arrays.read_safetensors(self._path)
        shapes = {name: x.shape for name, x in self._learner.arrays().items()}
        arrays.check_arrays({**shapes, "position": (3,)}, found, str(self._path))
        self._learner.restore(found)
        epoch, block, start = found["position"].tolist()
        return epoch, block, start

    def save(self, epoch: int, block: int, start: int) -> None:
        """Writes the checkpoint before the batch of this position."""
        position = np.array([epoch, block, start], np.int64)
        arrays.write_safetensors(self._path, {**self._learner.arrays(), "position": position})


def _train(
    learner: Learner, options: TrainingOptions, checkpoint: _Checkpoint | None, verbose: str | int
) -> None:
    """Trains to the end, from the checkpoint on if there is one.

    Args:
        learner: the learner.
        options: settings of the method.
        checkpoint: the checkpoint; None = without.
        verbose: see `train_word_vectors`.
    """
    first_epoch, first_block, first = checkpoint.restore() if checkpoint else (0, 0, 0)
    total, size = options.epochs * learner.num_blocks, options.batch_size
    written = time.monotonic()
    with Progress("", options.epochs * learner.amount, learner.unit, verbose=verbose) as bar:
        for number in range(first_epoch * learner.num_blocks + first_block, total):
            epoch, block = divmod(number, learner.num_blocks)
            examples = learner.examples(epoch, block)
            for start in range(first, len(examples), size):
                if checkpoint and time.monotonic() - written > _SECONDS:
                    _check(learner)
                    checkpoint.save(epoch, block, start)
                    written = time.monotonic()
                share = (number + start / len(examples)) / total
                rng = np.random.default_rng([options.seed, epoch, block, start])
                learner.step(examples, slice(start, start + size), rng, share)
                bar.show(int(share * options.epochs * learner.amount))
            first = 0
        bar.show(options.epochs * learner.amount)
    _check(learner)
    if checkpoint:
        checkpoint.save(options.epochs, 0, 0)


def _check(learner: Learner) -> None:
    """Raises ValueError if vectors are not finite."""
    for name, array in learner.arrays().items():
        if not np.isfinite(array).all():
            raise ValueError(
                "Vectors must stay finite: choose a lower `learning_rate`. Received: NaN or "
                f"infinity in {name}"
            )
