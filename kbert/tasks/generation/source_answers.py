"""What acts on a `TextToText` from outside: predictions of tables and files, exports of rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any, ClassVar, cast

import numpy as np

from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.types import Pair, Tensors
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.decoding import Constraints, DecodingOptions, Method
from kbert.io.progress import Progress
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.fine_tuning.predictor import Part, Predictor
from kbert.tasks.generation.base import WrittenRows, check_max_new_tokens, written
from kbert.tasks.generation.options import GenerationOptions, TranslationOptions


class SourceRows(WrittenRows):
    """Export of a `TextToText`: rows are sources, outputs the texts that it generates."""

    inputs = ("encoder_token_ids", "encoder_padding_mask")

    def settings(  # type: ignore[override]  # arguments of `export`
        self,
        method: Method | None = None,
        max_new_tokens: int | None = None,
        constraints: Constraints | None = None,
    ) -> dict[str, Any]:
        """Returns the settings that an export to another runtime fixes.

        Args:
            method: `Greedy` or `Beam`; None = the task's.
            max_new_tokens: most tokens of a text; None = the task's, else as many as the model has
                positions for. Each step reads the cache of all of them, so fewer are faster.
            constraints: rules that the tokens of a text must obey; None = the task's.

        Raises:
            ValueError: a setting is out of range.
        """
        task = self.task
        method, longest, rules = task.decoding_settings(method, max_new_tokens, constraints)
        new_tokens = task.new_tokens_limit if longest is None else longest
        check_max_new_tokens(new_tokens, task.new_tokens_limit)
        return self.settings_of(method, new_tokens, task.stop_ids, rules)

    def samples(self, texts: Sequence[str], **settings: Any) -> list[dict[str, tf.Tensor]]:
        """Returns two batches to check the export on: the first source, and all, truncated."""
        task = self.task
        ids = task.pair_rows.sources(texts, whole=True, truncate=True).ids
        batches = [task.pair_rows.features(x, max(map(len, x))) for x in (ids[:1], ids)]
        return [{name: tf.constant(x) for name, x in batch.items()} for batch in batches]


class SourceAnswers(FileAnswers):
    """Texts for the records of a file."""

    program = "kbert-generate"
    options: ClassVar[type[Options]] = GenerationOptions
    at_once = 256  # each takes many steps

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """Answers the column `text`; returns records and the number of truncated sources.

        A source that is too long is truncated where `predict` raises an error. `options` are
        those of the program; `first` is the number of the first record in the whole input.
        """
        task = self.task
        decoding = cast(DecodingOptions, options)
        if isinstance(options, GenerationOptions) and options.stop:
            raise ValueError(
                "`stop` is for language models, whose texts continue; the texts of an "
                f"encoder-decoder end by themselves. Received: stop={options.stop}"
            )
        method, max_new_tokens, constraints = task.decoding_of(decoding)
        rows = task.pair_rows.sources(table["text"], truncate=task.long_sources == "refuse")
        texts, scores = task.write(
            rows,
            len(table),
            method,
            max_new_tokens,
            constraints,
            batch_size=batch_size,
            seed=decoding.seed or 0,
            jit_compile=decoding.jit_compile,
            first=first,
        )
        return written(task.answer_name, texts, scores), rows.cut

    def written(self, answers: Sequence) -> Sequence:
        name = self.task.answer_name
        return [{name if isinstance(x, str) else f"{name}s": x} for x in answers]


class TranslationAnswers(SourceAnswers):
    """Translations of the records of a file."""

    program = "kbert-translate"
    options = TranslationOptions


class TextPredictor(Predictor):
    """Predictions of a `TextToText` for tables: whole texts, and losses of labelled examples."""

    def first_outputs(self, rows: Rows, count: int) -> dict[str, Any]:
        row_numbers = np.arange(min(count, len(rows)))
        _, features = next(self.batches(rows, count, row_numbers))
        return {"logits": self._task({name: np.asarray(x) for name, x in features.items()})}

    def _run(
        self, features: Tensors, logits: Tensors | None = None, *, labelled: bool
    ) -> tuple[dict[str, Any], dict[str, Pair]]:
        """Returns no outputs, because answers are decoded; and the losses of a labelled batch."""
        losses, _ = self._task.loss_terms(features, training=False)
        return {}, losses

    def _answer(
        self,
        parts: Iterable[Part],
        count: int | None,
        batch_size: int,
        verbose: str | int,
        labelled: bool = False,
    ) -> tuple[Any, dict[str, Any], int]:
        task = self._task
        method, longest, rules = task.decoding_settings()
        answers: list[str] = []
        sums: dict[str, Any] = {}
        cut = 0
        with Progress("", count, " examples", verbose=verbose) as bar:
            for part, rows in parts:
                if labelled:
                    _, losses = self.outputs(rows, batch_size, labelled=True)
                    sums = {name: sums.get(name, 0.0) + pair for name, pair in losses.items()}
                sources = task.pair_rows.sources(part["text"])
                texts, _ = task.write(
                    sources,
                    len(part),
                    method,
                    longest,
                    rules,
                    batch_size=batch_size,
                    seed=0,
                    first=len(answers),
                )
                answers += [results[0] for results in texts]
                cut += rows.cut if labelled else sources.cut
                bar.show(len(answers))
        return answers, sums, cut


def joined(
    texts: Sequence[list[str]], scores: np.ndarray, examples: np.ndarray, count: int
) -> tuple[list[list[str]], np.ndarray]:
    """Joins the texts of an example's windows by line breaks, and adds their scores.

    Args:
        texts: K texts for each of R windows.
        scores: (R, K).
        examples: (R,), number of the example of each window, not decreasing.
        count: number of examples, each with at least one window.

    Returns:
        K texts for each example, and their scores (`count`, K).

    Example:
        >>> scores = np.array([[-1.0], [-2.0], [-4.0]])
        >>> joined([["a"], ["b"], ["c"]], scores, np.array([0, 0, 1]), 2)
        ([['a\\nb'], ['c']], array([[-3.],
               [-4.]]))
    """
    if len(examples) == count:
        return list(texts), scores
    groups = groupby(zip(examples, texts, strict=True), key=lambda pair: pair[0])
    windows = [[results for _, results in group] for _, group in groups]
    results = [["\n".join(filter(None, way)) for way in zip(*w, strict=True)] for w in windows]
    starts = np.flatnonzero(np.diff(examples, prepend=-1))
    return results, np.add.reduceat(scores, starts, axis=0)
