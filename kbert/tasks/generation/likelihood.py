"""How likely texts are to a decoder.

Shapes: N texts, B rows, T tokens, V vocabulary.
"""

from collections.abc import Sequence

import keras
import numpy as np
from keras import ops

from kbert import inference
from kbert.core.types import Tensor, Tensors
from kbert.io.progress import Progress
from kbert.tasks.generation.base import batches_of_like_width, padded, tokenize
from kbert.tokenizers.base import Tokenizer


class Likelihood:
    """What `CausalLM.score` calls.

    Args:
        decoder: a `kbert.Decoder`.
        tokenizer: its tokenizer.
        begin_id: the token that is read before a text.
    """

    def __init__(self, decoder: keras.Model, tokenizer: Tokenizer, begin_id: int) -> None:
        self._decoder = decoder
        self._tokenizer = tokenizer
        self._begin_id = begin_id
        self._forward = inference.compiled(self._log_probabilities, decoder)

    def __call__(
        self, texts: Sequence[str | bytes], batch_size: int, verbose: str | int
    ) -> dict[str, np.ndarray]:
        """Arguments and result as of `CausalLM.score`."""
        rows, owners = self._rows(texts)
        lengths = np.array([len(row) - 1 for row in rows], int)
        sums, done = np.zeros(len(texts)), 0
        most = self._decoder.config.max_positions
        with Progress("", len(rows), " examples", verbose=verbose) as bar:
            for width, index in batches_of_like_width(lengths, most, batch_size):
                ids, mask = padded([rows[i] for i in index], width + 1, self._begin_id)
                features = {
                    "token_ids": ids[:, :-1],
                    "targets": ids[:, 1:],
                    "weights": mask[:, 1:].astype("float32"),
                }
                found = self._forward(inference.pad(features))[: len(index)]
                np.add.at(sums, owners[index], found)
                done += len(index)
                bar.show(done)
        counts = np.bincount(owners, lengths, minlength=len(texts)).astype(int)
        perplexity = np.exp(-sums / np.maximum(counts, 1))
        return {"log_likelihood": sums, "tokens": counts, "perplexity": perplexity}

    def _rows(self, texts: Sequence[str | bytes]) -> tuple[list[np.ndarray], np.ndarray]:
        """Ids that are read and predicted, and the number of the text that each row is of."""
        most = self._decoder.config.max_positions
        rows, owners = [], []
        for number, ids in enumerate(tokenize(self._tokenizer, texts)):
            whole = np.append(self._begin_id, ids)
            for start in range(0, len(whole) - 1, most):
                rows.append(whole[start : start + most + 1])
                owners.append(number)
        return rows, np.array(owners, int)

    def _log_probabilities(self, features: Tensors) -> Tensor:
        """(B,) sums over the targets of each row."""
        sequence = self._decoder({"token_ids": features["token_ids"]})["sequence"]
        losses = ops.sparse_categorical_crossentropy(
            features["targets"], self._decoder.logits(sequence), from_logits=True
        )
        return -ops.sum(losses * features["weights"], axis=-1)
