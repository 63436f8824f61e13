"""Texts and pairs of texts as rows of tokens, for the tasks on whole texts.

Shapes: N examples, B rows, W windows, T tokens, H hidden width, C logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert.core.late import tf
from kbert.core.types import Tensor, Tensors
from kbert.data.tables.inputs import pair_limits
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.data.tables.windows import pair_windows, text_windows, window_counts
from kbert.heads import SentenceHead
from kbert.inference.texts import READ_WHOLE
from kbert.models.captured_outputs import captured_of
from kbert.signatures import Signature, text_tokens
from kbert.tasks.encoder_task import EncoderTask, input_names

WINDOWS_AT_ONCE = 32  # that inference holds in memory
TEXT_COLUMNS = ("text",), ("first", "second")
SWAPPED = "swapped_token_ids"  # a feature: the token ids of pairs in the other order
# (pooled vectors (R, H), training) -> logits (R, C)
Head = Callable[[Any, bool], Any]


class TextRows:
    """Texts and pairs as rows, long ones in windows; their logits by a head on the pooled vector.

    (BERT, section 4.1, https://arxiv.org/abs/1810.04805; `create_model` in run_classifier.py of
    google-research/bert.) A `FineTuningTask` that has one in `texts` needs no `tokenize` and no
    `assemble`; `logits` does the work of its `call`, and `signatures` that of its own.

    A decoder reads pairs in both orders where these say the same, and the two vectors are added
    (Radford et al. 2018, section 3.3, "similarity").

    Args:
        task: the task. Of its settings `doc_stride` and `pooling` count, where it has them:
            whether longer texts are read in windows, whose logits are pooled, or cut at their end;
            and `both_orders`, whether pairs are read in both orders.

    Raises:
        ValueError: `both_orders` for an encoder that is no decoder.
    """

    def __init__(self, task: EncoderTask) -> None:
        self.doc_stride: int | None = getattr(task, "doc_stride", None)
        self.pooling: str = getattr(task, "pooling", "mean")
        self.both_orders = bool(getattr(task, "both_orders", False))
        if self.both_orders and not task.reads_by_decoder:
            raise ValueError(
                "both_orders=True is for decoders, which read from left to right; other encoders "
                f"see both texts of a pair at once. Received: a {type(task.encoder).__name__}"
            )
        self._task = task

    @property
    def remedy(self) -> str:
        """What the message that counts texts that are cut ends with."""
        return "" if self.doc_stride else READ_WHOLE

    def rows(self, table: Table) -> Rows:
        """The rows of a table of texts, or of pairs.

        Args:
            table: with `text`, or `first` and `second`.
        """
        names = _text_columns(table)
        ids = [self._task.encode_texts(table[name]) for name in names]
        lengths = [np.diff(np.asarray(x.row_splits)) for x in ids]
        tokens, lost = self._extent(lengths)
        return Rows(
            ragged=dict(zip(("first", "second"), ids, strict=False)),
            dense={},
            lengths=tokens * (2 if self.both_orders and len(ids) == 2 else 1),
            examples=np.arange(len(table)),
            cut=int(np.count_nonzero(lost)),
        )

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Ragged ids as the encoder's input: (B, T), with `doc_stride` (B, W, T).

        With `both_orders`, of pairs also "swapped_token_ids", the second text first.
        """
        features = self._packed(first, second)
        if self.both_orders and second is not None:
            features[SWAPPED] = self._packed(second, first)["token_ids"]
        return features

    def logits(
        self, batch: Mapping[str, Any], head: Head, training: bool, return_read: bool = False
    ) -> tuple[Any, dict[str, Any] | None]:
        """Logits of texts, those of windows pooled.

        Args:
            batch: what `build_inputs` gives.
            head: the head.
            training: whether dropout is active.
            return_read: whether to return what was read.

        Returns:
            (B, C), and what the encoder read and gave for it: "read" of `FineTuningTask`.
        """
        names = (*input_names(self._task.encoder), SWAPPED)
        features = {name: batch[name] for name in names if name in batch}
        if len(batch["padding_mask"].shape) == 2:
            return self._logits(features, head, training, return_read)
        flat = {k: ops.reshape(x, (-1, *ops.shape(x)[2:])) for k, x in features.items()}
        # What is returned besides the logits must not be made inside a loop.
        if training or return_read or captured_of(self._task.encoder) is not None:
            logits, read = self._logits(flat, head, training, return_read)
        else:
            logits, read = self._logits_in_groups(flat, head), None
        return self.pool(logits, batch["padding_mask"]), read

    def pool(self, logits: Any, padding_mask: Any) -> Tensor:
        """Logits of texts (B, C), of those of their windows (B * W, C).

        Args:
            logits: of windows.
            padding_mask: (B, W, T), without a token where there is no window.
        """
        rows, windows, _ = ops.shape(padding_mask)
        logits = ops.reshape(logits, (rows, windows, logits.shape[-1]))
        real = ops.cast(padding_mask[:, :, :1], logits.dtype)  # (B, W, 1)
        if self.pooling == "max":
            return ops.max(ops.where(real > 0, logits, -np.inf), axis=1)
        return ops.sum(logits * real, axis=1) / ops.sum(real, axis=1)

    def _extent(self, lengths: Any) -> tuple[np.ndarray, np.ndarray]:
        """Tokens of each row in a batch (N,), and how many of its text are in none (N,)."""
        specials, budget = self._budget(len(lengths))
        total = sum(lengths)
        tokens = np.clip(total + specials, 1, self._task.row_length)
        if self.doc_stride is None:
            return tokens, np.maximum(total - budget, 0)
        if len(lengths) == 1:
            counts = window_counts(total, budget, self.doc_stride).numpy()
            return tokens * counts, np.zeros_like(total)
        kept = [x.numpy() for x in pair_limits(lengths[0], lengths[1], budget)]
        slides = lengths[0] > lengths[1]  # as in pair_windows
        longer, budgets = (np.where(slides, *both) for both in (lengths, kept))
        lost = np.where(slides, lengths[1] - kept[1], lengths[0] - kept[0])
        return tokens * window_counts(longer, budgets, self.doc_stride).numpy(), lost

    def _budget(self, texts: int) -> tuple[int, int]:
        """Special tokens of a row of one text or two, and tokens that are left for the texts."""
        specials = self._task.form.specials(texts)
        budget = self._task.row_length - specials
        if texts == 2 and self.both_orders and self.doc_stride is not None:
            budget -= budget % 2  # equal halves, so that both orders have the same windows
        return specials, budget

    def _packed(self, first: Any, second: Any) -> dict[str, tf.Tensor]:
        if self.doc_stride is None:
            return EncoderTask.build_inputs(self._task, first, second)
        _, budget = self._budget(1 if second is None else 2)
        if second is None:
            first, counts = text_windows(first, budget, self.doc_stride)
        else:
            first, second, counts = pair_windows(first, second, budget, self.doc_stride)
        fill = {"token_ids": tf.expand_dims(self._task.form.pad_id, 0)}  # (1,) or (1, C)
        return {
            name: tf.RaggedTensor.from_row_lengths(x, counts).to_tensor(fill.get(name, 0))
            for name, x in EncoderTask.build_inputs(self._task, first, second).items()
        }

    def _logits_in_groups(self, features: Tensors, head: Head) -> Tensor:
        """Logits of windows, a few at a time: a book in one request must not fill the memory."""
        count = ops.shape(features["padding_mask"])[0]
        groups = (count + WINDOWS_AT_ONCE) // WINDOWS_AT_ONCE  # one where there are no windows
        size = (count + groups - 1) // groups
        # The last group is filled up with copies of the last window.
        index = ops.minimum(ops.arange(groups * size, dtype="int32"), count - 1)
        parts = {
            name: ops.reshape(ops.take(x, index, axis=0), (groups, size, *ops.shape(x)[1:]))
            for name, x in features.items()
        }
        logits = ops.map(lambda part: self._logits(part, head, False)[0], parts)
        return ops.reshape(logits, (-1, logits.shape[-1]))[:count]

    def _logits(
        self, features: Tensors, head: Head, training: bool, return_read: bool = False
    ) -> tuple[Tensor, dict[str, Any] | None]:
        """Logits (R, C) of rows, and where asked for what was read for them."""
        features = dict(features)
        swapped = features.pop(SWAPPED, None)
        if swapped is not None:
            features = {
                "token_ids": _side_by_side(features["token_ids"], swapped),
                "padding_mask": _side_by_side(*[features["padding_mask"]] * 2),
            }
        read = None
        if return_read:
            outputs = self._task.encode(features, training)
            pooled, read = outputs["pooled"], {**features, "sequence": outputs["sequence"]}
        else:
            pooled = self._task.encode_pooled(features, training)
        if swapped is not None:
            pooled = ops.sum(ops.reshape(pooled, (-1, 2, pooled.shape[-1])), axis=1)
        return head(pooled, training), read

    def signatures(
        self, name: str, answer: Callable[[dict], dict], pairs_first: bool = False
    ) -> dict[str, Signature]:
        """`name` for texts and `name_pairs` for pairs, one of them first.

        Args:
            name: of the entry point.
            answer: what `build_inputs` gives -> the outputs.
            pairs_first: which of them is `serving_default`.
        """

        def answer_rows(*columns: Any) -> dict[str, tf.Tensor]:
            rows = tf.shape(columns[0])[0]
            # A row of nothing where there is none, cut off again: ELMo's convolutions need one.
            more = [[0, tf.cast(rows == 0, tf.int32)]]
            columns = [tf.pad(column, more, constant_values="") for column in columns]
            found = answer(self._task.build_inputs(*map(self._task.tokenizer.encode, columns)))
            return {key: value[:rows] for key, value in found.items()}

        def single(text: tf.Tensor) -> dict[str, tf.Tensor]:
            return answer_rows(text)

        def pairs(first: Any, second: Any) -> dict[str, tf.Tensor]:
            return answer_rows(first, second)

        functions: dict[str, Callable] = {name: single, f"{name}_pairs": pairs}
        is_cut = self.doc_stride is None
        tokens = text_tokens(self._task.row_length if is_cut else None)
        entries = {
            entry: Signature(
                function,
                [tf.TensorSpec([None], tf.string, x) for x in columns],
                tokens,
                # What the model reads of a text that is cut is in its first bytes.
                too_long="cut" if is_cut else "refused",
            )
            for (entry, function), columns in zip(functions.items(), TEXT_COLUMNS, strict=True)
        }
        return dict(reversed(entries.items())) if pairs_first else entries


