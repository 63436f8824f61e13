"""`manifest.json` of a prepared corpus: lists the folder's content, so that it can be verified."""

import dataclasses
import os
import typing
from collections.abc import Iterable

import numpy as np

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.data.corpus import records
from kbert.io import fingerprints
from kbert.io.outputs import read_note, write_note
from kbert.tokenizers.base import Tokenizer

FORMAT_VERSION = 1
FILE_NAME = "manifest.json"
# Tokenizer options of all kinds that, in addition to the vocabulary, determine the ids of a text.
_TOKENIZER_OPTIONS = (
    "lowercase",
    "strip_accents",
    "split_chinese",
    "add_prefix_space",
    "preparation",
    "keep_accents",
    "layout",
)
# Options that `settings` omits if they have their defaults.
_OMITTED_OPTIONS = (
    "added_tokens",
    "normalized_tokens",
    "single_word_tokens",
    "added_pieces",
    "max_word_characters",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Shard:
    """A TFRecord file and its index (file names), its size in bytes, and counts of its content."""

    file: str
    index: str
    bytes: int
    blocks: int
    tokens: int
    sentences: int
    documents: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Split:
    """A split, `train` or `held_out`: total counts, and its shards in order."""

    documents: int
    sentences: int
    tokens: int
    blocks: int
    shards: tuple[Shard, ...]

    @classmethod
    def of(cls, shards: Iterable[Shard]) -> "Split":
        """Returns the split of these shards, with the sums of their counts."""
        shards = tuple(shards)
        names = ("documents", "sentences", "tokens", "blocks")
        sums = {name: sum(getattr(shard, name) for shard in shards) for name in names}
        return cls(**sums, shards=shards)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a folder of shards: everything that a reader needs.

    Attributes:
        folder: folder of the files; not part of the JSON.
        vocabulary_sha256: `checksum` of the tokenizer that made the ids.
        vocabulary_size: number of entries in the tokenizer's vocabulary.
        token_dtype: "uint16" or "int32", the type of the stored ids.
        settings: settings of the preparation: tokenizer, held-out share, size limits, …
        counts: counts of the input: documents, text bytes, duplicates dropped, …
        splits: "train" and "held_out".
    """

    folder: str
    vocabulary_sha256: str
    vocabulary_size: int
    token_dtype: str
    settings: dict
    counts: dict
    splits: dict[str, Split]

    def shard_paths(self, split: str = "train") -> list[str]:
        """Returns the full paths of a split's TFRecord files, in order."""
        return [os.path.join(self.folder, shard.file) for shard in self.split(split).shards]

    def split(self, name: str) -> Split:
        """Returns the split of that name; an unknown name raises ValueError."""
        if name not in self.splits:
            raise ValueError(
                f"{self.folder} has the splits {sorted(self.splits)}. Received: split={name!r}"
            )
        return self.splits[name]

    def index(self, split: str = "train") -> np.ndarray:
        """Returns the index of a split's blocks, (blocks, 5) int64.

        The columns are the number of the shard, then the four columns of the shard's index.
        """
        tables = [np.zeros((0, 5), np.int64)]
        for number, shard in enumerate(self.split(split).shards):
            path = os.path.join(self.folder, shard.index)
            table = records.read_index(path, shard.blocks, records.INDEX_COLUMNS)
            tables.append(np.insert(table, 0, number, axis=1))
        return np.concatenate(tables)

    @property
    def aligned(self) -> bool:
        """Whether the documents are texts with their translations."""
        return bool(self.settings.get("aligned"))

    def check_tokenizer(self, tokenizer: Tokenizer) -> None:
        """Raises ValueError unless `tokenizer` makes the same ids as those in the shards.

        Its type, the options that determine ids, and its vocabulary must be the same.
        """
        stored = self.settings.get("tokenizer", {})
        current = {"type": type(tokenizer).__name__, **tokenizer.settings} if stored else {}
        if stored.get("type") != current.get("type"):
            raise ValueError(
                f"The shards in {self.folder} were written by a {stored.get('type')}; use "
                "kbert.load_tokenizer on that folder, or prepare the text again. Received: a "
                f"{current.get('type')}"
            )
        names = [*(name for name in _TOKENIZER_OPTIONS if name in stored), *_OMITTED_OPTIONS]
        differing = {
            name: _option(current, name)
            for name in names
            if (_option(current, name) or None) != (_option(stored, name) or None)
        }
        if differing:
            raise ValueError(
                f"The shards in {self.folder} were written by a tokenizer with other options, "
                f"{_shown({n: _option(stored, n) for n in differing})}; use "
                "kbert.load_tokenizer on that folder, or prepare the text again. Received: "
                f"{_shown(differing)}"
            )
        if tokenizer.checksum != self.vocabulary_sha256:
            raise ValueError(
                f"The shards in {self.folder} were written with another vocabulary "
                f"({self.vocabulary_size} entries, sha256 {self.vocabulary_sha256[:12]}…); use "
                "kbert.load_tokenizer on that folder, or prepare the text again. Received: a "
                f"tokenizer of {tokenizer.vocabulary_size} entries, sha256 "
                f"{tokenizer.checksum[:12]}…"
            )

    def summary(self) -> str:
        """Describes the corpus in one line.

        >>> split = Split(documents=9, sentences=40, tokens=1000, blocks=1, shards=())
        >>> Manifest(folder="", vocabulary_sha256="", vocabulary_size=8, token_dtype="uint16",
        ...     settings={}, counts={"duplicate_documents": 2, "cut_documents": 0},
        ...     splits={"train": split}).summary()
        'train: 9 documents, 40 sentences, 1,000 tokens; 2 duplicate documents dropped'
        """
        texts = [
            f"{name}: {split.documents:,} documents, {split.sentences:,} sentences, "
            f"{split.tokens:,} tokens"
            for name, split in self.splits.items()
        ]
        texts.append(f"{self.counts['duplicate_documents']:,} duplicate documents dropped")
        if self.counts["cut_documents"]:
            texts.append(f"{self.counts['cut_documents']:,} over-long documents split into parts")
        return "; ".join(texts)

    @property
    def checksum(self) -> str:
        """SHA-256 of the manifest's content, independent of the folder's path."""
        return fingerprints.sha256_of_json(self.to_dict())

    def to_dict(self) -> dict:
        """Returns the content of `manifest.json`."""
        fields = dataclasses.asdict(self)
        del fields["folder"]
        return {"format_version": FORMAT_VERSION, **fields}

    def save(self) -> None:
        """Writes `manifest.json` into the folder, as the last file of a corpus."""
        write_note(os.path.join(self.folder, FILE_NAME), self.to_dict())


_Part = typing.TypeVar("_Part", Shard, Manifest)


def read_manifest(folder: PathLike) -> Manifest:
    """Reads the manifest of a prepared corpus and checks that its shards have their full size.

    Raises:
        FileNotFoundError: the manifest (never prepared, or interrupted) or a shard is missing.
        ValueError: a damaged manifest, another format version, or a shard whose size differs from
            that in the manifest.
    """
    folder = os.fspath(folder)
    path = os.path.join(folder, FILE_NAME)
    fields = read_note(path, "The manifest of a corpus")
    if fields is None:
        raise FileNotFoundError(
            f"No {FILE_NAME} in the folder: it is not a prepared corpus, or its preparation was "
            f"interrupted (run the same command again to finish it). Received: {folder}"
        )
    version = fields.pop("format_version", None)
    if version != FORMAT_VERSION:
        raise ValueError(
            f"{path}: this kbert reads format version {FORMAT_VERSION}. Received: {version!r}"
        )
    try:
        fields["splits"] = {
            name: Split.of(_typed(Shard(**shard)) for shard in split["shards"])
            for name, split in fields["splits"].items()
        }
        manifest = _typed(Manifest(folder=folder, **fields))
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            f"{path} is incomplete or was changed: it must contain everything that prepare_corpus "
            f"wrote. Received: {type(error).__name__}: {error}"
        ) from error
    for split in manifest.splits.values():
        for shard in split.shards:
            records.check_size(os.path.join(folder, shard.file), shard.bytes)
    return manifest


