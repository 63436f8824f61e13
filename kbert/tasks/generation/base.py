"""Base of the tasks that generate text: a model with a KV cache, decoded in one compiled loop.

Shapes: B rows, K results of a row, G new tokens at most, P tokens of a prompt.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np

from kbert import inference
from kbert.core.finite import refuse_not_finite
from kbert.core.late import tf
from kbert.core.types import Tensor, Tensors
from kbert.decoding import Beam, Constraints, Decoded, DecodingOptions, Method, Sampling, decode
from kbert.decoding.constraints import FREE
from kbert.decoding.loop import check_method
from kbert.decoding.methods import from_json, to_json
from kbert.io.progress import Progress
from kbert.signatures.row_export import RowExport
from kbert.signatures.rows import Run
from kbert.signatures.runtime_model import RuntimeModel
from kbert.tasks.task import Task
from kbert.tasks.token_losses import TokenLosses, token_losses
from kbert.tokenizers.base import Tokenizer

SEED_LIMIT = 2**32
WIDTH = 16  # rows are padded to a multiple of this many tokens
_OUTPUTS = ("new_ids", "lengths", "scores")  # none is an input's name: names are unique in a graph
SHORTEST = 8  # tokens of a prompt that an export to another runtime must accept


class WrittenRows(RowExport):
    """Export of the whole generation loop: token ids of prompts or sources in, new ids out."""

    formats = ("onnx",)

    def settings_of(
        self, method: Method, max_new_tokens: int, stop_ids: Sequence[int], constraints: Constraints
    ) -> dict[str, Any]:
        """Returns the arguments as a JSON-serialisable dict, which a subclass's `settings` returns.

        Raises ValueError for `Sampling`, which other runtimes do not support.
        """
        check_method(method)
        check_constraints(constraints, max_new_tokens)
        if isinstance(method, Sampling):
            raise ValueError(
                "Sampling is not supported by exports to other runtimes, whose random integers "
                f'have 32 bits: use Greedy or Beam, or format="savedmodel". Received: '
                f"{method}"
            )
        settings = {
            "method": to_json(method),
            "max_new_tokens": int(max_new_tokens),
            "stop_ids": [int(i) for i in stop_ids],
        }
        # Omitted when empty, as in exports of earlier versions.
        return (
            settings if constraints.is_empty else {**settings, "constraints": to_json(constraints)}
        )

    def fixed(  # type: ignore[override]  # what `settings` returns
        self,
        *,
        method: dict[str, Any],
        max_new_tokens: int,
        stop_ids: Sequence[int],
        constraints: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        fixed = {"method": from_json(method), "max_new_tokens": max_new_tokens}
        return fixed if constraints is None else {**fixed, "constraints": from_json(constraints)}

    def outputs(  # type: ignore[override]  # what `settings` returns
        self,
        features: Mapping[str, Any],
        *,
        method: dict[str, Any],
        max_new_tokens: int,
        stop_ids: Sequence[int],
        constraints: dict[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Decodes K whole texts for each of the B rows: the `num_results` of a `Beam`, else 1.

        `method` is a decoding method as a dict, from `settings`, and so are `constraints`. A text
        ends with one of `stop_ids`, or after G = `max_new_tokens` tokens.

        Returns:
            The fields of `kbert.decoding.Decoded`: `new_ids` (B, K, G) and `lengths` (B, K) int32,
            `scores` (B, K).
        """
        decoded = self.task.decode(
            dict(features),
            from_json(method),
            max_new_tokens,
            stop_ids,
            FREE if constraints is None else from_json(constraints),
        )
        return dict(zip(_OUTPUTS, decoded, strict=True))

    def answer_by(  # type: ignore[override]  # what `settings` returns
        self,
        run: Run,
        *,
        method: dict[str, Any],
        max_new_tokens: int,
        stop_ids: Sequence[int],
        constraints: dict[str, Any] | None = None,
    ) -> None:
        """Makes the task's `predict` decode with an export, and accept only the export's settings.

        `run` is the function of a runtime, from arrays of `inputs` to arrays of the outputs. The
        other arguments are those settings, as `settings` returns them.
        """
        rules = FREE if constraints is None else from_json(constraints)
        self.task._runtime = _Runtime(
            run, from_json(method), max_new_tokens, tuple(stop_ids), rules
        )


