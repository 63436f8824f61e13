"""Several prepared corpora that are read as one, each with a share of the blocks."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Self

import numpy as np

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.corpus.blocks import BlockReader
from kbert.data.corpus.manifest import Manifest, Split, read_manifest
from kbert.data.position import WINDOW_BLOCKS
from kbert.io import fingerprints
from kbert.io.paths import Path
from kbert.tokenizers.base import Tokenizer

# A share that whole blocks miss by more than this part of it is worth a warning.
_TOLERANCE = 0.2


@dataclasses.dataclass(frozen=True)
class Mixture:
    """Corpora and their shares of the training data; usable as the `data` of a dataset.

    Attributes:
        manifests: manifests of the corpora, prepared with one tokenizer.
        shares: share of each corpus in the blocks of an epoch; they sum to 1.
    """

    manifests: tuple[Manifest, ...]
    shares: tuple[float, ...]

    @classmethod
    def read(
        cls, folders: Mapping[PathLike, float] | Sequence[PathLike], temperature: float = 1.0
    ) -> Self:
        """Opens the folders of some corpora.

        Args:
            folders: folders that `prepare_corpus` wrote, with a weight for each. Without weights,
                shares are proportional to the number of tokens to the power of `temperature`.
            temperature: exponent of the shares. 1 reads each text equally often, 0 reads each
                corpus equally often. Multilingual models use
                0.7 (mBERT, https://github.com/google-research/bert/blob/master/multilingual.md) or
                0.3 (XLM-R, section 3.1, https://arxiv.org/abs/1911.02116), so that languages with
                little text are read more often.

        Raises:
            FileNotFoundError: a folder is not a corpus, or a shard is missing.
            ValueError: fewer than two folders, a folder given twice, a weight or temperature out of
                range, a temperature together with weights, a corpus without text to train on, or
                corpora of different vocabularies.

        Example:
            >>> Mixture.read(["shards"])
            Traceback (most recent call last):
            ...
            ValueError: A mixture must have at least two different folders. Received: ['shards']
        """
        names = [os.fspath(folder) for folder in folders]
        if len(names) < 2 or len({Path(name).resolve() for name in names}) < len(names):
            raise ValueError(
                f"A mixture must have at least two different folders. Received: {names}"
            )
        if not 0 <= temperature <= 1:
            raise ValueError(
                f"The temperature of a mixture must be between 0 and 1. Received: {temperature}"
            )
        manifests = tuple(read_manifest(name) for name in names)
        for manifest in manifests:
            _check_alike(manifest, manifests[0])
        if isinstance(folders, Mapping):
            if temperature != 1:
                raise ValueError(
                    "Pass weights of the folders or a temperature, not both. Received: "
                    f"temperature={temperature} and weights"
                )
            weights = np.array(list(folders.values()), "float64")
            if not np.all(np.isfinite(weights) & (weights > 0)):
                raise ValueError(
                    f"The weights of a mixture must be above 0. Received: {weights.tolist()}"
                )
        else:
            tokens = [manifest.split("train").tokens for manifest in manifests]
            weights = np.array(tokens, "float64") ** temperature
        return cls(manifests, tuple((weights / weights.sum()).tolist()))

    @property
    def folder(self) -> str:
        """The folders as one string, for messages."""
        return ", ".join(manifest.folder for manifest in self.manifests)

    def split(self, name: str) -> Split:
        """Returns a split ("train" or "held_out") of all corpora together, with total counts."""
        splits = [manifest.split(name) for manifest in self.manifests]
        return Split.of(shard for split in splits for shard in split.shards)

    @property
    def aligned(self) -> bool:
        """Whether the documents of any corpus are texts with their translations."""
        return any(manifest.aligned for manifest in self.manifests)

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError unless `tokenizer` makes the same ids as those in the shards."""
        for manifest in self.manifests:
            manifest.check_tokenizer(tokenizer)

    def summary(self) -> str:
        """Describes the corpora in one line."""
        corpora = zip(self.shares, self.manifests, strict=True)
        return " | ".join(f"{share:.1%} {m.folder}: {m.summary()}" for share, m in corpora)

    @property
    def checksum(self) -> str:
        """SHA-256 of the corpora and their shares."""
        corpora = [
            (m.checksum, share) for m, share in zip(self.manifests, self.shares, strict=True)
        ]
        return fingerprints.sha256(repr(corpora))

    def reader(self, split: str, seed: int, window_blocks: int = WINDOW_BLOCKS) -> BlockReader:
        """Returns a reader of a split ("train" or "held_out") of all corpora.

        Blocks of "train" are mixed by the shares of the corpora; an epoch of "held_out" has every
        block once. `seed` is the seed of the order, `window_blocks` the least number of blocks in a
        window, if the split has that many.
        """
        readers = [
            BlockReader.from_manifest(manifest, split, seed, window_blocks)
            for manifest in self.manifests
        ]
        blocks = np.array([reader.blocks for reader in readers])
        quotas = blocks if split == "held_out" else _quotas(self.shares, blocks.sum())
        exact = np.array(self.shares) * blocks.sum()
        if split != "held_out" and np.any(np.abs(quotas - exact) > _TOLERANCE * exact):
            found = ", ".join(f"{quota / quotas.sum():.3g}" for quota in quotas)
            warnings.warn(
                f"The shares of {self.folder} will be {found}: a share is a whole number of blocks "
                f"(of 64k tokens), and these corpora have {quotas.sum()} together. Received: "
                f"{', '.join(f'{share:.3g}' for share in self.shares)}",
                stacklevel=2,
            )
        files = np.cumsum([0, *(len(reader.paths) for reader in readers)])
        return _MixtureReader(
            paths=[path for reader in readers for path in reader.paths],
            shards=np.concatenate([r.shards + n for r, n in zip(readers, files, strict=False)]),
            offsets=np.concatenate([reader.offsets for reader in readers]),
            seed=seed,
            token_dtype=readers[0].token_dtype,
            window_blocks=window_blocks,
            sizes=blocks,
            quotas=quotas,
        )


@dataclasses.dataclass(frozen=True)
class _MixtureReader(BlockReader):
    """Reads the blocks of C corpora; each corpus fills a fixed number of an epoch's positions.

    An epoch has as many positions as there are blocks. They are permuted like the blocks of a
    single corpus. The blocks of a corpus are counted over all epochs, and each pass over them has a
    new order. So no block is read a second time before all of its corpus were read once, and any
    window of any epoch can still be read alone.

    Attributes:
        sizes: (C,) number of blocks of each corpus.
        quotas: (C,) number of positions of each corpus in an epoch.
    """

    sizes: np.ndarray
    quotas: np.ndarray

    def order(self, epoch: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
        position = super().order(epoch, places)
        ends = tf.constant(np.cumsum(self.quotas), tf.int64)
        corpus = tf.searchsorted(ends, position, side="right")
        sizes, quotas = (tf.constant(x, tf.int64) for x in (self.sizes, self.quotas))
        size, quota = tf.gather(sizes, corpus), tf.gather(quotas, corpus)
        ordinal = epoch * quota + position - (tf.gather(ends, corpus) - quota)
        seed = tf.fill(tf.shape(position), tf.constant(self.seed, tf.int64))
        # The public function accepts only one seed for all elements.
        block = tf.raw_ops.RandomIndexShuffle(
            index=ordinal % size,
            seed=tf.stack([seed, tf.cast(corpus, tf.int64), ordinal // size], axis=1),
            max_index=size - 1,
            rounds=4,
        )
        return tf.gather(tf.cumsum(sizes, exclusive=True), corpus) + block


def _quotas(shares: Sequence[float], places: int) -> np.ndarray:
    """Divides the `places` positions of an epoch among corpora by their shares.

    Returns an integer for each corpus, at least 1; they sum to `places`. There must be as many
    places as corpora.
    """
    exact = np.array(shares) * places
    quotas = np.maximum(np.floor(exact).astype("int64"), 1)
    while (remainder := places - quotas.sum()) != 0:
        # Add one where the quota is most below its share, or remove one where it is most above.
        short = (exact - quotas) * np.sign(remainder)
        short[(quotas + np.sign(remainder)) < 1] = -np.inf
        quotas[np.argmax(short)] += np.sign(remainder)
    return quotas


def _check_alike(manifest: Manifest, first: Manifest) -> None:
    """Raises ValueError if a corpus has no text to train on, or not the first one's vocabulary."""
    if not manifest.split("train").blocks:
        raise ValueError(
            "Every corpus of a mixture must have text to train on. Received: none in "
            f"{manifest.folder}"
        )
    if manifest.vocabulary_sha256 != first.vocabulary_sha256:
        raise ValueError(
            "The corpora of a mixture must be prepared with the same tokenizer. Received: a "
            f"vocabulary of {first.vocabulary_size} entries in {first.folder} and another of "
            f"{manifest.vocabulary_size} entries in {manifest.folder}"
        )
