"""Caches a teacher's outputs: each row is computed once for all epochs, stages, seeds, students.

Shapes: N rows, B rows of a batch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from absl import logging

from kbert import inference
from kbert.core.late import tf
from kbert.core.types import PathLike, Tensor, Tensors
from kbert.data.pipeline import stage
from kbert.data.tables.rows import Rows
from kbert.distillation.cache import outputs
from kbert.distillation.cache.keys import row_keys
from kbert.distillation.cache.layout import Layout
from kbert.distillation.cache.size import CacheSize, cache_size
from kbert.distillation.cache.store import Row, Store, show_bytes
from kbert.distillation.reading import Reading, read
from kbert.distillation.terms import Term
from kbert.io import atomic
from kbert.io.progress import Progress
from kbert.tasks import EncoderTask, FineTuningTask, Pretraining

DTYPES = ("float16", "float32")
_ROWS_AT_ONCE = 256  # rows hashed per batch
_PLACES = 20  # masked positions in a row of 128 tokens


class TeacherCache:
    """A cache folder with the outputs of a teacher for the rows of tables.

    Rows are identified by their tokens, so they are found for any table, order or split with the
    same texts. Missing rows are computed and added. In float16, a row takes:

    - 4 bytes for each logit of a head: 8 for two classes, at any length;
    - 2 · T · H bytes for each layer of hidden states that a term of the loss compares (the
      embeddings are one), and for each of queries, keys and values;
    - 2 · N · T² bytes for each layer of attention scores;
    - 24 bytes for its key and sizes.

    T is the number of tokens of the row itself; padding is not cached. Logits are always float32.
    Float16 changes a loss by about 1e-5 of its value.

    Args:
        folder: folder of the cache, for one teacher and any number of students and tables.
        student: task that makes the rows.
        teacher: task that computes their outputs.
        terms: terms of the loss; the outputs that they compare are cached.
        reads_heads: whether the loss compares heads.
        dtype: type of cached hidden states and attention, "float16" or "float32".

    Raises:
        ValueError: rows of the tasks differ in every epoch, outputs of the encoder cannot be
            cached, or the dtype is another one.
    """

    def __init__(
        self,
        folder: PathLike,
        student: EncoderTask,
        teacher: EncoderTask,
        terms: Sequence[Term],
        *,
        reads_heads: bool,
        dtype: str = "float16",
    ) -> None:
        if dtype not in DTYPES:
            raise ValueError(f"cache_dtype must be one of {', '.join(DTYPES)}. Received: {dtype!r}")
        _check_tables(student, teacher)
        self.folder = os.fspath(folder)
        self._dtype = dtype
        self._predictor = student.predictor
        self._teacher = teacher
        self._segments = teacher.encoder.config.num_segments
        of_tokens = sorted(set().union(*(term.reads_of(teacher, student) for term in terms)))
        self._layouts = {name: outputs.layout_of(name, teacher, dtype) for name in of_tokens}
        if not (of_tokens or reads_heads):
            names = ", ".join(type(term).__name__ for term in terms)
            raise ValueError(
                "With a cache, terms must declare by `reads_of` or `reads_heads` which outputs of "
                f"the teacher they compare. Received: {names}"
            )
        self._reads_heads = reads_heads
        # For a few more bytes, a later stage that trains the head finds its targets in the cache.
        self._has_heads = reads_heads or type(student) is type(teacher)
        self._returned = outputs.returned(of_tokens)
        self._forward = inference.compiled(self._outputs, *teacher.parts.values(), check=False)

    def size(self, rows: Rows) -> CacheSize:
        """Returns the size on disk of a table's rows, cached or missing, without computing them."""
        store = self._open()
        keys, sizes, first = self._distinct(rows)
        layouts = self._all_layouts(store, rows)
        return cache_size(store, keys[first], sizes[first], layouts, self._needed(layouts))

    def fill(self, rows: Rows, batch_size: int, verbose: str | int = "auto") -> CachedRows:
        """Computes and caches the outputs of missing rows; returns access to those of all rows.

        Args:
            rows: N rows of a table.
            batch_size: rows per batch of the teacher.
            verbose: progress bar: "auto" = if it takes longer than a moment, 0 = none.

        Raises:
            OSError: the disk is full, or would be.
            ValueError: the folder contains outputs of another teacher or with another dtype, a
                shard is damaged, or an output is not finite.
        """
        store = self._open()
        keys, sizes, first = self._distinct(rows)
        layouts = self._all_layouts(store, rows)
        needed = self._needed(layouts)
        size = cache_size(store, keys[first], sizes[first], layouts, needed)
        logging.info("The teacher's outputs in %s: %s", self.folder, size)
        if size.missing_rows:
            store.check_space(size.missing_bytes)
            with atomic.only_one(self.folder):
                atomic.remove_leftovers(self.folder)
                store.refresh()  # another process may have been writing
                places = {name: store.find(keys[first], name) for name in layouts}
                is_missing = np.any([places[name] < 0 for name in needed], axis=0)
                missing_names = [
                    name
                    for name, output_places in places.items()
                    if np.any(output_places[is_missing] < 0)
                ]
                new_layouts = {name: layouts[name] for name in missing_names}
                new_rows = self._rows(
                    rows, keys, sizes, first[is_missing], new_layouts, batch_size, verbose
                )
                store.write(new_rows, new_layouts)
        return CachedRows(store, {name: store.find(keys, name) for name in needed})

    def reading(self, batch: Tensors, student: Reading) -> Reading:
        """Returns the teacher's outputs that a batch contains.

        Args:
            batch: batch of a dataset from `CachedRows.attach`.
            student: outputs of the student for the same batch.

        Raises:
            ValueError: the batch contains no outputs of the teacher.
        """
        features = {
            name.removeprefix(outputs.FEATURE): values
            for name, values in batch.items()
            if name.startswith(outputs.FEATURE)
        }
        if not features:
            raise ValueError(
                "With a cache_dir, batches must contain the teacher's outputs: use those of "
                f"Distiller.batches. Received: {', '.join(sorted(batch))}"
            )
        return outputs.restore(features, self._teacher, student, self._reads_heads)

    def _open(self) -> Store:
        return Store(self.folder, outputs.identity(self._teacher), self._dtype)

    def _distinct(self, rows: Rows) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns keys (N,) and sizes (N, 2) of all rows, and the numbers of distinct rows."""
        keys, sizes = np.empty(len(rows), "S16"), np.empty((len(rows), 2), np.int32)
        for index, features in self._predictor.batches(rows, _ROWS_AT_ONCE):
            keys[index], sizes[index] = row_keys(features, self._segments)
        _, first = np.unique(keys, return_index=True)
        return keys, sizes, np.sort(first)

    def _all_layouts(self, store: Store, rows: Rows) -> dict[str, Layout]:
        """Returns name -> layout of all outputs to cache.

        The layouts of heads come from the cache, or from a forward pass of the shortest row.
        """
        if not self._has_heads:
            return self._layouts
        heads = {name: x for name, x in store.layouts.items() if outputs.is_head(name)}
        if not heads:
            _, features = next(self._predictor.batches(rows, 1, np.argsort(rows.lengths)[:1]))
            forward_outputs = self._forward({name: np.asarray(x) for name, x in features.items()})
            heads = {
                name: outputs.head_layout(self._teacher, values)
                for name, values in forward_outputs.items()
                if outputs.is_head(name)
            }
        return {**self._layouts, **heads}

    def _needed(self, layouts: Mapping[str, Layout]) -> list[str]:
        """Returns the names of the outputs that the loss reads."""
        return [name for name in layouts if self._reads_heads or not outputs.is_head(name)]

    def _rows(
        self,
        rows: Rows,
        keys: np.ndarray,
        sizes: np.ndarray,
        numbers: np.ndarray,
        layouts: Mapping[str, Layout],
        batch_size: int,
        verbose: str | int,
    ) -> Iterator[Row]:
        """Yields (key, size, name -> flat array) for rows, the longest first; runs the teacher.

        Args:
            rows: N rows of a table.
            keys: keys of the rows, (N,).
            sizes: sizes of the rows, (N, 2), see `row_keys`.
            numbers: numbers of the rows to compute.
            layouts: name -> layout of the outputs to compute.
            batch_size: rows per batch.
            verbose: progress bar, see `fill`.

        Raises:
            ValueError: an output is not finite.
        """
        done = 0
        with Progress("", len(numbers), " examples", verbose=verbose) as bar:
            for index, features in self._predictor.batches(rows, batch_size, numbers):
                batch_outputs = self._forward(inference.pad(features))
                _check_finite({name: batch_outputs[name] for name in layouts}, self._dtype)
                for position, row in enumerate(index):
                    size = sizes[row].tolist()
                    row_outputs = {
                        k: x.trim(batch_outputs[k][position], *size) for k, x in layouts.items()
                    }
                    yield keys[row], sizes[row], row_outputs
                done += len(index)
                bar.show(done)

    def _outputs(self, features: Tensors) -> dict[str, Tensor]:
        """Returns name -> the teacher's output (B, …) for a batch of features."""
        reading = read(
            self._teacher,
            features,
            training=False,
            returned=self._returned,
            heads=self._has_heads,
        )
        return outputs.take(reading, self._layouts, features["padding_mask"], self._dtype)