class GenerationTask(Task):
    """A decoder, or an encoder-decoder, that generates text.

    A subclass defines `model_classes`, `model_inputs`, `prefill`, `loss_terms`, `predict` and
    `signatures`. For exports to other runtimes it also sets `row_export`, a subclass of
    `WrittenRows`.

    Args:
        model: instance of one of the task's `model_classes`.
        tokenizer: tokenizer of the model; its "sep" token ends a text.
        name: name of the task.

    Raises:
        TypeError: the model is of another class.
        ValueError: model and tokenizer do not fit together.
    """

    has_head = False
    model_classes: ClassVar[tuple[type[keras.Model], ...]]
    # Names of the batch's entries that the model reads.
    model_inputs: ClassVar[tuple[str, ...]]
    other_inputs: ClassVar[tuple[str, ...]] = ()

    def __init__(self, model: keras.Model, tokenizer: Tokenizer, *, name: str) -> None:
        if not isinstance(model, self.model_classes) and not isinstance(model, RuntimeModel):
            kinds = " or a ".join(kind.__name__ for kind in self.model_classes)
            raise TypeError(f"A {type(self).__name__} requires a {kinds}. Received: {model!r}")
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
                'The tokenizer\'s special_tokens must name a "sep" token, which ends a text. '
                f"Received: a {type(tokenizer).__name__} without one"
            )
        self._compiled: dict[tuple, Callable] = {}
        self._runtime: _Runtime | None = None

    @property
    def model_parts(self) -> dict[str, keras.layers.Layer]:
        return self.model.parts()

    def call(self, batch: Tensors, training: bool = False) -> Tensor:
        """Returns next-token logits (B, T, V); entries that are no input are ignored."""
        return self.model.logits(self._sequence(batch, training))

    def _sequence(self, batch: Tensors, training: bool) -> Tensor:
        """Returns the hidden states (B, T, H) that predict the next tokens."""
        names = (*self.model_inputs, *self.other_inputs)
        inputs = {name: batch[name] for name in names if name in batch}
        return self.model(inputs, training=training)["sequence"]

    def token_losses(
        self, batch: Tensors, weights: Tensor, training: bool, smoothing: float = 0.0
    ) -> TokenLosses:
        """Returns the losses of a batch's "targets" (B, T), see `kbert.tasks.token_losses`."""
        output = self.model.token_output(self._sequence(batch, training))
        return token_losses(
            output, batch["targets"], weights, training=training, smoothing=smoothing
        )

    def sample_outputs(self) -> dict[str, Any]:
        ids, mask = np.zeros((1, 2), "int32"), np.ones((1, 2), "int32")
        names = self.model_inputs
        return {"logits": self({name: mask if "mask" in name else ids for name in names})}

    def prefix_ids(self, features: dict[str, Any]) -> Tensor:
        """Returns the ids (B, P) int32 of the tokens before the first new one, for `Constraints`.

        A row with fewer than P tokens has -1 before them.

        Args:
            features: inputs of `prefill`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `prefix_ids`.")

    def prefill(self, features: dict[str, Any], max_new_tokens: int) -> tuple[Any, dict]:
        """Returns logits (B, V) of the first new token, and the KV cache to decode with.

        Args:
            features: token ids and padding mask (B, P) of prompts, or of sources to translate.
            max_new_tokens: most tokens that are decoded, for which the cache has space.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `prefill`.")

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a text."""
        return (self.tokenizer.sep_id,)

    def banned_ids(self, stop_ids: Sequence[int]) -> tuple[int, ...]:
        """Returns ids that are never generated: input-only tokens and unused rows of the table.

        Args:
            stop_ids: token ids that end a text; they are never banned.
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
        constraints: Constraints = FREE,
    ) -> Decoded:
        """Returns the `Decoded` token ids, lengths and scores of a batch, in a graph or eagerly.

        Args:
            features: inputs of `prefill`; for `Sampling` also `seed`, a scalar, and `row_numbers`
                (B,), see `kbert.decoding.decode`.
            method: decoding method.
            max_new_tokens: G, the most new tokens of a row.
            stop_ids: token ids that end a text; None = `self.stop_ids`.
            constraints: rules that the tokens of a text must obey.
        """
        features = dict(features)
        sampling_inputs = {name: features.pop(name, None) for name in ("seed", "row_numbers")}
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
            constraints=constraints,
            prefix=self.prefix_ids(features) if constraints.reads_tokens else None,
            **sampling_inputs,
        )

    def decode_batch(
        self,
        features: dict[str, Any],
        method: Method,
        max_new_tokens: int,
        *,
        stop_ids: Sequence[int] | None = None,
        constraints: Constraints = FREE,
        seed: int = 0,
        row_numbers: np.ndarray,
        jit_compile: bool = False,
    ) -> Decoded:
        """Decodes a batch of NumPy arrays like `decode`, compiled once for the same settings.

        The number of rows is padded to a power of two; the padding is removed from the result.
        `seed` and `row_numbers` (B,), the numbers of the rows in the whole input, determine the
        draws of `Sampling`; other methods ignore them. With `jit_compile` XLA compiles each shape.

        Raises:
            ValueError: the task runs an export that was made with other settings.
        """
        if self._runtime is not None:
            stop_ids = self.stop_ids if stop_ids is None else stop_ids
            return self._runtime.decode(features, method, max_new_tokens, stop_ids, constraints)
        rows = len(row_numbers)
        if isinstance(method, Sampling):
            features = {**features, "row_numbers": row_numbers.astype("int32")}
        features = inference.pad(features)
        if isinstance(method, Sampling):
            features["seed"] = np.array(seed, "uint32")
        stop_ids = None if stop_ids is None else tuple(stop_ids)
        key = (method, max_new_tokens, stop_ids, constraints, jit_compile)
        if key not in self._compiled:
            # No closure: TensorFlow counts traces per code object, so closures would share one
            # count and it would warn about frequent retracing.
            run = functools.partial(
                self.decode,
                method=method,
                max_new_tokens=max_new_tokens,
                stop_ids=stop_ids,
                constraints=constraints,
            )
            self._compiled[key] = inference.compiled(
                run, self.model, jit_compile=jit_compile, check=False
            )
        decoded = Decoded(*(x[:rows] for x in self._compiled[key](features)))
        # A beam that ends without a text, since no token is left, has a score of -inf.
        refuse_not_finite({"scores": np.maximum(decoded.scores, -1e30)}, "the model's answers")
        return decoded

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
        """Generates texts for any number of rows, in batches of rows of equal width.

        Args:
            lengths: (N,) tokens of each row. A row without tokens gets K empty texts with score 0.
            most: largest width of a batch, in tokens.
            batch: function (row indices, width) -> (features for `decode_batch`, G, the most new
                tokens).
            texts: function (row indices, `Decoded`) -> K texts for each row, the number of results
                of `method`.
            method: decoding method.
            batch_size: most rows of a batch.
            first: number of the first row; `Sampling` draws depend on row numbers.
            verbose: 1 = a progress bar, 0 = none, "auto" = a bar that appears after two seconds.
            **how: `stop_ids`, `constraints`, `seed` and `jit_compile` of `decode_batch`.

        Returns:
            K texts for each row, and their scores (N, K).
        """
        generated = [[""] * num_results(method) for _ in lengths]
        scores = np.zeros((len(lengths), num_results(method)), np.float32)
        filled = np.flatnonzero(lengths)
        rows_done = len(lengths) - len(filled)
        with Progress("", len(lengths), " examples", verbose=verbose) as bar:
            for width, index in batches_of_like_width(lengths[filled], most, batch_size):
                rows = filled[index]
                features, longest = batch(rows, width)
                numbers = first + rows
                decoded = self.decode_batch(features, method, longest, row_numbers=numbers, **how)
                for row, results in zip(rows, texts(rows, decoded), strict=True):
                    generated[row] = results
                scores[rows] = decoded.scores
                rows_done += len(rows)
                bar.show(rows_done)
        return generated, scores

    def decoding_of(self, options: DecodingOptions) -> tuple[Method, int | None, Constraints]:
        """Returns the method of `options`, their `max_new_tokens` and their constraints.

        `max_new_tokens` None is the default. A task that runs an export returns the export's
        instead if all options are defaults.
        """
        if self._runtime is not None and options.is_usual:
            return self._runtime.method, self._runtime.max_new_tokens, self._runtime.constraints
        return options.decoding, options.max_new_tokens, options.constraints

    def new_ids(self, decoded: Decoded, stop_ids: Sequence[int] | None = None) -> tf.RaggedTensor:
        """Returns the token ids of each result without stop tokens, (B · K, ragged).

        `decoded` has K results for each of B rows. `stop_ids` are the ids that ended them; None =
        `self.stop_ids`.
        """
        stop_ids = self.stop_ids if stop_ids is None else stop_ids
        ids = tf.reshape(decoded.token_ids, (-1, tf.shape(decoded.token_ids)[-1]))
        is_inside = tf.range(tf.shape(ids)[1])[None] < tf.reshape(decoded.lengths, (-1, 1))
        is_stop = tf.reduce_any(ids[..., None] == tf.constant(stop_ids, tf.int32), axis=-1)
        return tf.ragged.boolean_mask(ids, is_inside & ~is_stop).with_row_splits_dtype(tf.int64)


