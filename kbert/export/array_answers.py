"""Predictions of exported tasks in NumPy, without TensorFlow and Keras.

For classifiers, regressors and embedders the outputs of a runtime are all that a prediction needs,
and the runtime's inputs are made by `kbert.tokenizers.packing`. The predictions equal those of the
task itself with the same runtime instead of its layers.

Shapes: N examples, B rows, C classes, D width of an embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from absl import logging

from kbert.core import late
from kbert.core.finite import refuse_not_finite
from kbert.core.ragged import Ragged
from kbert.core.types import PathLike
from kbert.data.readers.tables import if_file
from kbert.data.tables.table import Table, as_table
from kbert.inference.batches import BATCH_SIZE, by_length, check_batch_size
from kbert.inference.texts import READ_WHOLE, chunks, warn_of_cut
from kbert.io.progress import Progress
from kbert.signatures.rows import Run
from kbert.tasks.fine_tuning.labels import class_answer, thresholds_of
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.packing import build_inputs

# Name of an output -> its type (TensorFlow's name) and its shape.
Specs = dict[str, tuple[str, tuple[int | None, ...]]]
Arrays = dict[str, np.ndarray]


class ArrayAnswers:
    """Predicts texts with a runtime; a subclass for each kind of task makes the predictions.

    Args:
        description: content of `export.json`.
        tokenizer: tokenizer of the export.
        run: function of the runtime, from input arrays to output arrays.
    """

    # Whether both texts of a pair are in one row.
    pairs_in_rows: ClassVar[bool] = True
    # Name of the entry point of texts; that of pairs has "_pairs" after it.
    entry: ClassVar[str]

    def __init__(self, description: Mapping[str, Any], tokenizer: Any, run: Run) -> None:
        self._settings, self._tokenizer, self._run = description["task"], tokenizer, run
        self._labels: list[str] = description.get("labels") or []
        self._inputs, self._outputs = list(description["inputs"]), description["outputs"]
        self._max_length: int = description["max_length"]

    def answers(self, outputs: Arrays) -> Any:
        """Converts the runtime's outputs for N rows to N predictions, as `predict` returns them."""
        raise NotImplementedError(f"{type(self).__name__} must define `answers`.")

    def served(self, outputs: Arrays) -> Arrays:
        """Converts the runtime's outputs for N rows to the named arrays that a service returns."""
        raise NotImplementedError(f"{type(self).__name__} must define `served`.")

    def specs(self) -> Specs:
        """Returns name -> (TensorFlow's dtype name, shape) of each array that `served` returns."""
        raise NotImplementedError(f"{type(self).__name__} must define `specs`.")

    def entries(self) -> dict[str, tuple[tuple[str, ...], Callable[..., Arrays]]]:
        """Returns the entry points of a service; the first is the default.

        Returns:
            Name -> (names of the inputs, function). The function takes the texts of each input,
            (N,) bytes, and `stopped`, and returns the arrays of `served`. `stopped` is a function
            that is called before each batch; it may raise to end the computation.
        """

        def single(text: Sequence[bytes], stopped: Callable[[], None]) -> Arrays:
            return self.served(self._outputs_of([self._encoded(text)], stopped=stopped))

        def pairs(first: Any, second: Any, stopped: Callable[[], None]) -> Arrays:
            texts = [self._encoded(first), self._encoded(second)]
            return self.served(self._outputs_of(texts, stopped=stopped))

        columns = ("first", "second")
        return {self.entry: (("text",), single), f"{self.entry}_pairs": (columns, pairs)}

    def as_table(self, data: Any) -> Table:
        """Converts data of `predict` to a table as the task does; a path is read as a file."""
        return as_table(if_file(data), triplets=not self.pairs_in_rows)

    def takes(self, table: Table) -> bool:
        """Returns whether a table has texts or text pairs; other tables need the task."""
        texts = "text" in table or ("first" in table and "second" in table)
        return texts and "negatives" not in table

    def predict(
        self, table: Table, *, batch_size: int = BATCH_SIZE, verbose: str | int = "auto"
    ) -> Any:
        """Returns the predictions for texts, in order; see `FineTuningTask.predict`.

        Texts that are too long are truncated, with one warning.

        Args:
            table: texts or text pairs, for which `takes` is true.
            batch_size: maximum number of rows that are computed together.
            verbose: progress bar: "auto", 0 or 1.

        Returns:
            An array with one row per example, or a list with one prediction per example.
        """
        check_batch_size(batch_size)
        names = ("text",) if "text" in table else ("first", "second")
        predictions, cut, done = [], 0, 0
        with Progress("", len(table), " examples", verbose=verbose) as bar:
            for start, part in list(chunks(range(len(table)))) or [(0, range(0))]:
                texts = [
                    self._encoded(self._prompted(table[name][start : start + len(part)], name))
                    for name in names
                ]
                groups = [texts] if self.pairs_in_rows else [[ids] for ids in texts]
                lost = [self._lengths(group) > self._max_length for group in groups]
                cut += int(np.any(lost, axis=0).sum())
                runtime_outputs = [self._outputs_of(group, batch_size) for group in groups]
                predictions.append(
                    self._joined([self.answers(outputs) for outputs in runtime_outputs])
                )
                done += len(part)
                bar.show(done)
        remedy = READ_WHOLE if self.pairs_in_rows else ""
        warn_of_cut(cut, len(table), self._max_length, remedy=remedy)
        if isinstance(predictions[0], np.ndarray):
            return np.concatenate(predictions)
        return [answer for part in predictions for answer in part]

    def _joined(self, groups: Sequence[Any]) -> Any:
        """Joins the predictions for each text of N examples to one prediction per example.

        Args:
            groups: predictions of the first texts and, of pairs in separate rows, of the second
                texts.

        Returns:
            The only group unchanged, or an array (N, 2, …) of both.
        """
        return groups[0] if len(groups) == 1 else np.stack(groups, axis=1)

    def _prompted(self, texts: Sequence[str], column: str) -> Sequence[str]:
        return texts

    def _encoded(self, texts: Sequence[str | bytes]) -> Ragged:
        return self._tokenizer.array_encoder(texts)

    def _specials(self, texts: int) -> int:
        """Returns the number of special tokens in a row of one text or of two."""
        return 2 if texts == 1 else 2 + self._tokenizer.pair_separators

    def _lengths(self, texts: Sequence[Ragged]) -> np.ndarray:
        """Returns the number of tokens (N,) of each row before truncation, with special tokens.

        Args:
            texts: token ids of the first texts and, for pairs, of the second texts, N each.
        """
        tokens = np.sum([ids.row_lengths() for ids in texts], axis=0)
        return tokens + self._specials(len(texts))

    def _outputs_of(
        self,
        texts: Sequence[Ragged],
        batch_size: int = BATCH_SIZE,
        stopped: Callable[[], None] = lambda: None,
    ) -> Arrays:
        """Returns the runtime's outputs for N rows, in order, by name.

        Args:
            texts: token ids of the first texts and, for pairs, of the second texts, N each.
            batch_size: maximum number of rows that are computed together.
            stopped: function that is called before each batch; it may raise.

        Raises:
            ValueError: an output has NaN or infinity.
        """
        parts = list(self._batches(texts, batch_size, stopped))
        if not parts:
            return {
                name: np.zeros([0, *(x for x in axes[1:])], np.float32)
                for name, axes in self._outputs.items()
            }
        order = np.argsort(np.concatenate([index for index, _ in parts]), kind="stable")
        outputs = {
            name: np.concatenate([batch_outputs[name] for _, batch_outputs in parts])[order]
            for name in parts[0][1]
        }
        refuse_not_finite(outputs, "the model's answers")
        return outputs

    def _batches(
        self, texts: Sequence[Ragged], batch_size: int, stopped: Callable[[], None]
    ) -> Iterator[tuple[np.ndarray, Arrays]]:
        """Yields the row numbers of each batch, longest rows first, and the runtime's outputs."""
        tokenizer = self._tokenizer
        for index in by_length(np.minimum(self._lengths(texts), self._max_length), batch_size):
            stopped()
            rows: Any = build_inputs(
                *(ids.take(index) for ids in texts),
                cls_id=tokenizer.cls_id,
                sep_id=tokenizer.sep_id,
                pad_id=tokenizer.pad_id,
                max_length=self._max_length,
                multiple=1,
                separators=tokenizer.pair_separators,
            )
            yield index, self._run({name: rows[name] for name in self._inputs})