class CachedRows:
    """The rows of a table, all of which are cached.

    Args:
        store: the cache.
        places: name of an output -> place of each row in the cache, (N,).
    """

    def __init__(self, store: Store, places: Mapping[str, np.ndarray]) -> None:
        self._store = store
        self._places = dict(places)

    def attach(self, dataset: tf.data.Dataset) -> tf.data.Dataset:
        """Adds the teacher's outputs to the features of batches.

        Args:
            dataset: batches of these rows from `bucketed_batches`, with `rows` (B,) and
                `padding_mask`.

        Returns:
            The same batches with "teacher/…" (B, …) for every output, padded like the batch.
        """
        names = list(self._places)
        dtypes = [self._store.layouts[name].dtype for name in names]

        def look_up(rows: np.ndarray, texts: int, tokens: int) -> list[np.ndarray]:
            return [
                self._store.read(name, output_places[rows], texts, tokens)
                for name, output_places in self._places.items()
            ]

        def add(batch: Tensors) -> dict[str, Tensor]:
            shape = tf.shape(batch["padding_mask"])
            texts = shape[1] if batch["padding_mask"].shape.rank == 3 else 1
            tensors = tf.numpy_function(look_up, [batch["rows"], texts, shape[-1]], dtypes)
            for name, values in zip(names, tensors, strict=True):
                row_shape = self._store.layouts[name].static_shape()
                values.set_shape([batch["rows"].shape[0], *row_shape])
            teacher_features = {outputs.FEATURE + k: x for k, x in zip(names, tensors, strict=True)}
            return {**batch, **teacher_features}

        dataset = dataset.map(stage(add), num_parallel_calls=tf.data.AUTOTUNE)
        return dataset.prefetch(tf.data.AUTOTUNE)