@dataclasses.dataclass(frozen=True)
class _Runtime:
    """An export that decodes instead of the model, with the settings it was made with."""

    run: Run
    method: Method
    max_new_tokens: int
    stop_ids: tuple[int, ...]
    constraints: Constraints

    def decode(
        self,
        features: dict[str, Any],
        method: Method,
        max_new_tokens: int,
        stop_ids: Sequence[int],
        constraints: Constraints,
    ) -> Decoded:
        """Decodes a batch of arrays; raises ValueError for other settings than the export's."""
        received: dict[str, Any] = {
            "method": method,
            "max_new_tokens": max_new_tokens,
            "stop_ids": tuple(stop_ids),
        }
        if not (constraints.is_empty and self.constraints.is_empty):
            received["constraints"] = constraints
        fixed = {name: getattr(self, name) for name in received}
        if received != fixed:
            raise ValueError(
                f"The settings of an export cannot be changed: {_listed(fixed)}. Export the task "
                f"again for other settings. Received: {_listed(received)}"
            )
        outputs = self.run(features)
        return Decoded(*(outputs[name] for name in _OUTPUTS))


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def batches_of_like_width(
    lengths: np.ndarray, most: int, batch_size: int
) -> Iterator[tuple[int, np.ndarray]]:
    """Groups rows into batches of equal width, so that a result does not depend on other rows.

    Args:
        lengths: (N,) tokens of each row.
        most: largest width of a batch, in tokens.
        batch_size: most rows of a batch.

    Yields:
        The width and the row indices of each batch. A width is a multiple of 16 tokens, or `most`.
        The widest come first, so that a batch that does not fit in memory fails at once.

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
    """Pads rows of token ids at their end; returns ids and padding mask, (B, width) int32 each.

    The mask is 1 for tokens and 0 for padding.

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
    """Tokenizes texts to the ids of each, in chunks of bounded memory."""
    ids: list[np.ndarray] = []
    for _, chunk in inference.chunks(texts):
        ids += inference.as_rows(tokenizer.encode(tf.constant(list(chunk), tf.string)))
    return ids


