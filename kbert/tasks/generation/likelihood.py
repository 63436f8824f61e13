"""Log-likelihood and perplexity of texts under a decoder.

Shapes: N texts, B rows, T tokens, P scored tokens, V vocabulary.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.late import tf
from kbert.core.types import Tensor, Tensors
from kbert.data.tables.windows import text_windows
from kbert.io.progress import Progress
from kbert.layers import gather_positions
from kbert.tasks.generation.base import WIDTH, tokenize
from kbert.tasks.token_losses import token_losses
from kbert.tokenizers.base import Tokenizer


class Likelihood:
    """Function that scores texts with a decoder, for `CausalLM.score`.

    Args:
        decoder: a `kbert.Decoder`.
        tokenizer: tokenizer of the decoder.
        begin_id: id of the token that is read before a text.
    """

    def __init__(self, decoder: keras.Model, tokenizer: Tokenizer, begin_id: int) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._begin_id = begin_id
        self._runner = inference.Runner(self._log_probabilities, decoder, assemble=self._shifted)

    def __call__(
        self, texts: Sequence[str | bytes], batch_size: int, verbose: str | int
    ) -> dict[str, np.ndarray]:
        """Returns "log_likelihood", "tokens" and "perplexity", (N,); see `CausalLM.score`."""
        ids = [np.append(self._begin_id, x) for x in tokenize(self._tokenizer, texts)]
        max_positions = self._decoder.config.max_positions
        # The last token that one part predicts is the first that the next part reads.
        windows, count = text_windows(inference.as_ragged(ids), max_positions + 1, max_positions)
        lengths = windows.row_lengths().numpy() - 1
        owners = np.repeat(np.arange(len(texts)), count)
        sums, windows_done = np.zeros(len(texts)), 0
        rows = inference.token_rows(lengths, ids=windows)
        with Progress("", len(rows), " examples", verbose=verbose) as bar:
            for index, log_likelihoods in self._runner.each(rows, batch_size):
                np.add.at(sums, owners[index], log_likelihoods)
                windows_done += len(index)
                bar.show(windows_done)
        counts = np.bincount(owners, lengths, minlength=len(texts)).astype(int)
        perplexity = np.exp(-sums / np.maximum(counts, 1))
        return {"log_likelihood": sums, "tokens": counts, "perplexity": perplexity}

    def of_continuations(
        self,
        contexts: Sequence[np.ndarray],
        continuations: Sequence[np.ndarray],
        batch_size: int,
    ) -> np.ndarray:
        """Returns the log-probability of each continuation after its context, (N,) float64.

        Args:
            contexts: token ids of N contexts, before which the begin token is read.
            continuations: token ids of N continuations, one or more each.
            batch_size: rows of a batch.
        """
        ids = [
            np.concatenate([[self._begin_id], *sides])
            for sides in zip(contexts, continuations, strict=True)
        ]
        read = np.array([1 + len(context) for context in contexts], np.int32)
        rows = inference.token_rows(
            np.array([len(x) - 1 for x in ids]), ids=inference.as_ragged(ids)
        )
        rows = dataclasses.replace(rows, dense={"read": read})
        sums = np.zeros(len(rows))
        for index, log_likelihoods in self._runner.each(rows, batch_size):
            sums[index] = log_likelihoods
        return sums

    def _shifted(self, columns: dict[str, Any]) -> dict[str, Any]:
        """Returns "token_ids" (B, T), "targets" and "weights" from the ragged column "ids".

        Targets are the ids shifted by one, (B, T); weights are 0 at padding. T is a multiple of 16,
        or the decoder's `max_positions`. With the column "read", the number of tokens that are not
        scored, they have one column for each of the P others, and "positions" (B, P) are those of
        the states that predict them.
        """
        ids = columns["ids"].to_tensor(self._begin_id)
        num_inputs = tf.maximum(tf.shape(ids)[1] - 1, 1)
        width = tf.minimum(-(-num_inputs // WIDTH) * WIDTH, self._decoder.config.max_positions)
        padding = [[0, 0], [0, width + 1 - tf.shape(ids)[1]]]
        ids = tf.pad(ids, padding, constant_values=self._begin_id)
        token_ids, counts = ids[:, :-1], columns["ids"].row_lengths() - 1
        if "read" not in columns:
            weights = tf.sequence_mask(counts, width, tf.float32)
            return {"token_ids": token_ids, "targets": ids[:, 1:], "weights": weights}
        weights = tf.sequence_mask(counts + 1 - tf.cast(columns["read"], counts.dtype))  # (B, P)
        positions = columns["read"][:, None] - 1 + tf.range(tf.shape(weights)[1])
        positions = tf.minimum(positions, width - 1)
        targets = tf.gather(ids, positions + 1, batch_dims=1)
        features = {"token_ids": token_ids, "targets": targets, "positions": positions}
        return {**features, "weights": tf.cast(weights, tf.float32)}

    def _log_probabilities(self, features: Tensors) -> Tensor:
        """Returns the log-probability of each row, (B,): the weighted sum over its targets."""
        sequence = self._decoder({"token_ids": features["token_ids"]})["sequence"]
        if "positions" in features:
            sequence = gather_positions(sequence, features["positions"])
        answer = self._decoder.token_output(sequence), features["targets"], features["weights"]
        found = token_losses(*answer, training=False)
        return -ops.sum(found.losses * found.weights, axis=-1)