def _check_finite(found: Mapping[str, np.ndarray], dtype: str) -> None:
    """Raises ValueError if an output is NaN or infinite, in the cache's `dtype` or at all."""
    for name, values in found.items():
        if not np.isfinite(values).all():
            hint = 'is NaN or beyond the range of float16: try cache_dtype="float32"'
            raise ValueError(
                "The outputs of a teacher must be finite, in the cache's dtype too. "
                f"Received: {name}, which {hint if dtype == 'float16' else 'is NaN or infinite'}"
            )


def _check_tables(student: EncoderTask, teacher: EncoderTask) -> None:
    """Raises ValueError unless both are fine-tuning tasks, whose rows never change."""
    if isinstance(student, Pretraining):
        cost = _PLACES * student.encoder.config.vocabulary_size * 2
        raise ValueError(
            "A cache is supported for tasks on tables only: pretraining masks other tokens in "
            "every epoch, so no cached row would be used twice, and a row of 128 tokens would "
            f"take {show_bytes(cost)} ({_PLACES} positions of float16 logits). "
            "Received: cache_dir for a Pretraining"
        )
    if not isinstance(student, FineTuningTask):
        raise ValueError(
            "A cache is supported for tasks on tables only. Received: cache_dir for a "
            f"{type(student).__name__}"
        )
    if not isinstance(teacher, FineTuningTask):
        raise ValueError(
            "A cached teacher must be a task on tables, like its student. Received: "
            f"a {type(teacher).__name__}"
        )
