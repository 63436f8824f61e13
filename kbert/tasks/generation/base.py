"""What tasks that write text share: a model with a cache, decoded in one compiled loop.

Shapes: B rows, K results of a row, G new tokens at most, P tokens of a prompt.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf
from kbert.core.types import Tensor, Tensors
from kbert.decoding import Beam, Decoded, DecodingOptions, Method, Sampling, decode
from kbert.decoding.loop import check_method
from kbert.decoding.methods import from_json, to_json
from kbert.io.progress import Progress
from kbert.signatures.row_export import RowExport
from kbert.signatures.rows import Run
from kbert.signatures.runtime_model import RuntimeModel
from kbert.tasks.task import Task
from kbert.tokenizers.base import Tokenizer

SEED_LIMIT = 2**32
WIDTH = 16  # rows are padded to a multiple of so many tokens
_OUTPUTS = ("new_ids", "lengths", "scores")  # no name of an input: a graph has one of each
SHORTEST = 8  # tokens of a prompt that an export to another runtime must take


class WrittenRows(RowExport):
    """The whole writing of a text: rows of ids that `prefill` reads to new ids."""

    formats = ("onnx",)

    def settings_of(
        self, method: Method, max_new_tokens: int, stop_ids: Sequence[int]
    ) -> dict[str, Any]:
        """What `settings` returns."""
        check_method(method)
        if isinstance(method, Sampling):
            raise ValueError(
                "An export to another runtime writes by Greedy or Beam, for what is drawn comes "
                f'from integers of 32 bits there; format="savedmodel" has Sampling. Received: '
                f"{method}"
            )
        return {
            "method": to_json(method),
            "max_new_tokens": int(max_new_tokens),
            "stop_ids": [int(i) for i in stop_ids],
        }

    def fixed(  # type: ignore[override]  # what `settings` returns
        self, *, method: dict[str, Any], max_new_tokens: int, stop_ids: Sequence[int]
    ) -> dict[str, Any]:
        return {"method": from_json(method), "max_new_tokens": max_new_tokens}

    def outputs(  # type: ignore[override]  # what `settings` returns
        self,
        features: Mapping[str, Any],
        *,
        method: dict[str, Any],
        max_new_tokens: int,
        stop_ids: Sequence[int],
    ) -> dict[str, Any]:
        """A whole text for each row, or several.

        Returns:
            What `kbert.decoding.Decoded` holds: `new_ids` (B, K, G) and `lengths` (B, K) int32,
            `scores` (B, K).
        """
        decoded = self.task.decode(dict(features), from_json(method), max_new_tokens, stop_ids)
        return dict(zip(_OUTPUTS, decoded, strict=True))

    def answer_by(  # type: ignore[override]  # what `settings` returns
        self, run: Run, *, method: dict[str, Any], max_new_tokens: int, stop_ids: Sequence[int]
    ) -> None:
        """As in `RowExport`; `predict` takes no other method, nor of what follows."""
        self.task._runtime = _Runtime(run, from_json(method), max_new_tokens, tuple(stop_ids))


class GenerationTask(Task):
    """A decoder, or an encoder with one, that writes text.

    A task defines `model_classes`, `model_inputs`, `prefill`, `loss_terms`, `predict`,
    `signatures` and for exports to other runtimes `row_export`, a kind of `WrittenRows`.

    Args:
        model: of one of the task's `model_classes`.
        tokenizer: its tokenizer; its "sep" token ends a text.
        name: of the task.

    Raises:
        TypeError: the model is of another kind.
        ValueError: model and tokenizer do not fit together.
    """

    has_head = False
    model_classes: ClassVar[tuple[type[keras.Model], ...]]
    # What the model reads of a batch.
    model_inputs: ClassVar[tuple[str, ...]]

    def __init__(self, model: keras.Model, tokenizer: Tokenizer, *, name: str) -> None:
        if not isinstance(model, self.model_classes) and not isinstance(model, RuntimeModel):
            kinds = " or a ".join(kind.__name__ for kind in self.model_classes)
            raise TypeError(f"A {type(self).__name__} is made of a {kinds}. Received: {model!r}")
        super().__init__(model, tokenizer, name=name)
        size = getattr(tokenizer, "vocabulary_size", None)
        if size is None or size > model.config.vocabulary_size:
            raise ValueError(
                "The model's token table must have a row for each vocabulary entry. Received: "
                f"vocabulary_size={model.config.vocabulary_size} in the model's config, "
                f"{size} entries in the tokenizer"
            )
        if None in self.stop_ids:
            raise ValueError(
                'A text ends with the "sep" token, named in the tokenizer\'s special_tokens. '
                f"Received: a {type(tokenizer).__name__} without one"
            )
        self._compiled: dict[tuple, Callable] = {}
        self._runtime: _Runtime | None = None

    @property
    def model_parts(self) -> dict[str, keras.layers.Layer]:
        return self.model.parts()

    def call(self, batch: Tensors, training: bool = False) -> Tensor:
        """Logits (B, T, V) of the token behind each that is written."""
        inputs = {name: batch[name] for name in self.model_inputs if name in batch}
        return self.model.logits(self.model(inputs, training=training)["sequence"])

    def sample_outputs(self) -> dict[str, Any]:
        ids, mask = np.zeros((1, 2), "int32"), np.ones((1, 2), "int32")
        names = self.model_inputs
        return {"logits": self({name: mask if "mask" in name else ids for name in names})}

    def loss_denominators(self, batch: Tensors) -> Tensor:
        return ops.sum(ops.cast(batch["weights"], "float32"))[None]

    def prefill(self, features: dict[str, Any], max_new_tokens: int) -> tuple[Any, dict]:
        """What decoding begins with: logits (B, V) of the first token, and the model's cache.

        Args:
            features: a batch.
            max_new_tokens: the most tokens that are decoded.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `prefill`.")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Tokens behind which a text ends."""
        return (self.tokenizer.sep_id,)

    def banned_ids(self, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """What is never written: tokens that only inputs have, and rows of the table without one.

        Args:
            stop_ids: of a decoding; they are never among the banned.
        """
        tokenizer, rows = self.tokenizer, self.model.config.vocabulary_size
        inputs = {tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.mask_id}
        banned = {*inputs, *range(tokenizer.vocabulary_size, rows)}
        return tuple(sorted(banned - {None, *stop_ids}))

    def decode(
        self,
        features: dict[str, Any],
        method: Method,
        max_new_tokens: int,
        stop_ids: Sequence[int] | None = None,
    ) -> Decoded:
        """Decodes a batch; in a graph or eagerly.

        Args:
            features: what `prefill` reads; for `Sampling` also `seed`, a scalar, and `row_numbers`
                (B,), see `kbert.decoding.decode`.
            method: how the next token is chosen.
            max_new_tokens: G.
            stop_ids: behind which a text ends; None = `self.stop_ids`.
        """
        features = dict(features)
        drawn = {name: features.pop(name, None) for name in ("seed", "row_numbers")}
        stop_ids = self.stop_ids if stop_ids is None else stop_ids
        logits, cache = self.prefill(features, max_new_tokens)
        return decode(
            self.model.step,
            logits,
            cache,
            method=method,
            max_new_tokens=max_new_tokens,
            stop_ids=stop_ids,
            banned_ids=self.banned_ids(stop_ids),
            **drawn,
        )

    def decode_batch(
        self,
        features: dict[str, Any],
        method: Method,
        max_new_tokens: int,
        *,
        stop_ids: Sequence[int] | None = None,
        seed: int = 0,
        row_numbers: np.ndarray,
        jit_compile: bool = False,
    ) -> Decoded:
        """As `decode`, of and in NumPy arrays, compiled once for each method and number of tokens.

        Rows are padded to a power of two, and cut off again. `jit_compile` says whether XLA
        compiles, for each shape.

        Raises:
            ValueError: an export decodes, and in another way.
        """
        if self._runtime is not None:
            asked = (method, max_new_tokens, self.stop_ids if stop_ids is None else stop_ids)
            return self._runtime.decode(features, *asked)
        rows = len(row_numbers)
        if isinstance(method, Sampling):
            features = {**features, "row_numbers": row_numbers.astype("int32")}
        features = inference.pad(features)
        if isinstance(method, Sampling):
            features["seed"] = np.array(seed, "uint32")
        key = (method, max_new_tokens, stop_ids, jit_compile)
        if key not in self._compiled:
            # No closure: TensorFlow warns of those that are traced often, and has no second way to
            # tell them apart.
            run = functools.partial(
                self.decode, method=method, max_new_tokens=max_new_tokens, stop_ids=stop_ids
            )
            self._compiled[key] = inference.compiled(run, self.model, jit_compile=jit_compile)
        return Decoded(*(x[:rows] for x in self._compiled[key](features)))

    def write_each(
        self,
        lengths: np.ndarray,
        most: int,
        batch: Callable[[np.ndarray, int], tuple[dict[str, Any], int]],
        texts: Callable[[np.ndarray, Decoded], Sequence[list[str]]],
        method: Method,
        *,
        batch_size: int,
        first: int = 0,
        verbose: str | int = 0,
        **how: Any,
    ) -> tuple[list[list[str]], np.ndarray]:
        """What is written for rows of any number, in batches of one width.

        Args:
            lengths: (N,), tokens of each row; for one without any nothing is written.
            most: the widest row.
            batch: (numbers of rows, width) -> what `decode_batch` reads of them, and G.
            texts: (numbers of rows, what was decoded) -> K texts of each.
            method: how the next token is chosen.
            batch_size: the most rows of a batch.
            first: the number of the first row, for what is drawn at random.
            verbose: 1 = a progress bar, 0 = none, "auto" = one where it takes longer than a moment.
            **how: `stop_ids`, `seed` and `jit_compile` of `decode_batch`.

        Returns:
            K texts for each row, and their scores (N, K).
        """
        found = [[""] * num_results(method) for _ in lengths]
        scores = np.zeros((len(lengths), num_results(method)), np.float32)
        filled = np.flatnonzero(lengths)
        done = len(lengths) - len(filled)
        with Progress("", len(lengths), " examples", verbose=verbose) as bar:
            for width, index in batches_of_like_width(lengths[filled], most, batch_size):
                rows = filled[index]
                features, longest = batch(rows, width)
                numbers = first + rows
                decoded = self.decode_batch(features, method, longest, row_numbers=numbers, **how)
                for row, results in zip(rows, texts(rows, decoded), strict=True):
                    found[row] = results
                scores[rows] = decoded.scores
                done += len(rows)
                bar.show(done)
        return found, scores

    def decoding_of(self, options: DecodingOptions) -> tuple[Method, int | None]:
        """The method and `max_new_tokens`; an export's own where options say nothing else."""
        if self._runtime is not None and options.is_usual:
            return self._runtime.method, self._runtime.max_new_tokens
        return options.decoding, options.max_new_tokens

    def new_ids(self, decoded: Decoded, stop_ids: Sequence[int] | None = None) -> tf.RaggedTensor:
        """(B · K, None) the tokens of each result, without the one that ended it."""
        stop_ids = self.stop_ids if stop_ids is None else stop_ids
        ids = tf.reshape(decoded.token_ids, (-1, tf.shape(decoded.token_ids)[-1]))
        inside = tf.range(tf.shape(ids)[1])[None] < tf.reshape(decoded.lengths, (-1, 1))
        stops = tf.reduce_any(ids[..., None] == tf.constant(stop_ids, tf.int32), axis=-1)
        return tf.ragged.boolean_mask(ids, inside & ~stops).with_row_splits_dtype(tf.int64)


@dataclasses.dataclass(frozen=True)
class _Runtime:
    """An export that decodes in the place of the model, in its one way."""

    run: Run
    method: Method
    max_new_tokens: int
    stop_ids: tuple[int, ...]

    def decode(
        self,
        features: dict[str, Any],
        method: Method,
        max_new_tokens: int,
        stop_ids: Sequence[int],
    ) -> Decoded:
        """As `GenerationTask.decode_batch`."""
        asked = {"method": method, "max_new_tokens": max_new_tokens, "stop_ids": tuple(stop_ids)}
        fixed = {name: getattr(self, name) for name in asked}
        if asked != fixed:
            raise ValueError(
                f"An export writes as it was told when it was made: {_listed(fixed)}. Export the "
                f"task once more for another way. Received: {_listed(asked)}"
            )
        found = self.run(features)
        return Decoded(*(found[name] for name in _OUTPUTS))


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def batches_of_like_width(
    lengths: np.ndarray, most: int, batch_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Rows in batches of one width, so that what is decoded does not depend on a row's neighbours.

    Args:
        lengths: (N,) tokens of each row.
        most: the widest row.
        batch_size: the most rows of a batch.

    Yields:
        The width, and the numbers of the rows; the widest first, as memory then fails at once.

    Example:
        >>> [(w, i.tolist()) for w, i in batches_of_like_width(np.array([3, 40, 16, 20]), 40, 8)]
        [(40, [1]), (32, [3]), (16, [0, 2])]
    """
    widths = np.minimum(-(-np.maximum(lengths, 1) // WIDTH) * WIDTH, most)
    for width in np.unique(widths)[::-1]:
        rows = np.flatnonzero(widths == width)
        for start in range(0, len(rows), batch_size):
            yield int(width), rows[start : start + batch_size]


def padded(rows: Sequence[np.ndarray], width: int, pad_id: int) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (B, width) and their mask (B, width), both int32.

    Example:
        >>> padded([np.array([7, 8]), np.array([9])], 3, 0)[0].tolist()
        [[7, 8, 0], [9, 0, 0]]
    """
    lengths = np.array([len(row) for row in rows])
    mask = np.arange(width) < lengths[:, None]
    ids = np.full((len(rows), width), pad_id, "int32")
    ids[mask] = np.concatenate(rows)
    return ids, mask.astype("int32")


def tokenize(tokenizer: Tokenizer, texts: Sequence[str | bytes]) -> list[np.ndarray]:
    """Ids of each text, in chunks of bounded memory."""
    found: list[np.ndarray] = []
    for _, chunk in inference.chunks(texts):
        found += inference.as_rows(tokenizer.encode(tf.constant(list(chunk), tf.string)))
    return found


def num_results(method: Method) -> int:
    """K, the texts that a method gives for each row."""
    return getattr(method, "num_results", 1)


def check_seed(seed: Any) -> None:
    """Raises ValueError unless the seed is an integer of 32 bits."""
    if not isinstance(seed, int | np.integer) or not 0 <= seed < SEED_LIMIT:
        raise ValueError(
            f"`seed` must be an integer from 0 to {SEED_LIMIT - 1}. Received: {seed!r}"
        )


def check_max_new_tokens(number: Any, most: int) -> None:
    """Raises ValueError unless so many tokens may be written."""
    if not isinstance(number, int | np.integer) or not 1 <= number <= most:
        raise ValueError(
            f"`max_new_tokens` must be an integer from 1 to {most}, which the model's positions "
            f"allow. Received: {number!r}"
        )


def num_beams(method: Method) -> int:
    """Beginnings of each text that are followed at once."""
    return method.width if isinstance(method, Beam) else 1


def request_seed(
    method: Method, seed: int | None, rows: tf.Tensor, row_numbers: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """What a served `Sampling` draws by: the seed of the export, or a new one for each chunk.

    Args:
        method: how the next token is chosen.
        seed: of the export; None = drawn.
        rows: B, one at least, also where a request has none.
        row_numbers: which rows of the request they are; None = all.
    """
    if not isinstance(method, Sampling):
        return {}
    if seed is None:
        number = tf.random.uniform((), 0, tf.int32.max, tf.int32)
    else:
        number = tf.constant(seed, tf.uint32)
    if row_numbers is None:
        numbers = tf.range(rows)
    else:  # of no row where one of nothing is computed
        numbers = tf.pad(row_numbers, [[0, rows - tf.size(row_numbers)]])
    return {"seed": number, "row_numbers": numbers}


def written(name: str, texts: Sequence[Sequence[str]], scores: np.ndarray) -> list[dict[str, Any]]:
    """The texts (N, K) and scores as a file has them; of several a row lists, best first.

    Example:
        >>> written("translation", [["ja", "jo"]], np.array([[-1.0, -2.5]], "float32"))
        [{'translations': ['ja', 'jo'], 'scores': [-1.0, -2.5]}]
    """
    if scores.shape[1] == 1:
        pairs = zip(texts, scores, strict=True)
        return [{name: text, "score": float(score)} for (text,), (score,) in pairs]
    return [
        {f"{name}s": list(row), "scores": found.tolist()}
        for row, found in zip(texts, scores, strict=True)
    ]


def answer(texts: Sequence[Sequence[str]], scores: np.ndarray, return_scores: bool) -> Any:
    """What `predict` returns: (N, K) texts and scores, without K where it is 1."""
    if scores.shape[1] == 1:
        texts, scores = [row[0] for row in texts], scores[:, 0]
    return (list(texts), scores) if return_scores else list(texts)
