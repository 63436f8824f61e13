"""Export of a fine-tuned task to other runtimes: from rows of ids to logits.

Shapes: B rows, W windows of a text, T tokens.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from kbert.signatures.row_export import EncoderRows
from kbert.signatures.rows import Run
from kbert.tasks.fine_tuning.predictor import Predictor
from kbert.tasks.fine_tuning.text_rows import WINDOWS_AT_ONCE


class LogitRows(EncoderRows):
    """Export of a task whose outputs are the logits that its `call` returns."""

    def outputs(self, features: Mapping[str, Any]) -> dict[str, Any]:
        return dict(self.task(features))

    def answer_by(self, run: Run) -> None:
        texts = self.task.texts

        def logits(features: Mapping[str, Any]) -> dict[str, Any]:
            mask = features["padding_mask"]
            if len(mask.shape) == 2:
                return run(features)
            # (B, W, T): the windows of texts, in groups to bound memory.
            flat = {n: np.reshape(features[n], (-1, mask.shape[-1])) for n in self.inputs}
            starts = range(0, len(flat["padding_mask"]), WINDOWS_AT_ONCE)
            group_outputs = [
                run({name: x[i : i + WINDOWS_AT_ONCE] for name, x in flat.items()}) for i in starts
            ]
            window_logits = {
                name: np.concatenate([outputs[name] for outputs in group_outputs])
                for name in group_outputs[0]
            }
            return {name: texts.pool(x, mask) for name, x in window_logits.items()}

        self.task.predictor = Predictor(self.task, logits)
        self.logits = logits
