"""Skip-Thought: embeddings trained by writing the neighbouring sentences.

Shapes: N sentences, B rows of a batch, T tokens, H hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Any, ClassVar, cast

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.core.types import Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.models.generators.text_decoder import TextDecoder
from kbert.tasks.columns import Columns
from kbert.tasks.embedding.by_decoding import EmbeddingByDecoding
from kbert.tasks.embedding.losses import unit
from kbert.tasks.embedding.options import DecodingOptions
from kbert.tasks.fine_tuning.base import FineTuningTask
from kbert.tasks.token_losses import token_losses

SIDES = ("previous", "next")


class SkipThought(EmbeddingByDecoding, FineTuningTask):
    """Trains sentence embeddings: two decoders write the sentences around the embedded one.

    Each decoder sees only the embedding and the tokens so far. The loss is the sum of both
    decoders' mean losses per token. (Skip-Thought: Kiros et al. 2015, section 2.1,
    https://arxiv.org/abs/1506.06726, which sums over tokens. There encoder and decoders are
    recurrent and share the word embeddings; here they are layers of BERT's kind, the decoders
    start as copies of the encoder's layers, and the token table also computes the logits.)

    `fit` takes tables with the columns `previous`, `text` and `next`, as
    `kbert.data.neighbours(…, both_sides=True)` returns them. `evaluate` returns the `loss`.
    `predict` and exports return embeddings of length 1. To use the embeddings, or to train them
    further on pairs, take `embedder`, a `TextEmbedder` on the same encoder. From a folder, load it
    by `TextEmbedder.from_preset(folder, new_head=True, token_pooling="cls")`.

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
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "it", "rains", "we", "stay", "in"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=10))
        >>> task = SkipThought(encoder, tokenizer, decoder_layers=1)
        >>> rows = {"previous": ["it rains"], "text": ["we stay in"], "next": ["it rains in"]}
        >>> history = task.fit(rows, epochs=1, verbose=0)
        >>> task.embedder.predict(["we stay in"]).shape
        (1, 128)
    """

    kind = "skip_thought"
    columns: ClassVar = Columns(inputs=(("text",),), label="next", aux_labels=("previous",))
    options: ClassVar = DecodingOptions

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        for side in SIDES:
            name = f"{side}_decoder"
            setattr(self, name, TextDecoder.from_encoder(encoder, self.decoder_layers, name))
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        decoders = {f"{side}_decoder": getattr(self, f"{side}_decoder") for side in SIDES}
        return {**super().parts, **decoders}

    def tokenize(self, table: Table, labelled: bool) -> Rows:
        names = ("text", *SIDES) if labelled else ("text",)
        if missing := [name for name in names if name not in table]:
            raise ValueError(
                "Skip-Thought is trained on the columns previous, text and next, as "
                "kbert.data.neighbours(…, both_sides=True) returns them. Received: a table without "
                f"{', '.join(missing)}"
            )
        ragged = {
            name: self.encode_texts(
                cast("list[str]", inference.as_texts(table[name], name, table.start))
            )
            for name in names
        }
        specials = self.form.specials(1)
        lengths = np.stack([ids.row_lengths().numpy() + specials for ids in ragged.values()])
        return Rows(
            ragged=ragged,
            dense={},
            lengths=np.minimum(lengths, self.row_length).sum(0),
            examples=np.arange(len(table)),
            cut=int(np.count_nonzero((lengths > self.row_length).any(0))),
        )

    def assemble(self, columns: dict[str, Any]) -> dict[str, tf.Tensor]:
        """Returns the encoder's inputs, and `next_ids`, `next_mask` … (B, T) of the neighbours."""
        columns = dict(columns)
        features = self.build_inputs(columns.pop("text"))
        for side in SIDES:
            if side in columns:
                inputs = self.build_inputs(columns.pop(side))
                features[f"{side}_ids"] = inputs["token_ids"]
                features[f"{side}_mask"] = inputs["padding_mask"]
        return {**features, **columns}

    def call(self, batch: Tensors, training: bool = False) -> Tensors:
        """Returns `embedding` (B, H) float32, and with neighbours `next_tokens` …

        These are `TokenOutput`s of the neighbours' tokens after the first, (B, T - 1).
        """
        vectors = self.embedder.embed_rows(batch, training)
        outputs = {"embedding": unit(vectors)}
        for side in SIDES:
            if f"{side}_ids" in batch:
                text = batch[f"{side}_ids"], batch[f"{side}_mask"]
                decoder = getattr(self, f"{side}_decoder")
                outputs[f"{side}_tokens"] = self.written(decoder, *text, vectors, training)
        return outputs

    def terms(self, logits: Tensors, batch: Tensors, training: bool = False) -> Terms:
        losses, accuracies = {}, {}
        for side in SIDES:
            targets = batch[f"{side}_ids"][:, 1:]
            weights = ops.cast(batch[f"{side}_mask"][:, 1:], "float32")
            weights = weights * ops.cast(batch["label_weights"], "float32")[:, None]
            found = token_losses(logits[f"{side}_tokens"], targets, weights, training=training)
            losses[f"{side}_loss"] = found.smoothed
            accuracies[f"{side}_accuracy"] = found.accuracy()
        return losses, accuracies

    def describe_example(self, table: Table, row: int) -> str:
        return f"between {table['previous'][row]!r:.80} and {table['next'][row]!r:.80}"
