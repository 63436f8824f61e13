"""How a fine-tuned task answers: `predict` and `evaluate` on tables of any size.

Shapes: N examples.
"""

import functools
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np
from absl import logging

from kbert import inference
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table, as_table
from kbert.tasks.fine_tuning.runner import ProgressBar, Runner


class Asked:
    """Mixin that gives a task `predict` and `evaluate`; it calls what `FineTuned` describes."""

    # What could be done for texts that are cut, for the message that counts them.
    remedy = ""

    @functools.cached_property
    def _runner(self) -> Runner:
        return Runner(self, labelled=False)

    @functools.cached_property
    def _labelled_runner(self) -> Runner:
        return Runner(self, labelled=True)

    def predict(
        self, data: Any, *, batch_size: int = inference.BATCH_SIZE, verbose: str | int = "auto"
    ) -> Sequence:
        """Answers for examples.

        Args:
            data: as for `fit`, without labels; or one text.
            batch_size: the most rows that go through the model together.
            verbose: "auto" for a progress bar where it takes longer than a moment, 0 for none.

        Returns:
            One answer an example, in order; see the task.

        Raises:
            ValueError: for data that does not fit.
        """
        table = as_table([data] if isinstance(data, str | bytes) else data)
        answers, cut = self.predict_and_count(table, batch_size=batch_size, verbose=verbose)
        self.report_cut(cut, len(table))
        return answers

    def predict_and_count(
        self, table: Table, *, batch_size: int = inference.BATCH_SIZE, verbose: str | int = "auto"
    ) -> tuple[Sequence, int]:
        """`predict` for a part of a longer input.

        Args:
            table: the part.
            batch_size: as in `predict`.
            verbose: as in `predict`.

        Returns:
            The answers, and how many examples were cut, for `report_cut` of the whole.
        """
        inference.check_batch_size(batch_size)
        answers, _, cut = self._ask(self._parts(table), len(table), batch_size, verbose)
        return answers, cut

    def evaluate(
        self,
        data: Any,
        labels: Any = None,
        *,
        batch_size: int = inference.BATCH_SIZE,
        verbose: str | int = "auto",
    ) -> dict[str, float]:
        """The task's metrics on labelled examples, and the mean loss.

        Args:
            data: as for `fit`.
            labels: the labels, where `data` holds none.
            batch_size: the most rows that go through the model together.
            verbose: as in `predict`.

        Returns:
            `loss`, and what the task's `score` gives.

        Raises:
            ValueError: for data that does not fit, or without a row.
        """
        inference.check_batch_size(batch_size)
        table = as_table(data, labels)
        scores, cut = self._measure(table, self._parts(table, True), batch_size, verbose)
        self.report_cut(cut, len(table))
        return scores

    def _parts(self, table: Table, labelled: bool = False) -> Iterator[tuple[Table, Rows]]:
        """The table tokenised, so much of it at a time as memory always holds."""
        count = len(table)
        for start in range(0, max(count, 1), inference.CHUNK):
            rows = range(start, min(start + inference.CHUNK, count))
            part = table if len(rows) == count else table.take(rows)
            yield part, self.rows(part, labelled)

    def _ask(self, parts, count, batch_size, verbose, labelled=False):
        """Answers for all examples, the sums of the losses, how many examples were cut."""
        runner = self._labelled_runner if labelled else self._runner
        answers, done, cut, sums = [], 0, 0, {}
        with ProgressBar(count, verbose) as bar:
            for part, rows in parts:
                progress = functools.partial(bar.show, done, len(part))
                outputs, losses = runner(rows, batch_size, progress)
                answers.append(self.answers(part, rows, outputs))
                sums = {name: sums.get(name, 0.0) + pair for name, pair in losses.items()}
                done += len(part)
                cut += rows.cut
        is_array = isinstance(answers[0], np.ndarray)
        return np.concatenate(answers) if is_array else list(chain(*answers)), sums, cut

    def _measure(self, table, parts, batch_size, verbose):
        """The values of an evaluation, and how many examples were cut."""
        if not len(table):
            raise ValueError("An evaluation needs examples. Received: a table without rows")
        answers, sums, cut = self._ask(parts, len(table), batch_size, verbose, labelled=True)
        losses = {name: float(total / count) for name, (total, count) in sums.items() if count}
        shown = losses if len(losses) > 1 else {}
        return {"loss": sum(losses.values()), **shown, **self.score(table, answers)}, cut

    def report_cut(self, cut: int, count: int, what: str = "") -> None:
        """Warns that `cut` of `count` examples lost tokens, if any did."""
        if cut:
            logging.warning(
                "%d of %d %sexamples are too long for rows of %d tokens and are cut%s",
                *(cut, count, what, self.row_length, self.remedy),
            )
