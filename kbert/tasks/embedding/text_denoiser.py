"""TSDAE: embeddings trained on texts alone, by restoring damaged texts.

Shapes: N texts, B rows of a batch, T tokens, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging
from keras import ops

from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensors, Terms
from kbert.data.masking.hashing import chance, fold
from kbert.data.tables.bucketing import bucketed_batches
from kbert.data.tables.rows import Rows
from kbert.data.tables.shards import StoredRows
from kbert.data.tables.table import Table
from kbert.models.generators.text_decoder import TextDecoder
from kbert.tasks.columns import Columns
from kbert.tasks.embedding.by_decoding import EmbeddingByDecoding
from kbert.tasks.embedding.losses import unit
from kbert.tasks.embedding.options import TextDenoiserOptions
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.token_losses import token_losses

_DAMAGE = 0x7E57  # separates the noise from the orders drawn with the same seed


class TextDenoiser(EmbeddingByDecoding, FineTuningTask):
    """Trains text embeddings without supervision: a decoder restores a damaged text from one.

    Most tokens of a text are deleted, and the rest is embedded. A decoder writes the whole text. It
    sees only the embedding and the tokens so far, so the embedding must represent the text.
    (TSDAE: Wang, Reimers & Gurevych 2021, https://arxiv.org/abs/2104.06979. There encoder and
    decoder share all weights. Here the decoder starts as a copy of the encoder's layers and shares
    its embeddings; the token table also computes the logits.)

    `fit` takes texts. The deleted tokens depend on the seed, the epoch and the text's index in the
    data. `evaluate` returns the `loss` per token in nats, with the same damage each time. `predict`
    and exports return embeddings of length 1. To use the embeddings, or to train them further on
    pairs, take `embedder`, a `TextEmbedder` on the same encoder. From a folder, load it by
    `TextEmbedder.from_preset(folder, new_head=True, token_pooling="cls")`.

    Args:
        encoder: a `kbert.Encoder` of BERT's kind, with embeddings as wide as its layers.
        tokenizer: the encoder's tokenizer.
        name: name of the model.
        **options: settings:

            {options}

    Raises:
        ValueError: a setting is out of range, or the encoder is of another kind.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "man", "eats"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=8))
        >>> task = TextDenoiser(encoder, tokenizer, decoder_layers=1)
        >>> history = task.fit(["a man eats", "a man"], epochs=1, verbose=0)
        >>> task.embedder.predict(["a man eats", "a man"]).shape
        (2, 128)
    """

    kind = "denoise"
    columns: ClassVar = Columns(inputs=(("text",),), optional=("label",))
    options: ClassVar = TextDenoiserOptions

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        self.decoder = TextDecoder.from_encoder(encoder, self.decoder_layers)
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "decoder": self.decoder}

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        if labelled and self.columns.label in table:
            logging.warning("A TextDenoiser is trained on texts alone: the labels are ignored")
        ids = self.encode_texts(table["text"])
        lengths = ids.row_lengths().numpy() + self.form.specials(1)
        numbers = np.arange(len(table), dtype=np.int32)
        return Rows(
            ragged={"first": ids},
            dense={"numbers": numbers} if labelled else {},
            lengths=np.minimum(lengths, self.row_length),
            examples=numbers,
            cut=int(np.count_nonzero(lengths > self.row_length)),
        )

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns `target_ids`, `target_mask` (B, T), and the encoder's inputs after deletion.

        Rows tokenised without labels get only the encoder's inputs, for the whole texts.
        """
        columns = dict(columns)
        ids, numbers = columns.pop("first"), columns.pop("numbers", None)
        if numbers is None:
            return {**self.build_inputs(ids), **columns}
        targets = self._whole(ids)
        return {**targets, **self._damaged(ids, fold(fold(_DAMAGE, 0), numbers)), **columns}

    def batches(self, rows: Rows | StoredRows, *, seed: int = 0, **options: Any) -> tf.data.Dataset:
        """Returns batches for `fit`: texts of similar length, with new damage in each epoch.

        `seed` is that of damage and order; `options` are those of `bucketed_batches`.
        """

        def whole(columns: dict[str, Any]) -> dict[str, tf.Tensor]:
            other_columns = {k: x for k, x in columns.items() if k not in ("first", "numbers")}
            return {**self._whole(columns["first"]), **other_columns}

        def damage(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            next_position = batch["position"][0]  # after the last batch of an epoch: the next epoch
            epoch = next_position[0] - tf.cast(next_position[1] == 0, next_position.dtype)
            key = fold(fold(fold(_DAMAGE, 1), seed), epoch)
            ids = self._texts_of_targets(batch)
            return {**batch, **self._damaged(ids, fold(key, batch["rows"]))}

        dataset = bucketed_batches(rows, whole, seed=seed, **options)
        return dataset.map(damage, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _whole(self, ids: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        inputs = self.build_inputs(ids)
        return {"target_ids": inputs["token_ids"], "target_mask": inputs["padding_mask"]}

    def _texts_of_targets(self, batch: Mapping[str, tf.Tensor]) -> tf.RaggedTensor:
        """Returns `target_ids` of a batch without the first and the last token, (B, ragged)."""
        lengths = tf.reduce_sum(tf.cast(batch["target_mask"], tf.int64), 1)
        ids = tf.RaggedTensor.from_tensor(batch["target_ids"], lengths)
        return ids[:, 1:-1]

    def _damaged(self, ids: tf.RaggedTensor, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the encoder's inputs for texts with deleted tokens.

        `ids` are (B, ragged), `keys` (B,) random keys. As in TSDAE's code, at least one token of a
        text stays.
        """
        ids = ids[:, : self.row_length - self.form.specials(1)]
        rows, positions = ids.value_rowids(), tf.ragged.range(ids.row_lengths()).values
        is_deleted = chance(fold(tf.gather(keys, rows), positions), self.deletion_rate)
        is_kept = tf.RaggedTensor.from_row_splits(~is_deleted, ids.row_splits)
        is_kept = is_kept | (~tf.reduce_any(is_kept, axis=1)[:, None] & self._one_of(ids, keys))
        return self.build_inputs(tf.ragged.boolean_mask(ids, is_kept))

    def _one_of(self, ids: tf.RaggedTensor, keys: tf.Tensor) -> tf.RaggedTensor:
        """Returns a mask (B, ragged) that is True at one token of each row of `ids` with tokens.

        The random `keys` (B,) determine which.
        """
        lengths = ids.row_lengths()
        position = tf.cast(fold(keys, 2**20) % tf.cast(tf.maximum(lengths, 1), tf.uint64), tf.int64)
        return tf.ragged.range(lengths) == position[:, None]

    def call(self, batch: Tensors, training: bool = False) -> Tensors:
        """Returns `embedding` (B, H) float32, and with targets `tokens`, a `TokenOutput`.

        The latter is that of the targets after the first, (B, T - 1).
        """
        vectors = self.embedder.embed_rows(batch, training)
        outputs = {"embedding": unit(vectors)}
        if "target_ids" in batch:
            target = batch["target_ids"], batch["target_mask"]
            outputs["tokens"] = self.written(self.decoder, *target, vectors, training)
        return outputs

    def terms(self, logits: Tensors, batch: Tensors, training: bool = False) -> Terms:
        targets = batch["target_ids"][:, 1:]
        weights = ops.cast(batch["target_mask"][:, 1:], "float32")
        weights = weights * ops.cast(batch["label_weights"], "float32")[:, None]
        losses = token_losses(logits["tokens"], targets, weights, training=training)
        return {"lm_loss": losses.smoothed}, {"accuracy": losses.accuracy()}

    def describe_example(self, table: Table, row: int) -> str:
        return "the whole text"