def sentence_head(encoder: keras.Model, units: int) -> SentenceHead:
    """The dense layer on an encoder's pooled vector, in tasks "classifier".

    On a decoder whose rows are the text alone its bias stays zero: transformers' classifiers of GPT
    and GPT-2, which are read and written so, have none.
    """
    head = SentenceHead(
        *(encoder.config, units),
        width=encoder.pooler.units,  # ELMo's is twice as wide as its words
        name="classifier",
        dtype=encoder.dtype_policy,
    )
    bias: Any = head.dense.bias
    bias.trainable = getattr(encoder, "has_input_tokens", True)
    return head


def _text_columns(table: Table) -> tuple[str, ...]:
    for names in TEXT_COLUMNS:
        if all(name in table for name in names):
            return names
    hint = "; of a batched tf.data.Dataset give dataset.unbatch()" if "words" in table else ""
    raise ValueError(
        "A table of texts has the column `text`, or `first` and `second` for pairs; rename() "
        f"gives a table's columns these names{hint}. Received: {', '.join(table.columns)}"
    )


def _side_by_side(first: Any, second: Any) -> Tensor:
    """(R, T) and (R, T) -> (2R, T), the two of a row as neighbours."""
    return ops.reshape(ops.stack([first, second], axis=1), (-1, ops.shape(first)[1]))
