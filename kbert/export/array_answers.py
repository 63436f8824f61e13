"""Answers of exported tasks in NumPy, without the tasks' layers: no TensorFlow, no Keras.

Of a classifier, a regressor or an embedder a runtime gives all that an answer is made of, and the
rows that it reads are those of `kbert.data.tables.inputs`. What such a task answers is what
the task itself would, with the same runtime in the place of its layers.

Shapes: N examples, B rows, C classes, D width of a vector.
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
from kbert.data.tables.inputs import build_inputs
from kbert.data.tables.table import Table, as_table
from kbert.inference.batches import BATCH_SIZE, by_length, check_batch_size
from kbert.inference.texts import READ_WHOLE, chunks, warn_of_cut
from kbert.io.progress import Progress
from kbert.signatures.rows import Run
from kbert.tasks.fine_tuning.labels import class_answer, thresholds_of
from kbert.tokenizers import load_tokenizer
from kbert.tokenizers.arrays import NeedsTensorFlow

# Name of an output -> its type, as TensorFlow names it, and its shape.
Specs = dict[str, tuple[str, tuple[int | None, ...]]]
Arrays = dict[str, np.ndarray]


class ArrayAnswers:
    """Texts to answers by a runtime; a kind of tasks says what an answer is.

    Args:
        description: `export.json`.
        tokenizer: its tokenizer.
        run: the runtime.
    """

    # Whether both texts of a pair are one row.
    pairs_in_rows: ClassVar[bool] = True
    # Of the entry points of texts, and of pairs.
    entry: ClassVar[str]

    def __init__(self, description: Mapping[str, Any], tokenizer: Any, run: Run) -> None:
        self._settings, self._tokenizer, self._run = description["task"], tokenizer, run
        self._labels: list[str] = description.get("labels") or []
        self._inputs, self._outputs = list(description["inputs"]), description["outputs"]
        self._max_length: int = description["max_length"]

    def answers(self, outputs: Arrays) -> Any:
        """What `predict` gives for N rows."""
        raise NotImplementedError(f"{type(self).__name__} must define `answers`.")

    def served(self, outputs: Arrays) -> Arrays:
        """What a service gives for N rows."""
        raise NotImplementedError(f"{type(self).__name__} must define `served`.")

    def specs(self) -> Specs:
        """What `served` gives."""
        raise NotImplementedError(f"{type(self).__name__} must define `specs`.")

    def entries(self) -> dict[str, tuple[tuple[str, ...], Callable[..., Arrays]]]:
        """The entry points of a service, the first by default.

        Returns:
            Name -> names of its inputs, (N,) texts each, and a function of these and `stopped`,
            which is called between batches and may raise.
        """

        def single(text: Sequence[bytes], stopped: Callable[[], None]) -> Arrays:
            return self.served(self._outputs_of([self._encoded(text)], stopped=stopped))

        def pairs(first: Any, second: Any, stopped: Callable[[], None]) -> Arrays:
            texts = [self._encoded(first), self._encoded(second)]
            return self.served(self._outputs_of(texts, stopped=stopped))

        columns = ("first", "second")
        return {self.entry: (("text",), single), f"{self.entry}_pairs": (columns, pairs)}

    def takes(self, data: Any) -> Table | None:
        """The table of data that is texts or pairs of texts; None of other data."""
        table = as_table(data, triplets=not self.pairs_in_rows)
        texts = "text" in table or ("first" in table and "second" in table)
        return table if texts and "negatives" not in table else None

    def predict(
        self, table: Table, *, batch_size: int = BATCH_SIZE, verbose: str | int = "auto"
    ) -> Any:
        """The answers for texts, in order; see `FineTuningTask.predict`."""
        check_batch_size(batch_size)
        names = ("text",) if "text" in table else ("first", "second")
        found, cut, done = [], 0, 0
        with Progress("", len(table), " examples", verbose=verbose) as bar:
            for start, part in list(chunks(range(len(table)))) or [(0, range(0))]:
                texts = [
                    self._encoded(self._prompted(table[name][start : start + len(part)], name))
                    for name in names
                ]
                groups = [texts] if self.pairs_in_rows else [[ids] for ids in texts]
                lost = [self._lengths(group) > self._max_length for group in groups]
                cut += int(np.any(lost, axis=0).sum())
                each = [self._outputs_of(group, batch_size) for group in groups]
                found.append(self._joined([self.answers(outputs) for outputs in each]))
                done += len(part)
                bar.show(done)
        remedy = READ_WHOLE if self.pairs_in_rows else ""
        warn_of_cut(cut, len(table), self._max_length, remedy=remedy)
        if isinstance(found[0], np.ndarray):
            return np.concatenate(found)
        return [answer for part in found for answer in part]

    def _joined(self, groups: Sequence[Any]) -> Any:
        """Answers of the texts of examples, as one of each."""
        return groups[0] if len(groups) == 1 else np.stack(groups, axis=1)

    def _prompted(self, texts: Sequence[str], column: str) -> Sequence[str]:
        return texts

    def _encoded(self, texts: Sequence[str | bytes]) -> Ragged:
        return self._tokenizer.array_encoder(texts)

    def _specials(self, texts: int) -> int:
        return 2 if texts == 1 else 2 + self._tokenizer.pair_separators

    def _lengths(self, texts: Sequence[Ragged]) -> np.ndarray:
        """(N,) tokens of rows that are not cut."""
        tokens = np.sum([ids.row_lengths() for ids in texts], axis=0)
        return tokens + self._specials(len(texts))

    def _outputs_of(
        self,
        texts: Sequence[Ragged],
        batch_size: int = BATCH_SIZE,
        stopped: Callable[[], None] = lambda: None,
    ) -> Arrays:
        """What the runtime gives of all rows, in order."""
        parts = list(self._batches(texts, batch_size, stopped))
        if not parts:
            return {
                name: np.zeros([0, *(x for x in axes[1:])], np.float32)
                for name, axes in self._outputs.items()
            }
        order = np.argsort(np.concatenate([index for index, _ in parts]), kind="stable")
        outputs = {
            name: np.concatenate([found[name] for _, found in parts])[order] for name in parts[0][1]
        }
        refuse_not_finite(outputs, "the model's answers")
        return outputs

    def _batches(
        self, texts: Sequence[Ragged], batch_size: int, stopped: Callable[[], None]
    ) -> Iterator[tuple[np.ndarray, Arrays]]:
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
    """The answers of a `TextClassifier`."""

    entry = "classify"

    @property
    def _thresholds(self) -> np.ndarray | None:
        if not self._settings.get("multi_label"):
            return None
        return thresholds_of(self._labels, self._settings.get("threshold", 0.5))

    def answers(self, outputs: Arrays) -> list[dict[str, Any]]:
        thresholds = self._thresholds
        return [class_answer(self._labels, x, thresholds) for x in outputs["probabilities"]]

    def served(self, outputs: Arrays) -> Arrays:
        scores, thresholds = outputs["probabilities"], self._thresholds
        names = np.array([name.encode() for name in self._labels], object)
        found = {"labels": np.broadcast_to(names, scores.shape), "scores": scores}
        if thresholds is not None:
            return {**found, "chosen": scores >= thresholds.astype(np.float32)}
        best = scores.argmax(1)
        return {**found, "label": names[best], "score": scores.max(1)}

    def specs(self) -> Specs:
        shape = (None, len(self._labels))
        found: Specs = {"labels": ("string", shape), "scores": ("float32", shape)}
        if self._thresholds is not None:
            return {**found, "chosen": ("bool", shape)}
        return {**found, "label": ("string", (None,)), "score": ("float32", (None,))}


class NumberAnswers(ArrayAnswers):
    """The answers of a `TextRegressor`."""

    entry = "score"

    def answers(self, outputs: Arrays) -> np.ndarray:
        return outputs["classifier"][:, 0].astype(np.float32)

    def served(self, outputs: Arrays) -> Arrays:
        return {"score": self.answers(outputs)}

    def specs(self) -> Specs:
        return {"score": ("float32", (None,))}


class VectorAnswers(ArrayAnswers):
    """The vectors of a `TextEmbedder`; each text is a row."""

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
        before = self._prompt({"first": "query", "second": "document"}.get(column, ""))
        return texts if before is None else [before + text for text in texts]


def array_answers(
    folder: PathLike, description: Mapping[str, Any], run: Run
) -> ArrayAnswers | None:
    """What answers for an export without its task; None where only the task can.

    Args:
        folder: the export's folder.
        description: the content of its `export.json`.
        run: the loaded runtime.
    """
    settings, config = description["task"], description.get("encoder")
    kind = settings["kind"]
    if kind not in late.TABLE["array answers"] or settings.get("module") or config is None:
        return None
    # Windows of long texts, pairs in both orders and rows that end in [CLS] are the task's.
    if settings.get("doc_stride") or settings.get("both_orders") or config.get("pooling") == "last":
        return None
    tokenizer = load_tokenizer(folder)
    missing = [x for x in ("pad", "cls", "sep") if getattr(tokenizer, f"{x}_id", None) is None]
    if missing or getattr(tokenizer, "max_characters", None):
        return None
    try:
        tokenizer.array_encoder(["a"])
    except NeedsTensorFlow as error:
        logging.info("%s", error)
        return None
    return late.load("array answers", kind)(description, tokenizer, run)