def num_results(method: Method) -> int:
    """Returns K, the number of texts that a method returns for each row."""
    return getattr(method, "num_results", 1)


def check_seed(seed: Any) -> None:
    """Raises ValueError unless the seed is an integer from 0 to 2**32 - 1."""
    if not is_integer(seed) or not 0 <= seed < SEED_LIMIT:
        raise ValueError(
            f"`seed` must be an integer from 0 to {SEED_LIMIT - 1}. Received: {seed!r}"
        )


def check_max_new_tokens(number: Any, most: int) -> None:
    """Raises ValueError unless `number` is an integer from 1 to `most`."""
    if not is_integer(number) or not 1 <= number <= most:
        raise ValueError(
            f"`max_new_tokens` must be an integer from 1 to {most}, which the model's positions "
            f"allow. Received: {number!r}"
        )


def check_constraints(constraints: Any, max_new_tokens: int) -> None:
    """Raises ValueError unless `constraints` are of kbert.decoding and fit `max_new_tokens`."""
    if not isinstance(constraints, Constraints):
        raise ValueError(
            f"`constraints` must be a Constraints of kbert.decoding. Received: {constraints!r}"
        )
    if constraints.min_new_tokens > max_new_tokens:
        raise ValueError(
            f"`min_new_tokens` must be at most {max_new_tokens}, the most tokens of a text. "
            f"Received: {constraints.min_new_tokens}"
        )


