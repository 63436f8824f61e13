"""Texts and pairs of texts as rows of tokens, for tasks on whole texts.

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
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.data.tables.windows import pair_windows, text_windows, window_counts
from kbert.heads import SentenceHead
from kbert.inference.texts import READ_WHOLE
from kbert.models.captured_outputs import captured_of
from kbert.signatures import Signature, text_tokens
from kbert.tasks.encoder_task import EncoderTask, input_names
from kbert.tokenizers.packing import pair_limits

WINDOWS_AT_ONCE = 32  # windows that inference computes together, to bound memory
TEXT_COLUMNS = ("text",), ("first", "second")
SWAPPED = "swapped_token_ids"  # feature: token ids of pairs, the second text first
# (pooled vectors (R, H), training) -> logits (R, C)
Head = Callable[[Any, bool], Any]


class TextRows:
    """Texts and pairs as rows, long ones in windows, with logits from the pooled vector.

    (BERT, section 4.1, https://arxiv.org/abs/1810.04805; `create_model` in run_classifier.py of
    google-research/bert.) A `FineTuningTask` with an instance in `texts` needs no `tokenize` and no
    `assemble`. Its `call` can use `logits`, its `signatures` those of this class.

    With `both_orders`, a decoder reads each pair in both orders, and the two pooled vectors are
    added (Radford et al. 2018, section 3.3, "similarity").

    Args:
        task: the task, whose settings `doc_stride`, `pooling` and `both_orders` are used if it has
            them. With a `doc_stride`, long texts are read in windows and their logits pooled;
            without, they are truncated at the end. `both_orders` reads pairs in both orders.

    Raises:
        ValueError: `both_orders` is set for an encoder that is not a decoder.
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
        """End of the warning about truncated texts: what the user can do."""
        return "" if self.doc_stride else READ_WHOLE

    def rows(self, table: Table) -> Rows:
        """Tokenises a table of texts, or of pairs, to rows.

        Args:
            table: table with the column `text`, or `first` and `second`.
        """
        return self.rows_of_ids(*(self._task.encode_texts(table[x]) for x in _text_columns(table)))

    def rows_of_ids(self, *ids: tf.RaggedTensor) -> Rows:
        """Returns the rows of texts, or of pairs: `ids` are the token ids of each side, (N, …)."""
        lengths = [np.diff(np.asarray(x.row_splits)) for x in ids]
        tokens, lost_tokens = self._extent(lengths)
        return Rows(
            ragged=dict(zip(("first", "second"), ids, strict=False)),
            dense={},
            lengths=tokens * (2 if self.both_orders and len(ids) == 2 else 1),
            examples=np.arange(len(lengths[0])),
            cut=int(np.count_nonzero(lost_tokens)),
        )

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs token ids into the encoder's inputs (B, T); with `doc_stride` (B, W, T).

        With `both_orders`, pairs also get "swapped_token_ids", with the second text first.
        """
        features = self._packed(first, second)
        if self.both_orders and second is not None:
            features[SWAPPED] = self._packed(second, first)["token_ids"]
        return features

    def logits(
        self, batch: Mapping[str, Any], head: Head, training: bool, return_read: bool = False
    ) -> tuple[Any, dict[str, Any] | None]:
        """Returns the logits of texts; the logits of windows are pooled.

        Args:
            batch: features from `build_inputs`.
            head: the head, a function from pooled vectors (R, H) to logits (R, C).
            training: whether dropout is active.
            return_read: whether to return the encoder's inputs and outputs.

        Returns:
            Logits (B, C), and "read" of `FineTuningTask`: the encoder's inputs and its "sequence";
            None without `return_read`.
        """
        names = (*input_names(self._task.encoder), SWAPPED)
        features = {name: batch[name] for name in names if name in batch}
        if len(batch["padding_mask"].shape) == 2:
            return self._logits(features, head, training, return_read)
        flat = {k: ops.reshape(x, (-1, *ops.shape(x)[2:])) for k, x in features.items()}
        # Outputs other than the logits must not be computed inside a loop.
        if training or return_read or captured_of(self._task.encoder) is not None:
            logits, read = self._logits(flat, head, training, return_read)
        else:
            logits, read = self._logits_in_groups(flat, head), None
        return self.pool(logits, batch["padding_mask"]), read

    def pool(self, logits: Any, padding_mask: Any) -> Tensor:
        """Pools the logits of windows (B * W, C) to logits of texts (B, C), by mean or maximum.

        Args:
            logits: logits of windows.
            padding_mask: (B, W, T), all 0 for missing windows.
        """
        rows, windows, _ = ops.shape(padding_mask)
        logits = ops.reshape(logits, (rows, windows, logits.shape[-1]))
        real = ops.cast(padding_mask[:, :, :1], logits.dtype)  # (B, W, 1)
        # A text without windows gets 0: in a step of `MultiTask`, one of another task's batch.
        if self.pooling == "max":
            highest = ops.max(ops.where(real > 0, logits, -np.inf), axis=1)
            return ops.where(ops.any(real > 0, axis=1), highest, 0.0)
        return ops.sum(logits * real, axis=1) / ops.maximum(ops.sum(real, axis=1), 1.0)

    def _extent(self, lengths: Any) -> tuple[np.ndarray, np.ndarray]:
        """Returns the tokens of each row (N,), in all windows, and those lost by truncation (N,).

        `lengths` are the token counts of the texts, (N,): one array, or two for pairs.
        """
        specials, budget = self._budget(len(lengths))
        total = sum(lengths)
        tokens = np.clip(total + specials, 1, self._task.row_length)
        if self.doc_stride is None:
            return tokens, np.maximum(total - budget, 0)
        if len(lengths) == 1:
            counts = window_counts(total, budget, self.doc_stride).numpy()
            return tokens * counts, np.zeros_like(total)
        kept_lengths = [x.numpy() for x in pair_limits(lengths[0], lengths[1], budget)]
        slides = lengths[0] > lengths[1]  # as in pair_windows
        longer, budgets = (np.where(slides, *sides) for sides in (lengths, kept_lengths))
        lost_tokens = np.where(slides, lengths[1] - kept_lengths[1], lengths[0] - kept_lengths[0])
        return tokens * window_counts(longer, budgets, self.doc_stride).numpy(), lost_tokens

    def _budget(self, texts: int) -> tuple[int, int]:
        """Returns how many special tokens and text tokens a row of one or two `texts` can have."""
        specials = self._task.form.specials(texts)
        budget = self._task.row_length - specials
        if texts == 2 and self.both_orders and self.doc_stride is not None:
            budget -= budget % 2  # equal halves, so that both orders have the same windows
        return specials, budget

    def _packed(self, first: Any, second: Any) -> dict[str, tf.Tensor]:
        """Packs token ids into the encoder's inputs (B, T); with `doc_stride` (B, W, T).

        `first` and `second` are token ids (B, ragged); `second` is None for single texts.
        """
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
        """Returns the logits (R, C) of windows, computed in groups to bound memory.

        `features` are the inputs of all R windows, (R, T); `head` is that of `logits`.
        """
        count = ops.shape(features["padding_mask"])[0]
        groups = (count + WINDOWS_AT_ONCE) // WINDOWS_AT_ONCE  # at least one, even without windows
        size = (count + groups - 1) // groups
        # The last group is filled up with copies of the last window.
        index = ops.minimum(ops.arange(groups * size, dtype="int32"), count - 1)
        grouped = {
            name: ops.reshape(ops.take(x, index, axis=0), (groups, size, *ops.shape(x)[1:]))
            for name, x in features.items()
        }
        logits = ops.map(lambda part: self._logits(part, head, False)[0], grouped)
        return ops.reshape(logits, (-1, logits.shape[-1]))[:count]

    def _logits(
        self, features: Tensors, head: Head, training: bool, return_read: bool = False
    ) -> tuple[Tensor, dict[str, Any] | None]:
        """Returns logits (R, C), and with `return_read` the encoder's inputs and "sequence".

        `features` are (R, T), with "swapped_token_ids" for pairs in both orders; `head` is that of
        `logits`. Without `return_read` the second result is None.
        """
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
            sequence = outputs.get("encoded", outputs["sequence"])
            pooled, read = outputs["pooled"], {**features, "sequence": sequence}
        else:
            pooled = self._task.encode_pooled(features, training)
        if swapped is not None:
            pooled = ops.sum(ops.reshape(pooled, (-1, 2, pooled.shape[-1])), axis=1)
        return head(pooled, training), read

    def signatures(
        self, name: str, answer: Callable[[dict], dict], pairs_first: bool = False
    ) -> dict[str, Signature]:
        """Returns the entry points `name` for texts and `name_pairs` for pairs.

        Args:
            name: name of the entry point for texts.
            answer: function from the features of `build_inputs` to the outputs.
            pairs_first: whether the entry point for pairs is `serving_default`.
        """

        def answer_rows(*columns: Any) -> dict[str, tf.Tensor]:
            rows = tf.shape(columns[0])[0]
            # ELMo's convolutions need a row: an empty batch gets one, which is removed again.
            padding = [[0, tf.cast(rows == 0, tf.int32)]]
            columns = [tf.pad(column, padding, constant_values="") for column in columns]
            outputs = answer(self._task.build_inputs(*map(self._task.tokenizer.encode, columns)))
            return {key: value[:rows] for key, value in outputs.items()}

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
                # The tokens that the model reads of a truncated text are in its first bytes.
                too_long="cut" if is_cut else "refused",
            )
            for (entry, function), columns in zip(functions.items(), TEXT_COLUMNS, strict=True)
        }
        return dict(reversed(entries.items())) if pairs_first else entries


def sentence_head(encoder: keras.Model, units: int, width: int | None = None) -> SentenceHead:
    """Returns the dense layer on an encoder's pooled vector, the `classifier` of tasks.

    `width` is that of the pooled vector; None = that of the encoder's. (ELMo's pooled vector is
    twice as wide as its word vectors.)

    For a decoder without input tokens the bias is frozen at zero. Such rows are those of
    transformers' classifiers on GPT and GPT-2, which have no bias.
    """
    head = SentenceHead(
        *(encoder.config, units),
        width=width or encoder.pooler.units,
        name="classifier",
        dtype=encoder.dtype_policy,
    )
    bias: Any = head.dense.bias
    bias.trainable = getattr(encoder, "has_input_tokens", True)
    return head


def _text_columns(table: Table) -> tuple[str, ...]:
    """Returns the names of a table's columns of texts; raises ValueError if it has none."""
    for names in TEXT_COLUMNS:
        if all(name in table for name in names):
            return names
    hint = "; for a batched tf.data.Dataset pass dataset.unbatch()" if "words" in table else ""
    if "token_ids" in table:
        hint = "; for batches of token ids build a keras.Model on kbert.Encoder (docs/keras.md)"
    raise ValueError(
        "The table must have the column `text`, or `first` and `second` for pairs; rename its "
        f"columns with rename(){hint}. Received: {', '.join(table.columns)}"
    )


def _side_by_side(first: Any, second: Any) -> Tensor:
    """Interleaves (R, T) and (R, T) to (2R, T), so that the two rows of a pair are adjacent."""
    return ops.reshape(ops.stack([first, second], axis=1), (-1, ops.shape(first)[1]))