class ClassAnswers(ArrayAnswers):
    """Predictions of a `TextClassifier`."""

    entry = "classify"

    @property
    def _thresholds(self) -> np.ndarray | None:
        """Thresholds (C,) of a multi-label classifier's scores; None for other classifiers."""
        if not self._settings.get("multi_label"):
            return None
        return thresholds_of(self._labels, self._settings.get("threshold", 0.5))

    def answers(self, outputs: Arrays) -> list[dict[str, Any]]:
        thresholds = self._thresholds
        return [class_answer(self._labels, x, thresholds) for x in outputs["probabilities"]]

    def served(self, outputs: Arrays) -> Arrays:
        scores, thresholds = outputs["probabilities"], self._thresholds
        names = np.array([name.encode() for name in self._labels], object)
        arrays = {"labels": np.broadcast_to(names, scores.shape), "scores": scores}
        if thresholds is not None:
            return {**arrays, "chosen": scores >= thresholds.astype(np.float32)}
        best = scores.argmax(1)
        return {**arrays, "label": names[best], "score": scores.max(1)}

    def specs(self) -> Specs:
        shape = (None, len(self._labels))
        specs_by_name: Specs = {"labels": ("string", shape), "scores": ("float32", shape)}
        if self._thresholds is not None:
            return {**specs_by_name, "chosen": ("bool", shape)}
        return {**specs_by_name, "label": ("string", (None,)), "score": ("float32", (None,))}