def _typed(part: _Part) -> _Part:
    """Checks the fields of a `Shard` or `Manifest` made from JSON, and returns it.

    Raises TypeError if a field has another type, a number is negative, a file name has a folder, or
    `token_dtype` is unknown.
    """
    for field in dataclasses.fields(part):
        value, kind = getattr(part, field.name), typing.get_origin(field.type) or field.type
        is_negative = kind is int and type(value) is int and value < 0
        is_elsewhere = field.name in ("file", "index") and os.path.basename(str(value)) != value
        is_unknown = field.name == "token_dtype" and value not in ("uint16", "int32")
        if type(value) is not kind or is_negative or is_elsewhere or is_unknown:
            raise TypeError(f"{field.name} = {value!r:.80}")
    return part


def _option(config: dict, name: str) -> object:
    """Returns the effective value of an option in a tokenizer's settings, `config`.

    `strip_accents=None` follows `lowercase`.
    """
    value = config.get(name)
    return config.get("lowercase") if name == "strip_accents" and value is None else value


def _shown(options: dict) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def verify_corpus(folder: PathLike) -> Manifest:
    """Verifies every byte of a prepared corpus: checksums, offsets, counts, ids in the vocabulary.

    Returns:
        The manifest, if no error is found.

    Raises:
        FileNotFoundError: the manifest, a shard or an index is missing.
        ValueError: a record is wrong (the message names the shard and the record), the manifest or
            an index is damaged, or a shard has another size.
    """
    manifest = read_manifest(folder)
    for split in manifest.splits:
        index = manifest.index(split)
        for number, path in enumerate(manifest.shard_paths(split)):
            _verify_shard(path, index[index[:, 0] == number, 1:], manifest)
    return manifest