def is_integer(value: Any) -> bool:
    """Whether a value is an integer of Python or NumPy, and not a boolean."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def num_beams(method: Method) -> int:
    """Returns the number of live hypotheses per row: the beam width, or 1."""
    return method.width if isinstance(method, Beam) else 1


def request_seed(
    method: Method, seed: int | None, rows: tf.Tensor, row_numbers: tf.Tensor | None
) -> dict[str, tf.Tensor]:
    """Returns the features `seed` and `row_numbers` of a served `Sampling`; {} for other methods.

    Args:
        method: decoding method.
        seed: seed fixed in the export; None = a new random seed for each chunk.
        rows: number of rows that are decoded, B; at least 1, even if the request has no rows.
        row_numbers: numbers of these rows within the request; None = 0 to B - 1.
    """
    if not isinstance(method, Sampling):
        return {}
    if seed is None:
        number = tf.random.uniform((), 0, tf.int32.max, tf.int32)
    else:
        number = tf.constant(seed, tf.uint32)
    if row_numbers is None:
        numbers = tf.range(rows)
    else:  # empty if the request has no rows; then one dummy row is computed
        numbers = tf.pad(row_numbers, [[0, rows - tf.size(row_numbers)]])
    return {"seed": number, "row_numbers": numbers}


def written(name: str, texts: Sequence[Sequence[str]], scores: np.ndarray) -> list[dict[str, Any]]:
    """Returns one dict per row for an output file, from K texts and scores (N, K) of each row.

    For K = 1 it has the text under `name` and its "score", else lists, best first.

    Example:
        >>> written("translation", [["ja", "jo"]], np.array([[-1.0, -2.5]], "float32"))
        [{'translations': ['ja', 'jo'], 'scores': [-1.0, -2.5]}]
    """
    if scores.shape[1] == 1:
        pairs = zip(texts, scores, strict=True)
        return [{name: text, "score": float(score)} for (text,), (score,) in pairs]
    return [
        {f"{name}s": list(row), "scores": row_scores.tolist()}
        for row, row_scores in zip(texts, scores, strict=True)
    ]


def answer(texts: Sequence[Sequence[str]], scores: np.ndarray, return_scores: bool) -> Any:
    """Returns `texts`, or with `return_scores` (`texts`, `scores`), in the form of `predict`.

    Both have K results for each of N rows, (N, K); for K = 1 they become (N,).
    """
    if scores.shape[1] == 1:
        texts, scores = [row[0] for row in texts], scores[:, 0]
    return (list(texts), scores) if return_scores else list(texts)
