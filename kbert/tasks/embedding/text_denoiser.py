"""Vectors that a damaged text is restored from, learnt from texts alone.

Shapes: N texts, B rows of a batch, T tokens, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from absl import logging
from keras import ops

from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import PathLike, Tensors, Terms
from kbert.data.masking.hashing import chance, fold
from kbert.data.tables.bucketing import bucketed_batches
from kbert.data.tables.rows import Rows
from kbert.data.tables.shards import StoredRows
from kbert.data.tables.table import Table
from kbert.layers.token_embeddings import tied_logits
from kbert.models.generators.text_decoder import TextDecoder
from kbert.tasks.columns import Columns
from kbert.tasks.embedding.losses import unit
from kbert.tasks.embedding.options import TextDenoiserOptions
from kbert.tasks.embedding.text_embedder import TextEmbedder, VectorAnswers
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.losses import accuracy, cross_entropy

_DAMAGE = 0x7E57  # of the noise, beside the orders that the same seed draws


class DenoiserAnswers(VectorAnswers):
    """Those of the `embedder`."""

    def __init__(self, task: Any) -> None:
        super().__init__(task.embedder)


class TextDenoiser(FineTuningTask):
    """Teaches an encoder vectors from texts alone: from one the undamaged text is written.

    Most tokens of a text are deleted, the rest becomes a vector, and a decoder that sees nothing
    but that and the tokens so far writes the whole text; so the vector must hold what the text
    says. (TSDAE: Wang, Reimers & Gurevych 2021, https://arxiv.org/abs/2104.06979. There encoder
    and decoder are the same weights; here the decoder begins as a copy of the encoder's layers,
    and shares its embeddings, of which the token table also gives the logits.)

    `fit` takes texts. Which tokens are deleted depends on the seed, the epoch and the text's place
    in the data. `evaluate` gives the `loss`, of a token in nats, by the same damage each time. What
    the vectors are used by, and trained on by pairs, is the `embedder`, a `TextEmbedder` of the
    same encoder; of a folder it is `TextEmbedder.from_preset(folder, new_head=True,
    token_pooling="cls")`. `predict`, and an export, give its vectors, of length 1.

    Logits are (B, T, V) float32: for 32 texts of 64 tokens and 30,000 entries 250 MB, and as much
    for their gradients; `micro_batches` divides that.

    Args:
        encoder: a `kbert.Encoder` of BERT's kind, its embeddings as wide as its layers.
        tokenizer: its tokenizer.
        name: of the model.
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
    file_answers = DenoiserAnswers
    columns: ClassVar = Columns(inputs=(("text",),), optional=("label",))
    options: ClassVar = TextDenoiserOptions

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        embedder = TextEmbedder(
            encoder, tokenizer, token_pooling=self.token_pooling, max_length=self.max_length
        )
        # Inside a function, so that Keras does not hold the encoder twice.
        self._embedder = lambda: embedder
        self.decoder = TextDecoder.from_encoder(encoder, self.decoder_layers)
        self.build()

    @property
    def embedder(self) -> TextEmbedder:
        """What gives the vectors."""
        return self._embedder()

    @property
    def width(self) -> int:
        """H."""
        return self.embedder.width

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "decoder": self.decoder}

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        if labelled and self.columns.label in table:
            logging.warning("A TextDenoiser learns from texts alone: the labels are not read")
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
        """`target_ids` and `target_mask` (B, T), and `token_ids` … of what is left of them.

        Of texts that are not learnt from, `token_ids` … are the whole texts.
        """
        columns = dict(columns)
        ids, numbers = columns.pop("first"), columns.pop("numbers", None)
        if numbers is None:
            return {**self.build_inputs(ids), **columns}
        whole = self._whole(ids)
        return {**whole, **self._damaged(ids, fold(fold(_DAMAGE, 0), numbers)), **columns}

    def batches(self, rows: Rows | StoredRows, *, seed: int = 0, **options: Any) -> tf.data.Dataset:
        """What `fit` trains on: texts of like length, damaged anew in each epoch."""

        def whole(columns: dict[str, Any]) -> dict[str, tf.Tensor]:
            others = {k: x for k, x in columns.items() if k not in ("first", "numbers")}
            return {**self._whole(columns["first"]), **others}

        def damage(batch: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
            after = batch["position"][0]  # behind the last batch of an epoch is the next one
            epoch = after[0] - tf.cast(after[1] == 0, after.dtype)
            key = fold(fold(fold(_DAMAGE, 1), seed), epoch)
            ids = self._texts_of_targets(batch)
            return {**batch, **self._damaged(ids, fold(key, batch["rows"]))}

        dataset = bucketed_batches(rows, whole, seed=seed, **options)
        return dataset.map(damage, num_parallel_calls=tf.data.AUTOTUNE).prefetch(2)

    def _whole(self, ids: tf.RaggedTensor) -> dict[str, tf.Tensor]:
        built = self.build_inputs(ids)
        return {"target_ids": built["token_ids"], "target_mask": built["padding_mask"]}

    def _texts_of_targets(self, batch: Mapping[str, tf.Tensor]) -> tf.RaggedTensor:
        """Ids without the first and the last, as (B, ragged)."""
        lengths = tf.reduce_sum(tf.cast(batch["target_mask"], tf.int64), 1)
        ids = tf.RaggedTensor.from_tensor(batch["target_ids"], lengths)
        return ids[:, 1:-1]

    def _damaged(self, ids: tf.RaggedTensor, keys: tf.Tensor) -> dict[str, tf.Tensor]:
        """Inputs of texts with deletions: (B, ragged) ids, (B,) keys of chance.

        As in TSDAE's program, of a text of which nothing would be left a token stays.
        """
        ids = ids[:, : self.row_length - self.form.specials(1)]
        rows, places = ids.value_rowids(), tf.ragged.range(ids.row_lengths()).values
        deleted = chance(fold(tf.gather(keys, rows), places), self.deletion_rate)
        kept = tf.RaggedTensor.from_row_splits(~deleted, ids.row_splits)
        kept = kept | (~tf.reduce_any(kept, axis=1)[:, None] & self._one_of(ids, keys))
        return self.build_inputs(tf.ragged.boolean_mask(ids, kept))

    def _one_of(self, ids: tf.RaggedTensor, keys: tf.Tensor) -> tf.RaggedTensor:
        """True at one place of each row that has any."""
        lengths = ids.row_lengths()
        drawn = tf.cast(fold(keys, 2**20) % tf.cast(tf.maximum(lengths, 1), tf.uint64), tf.int64)
        return tf.ragged.range(lengths) == drawn[:, None]

    def call(self, batch: Tensors, training: bool = False) -> Tensors:
        """Vectors `embedding` (B, H), and of rows to learn from the tokens' `logits` (B, T - 1, V).

        Both in float32.
        """
        vectors = self.embedder.embed_rows(batch, training)
        found = {"embedding": unit(vectors)}
        if "target_ids" in batch:
            ids, mask = batch["target_ids"][:, :-1], batch["target_mask"][:, :-1]
            x = self.encoder.embeddings(ids, training=training)
            read = self.decoder(x, mask, ops.cast(vectors, x.dtype), training=training)
            found["logits"] = tied_logits(read, self.encoder.token_embedding)
        return found

    def terms(self, logits: Tensors, batch: Tensors) -> Terms:
        targets = batch["target_ids"][:, 1:]
        weights = ops.cast(batch["target_mask"][:, 1:], "float32")
        weights = weights * ops.cast(batch["label_weights"], "float32")[:, None]
        written = logits["logits"]
        return (
            {"lm_loss": cross_entropy(written, targets, weights)},
            {"accuracy": accuracy(written, targets, weights)},
        )

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        return {"embedding": logits["embedding"]}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Any:
        vectors = [output["embedding"] for output in outputs]
        return np.array(vectors, np.float32).reshape(len(outputs), self.width)

    def export(self, directory: PathLike, **options: Any) -> str:
        """What `Task.export` writes of the `embedder`: nothing of an export restores texts."""
        return self.embedder.export(directory, **options)

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        return {}

    def score_names(self, table: Table) -> list[str] | None:
        return []

    def describe_example(self, table: Table, row: int) -> str:
        return "the whole text"
