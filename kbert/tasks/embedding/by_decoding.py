"""Base class of tasks whose decoders write texts from the embedding of one.

Shapes: N texts, B rows of a batch, T tokens, H hidden width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert.core.protocols import TokenizerLike
from kbert.core.types import PathLike, Tensor, Tensors, Terms
from kbert.data.tables.rows import Rows
from kbert.data.tables.table import Table
from kbert.layers.token_embeddings import TokenOutput
from kbert.models.generators.text_decoder import TextDecoder
from kbert.tasks.embedding.text_embedder import TextEmbedder, VectorAnswers
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.file_answers import FileAnswers


class EmbedderAnswers(VectorAnswers):
    """Files with the embeddings of the task's `embedder`."""

    def __init__(self, task: Any) -> None:
        super().__init__(task.embedder)


class EmbeddingByDecoding(EncoderTask):
    """Trains an embedder by decoders, which see only the embedding and the tokens so far.

    A decoder begins as a copy of the encoder's layers and shares its embeddings; the token table
    also computes the logits. `predict` and exports are those of `embedder`.

    A subclass, which is also a `FineTuningTask`, builds the decoders and lists them in `parts`.
    Its `call` returns "embedding" and a `TokenOutput` for each text, so that no logits exist but in
    the losses.

    Args:
        encoder: a `kbert.Encoder` of BERT's kind, with embeddings as wide as its layers.
        tokenizer: the encoder's tokenizer.
        name: name of the model.
        **options: settings.

    Raises:
        ValueError: a setting is out of range, or the encoder is of another kind.
    """

    averages: ClassVar[str | None] = None
    file_answers: ClassVar[type[FileAnswers]] = EmbedderAnswers

    def __init__(self, encoder: keras.Model, tokenizer: TokenizerLike, **options: Any) -> None:
        super().__init__(encoder, tokenizer, **options)
        embedder = TextEmbedder(
            encoder, tokenizer, token_pooling=self.token_pooling, max_length=self.max_length
        )
        # Inside a function, so that Keras does not track the encoder twice.
        self._embedder = lambda: embedder

    def _settings_changed(self) -> None:
        super()._settings_changed()
        self.embedder.max_length = self.max_length

    @property
    def embedder(self) -> TextEmbedder:
        """The `TextEmbedder` that computes the embeddings."""
        return self._embedder()

    @property
    def width(self) -> int:
        """Width of an embedding, H."""
        return self.embedder.width

    def written(
        self, decoder: TextDecoder, ids: Tensor, mask: Tensor, vectors: Tensor, training: bool
    ) -> TokenOutput:
        """Returns what the logits (B, T - 1, V) of the tokens after the first are the product of.

        Args:
            decoder: the decoder that writes the texts.
            ids: (B, T), token ids of the texts with their special tokens.
            mask: (B, T), 1 for a token.
            vectors: (B, H), embeddings that the texts are written from.
            training: whether dropout is active.
        """
        x = self.encoder.embeddings(ids[:, :-1], training=training)
        decoded = decoder(x, mask[:, :-1], ops.cast(vectors, x.dtype), training=training)
        return TokenOutput(decoded, ops.convert_to_tensor(self.encoder.token_embedding))

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        return self.terms(self(batch, training=training), batch, training)

    def terms(self, logits: Tensors, batch: Tensors, training: bool = False) -> Terms:
        """Returns the losses and metrics of a batch.

        Args:
            logits: results of `call`.
            batch: the batch.
            training: whether chunks of tokens compute the gradient, see `token_losses`.
        """
        raise NotImplementedError(f"{type(self).__name__} must define `terms`.")

    def outputs(self, logits: Tensors, batch: Tensors) -> dict[str, Any]:
        return {"embedding": logits["embedding"]}

    def decode(self, table: Table, rows: Rows, outputs: Sequence[Tensors]) -> Any:
        vectors = [output["embedding"] for output in outputs]
        return np.array(vectors, np.float32).reshape(len(outputs), self.width)

    def export(self, directory: PathLike, **options: Any) -> str:
        """Exports the `embedder`, see `Task.export`; an export cannot write texts."""
        return self.embedder.export(directory, **options)

    def score(self, table: Table, answers: Sequence) -> dict[str, float]:
        return {}

    def score_names(self, table: Table) -> list[str] | None:
        return []
