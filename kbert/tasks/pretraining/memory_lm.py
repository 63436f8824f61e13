"""Predicts next tokens with a memory of each row's earlier text: Transformer-XL and AWD-LSTM.

Shapes: B rows, T tokens, L layers, M tokens of a memory, H hidden width. An AWD-LSTM's memory is
the state of all its layers: one layer and one token, wider than H.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.configs.base import check_count
from kbert.core.late import tf
from kbert.core.types import Tensor, Tensors, Terms
from kbert.layers.adaptive import AdaptiveSoftmax
from kbert.signatures import Signature, text_tokens
from kbert.tasks.corpora import RunsCorpus
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.input_form import TEXTS_ALONE
from kbert.tasks.pretraining.row_memory import RemembersRows
from kbert.tasks.token_losses import TokenLosses, token_losses
from kbert.tokenizers.base import Tokenizer
from kbert.training.step.state import DerivedMetrics


class MemoryLM(RemembersRows, EncoderTask):
    """A Transformer-XL or an AWD-LSTM that predicts the next token.

    (Dai et al. 2019, https://arxiv.org/abs/1901.02860, sections 3.2 and 3.3; Merity et al. 2017,
    https://arxiv.org/abs/1708.02182.) The softmax is tied to the token tables; with the `cutoffs`
    of a Transformer-XL it is adaptive. Train with `fit` on the batches of
    `kbert.data.causal_dataset(runs=True)`, in which row b continues where row b of the previous
    batch ended. A token of a Transformer-XL also attends to the hidden states of the
    `memory_length` tokens before its row; an AWD-LSTM begins a row with its last state. This memory
    is saved with checkpoints; no gradient flows through it. The loss `lm_loss` is the mean cross
    entropy over all tokens with weight. Metric: `perplexity`, the exponential of `lm_loss`.

    Args:
        encoder: a `kbert.Encoder` with a `TransformerXlConfig` or an `AwdLstmConfig`.
        tokenizer: tokenizer of the encoder; its "sep" token ends a text.
        memory_length: tokens of the memory (M), and tokens that `predict` reads at once. An
            AWD-LSTM's state has one size whatever M is.
        batch_size: rows of a global batch, over all devices.
        name: name of the model.

    Raises:
        TypeError: the encoder has no such memory.
        ValueError: the vocabularies differ, or a number is out of range.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "quick", "fox"])
        >>> config = kbert.configs.TransformerXlConfig(
        ...     vocabulary_size=8, hidden_size=8, num_layers=1, num_heads=2, intermediate_size=16)
        >>> task = MemoryLM(kbert.Encoder(config), tokenizer, memory_length=4, batch_size=2)
        >>> scores = task.predict(["the quick fox", "fox"])
        >>> scores[0]["tokens"], scores[1]["perplexity"] > 1
        (3, True)
    """

    kind = "memory_lm"
    corpus_objective = RunsCorpus
    own_form = TEXTS_ALONE
    shown_metrics = ("perplexity",)
    derived_metrics: ClassVar[DerivedMetrics] = {"perplexity": ("lm_loss", ops.exp)}

    def __init__(
        self,
        encoder: keras.Model,
        tokenizer: Tokenizer,
        *,
        memory_length: int,
        batch_size: int,
        name: str = "memory_lm",
    ) -> None:
        super().__init__(encoder, tokenizer, name=name)
        if not hasattr(encoder, "memory_shape"):
            raise TypeError(
                "The encoder must be a Transformer-XL, made of a TransformerXlConfig, or an "
                f"AWD-LSTM, made of an AwdLstmConfig. Received: {encoder.config!r}"
            )
        for setting, number in (("memory_length", memory_length), ("batch_size", batch_size)):
            check_count(setting, number, minimum=1)
        self.memory_length = memory_length
        self.batch_size = batch_size
        self.softmax = AdaptiveSoftmax(
            encoder.embeddings,
            initializer_range=encoder.config.initializer_range,
            name="softmax",
            dtype=encoder.dtype_policy,
        )
        layers, rows, tokens, width = self._memory_shape(batch_size)
        self.remember((layers, rows, tokens * width))
        self.build()

    @property
    def parts(self) -> dict[str, keras.layers.Layer]:
        return {**super().parts, "softmax": self.softmax}

    @property
    def settings(self) -> dict[str, Any]:
        return {"memory_length": self.memory_length, "batch_size": self.batch_size}

    def call(self, batch: Tensors, training: bool = False) -> dict[str, Any]:
        """Returns the input of the softmax, "sequence" (B, T, H).

        If the batch has a "memory" (L, B, M, H), the next "memory" is returned too.
        """
        return self.encode(batch, training)

    def loss_terms(self, batch: Tensors, training: bool) -> Terms:
        if "begins" not in batch:
            raise ValueError(
                "A batch for this task must contain begins, since its sequences continue in the "
                "next batch: make the dataset with runs=True. "
                f"Received: {', '.join(sorted(batch))}"
            )
        state = self.recall(batch, training)  # (L, b, MH)
        memory = ops.reshape(state, self._memory_shape(ops.shape(state)[1]))
        outputs = self({**batch, "memory": memory}, training=training)
        self.keep(ops.reshape(ops.cast(outputs["memory"], "float32"), ops.shape(state)), training)
        weights = ops.cast(batch["weights"], "float32")
        found = self._losses_of(outputs["sequence"], batch["targets"], weights, training)
        total = sum(losses.smoothed[0] for losses in found)
        return {"lm_loss": (total, ops.sum(weights))}, {}

    def _losses_of(
        self, sequence: Tensor, targets: Tensor, weights: Tensor, training: bool
    ) -> list[TokenLosses]:
        """Returns the losses of each softmax, whose sum is that of the targets."""
        return [
            token_losses(output, labels, weights * counts, training=training)
            for output, labels, counts in self.softmax.token_outputs(sequence, targets)
        ]

    def predict(
        self, texts: str | Sequence[str], *, batch_size: int = 8
    ) -> list[dict[str, float | int]]:
        """Computes the log-likelihood and the perplexity of texts.

        The token that ends a text is read before each text. A text is read in parts as long as the
        memory; each part also attends to the memory of the earlier ones. The end of the text itself
        is not scored.

        Args:
            texts: strings, or one.
            batch_size: texts that go through the model together.

        Returns:
            For each text "log_likelihood", the sum of the natural log-probabilities of its tokens;
            "tokens", their number; and "perplexity", the exponential of the mean negative
            log-probability, 1 for a text without tokens.

        Raises:
            ValueError: `batch_size` is out of range.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        answers: list[dict[str, float | int]] = []
        for begin in range(0, len(texts), batch_size):
            rows, counts = (x.numpy() for x in self._rows(texts[begin : begin + batch_size]))
            totals = np.zeros(len(rows))
            memory = np.zeros(self._memory_shape(len(rows)), "float32")
            for first in range(0, rows.shape[1] - 1, self.memory_length):
                scores, memory = self._read(rows, counts, first, memory)
                totals += ops.convert_to_numpy(scores)
            for total, count in zip(totals.tolist(), counts.tolist(), strict=True):
                perplexity = float(np.exp(-total / count)) if count else 1.0
                answers.append({"log_likelihood": total, "tokens": count, "perplexity": perplexity})
        return answers

    def signatures(self) -> dict[str, Signature]:
        """Returns the signature `score`, which is also `serving_default`.

        Returns:
            `score`: `text` (B,) strings -> `log_likelihood` (B,) and `tokens` (B,), as in
            `predict`. A text above the export's `max_bytes` is an error.
        """

        def score(text: tf.Tensor) -> dict[str, tf.Tensor]:
            with tf.device("CPU"):
                rows, counts = self._rows(text)
            zeros = tf.zeros_like(counts, tf.float32)
            memory = tf.zeros(self._memory_shape(tf.shape(rows)[0]))

            def read(first: Any, totals: Any, memory: Any) -> tuple[Any, Any, Any]:
                scores, memory = self._read(rows, counts, first, memory)
                return first + self.memory_length, totals + scores, memory

            _, totals, _ = tf.while_loop(
                lambda first, *_: first < tf.shape(rows)[1] - 1, read, (0, zeros, memory)
            )
            return {"log_likelihood": totals, "tokens": counts}

        spec = [tf.TensorSpec([None], tf.string, "text")]
        return {"score": Signature(score, spec, text_tokens())}

    def _rows(self, texts: Any) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of texts, (B, 1 + a multiple of M), and their token counts (B,).

        A row has "sep", which begins a text, the tokens of the text, and "sep" as padding.
        """
        ids = self.tokenizer.encode(texts)
        counts = tf.cast(ids.row_lengths(), tf.int32)
        rows = ids.to_tensor(self.tokenizer.sep_id)
        padding = [1, -tf.shape(rows)[1] % self.memory_length]
        return tf.pad(rows, [[0, 0], padding], constant_values=self.tokenizer.sep_id), counts

    def _memory_shape(self, rows: Any) -> tuple[Any, ...]:
        return self.encoder.memory_shape(rows, self.memory_length)

    def _read(self, rows: Any, counts: Any, first: Any, memory: Any) -> tuple[Any, Any]:
        """Returns log-likelihoods (B,) of the M tokens after column `first`, and the next memory.

        `rows` and `counts` are those of `_rows`; `memory` (L, B, M, H) is that of earlier columns.
        """
        inputs, targets = (rows[:, n : n + self.memory_length] for n in (first, first + 1))
        outputs = self({"token_ids": inputs, "memory": memory})
        inside = ops.cast(first + np.arange(self.memory_length) < counts[:, None], "float32")
        found = self._losses_of(outputs["sequence"], targets, inside, training=False)
        log_likelihoods = -ops.sum(sum(x.losses * x.weights for x in found), axis=1)
        memory = ops.reshape(outputs["memory"], self._memory_shape(-1))
        return log_likelihoods, ops.cast(memory, "float32")
