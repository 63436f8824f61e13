"""Replacement candidates for a word, predicted by a masked language model.

Shapes: `B` rows, `T` tokens, `V` vocabulary, `M` candidates.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from kbert import inference
from kbert.core.types import Tensor, Tensors
from kbert.data.tables.rows import Rows
from kbert.distillation.augmentation.neighbours import whole_words
from kbert.tasks import Pretraining

# Rounding of logits depends on the shape of a batch. If the last candidate and the first rejected
# word are closer than `_NEAR` plus `_NEAR_SHARE` times the largest logit, the row is computed
# alone. So the candidates depend only on the text.
_NEAR, _NEAR_SHARE = 1e-5, 1e-4


class MaskedWords:
    """Predicts the most probable whole words of the vocabulary for a position in a text.

    As in TinyBERT's data_augmentation.py, a row is [CLS] masked text [SEP] original text [SEP]. The
    model sees the word itself in the second segment, and so predicts words of similar meaning. That
    script takes the M most probable tokens and drops those that begin with "##". Here the result
    has M whole words of letters, without the word itself.

    Args:
        task: masked language model.
        candidates: number M of candidates.
        with_original: whether rows have the second segment. If both do not fit, the original text
            is truncated at its end. If the masked text alone is too long, a window around the
            masked word is used.
        batch_size: maximum number of rows per batch.
    """

    def __init__(
        self, task: Pretraining, candidates: int, with_original: bool, batch_size: int
    ) -> None:
        self.task = task
        self.candidates = candidates
        self.with_original = with_original
        self.batch_size = batch_size
        self._words = {number: word for word, number in whole_words(task.tokenizer).items()}
        size = task.encoder.config.vocabulary_size
        self._usable = np.isin(np.arange(size), list(self._words))  # (V,)
        # Spellings of one word that differ in case share the id of the first.
        first_ids: dict[str, int] = {}
        self._spelling = np.arange(size, dtype=np.int32)  # (V,)
        for number, word in self._words.items():
            self._spelling[number] = first_ids.setdefault(word.casefold(), number)
        self._runner = inference.Runner(
            *(self._top, task.encoder, task.masked_lm), assemble=self._assemble
        )

    def _assemble(self, columns: dict[str, Any]) -> dict[str, Any]:
        sides = [columns.pop(name) for name in ("masked", "original") if name in columns]
        return {**self.task.build_inputs(*sides), **columns}

    def _top(self, features: Tensors) -> tuple[Tensor, Tensor]:
        """Returns the M + 1 largest logits at the mask and their ids, both (B, M + 1).

        M is `candidates`. Tokens that are not whole words, and the masked word itself, have -inf.
        """
        sequence = self.task.encode(features)["sequence"]  # (B, T, H)
        masked_lm: Any = self.task.masked_lm
        logits = masked_lm(sequence, features["mask_positions"])[:, 0]  # (B, V)
        is_own = ops.equal(self._spelling[None], features["own"])  # (B, V)
        usable = ops.logical_and(self._usable[None], ops.logical_not(is_own))
        count = min(self.candidates + 1, len(self._usable))
        return ops.top_k(ops.where(usable, logits, -np.inf), count)

    def __call__(
        self, texts: Sequence[np.ndarray], places: Sequence[tuple[int, int]]
    ) -> list[list[str]]:
        """Returns candidates for words that are a single token.

        Args:
            texts: token ids of each text, without special tokens.
            places: (number of the text, position of the token) of each word.

        Returns:
            For each word at most M candidates, in the order of the vocabulary.
        """
        rows = self._rows(texts, places)
        words: list[list[str]] = [[] for _ in places]
        for index, outputs in self._runner.each(rows, self.batch_size):
            for row, logits, best_ids in zip(index, *outputs, strict=True):
                if _is_near(logits, self.candidates) and len(index) > 1:
                    ((_, ((logits,), (best_ids,))),) = self._runner.each(rows, 1, numbers=[row])
                chosen = best_ids[: self.candidates][np.isfinite(logits[: self.candidates])]
                words[row] = [self._words[number] for number in np.sort(chosen).tolist()]
        return words

    def _rows(self, texts: Sequence[np.ndarray], places: Sequence[tuple[int, int]]) -> Rows:
        """Returns a row of the model for each place; the arguments are those of `__call__`."""
        masked_rows = [self._row(texts[text], place) for text, place in places]
        columns = {"masked": [masked for masked, _, _ in masked_rows]}
        if self.with_original:
            columns["original"] = [original for _, _, original in masked_rows]
        own_ids = [self._spelling[texts[text][place]] for text, place in places]
        return Rows(
            ragged={name: inference.as_ragged(side) for name, side in columns.items()},
            dense={
                "mask_positions": np.array(
                    [[1 + position] for _, position, _ in masked_rows], np.int32
                ),  # after [CLS]
                "own": np.array(own_ids, np.int32)[:, None],
            },
            lengths=np.array([len(masked) + len(original) for masked, _, original in masked_rows]),
            examples=np.arange(len(masked_rows)),
        )

    def _row(self, ids: np.ndarray, place: int) -> tuple[np.ndarray, int, np.ndarray]:
        """Returns the masked ids, the position of the mask, and the original ids, cut to fit.

        Args:
            ids: token ids of a text, without special tokens.
            place: position of the token to mask.
        """
        budget = self.task.row_length - 2
        budget -= self.task.form.separators if self.with_original else 0
        start = min(max(place - budget // 2, 0), max(len(ids) - budget, 0))
        masked = ids[start : start + budget].copy()
        masked[place - start] = self.task.tokenizer.mask_id
        return masked, place - start, ids[: budget - len(masked)]


def _is_near(values: np.ndarray, count: int) -> bool:
    """Whether rounding may decide which word is the last candidate.

    Args:
        values: largest logits in descending order, (M + 1,) or fewer.
        count: number M of candidates.
    """
    if len(values) <= count or not np.isfinite(values[count]):
        return False
    largest = np.abs(values).max()
    return bool(values[count - 1] - values[count] <= _NEAR + _NEAR_SHARE * largest)
