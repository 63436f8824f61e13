"""What classification and regression share: a text or a pair of texts in, one row of logits out.

Shapes: N examples, B rows, W windows, T tokens, H hidden width, C logits.
"""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from kbert.data.tables.packing import pair_limits
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.data.tables.windows import pair_windows, text_windows, window_counts
from kbert.heads import SentenceHead
from kbert.layers import Dropout
from kbert.serving import Signature
from kbert.tasks.fine_tuning.base import FineTuned

POOLINGS = ("mean", "max")
WINDOWS_AT_ONCE = 32  # that inference holds in memory
TEXT_COLUMNS = ("text",), ("first", "second")
SWAPPED = "swapped_token_ids"  # a feature: the token ids of pairs in the other order


class TextTask(FineTuned):
    """Logits of whole texts: the encoder's pooled vector, dropout, one dense layer.

    (BERT, section 4.1, https://arxiv.org/abs/1810.04805; `create_model` in run_classifier.py of
    google-research/bert.)

    A subclass defines what `FineTuned` asks for except `rows`, `assemble` and `call`, and
    `targets`.

    A decoder reads pairs in both orders where these say the same, and the two vectors are added
    (Radford et al. 2018, section 3.3, "similarity").

    Args:
        encoder: a `kbert.Encoder` with a pooler, a `kbert.models.ElmoEncoder` or a
            `kbert.models.DecoderEncoder`.
        tokenizer: its tokenizer.
        units: C.
        max_length: tokens of a row, special tokens included; None = all that the encoder takes.
        stride: a longer text is read in windows that begin this many tokens apart, and its logits
            are pooled. None cuts it at its end.
        pooling: "mean" or "max" of the windows' logits.
        dropout: rate before the head; None = the encoder's.
        both_orders: whether pairs are read in both orders.
        auxiliary_lm_weight: as in `FineTuned`.
        name: of the model.

    Raises:
        ValueError: if a setting is out of range, the encoder has no pooler, or is no decoder where
            `both_orders` or `auxiliary_lm_weight` asks for one.
    """

    needs_pooler = True
    takes_characters = True
    takes_decoders = True

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Any,
        units: int,
        *,
        max_length: int | None,
        stride: int | None,
        pooling: str,
        dropout: float | None,
        both_orders: bool,
        auxiliary_lm_weight: float | None,
        name: str,
    ) -> None:
        options = {"max_length": max_length, "auxiliary_lm_weight": auxiliary_lm_weight}
        super().__init__(encoder, tokenizer, name=name, **options)
        check_windows(stride, pooling)
        if both_orders and not self.reads_by_decoder:
            raise ValueError(
                "both_orders=True is for decoders, which read from left to right; other encoders "
                f"see both texts of a pair at once. Received: a {type(encoder).__name__}"
            )
        self.both_orders = both_orders
        self.stride = stride
        self.pooling = pooling
        self.dropout_rate = dropout
        rate = encoder.config.dropout if dropout is None else dropout
        self.dropout = Dropout(rate, dtype=encoder.dtype_policy, name="dropout")
        self.classifier = SentenceHead(
            *(encoder.config, units),
            width=encoder.pooler.units,
            name="classifier",
            dtype=encoder.dtype_policy,
        )
        self.build()

    def targets(self, table: Table) -> np.ndarray:
        """(N, …) what the loss reads as `labels`; raises for a label that is none."""
        raise NotImplementedError(f"{type(self).__name__} must define `targets`.")

    @property
    def remedy(self) -> str:
        """What the message that counts texts that are cut ends with."""
        return "" if self.stride else "; with stride=… the task reads them whole, in windows"

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "classifier": self.classifier}

    @property
    def settings(self) -> dict[str, Any]:
        return {
            "max_length": self.max_length,
            "stride": self.stride,
            "pooling": self.pooling,
            "dropout": self.dropout_rate,
            **({"both_orders": self.both_orders} if self.reads_by_decoder else {}),
            **super().settings,
        }

    def rows(self, table, labelled):
        names = _text_columns(table)
        ids = [self.tokenize(table[name]) for name in names]
        lengths = [x.row_lengths().numpy() for x in ids]
        tokens, lost = self._extent(lengths)
        return Rows(
            ragged=dict(zip(("first", "second"), ids, strict=False)),
            dense={"labels": self.targets(table)} if labelled else {},
            lengths=tokens * (2 if self.both_orders and len(ids) == 2 else 1),
            examples=np.arange(len(table)),
            cut=int(np.count_nonzero(lost)),
        )

    def check_labels(self, table) -> None:
        self.targets(table)

    def _extent(self, lengths):
        """Tokens of each row in a batch (N,), and how many of its text are in none (N,)."""
        specials, room = self._room(len(lengths))
        total = sum(lengths)
        tokens = np.clip(total + specials, 1, self.row_length)
        if self.stride is None:
            return tokens, np.maximum(total - room, 0)
        if len(lengths) == 1:
            return tokens * window_counts(total, room, self.stride).numpy(), np.zeros_like(total)
        kept = [x.numpy() for x in pair_limits(*lengths, room)]
        slides = lengths[0] > lengths[1]  # as in pair_windows
        longer, rooms = (np.where(slides, *both) for both in (lengths, kept))
        lost = np.where(slides, lengths[1] - kept[1], lengths[0] - kept[0])
        return tokens * window_counts(longer, rooms, self.stride).numpy(), lost

    def _room(self, texts):
        """Special tokens of a row of one text or two, and tokens that are left for the texts."""
        specials = self.form.specials(texts)
        room = self.row_length - specials
        if texts == 2 and self.both_orders and self.stride is not None:
            room -= room % 2  # equal halves, so that both orders have the same windows
        return specials, room

    def pack(self, first, second=None):
        """Ragged ids as the encoder's input: (B, T), with `stride` (B, W, T).

        With `both_orders`, of pairs also "swapped_token_ids", the second text first.
        """
        features = self._packed(first, second)
        if self.both_orders and second is not None:
            features[SWAPPED] = self._packed(second, first)["token_ids"]
        return features

    def _packed(self, first, second):
        if self.stride is None:
            return super().pack(first, second)
        _, room = self._room(1 if second is None else 2)
        if second is None:
            first, counts = text_windows(first, room, self.stride)
        else:
            first, second, counts = pair_windows(first, second, room, self.stride)
        fill = {"token_ids": tf.expand_dims(self.form.pad_id, 0)}  # (1,) or (1, C)
        return {
            name: tf.RaggedTensor.from_row_lengths(x, counts).to_tensor(fill.get(name, 0))
            for name, x in super().pack(first, second).items()
        }

    def call(self, batch, training=False, return_read=False):
        """Logits: `classifier` (B, C), of windows (B, W, T) pooled; see `FineTuned` for "read"."""
        names = ("token_ids", "segment_ids", "padding_mask", SWAPPED)
        features = {name: batch[name] for name in names if name in batch}
        shape = ops.shape(batch["padding_mask"])
        if len(shape) == 2:
            logits, read = self._logits(features, training)
            return {"classifier": logits, **({"read": read} if return_read else {})}
        rows, windows, _ = shape
        flat = {k: ops.reshape(x, (-1, *ops.shape(x)[2:])) for k, x in features.items()}
        outputs = {}
        if return_read:
            logits, outputs["read"] = self._logits(flat, training)
        else:
            # What is read along must not be made inside a loop.
            at_once = training or self._reading is not None
            logits = self._logits(flat, training)[0] if at_once else self._logits_in_groups(flat)
        logits = ops.reshape(logits, (rows, windows, self.classifier.dense.units))
        real = ops.cast(batch["padding_mask"][:, :, :1], logits.dtype)  # (B, W, 1)
        if self.pooling == "max":
            pooled = ops.max(ops.where(real > 0, logits, -np.inf), axis=1)
        else:
            pooled = ops.sum(logits * real, axis=1) / ops.sum(real, axis=1)
        return {"classifier": pooled, **outputs}

    def _logits_in_groups(self, features):
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
        logits = ops.map(lambda part: self._logits(part, False)[0], parts)
        return ops.reshape(logits, (-1, self.classifier.dense.units))[:count]

    def _logits(self, features, training):
        """Logits (R, C) of rows, and what was read for them."""
        features = dict(features)
        swapped = features.pop(SWAPPED, None)
        if swapped is not None:
            features = {
                "token_ids": _side_by_side(features["token_ids"], swapped),
                "padding_mask": _side_by_side(*[features["padding_mask"]] * 2),
            }
        outputs = self.encode(features, training)
        pooled = outputs["pooled"]
        if swapped is not None:
            pooled = ops.sum(ops.reshape(pooled, (-1, 2, pooled.shape[-1])), axis=1)
        logits = self.classifier(self.dropout(pooled, training=training))
        return logits, {**features, "sequence": outputs["sequence"]}

    def _signatures(
        self, name: str, answer: Callable[[dict], dict], pairs_first: bool
    ) -> dict[str, Signature]:
        """`name` for texts and `name_pairs` for pairs, one of them first."""

        def answer_rows(*columns):
            rows = tf.shape(columns[0])[0]
            # A row of nothing where there is none, cut off again: ELMo's convolutions need one.
            more = [[0, tf.cast(rows == 0, tf.int32)]]
            columns = [tf.pad(column, more, constant_values="") for column in columns]
            found = answer(self.pack(*map(self.tokenizer.encode, columns)))
            return {key: value[:rows] for key, value in found.items()}

        def single(text):
            return answer_rows(text)

        def pairs(first, second):
            return answer_rows(first, second)

        functions = {name: single, f"{name}_pairs": pairs}
        entries = {
            entry: Signature(function, [tf.TensorSpec([None], tf.string, x) for x in columns])
            for (entry, function), columns in zip(functions.items(), TEXT_COLUMNS, strict=True)
        }
        return dict(reversed(entries.items())) if pairs_first else entries


def check_windows(stride: int | None, pooling: str) -> None:
    """Raises ValueError unless these are a stride and a pooling of windows."""
    if pooling not in POOLINGS:
        raise ValueError(f"pooling must be one of {POOLINGS}. Received: {pooling!r}")
    if stride is not None and (not isinstance(stride, int) or stride < 1):
        raise ValueError(
            "stride must be the tokens between the beginnings of two windows, 1 or more, or "
            f"None. Received: {stride!r}"
        )


def _text_columns(table):
    for names in TEXT_COLUMNS:
        if all(name in table for name in names):
            return names
    hint = "; of a batched tf.data.Dataset give dataset.unbatch()" if "words" in table else ""
    raise ValueError(
        "A table of texts has the column `text`, or `first` and `second` for pairs; rename() "
        f"gives a table's columns these names{hint}. Received: {', '.join(table.columns)}"
    )


def _side_by_side(first, second):
    """(R, T) and (R, T) -> (2R, T), the two of a row as neighbours."""
    return ops.reshape(ops.stack([first, second], axis=1), (-1, ops.shape(first)[1]))
