"""A split of a TensorFlow Datasets builder as a source of text."""

import difflib
import functools
from collections.abc import Iterator
from typing import Any

from kbert.text import source


def make_builder(name: str) -> Any:
    """Returns the builder of `NAME[/CONFIG]`; downloads nothing.

    Raises:
        ValueError: unknown name or config; the message has the nearest names.
    """
    import tensorflow_datasets as tfds  # takes seconds to import

    try:
        return tfds.builder(name)
    except tfds.core.DatasetNotFoundError as error:
        names = tfds.list_builders(with_community_datasets=False)
        nearest = difflib.get_close_matches(name.partition("/")[0], names, cutoff=0.0)
        raise ValueError(
            f"tensorflow-datasets has no such data set; the nearest names are {nearest}. Read the "
            f"data from its published file instead. Received: {name!r}"
        ) from error


def prepare_split(builder: Any, *splits: str) -> str:
    """Downloads and prepares a data set if needed; returns the first of `splits` that it has.

    Raises:
        ValueError: the data set has none of them; the message lists its splits.
    """
    builder.download_and_prepare()
    names = builder.info.splits
    for split in splits:
        if split.partition("[")[0] in names:
            return split
    received = " and ".join(map(repr, splits))
    raise ValueError(f"tfds:{builder.name} has the splits {sorted(names)}. Received: {received}")


def open_split(spec: str) -> tuple[Any, str]:
    """Returns the builder and the split of `NAME[/CONFIG][:SPLIT]` (default: train).

    The data set is downloaded and prepared if needed.

    Raises:
        ValueError: unknown name or split.
    """
    name, _, split = spec.partition(":")
    builder = make_builder(name)
    return builder, prepare_split(builder, split or "train")


def read_split(builder: Any, split: str) -> Any:
    """Returns the examples of a builder's split as a `tf.data.Dataset`, in a fixed order."""
    import tensorflow_datasets as tfds

    # Files are read one after the other.
    order = tfds.ReadConfig(interleave_cycle_length=1)
    return builder.as_dataset(split=split, shuffle_files=False, read_config=order)


class TfdsSplit(source.Source):
    """`tfds:NAME`, `tfds:NAME/CONFIG` or either with `:SPLIT` (default: train).

    tensorflow-datasets downloads and prepares the data set if needed. Each example is one document.

    Args:
        spec: name of the data set, without the prefix `tfds:`.
        field: name of the string feature with the text.
        on_bad_utf8: "fail" raises at the first bad byte, "replace" inserts U+FFFD instead.
    """

    def __init__(self, spec: str, field: str, on_bad_utf8: str) -> None:
        source.check_bad_utf8_policy(on_bad_utf8)
        self.builder, self.split = open_split(spec)
        name, splits = spec.partition(":")[0], self.builder.info.splits
        self.field = field
        self.errors = "strict" if on_bad_utf8 == "fail" else "replace"
        features = self.builder.info.features
        if field not in features:
            raise ValueError(
                f"tfds:{name} has the fields {sorted(features)}; choose the one with the text. "
                f"Received: field={field!r}"
            )
        self.examples = splits[self.split].num_examples
        # Progress is counted in bytes; a slice of a split has no recorded size.
        full_split = splits[self.split.partition("[")[0]]
        super().__init__(
            f"tfds:{name}:{self.split}",
            full_split.num_bytes * self.examples // max(full_split.num_examples, 1),
        )

    def identity(self) -> dict:
        return {
            "name": self.name,
            "version": str(self.builder.version),
            "examples": self.examples,
            "size": self.size,
            "field": self.field,
        }

    def documents(self) -> Iterator[bytes]:
        dataset = read_split(self.builder, self.split).map(lambda example: example[self.field])
        for number, value in enumerate(dataset.as_numpy_iterator()):
            self.consumed = self.size * (number + 1) // self.examples
            where = f"{self.name}, example {number}"
            text = self.decoded(value, where, self.field)
            yield from self.parts(
                text.replace(b"\r\n", b"\n").strip(), functools.partial(str, where)
            )