class NumberAnswers(ArrayAnswers):
    """Predictions of a `TextRegressor`."""

    entry = "score"

    def answers(self, outputs: Arrays) -> np.ndarray:
        return outputs["classifier"][:, 0].astype(np.float32)

    def served(self, outputs: Arrays) -> Arrays:
        return {"score": self.answers(outputs)}

    def specs(self) -> Specs:
        return {"score": ("float32", (None,))}


class VectorAnswers(ArrayAnswers):
    """Embeddings of a `TextEmbedder`; each text is a row."""

    entry = "embed"
    pairs_in_rows = False

    def answers(self, outputs: Arrays) -> np.ndarray:
        return outputs["embedding"].astype(np.float32)

    def served(self, outputs: Arrays) -> Arrays:
        return {"embedding": self.answers(outputs)}

    def specs(self) -> Specs:
        return {"embedding": ("float32", (None, self._outputs["embedding"][-1]))}

    def entries(self) -> dict[str, tuple[tuple[str, ...], Callable[..., Arrays]]]:
        def entry(prompt: str) -> Callable[..., Arrays]:
            def embed(text: Sequence[bytes], stopped: Callable[[], None]) -> Arrays:
                texts = [prompt.encode() + x for x in text] if prompt else text
                return self.served(self._outputs_of([self._encoded(texts)], stopped=stopped))

            return embed

        prompts = {"embed": "", "embed_query": self._prompt("query")}
        prompts["embed_document"] = self._prompt("document")
        return {name: (("text",), entry(x)) for name, x in prompts.items() if x is not None}

    def _prompt(self, name: str) -> str | None:
        return self._settings.get(f"{name}_prompt")

    def _prompted(self, texts: Sequence[str], column: str) -> Sequence[str]:
        prompt = self._prompt({"first": "query", "second": "document"}.get(column, ""))
        return texts if prompt is None else [prompt + text for text in texts]


def array_answers(
    folder: PathLike, description: Mapping[str, Any], run: Run
) -> ArrayAnswers | None:
    """Makes the `ArrayAnswers` of an export; None if its predictions need the task itself.

    Args:
        folder: folder of the export.
        description: content of its `export.json`.
        run: function of the loaded runtime, from input arrays to output arrays.
    """
    settings, config = description["task"], description.get("encoder")
    kind = settings["kind"]
    if kind not in late.TABLE["array answers"] or settings.get("module") or config is None:
        return None
    # Only the task handles windows of long texts, pairs in both orders and rows that end in [CLS].
    if settings.get("doc_stride") or settings.get("both_orders") or config.get("pooling") == "last":
        return None
    tokenizer = load_tokenizer(folder)
    missing = [x for x in ("pad", "cls", "sep") if getattr(tokenizer, f"{x}_id", None) is None]
    if missing or getattr(tokenizer, "max_characters", None):
        return None
    try:
        tokenizer.array_encoder(["a"])
    except late.NeedsTensorFlow as error:
        logging.info("%s", error)
        return None
    return late.load("array answers", kind)(description, tokenizer, run)
