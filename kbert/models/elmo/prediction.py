"""Next-word predictions of ELMo's language models.

Shapes: `T` words, `C` characters of a word, `P` width of the projection, `V` words of the softmax.
"""

from typing import Any

import numpy as np
from keras import ops

from kbert import inference
from kbert.core.types import Tensors


class NextWords:
    """Implements `Elmo.predict_next`.

    Args:
        elmo: a `kbert.Elmo`.
    """

    def __init__(self, elmo: Any) -> None:
        self._elmo = elmo
        self._forward = inference.compiled(self._probabilities, elmo)

    def __call__(self, prefix: str | list[str], top_k: int) -> dict[str, list[tuple[str, float]]]:
        """Predicts words; arguments and result are those of `Elmo.predict_next`."""
        self._check(top_k)
        batch = self._elmo.characters.pad_sentences([prefix])
        ids = batch["character_ids"].numpy()  # (1, T + 2, C): begin, words, end
        features = {"forward": ids[:, :-1], "backward": ids[:, :0:-1]}
        outputs = self._forward(features)
        words = self._elmo.tokenizer.vocabulary
        answers = {}
        for direction, probabilities in zip(("forward", "backward"), outputs, strict=True):
            best = np.argsort(-probabilities, kind="stable")[:top_k]
            answers[direction] = [(words[i], float(probabilities[i])) for i in best]
        return answers

    def _probabilities(self, features: Tensors) -> Any:
        """Returns the probabilities of the next word in both directions, (2, V) float32.

        `features` are character ids "forward" and "backward", (1, T + 1, C) each: the words after
        the begin marker, and the reversed words after the end marker.
        """
        elmo = self._elmo
        words = ops.stack([elmo.words(features[way]) for way in ("forward", "backward")])
        outputs, _ = elmo.lstm(words, training=False)  # (2, 1, T + 1, P) each
        return ops.softmax(elmo.softmax(outputs[-1][:, 0, -1]))

    def _check(self, top_k: int) -> None:
        """Raises ValueError if the model cannot predict words, or `top_k` is not in 1..V."""
        elmo = self._elmo
        if elmo.softmax is None or elmo.tokenizer is None:
            lacking = "softmax (vocabulary_size=None)" if elmo.softmax is None else "tokenizer"
            raise ValueError(
                "Predicting words requires an Elmo with a softmax and a WordTokenizer; released "
                f"weights have neither. Received: an Elmo without a {lacking}"
            )
        most = elmo.config.vocabulary_size
        if not isinstance(top_k, int | np.integer) or not 1 <= top_k <= most:
            raise ValueError(
                f"`top_k` must be an integer in 1..{most}, the softmax's words. Received: {top_k!r}"
            )
