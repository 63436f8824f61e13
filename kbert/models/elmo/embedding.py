"""Embeds sentences in batches of similar length, with or without a state between calls.

Shapes: `B` rows, `T` words with the begin and end of a sentence, `L` LSTM layers, `D` = 2
directions, `W` entries of a row's state, `P` width of the projection.
"""

from typing import Any

import numpy as np
from keras import ops

from kbert import inference
from kbert.core.types import Tensors
from kbert.tokenizers.words.characters import as_words


class Embedder:
    """Implements `Elmo.embed`; stores the state between stateful calls.

    Args:
        elmo: a `kbert.Elmo`.
    """

    def __init__(self, elmo: Any) -> None:
        self._elmo = elmo
        self._runner = inference.Runner(
            self._layers,
            elmo,
            assemble=lambda columns: elmo.characters.pad_sentences(columns["words"]),
        )
        self.reset()

    def reset(self) -> None:
        """Sets the states of all rows to zeros."""
        self._state = self._zeros(0)

    def __call__(self, sentences: Any, stateful: bool, batch_size: int) -> list[np.ndarray]:
        """Embeds sentences; arguments and result are those of `Elmo.embed`."""
        inference.check_batch_size(batch_size)
        words = as_words(sentences)
        lengths = words.row_lengths().numpy()
        if stateful:
            self._grow(len(lengths))
        embedded: list[Any] = [None] * len(lengths)
        rows = inference.token_rows(lengths, words=words)
        for index, batch in self._runner.batches(rows, batch_size):
            features = {name: value.numpy() for name, value in batch.items()}
            features["state"] = self._state[:, :, index] if stateful else self._zeros(len(index))
            layers, state = self._runner.forward(features)
            if stateful:
                self._state[:, :, index] = state
            for batch_row, row in enumerate(index):
                # A copy, so that the batch can be freed.
                embedded[row] = layers[:, batch_row, 1 : 1 + lengths[row]].copy()
        return embedded

    def _layers(self, features: Tensors) -> Any:
        """Runs the model: returns the layers (L + 1, B, T, 2P) float32 and the state (L, D, B, W).

        `features` are the inputs of `Elmo.call` and "state", the state before the words.
        """
        state = features["state"]
        inputs = {name: features[name] for name in ("character_ids", "padding_mask")}
        outputs = self._elmo(inputs, state=state, training=False)
        return ops.cast(ops.stack(outputs["layers"]), "float32"), outputs["state"]

    def _zeros(self, rows: int) -> Any:
        config = self._elmo.config
        width = config.lstm_size + config.projection_size
        return np.zeros((config.num_layers, 2, rows, width), np.float32)

    def _grow(self, rows: int) -> None:
        """Adds zero states until there is one for each of `rows` rows."""
        missing = rows - self._state.shape[2]
        if missing > 0:
            self._state = np.concatenate([self._state, self._zeros(missing)], axis=2)