def _verify_shard(path: str, index: np.ndarray, manifest: Manifest) -> None:
    """Raises ValueError at the first record of a shard that is damaged or not as its index says.

    Args:
        path: file of the shard.
        index: for each record its first byte, and how many tokens, sentences and documents it has.
        manifest: manifest of the corpus.
    """
    offset = 0
    blocks = iter(tf.data.TFRecordDataset(path))
    for number, row in enumerate(index):
        where = f"{path}, record {number} at byte {offset}"
        try:
            record = next(blocks)
            block = records.parse_blocks(record[None], manifest.token_dtype)
        except (tf.errors.DataLossError, tf.errors.InvalidArgumentError) as error:
            raise ValueError(f"{where} is corrupt: {error.message}") from error
        except StopIteration:
            raise ValueError(f"{where} is missing: the index has {len(index)} records") from None
        tokens, sentences, documents = (block[name].numpy() for name in records.FEATURES)
        actual_row = [offset, len(tokens), len(sentences), len(documents)]
        if actual_row != row.tolist():
            raise ValueError(
                f"{where} does not match its index, which lists {dict(_named(row.tolist()))}. "
                f"Received: {dict(_named(actual_row))}"
            )
        if sentences.sum() != len(tokens) or documents.sum() != len(sentences):
            raise ValueError(f"{where}: lengths of sentences or documents do not add up")
        if tokens.min() < 0 or tokens.max() >= manifest.vocabulary_size:
            raise ValueError(
                f"{where}: ids must be from 0 to {manifest.vocabulary_size - 1}, the size of the "
                f"vocabulary less one. Received: {tokens.min()} to {tokens.max()}"
            )
        offset += len(record.numpy()) + records.RECORD_OVERHEAD


def _named(row: list[int]) -> Iterable[tuple[str, int]]:
    return zip(records.INDEX_COLUMNS, row, strict=True)
