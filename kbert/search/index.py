"""An index of vectors: exact search by cosine or dot product.

Shapes: Q queries, D width, N vectors, M some of the vectors, K results per query.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.core.in_memory import check_order
from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.io import atomic, fingerprints
from kbert.io.arrays import read_safetensors, serialise
from kbert.io.json_file import read_json
from kbert.io.paths import Path
from kbert.search.exact import best_rows, unit, unit_graph
from kbert.search.stores import FaissStore, Store, TensorFlowStore

METRICS = ("cosine", "dot")
BACKENDS = ("tensorflow", "faiss")
VECTORS_FILE, INDEX_FILE = "vectors.safetensors", "index.json"
FORMAT_VERSION = 1
_KEYS = {"format_version", "metric", "count", "width", "ids"}
_CHECKSUM = "checksum"  # checksum of the vectors; the oldest folders do not have it
_LARGEST_ROW = 2**31 - 1  # TensorFlow's top_k counts in int32


class Hits(NamedTuple):
    """Results of a search, the best first.

    Attributes:
        ids: ids (Q, K): int64, or strings (dtype object) if the index has string ids.
        scores: scores (Q, K) float32.
    """

    ids: np.ndarray
    scores: np.ndarray

    def pairs(self) -> list[list[tuple[Any, float]]]:
        """Returns for each query a list of (id, score), the best first.

        Example:
            >>> index = Index([[1, 0], [1, 1], [0, 1]], ["east", "north-east", "north"])
            >>> [(text, round(score, 2)) for text, score in index.search([[0, 2]], k=2).pairs()[0]]
            [('north', 1.0), ('north-east', 0.71)]
        """
        rows = zip(self.ids.tolist(), self.scores.tolist(), strict=True)
        return [list(zip(ids, scores, strict=True)) for ids, scores in rows]


class Index:
    """Vectors that are searched exactly: each query is compared with every vector.

    Products are computed in blocks on TensorFlow's device, in float32. Working memory grows neither
    with the number of vectors nor with that of queries. Among equal scores the vector that was
    added first comes first.

    Args:
        vectors: (N, D) finite numbers, one vector or more.
        ids: N different strings, such as the texts themselves, or N different integers; None =
            0, 1, 2, … in the order of adding.
        metric: "cosine", which stores vectors at length 1 (a zero vector has cosine 0 with every
            other), or "dot".
        backend: library that compares: "tensorflow", or "faiss" (`pip install 'kbert[faiss]'`) on
            the CPU. The results are the same, except for ties at the K-th rank.

    Raises:
        ValueError: the vectors have another shape, NaN or infinity; the ids differ from the vectors
            in number, are of several types, or are not unique; the metric or backend is unknown.
        ImportError: FAISS is not installed.

    Example:
        >>> index = Index([[1, 0], [1, 1], [0, 1]], ["east", "north-east", "north"])
        >>> hits = index.search([[2, 0.1]], k=2)
        >>> hits.ids.tolist(), hits.scores.round(2).tolist()
        ([['east', 'north-east']], [[1.0, 0.7400000095367432]])
    """

    def __init__(
        self,
        vectors: Any,
        ids: Sequence[str] | Sequence[int] | np.ndarray | None = None,
        *,
        metric: str = "cosine",
        backend: str = "tensorflow",
    ) -> None:
        for name, value, choices in (("metric", metric, METRICS), ("backend", backend, BACKENDS)):
            if value not in choices:
                raise ValueError(
                    f"`{name}` must be one of {', '.join(choices)}. Received: {value!r}"
                )
        vectors = _checked(vectors, "vectors")
        if not vectors.size:
            raise ValueError(
                f"An index must have at least one vector. Received: shape {vectors.shape}"
            )
        self.metric = metric
        self.width: int = vectors.shape[1]
        self._store: Store = (
            TensorFlowStore() if backend == "tensorflow" else FaissStore(self.width)
        )
        self._ids: list | None = None if ids is None else []
        self._rows: dict = {}  # id -> row
        self._count = 0
        self._append(vectors, ids)

    def __len__(self) -> int:
        return self._count

    @property
    def ids(self) -> np.ndarray:
        """Ids of the vectors (N,), in the order of adding."""
        return self._named(np.arange(len(self)))

    @property
    def vectors(self) -> np.ndarray:
        """Copy of the vectors, (N, D) float32; at length 1 for the metric "cosine"."""
        return self._store.take(slice(None))

    def add(
        self, vectors: Any, ids: Sequence[str] | Sequence[int] | np.ndarray | None = None
    ) -> None:
        """Appends vectors.

        Args:
            vectors: new vectors (M, D).
            ids: M ids that the index does not have yet, of the type of its other ids; None if the
                index was made without ids.

        Raises:
            ValueError: the vectors have another width, NaN or infinity, or the ids do not meet
                these conditions. The index is then unchanged.

        Example:
            >>> index = Index([[1, 0]])
            >>> index.add([[0, 1], [1, 1]])
            >>> len(index), index.search([[0, 1]], k=1).ids.tolist()
            (3, [[1]])
        """
        self._append(self._as_wide(vectors, "vectors"), ids)

    def search(self, queries: Any, k: int = 10) -> Hits:
        """Finds the vectors with the highest scores for each query.

        Args:
            queries: query vectors (Q, D), finite numbers.
            k: results per query; all vectors if the index has fewer.

        Raises:
            ValueError: the queries have another shape, NaN or infinity, `k` is below 1, or a
                product overflows float32.
        """
        rows, scores = self.search_rows(queries, k)
        return Hits(self._named(rows), scores)

    def search_rows(self, queries: Any, k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Finds the vectors with the highest scores for each query, by their rows.

        Args:
            queries: query vectors (Q, D), finite numbers.
            k: results per query; all vectors if the index has fewer.

        Returns:
            Rows (Q, K) int64, numbers of vectors in the order of adding; and scores (Q, K).

        Raises:
            ValueError: see `search`.
        """
        queries = self._as_wide(queries, "queries")
        scores, rows = self._store.search(self._compared(queries), self._k(k))
        if not np.isfinite(scores).all():
            raise ValueError(
                "Products of queries and vectors must be within the range of float32. Received: "
                f"numbers up to {np.abs(queries).max():.3g} in the queries"
            )
        return rows.astype(np.int64), scores

    def scores(self, queries: Any, rows: Any) -> np.ndarray:
        """Returns the scores of chosen vectors.

        Args:
            queries: query vectors (Q, D).
            rows: rows (Q, M): numbers of vectors in the order of adding.

        Returns:
            (Q, M) float32.

        Example:
            >>> Index([[1, 0], [0, 2]], metric="dot").scores([[3, 4]], [[1, 0]]).tolist()
            [[8.0, 3.0]]
        """
        queries = self._as_wide(queries, "queries")
        rows = np.asarray(rows, np.int64)
        if rows.ndim != 2 or len(rows) != len(queries) or not self._has(rows):
            raise ValueError(
                "`rows` must have a row for each query, with numbers of vectors from 0 to "
                f"{len(self) - 1}. Received: {len(queries)} queries and rows of shape {rows.shape}"
            )
        vectors = self._store.take(rows.ravel()).reshape(*rows.shape, self.width)
        return np.einsum("qd,qmd->qm", self._compared(queries), vectors)

    def rows_of(self, ids: Sequence[str] | Sequence[int] | np.ndarray) -> np.ndarray:
        """Returns the rows (M,) of M ids: numbers of vectors in the order of adding.

        Raises:
            ValueError: the index does not have an id.
        """
        if isinstance(ids, str | bytes):
            raise ValueError(f"`ids` must be a list of ids. Received: {ids!r:.80}")
        if self._ids is None:
            rows = np.asarray(ids)
            are_rows = rows.dtype.kind in "iu" and self._has(rows)
            if rows.size and not are_rows:
                raise ValueError(
                    f"The ids of this index must be from 0 to {len(self) - 1}. Received: "
                    f"{ids!r:.80}"
                )
            return rows.astype(np.int64)
        unknown = next((x for x in ids if x not in self._rows), None)
        if unknown is not None:
            raise ValueError(f"Every id must be in the index. Received: {unknown!r}")
        return np.array([self._rows[x] for x in ids], np.int64)

    def search_graph(self, queries: tf.Tensor, k: int = 10) -> dict[str, tf.Tensor]:
        """Runs `search` inside a graph, such as that of a SavedModel's entry point.

        The vectors are a variable, which a SavedModel stores; vectors added later are not in it. On
        Ampere and newer GPUs the products follow TensorFlow's setting for TensorFloat-32
        (`tf.config.experimental.enable_tensor_float_32_execution`).

        Args:
            queries: query vectors (Q, D) float32.
            k: results per query; all vectors if the index has fewer.

        Returns:
            `ids` (Q, K) int64 or strings, `scores` (Q, K) float32.

        Raises:
            ValueError: `k` is below 1, or the backend is not TensorFlow.

        Example:
            >>> index = Index([[1, 0], [0, 1]], ["east", "north"])
            >>> @tf.function
            ... def run(queries):
            ...     return index.search_graph(queries, k=1)
            >>> run(tf.constant([[0.1, 1.0]]))["ids"].numpy().tolist()
            [[b'north']]
        """
        if not isinstance(self._store, TensorFlowStore):
            raise ValueError(
                'A graph requires an index with backend="tensorflow". Received: backend="faiss"'
            )
        variable, count = self._store.variable()
        k = self._k(k)
        queries = tf.ensure_shape(queries, [None, self.width])
        if self.metric == "cosine":
            queries = unit_graph(queries)
        scores, rows = best_rows(queries, variable.read_value(), tf.constant(count), tf.constant(k))
        shape = [queries.shape[0], k]
        scores, rows = tf.ensure_shape(scores, shape), tf.ensure_shape(rows, shape)
        return {"ids": self._named_graph(rows), "scores": scores}

    def save(self, folder: PathLike) -> None:
        """Writes `vectors.safetensors` and `index.json`, both or neither.

        Args:
            folder: path of the folder, created if missing; also `gs://…`.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        vectors = np.ascontiguousarray(self.vectors)
        content = {
            "format_version": FORMAT_VERSION,
            "metric": self.metric,
            "count": len(self),
            "width": self.width,
            "ids": self._ids,
            _CHECKSUM: fingerprints.crc32([vectors]),
        }
        # index.json last: `load` reads it first.
        atomic.write_together(
            {
                folder / VECTORS_FILE: serialise({"vectors": vectors}),
                folder / INDEX_FILE: (json.dumps(content, ensure_ascii=False) + "\n").encode(),
            }
        )

    @classmethod
    def load(cls, folder: PathLike, *, backend: str = "tensorflow") -> Index:
        """Loads an index from a folder.

        Args:
            folder: path of a folder that `save` wrote.
            backend: library that compares, "tensorflow" or "faiss"; any folder loads with either.

        Raises:
            FileNotFoundError: there is no such folder.
            ValueError: the folder is damaged, or of another version.

        Example:
            >>> import tempfile
            >>> folder = tempfile.mkdtemp()
            >>> Index([[3, 4]], ["a"]).save(folder)
            >>> Index.load(folder).search([[3, 4]]).ids.tolist()
            [['a']]
        """
        content = read_json(Path(folder, INDEX_FILE))
        source = os.fspath(folder)
        if content.get("format_version") != FORMAT_VERSION or set(content) - {_CHECKSUM} != _KEYS:
            raise ValueError(
                f"{INDEX_FILE} must have the version {FORMAT_VERSION} and the keys "
                f"{', '.join(sorted(_KEYS))}. Received: version {content.get('format_version')!r} "
                f"and the keys {', '.join(sorted(content))} in {source}"
            )
        vectors = read_safetensors(Path(folder, VECTORS_FILE)).get("vectors")
        shape = (content["count"], content["width"])
        if vectors is None or vectors.shape != shape or vectors.dtype != np.float32:
            received = "none" if vectors is None else f"{vectors.dtype} {vectors.shape}"
            raise ValueError(
                f"{VECTORS_FILE} must have `vectors`, float32 {shape}, as in {INDEX_FILE}. "
                f"Received: {received} in {source}"
            )
        # The vectors of another index of this size would be returned with these ids.
        if _CHECKSUM in content and content[_CHECKSUM] != fingerprints.crc32([vectors]):
            raise ValueError(
                f"{VECTORS_FILE} must be the one that was written with {INDEX_FILE}. "
                f"Received: another checksum than {content[_CHECKSUM]!r} in {source}"
            )
        try:
            ids = content["ids"]
            if ids is not None and not isinstance(ids, list):
                raise ValueError(f"`ids` must be a list, or null. Received: {ids!r:.80}")
            # "dot" adds the vectors unchanged: scaling them again could change the last digit.
            index = cls(vectors, ids, metric="dot", backend=backend)
            if content["metric"] not in METRICS:
                raise ValueError(
                    f"`metric` must be one of {', '.join(METRICS)}. Received: {content['metric']!r}"
                )
        except ValueError as error:
            raise ValueError(f"The index in {source} is damaged: {error}") from error
        index.metric = content["metric"]
        return index

    def _append(self, vectors: np.ndarray, ids: Any) -> None:
        """Adds float32 vectors (M, D) and their ids; ValueError leaves the index unchanged."""
        if len(self) + len(vectors) > _LARGEST_ROW:
            raise ValueError(
                f"An index must have at most {_LARGEST_ROW:,} vectors. Received: {len(vectors):,} "
                f"more than {len(self):,}"
            )
        if (ids is None) != (self._ids is None):
            raise ValueError(
                "Either all vectors of an index must have ids, or none. Received: vectors "
                f"{'without' if ids is None else 'with'} ids, unlike the others"
            )
        if self._ids is not None:
            ids = _checked_ids(ids, len(vectors))
            if self._ids and ids and type(ids[0]) is not type(self._ids[0]):
                raise ValueError(
                    "The ids of an index must be all strings or all integers. Received: "
                    f"{self._ids[0]!r} and {ids[0]!r}"
                )
            rows = {x: len(self) + number for number, x in enumerate(ids)}
            if len(rows) < len(ids) or not rows.keys().isdisjoint(self._rows):
                counts = Counter(ids)
                twice = next(x for x in ids if x in self._rows or counts[x] > 1)
                raise ValueError(f"Ids must be unique. Received: {twice!r} twice")
            self._ids += ids
            self._rows |= rows
        # With "dot" the vectors are the caller's array, who may write into it: copy.
        self._store.add(np.array(self._compared(vectors)))
        self._count += len(vectors)

    def _compared(self, vectors: np.ndarray) -> np.ndarray:
        return vectors if self.metric == "dot" else unit(vectors)

    def _named_graph(self, rows: tf.Tensor) -> tf.Tensor:
        if self._ids is None:
            return tf.cast(rows, tf.int64)
        kind = tf.string if isinstance(self._ids[0], str) else tf.int64
        return tf.gather(tf.constant(self._ids, kind), rows)

    def _named(self, rows: np.ndarray) -> np.ndarray:
        """Returns the ids of rows (…), in the same shape."""
        if self._ids is None:
            return rows
        is_text = isinstance(self._ids[0], str)
        names = [self._ids[row] for row in rows.ravel().tolist()]
        # Not as NumPy strings: each would need as much memory as the longest.
        return np.array(names, object if is_text else np.int64).reshape(rows.shape)

    def _as_wide(self, vectors: Any, what: str) -> np.ndarray:
        """Returns vectors as float32; ValueError, in which they are `what`, for another width."""
        vectors = _checked(vectors, what)
        if vectors.shape[1] != self.width:
            raise ValueError(
                f"The {what} must be as wide as the index, {self.width}. "
                f"Received: width {vectors.shape[1]}"
            )
        return vectors

    def _has(self, rows: np.ndarray) -> bool:
        return not rows.size or bool(rows.min() >= 0 and rows.max() < len(self))

    def _k(self, k: int) -> int:
        if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
            raise ValueError(f"k must be a whole number, 1 or more. Received: k={k!r}")
        return min(int(k), len(self))


def _checked(vectors: Any, what: str) -> np.ndarray:
    """Returns vectors (N, D) as float32, without a copy if they are float32 already.

    Args:
        vectors: array of numbers.
        what: name of the vectors in messages, in the plural.

    Raises:
        ValueError: these are texts, have another number of axes, or are not finite in float32.
    """
    vectors = np.asarray(vectors)
    if vectors.dtype.kind in "US":
        raise ValueError(
            "An index requires vectors: use index.search(embedder.predict(texts)). Received: "
            f"texts as {what}"
        )
    if vectors.ndim != 2 or vectors.dtype.kind not in "iufbV":
        raise ValueError(
            f"The {what} must be an array of numbers, (number of {what}, width). "
            f"Received: {vectors.dtype} of shape {vectors.shape}"
        )
    with np.errstate(over="ignore"):  # an overflow becomes infinite, which raises below
        vectors = vectors.astype(np.float32, copy=False)
    if not np.isfinite(vectors).all():
        row = np.argwhere(~np.isfinite(vectors))[0][0]
        raise ValueError(
            f"The {what} must be finite, also in float32. Received: NaN or infinity in row {row}"
        )
    return vectors


def _checked_ids(ids: Any, count: int) -> list:
    """Returns ids as a list; ValueError unless they are `count` strings or `count` int64."""
    check_order(ids, "The value of ids")
    ids = ids.tolist() if isinstance(ids, np.ndarray) else list(ids)
    ids = [x.item() if isinstance(x, np.generic) else x for x in ids]
    types = {type(x) for x in ids}
    if len(ids) != count or len(types) > 1 or not types <= {int, str}:
        raise ValueError(
            "Each vector must have one id; ids must be all strings or all integers. Received: "
            f"{len(ids)} ids for {count} vectors, of the types "
            f"{', '.join(sorted(x.__name__ for x in types))}"
        )
    if not all(-(2**63) <= x < 2**63 for x in ids if isinstance(x, int)):
        raise ValueError("Integer ids must fit int64. Received: a larger one")
    return ids
