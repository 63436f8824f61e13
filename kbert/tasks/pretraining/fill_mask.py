"""Filling masks: finds the masks in texts, and turns probabilities into words.

Shapes: B texts, T tokens, P masks of the text that has most, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, cast

import keras
import numpy as np
from absl import logging
from keras import ops

from kbert import inference
from kbert.core.graphs import on_cpu
from kbert.core.late import tf
from kbert.core.options import Options
from kbert.core.types import Tensors
from kbert.data.tables.table import Table
from kbert.signatures import Signature, text_tokens
from kbert.signatures.requests import TOKENS_AT_ONCE
from kbert.tasks.encoder_task import EncoderTask
from kbert.tasks.file_answers import FileAnswers
from kbert.tasks.pretraining.options import FillMaskOptions
from kbert.tokenizers.base import Tokenizer

# Masks whose logits are in memory at a time: with BERT's vocabulary 512 take 62 MB.
MASKS_AT_ONCE = 512


def encode_with_masks(tokenizer: Tokenizer, texts: Any) -> tf.RaggedTensor:
    """Tokenizes texts that contain mask tokens.

    The text is split at the mask tokens, and only the parts between them are tokenised. So the
    tokenizer need not read special tokens in text, and a "[SEP]" that a user typed stays text.

    Args:
        tokenizer: a `kbert.tokenizers.Tokenizer` with a mask token.
        texts: (B,) strings.

    Returns:
        (B, ragged) int32, without [CLS] and [SEP].
    """
    pieces = tokenizer.cut_at_masks(texts)  # (B, ragged)
    ids = tokenizer.encode(pieces.flat_values)  # (pieces, ragged)
    mask = tf.fill(tf.stack([ids.nrows(), 1]), tf.cast(tokenizer.mask_id, ids.dtype))
    rows = pieces.with_values(tf.concat([ids, mask], 1)).merge_dims(1, 2)
    return rows[:, :-1]  # a mask is between two pieces, not after the last


def find_masks(token_ids: tf.Tensor, mask_id: int) -> tuple[tf.Tensor, tf.Tensor]:
    """Finds the positions of the masks.

    Args:
        token_ids: (B, T) ids.
        mask_id: id of the mask token.

    Returns:
        Positions (B, P) int32, the masks of each row from left to right, padded with zeros; and
        the number of masks of each row, (B,) int32.

    Example:
        >>> positions, count = find_masks(tf.constant([[2, 4, 9, 4], [2, 9, 9, 3]]), mask_id=4)
        >>> positions.numpy().tolist(), count.numpy().tolist()
        ([[1, 3], [0, 0]], [2, 0])
    """
    is_mask = token_ids == mask_id
    columns = tf.range(tf.shape(token_ids)[1])[None, :] + tf.zeros_like(token_ids)
    positions = tf.ragged.boolean_mask(columns, is_mask).to_tensor()
    return positions, tf.reduce_sum(tf.cast(is_mask, tf.int32), 1)


def shifted(positions: Any, shift: int) -> Any:
    """Returns the positions that predict the tokens at `positions`: `shift` before, at least 0."""
    return ops.maximum(positions - shift, 0) if shift else positions


class MaskAnswers(FileAnswers):
    """Files with the best words for the masks of their texts."""

    program = "kbert-fill-mask"
    options = FillMaskOptions

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """Fills the masks of the column `text`; returns answers, and how many texts are truncated.

        Raises ValueError, with the line, if a mask would be truncated.
        """
        settings, fill_mask = cast(FillMaskOptions, options), self.task.fill_mask
        arguments = {"batch_size": batch_size, "place": table.place}
        return fill_mask.fill(
            table["text"], settings.top_k, settings.candidates, **arguments
        ), fill_mask.cut


class FillMask:
    """Applies a task's masked-LM head to texts.

    Args:
        task: task whose tokenizer, encoder and input form are used.
        head: layer from hidden states of the masks (B, P, H) to logits (B, P, V).
        shift: distance from a token back to the position that predicts it.

    Attributes:
        runner: `inference.Runner` that computes `probabilities`.
        cut: number of texts with masks that the last `each_mask` has truncated so far.
    """

    def __init__(self, task: EncoderTask, head: keras.layers.Layer, shift: int = 0) -> None:
        self.task = task
        self.head = head
        self.shift = shift
        self.cut = 0
        self.runner = inference.Runner(
            self.probabilities,
            *(task.encoder, head),
            assemble=lambda columns: self._pack(columns["ids"])[0],
        )
        self._tokenize = on_cpu(self._encode)

    def _encode(self, texts: Sequence[str | bytes]) -> Any:
        """Returns ids (B, ragged), and per text the numbers of ids, masks and masks not cut off."""
        ids = encode_with_masks(self.task.tokenizer, texts)
        budget = self.task.row_length - self.task.form.specials(1)
        is_mask = tf.cast(ids == self.task.tokenizer.mask_id, tf.int32)
        counts = (tf.reduce_sum(x, 1) for x in (is_mask, is_mask[:, :budget]))
        return ids, ids.row_lengths(), *counts

    def _pack(self, ids: Any) -> Any:
        features = self.task.build_inputs(ids)
        positions, counts = find_masks(features["token_ids"], self.task.tokenizer.mask_id)
        return {**features, "mask_positions": positions}, counts

    def probabilities(self, features: Tensors) -> Any:
        """Computes probabilities over the vocabulary at `mask_positions`, (B, P, V)."""
        probabilities = ops.softmax(self.head(self._masked(features)))
        return probabilities[..., : self.task.tokenizer.vocabulary_size]  # (B, P, V)

    def _masked(self, features: Tensors) -> Any:
        """Returns the hidden states that the head reads, (B, P, H).

        For each mask it is the state `shift` tokens before it; with a shift of 0, the mask's own.
        """
        positions = shifted(features["mask_positions"], self.shift)
        return self.task.encode(features, positions=positions)["sequence"]

    def each_mask(
        self,
        texts: Sequence[str | bytes],
        batch_size: int,
        place: Callable[[int], str] = "text number {}".format,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Runs the model over all texts that contain a mask.

        Args:
            texts: strings, with or without masks.
            batch_size: largest B.
            place: function from the number of a text to its name in errors.

        Yields:
            (number of the text, probabilities (V,)) for each mask; those of a text from left to
            right.

        Raises:
            ValueError: a mask lies beyond the encoder's maximum length.
        """
        self.cut = without_mask = total = 0
        budget = self.task.row_length - self.task.form.specials(1)
        for start, chunk in inference.chunks(texts):
            ids, *counts = self._tokenize(tf.constant(chunk, tf.string))
            lengths, masks, packed_masks = (count.numpy() for count in counts)
            self._check_none_lost(start + np.flatnonzero(packed_masks < masks), place)
            masked = np.flatnonzero(masks)  # the others need no model
            self.cut += int(np.sum(lengths[masked] > budget))
            total, without_mask = total + len(masks), without_mask + len(masks) - len(masked)
            rows = inference.token_rows(lengths, ids=ids)
            cost = np.array([inference.next_power_of_two(count) for count in masks])
            for index, probabilities in self.runner.each(
                rows, batch_size, numbers=masked, cost=cost, most=MASKS_AT_ONCE
            ):  # (B, P, V)
                for row, text in enumerate(index):
                    yield from ((start + text, p) for p in probabilities[row, : masks[text]])
        if without_mask:
            logging.warning(
                "%d of %d texts have no %s, so nothing is predicted for them",
                *(without_mask, total, self.task.tokenizer.mask_token),
            )

    def fill(
        self,
        texts: str | Sequence[str],
        top_k: int,
        candidates: Sequence[str] | None,
        batch_size: int,
        **named: Any,
    ) -> list[dict[str, list]]:
        """Returns for each text its best answers for each mask, see `Pretraining.predict`.

        `named` is `place` of `each_mask`, the function that names a text in errors.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        tokenizer = self.task.tokenizer
        check_top_k(tokenizer, top_k)
        fixed_ids = None
        if candidates is not None:
            fixed_ids = candidate_ids(tokenizer, inference.as_texts(candidates, "candidates"))
        answers: list[dict[str, list]] = [{"tokens": [], "probabilities": []} for _ in texts]
        for text, probabilities in self.each_mask(texts, batch_size, **named):
            ids = best(probabilities, top_k) if fixed_ids is None else fixed_ids
            answers[text]["tokens"].append([tokenizer.vocabulary[i] for i in ids])
            answers[text]["probabilities"].append(probabilities[ids].tolist())
        return answers

    def _check_none_lost(self, lost: np.ndarray, place: Callable[[int], str]) -> None:
        """Raises ValueError if a text has masks beyond the encoder's maximum number of tokens.

        `lost` (N,) are the numbers of these texts; `place` names a text in the error message.
        """
        if len(lost):
            raise ValueError(
                f"Every mask must be within the {self.task.encoder.config.max_positions} tokens "
                "that the encoder supports, including [CLS] and [SEP]: shorten the text. Received: "
                f"{place(int(lost[0]))}, which has a mask after them"
            )

    def signature(self, top_k: int) -> Signature:
        """Returns a signature from texts to the best answers for their masks.

        Args:
            top_k: K, the number of answers for each mask.

        Returns:
            `text` (B,) strings -> `tokens` (B, P, K) strings and `probabilities` (B, P, K), the
            most probable first. P is the largest number of masks of a text; a text with fewer has
            "" and 0 in the rest. A text beyond the encoder's maximum length is truncated, and the
            masks in the rest get no answer. `predict` raises instead; a server cannot, as one text
            would fail the whole batch.

        Raises:
            ValueError: `top_k` is out of range.
        """
        tokenizer = self.task.tokenizer
        check_top_k(tokenizer, top_k)

        def fill_mask(text: tf.Tensor) -> dict[str, tf.Tensor]:
            ids = encode_with_masks(tokenizer, text)
            features, counts = self._pack(ids)
            probabilities, best_ids = tf.math.top_k(self.probabilities(features), top_k)
            tokens = tf.gather(tf.constant(tokenizer.vocabulary), best_ids)  # (B, P, K)
            real = tf.sequence_mask(counts, tf.shape(tokens)[1])[..., None]
            return {
                "tokens": tf.where(real, tokens, ""),
                "probabilities": tf.where(real, probabilities, 0.0),
            }

        longest = self.task.row_length
        text_only = text_tokens(longest)

        def tokens(text: tf.Tensor) -> tf.Tensor:
            masks = tf.minimum(tokenizer.cut_at_masks(text).row_lengths() - 1, longest)
            # Cost of a mask in tokens: its logits take as much memory as this many of them.
            return tf.maximum(text_only(text), masks * (TOKENS_AT_ONCE // MASKS_AT_ONCE))

        spec = [tf.TensorSpec([None], tf.string, "text")]
        mask = tokenizer.mask_token
        texts = (f"Fine {mask}.", f"The {mask} is not paid yet; please {mask} within a week.")
        return Signature(fill_mask, spec, tokens, too_long="cut", warm_up=texts)


class FillsMasks:
    """Part of tasks that fill masks, with their `fill_mask`."""

    file_answers: ClassVar[type[FileAnswers]] = MaskAnswers
    fill_mask: FillMask

    def predict(
        self,
        texts: str | Sequence[str],
        top_k: int = 5,
        candidates: Sequence[str] | None = None,
        batch_size: int = inference.BATCH_SIZE,
    ) -> list[dict[str, list]]:
        """Fills the masks of texts.

        A text that is too long for the encoder is truncated at the end. If a mask would be lost,
        an error is raised.

        Args:
            texts: strings with any number of mask tokens ("[MASK]"), or one string.
            top_k: number of answers for each mask.
            candidates: tokens whose probabilities are returned, in this order, instead of the
                `top_k` best. Each must be one vocabulary entry.
            batch_size: texts that go through the model together.

        Returns:
            For each text `{"tokens": …, "probabilities": …}`. Both hold one list for each mask: of
            the best answers, most probable first, or of the candidates. Both are empty for a text
            without masks.

        Raises:
            ValueError: the task was built without masks, `top_k` or `batch_size` is out of range, a
                candidate is not one vocabulary entry, or a mask lies beyond the encoder's maximum
                length.
        """
        return self.fill_mask.fill(texts, top_k, candidates, batch_size)


def check_top_k(tokenizer: Tokenizer, top_k: int) -> None:
    """Raises ValueError unless `top_k` is from 1 to the vocabulary's size."""
    if not 1 <= top_k <= tokenizer.vocabulary_size:
        raise ValueError(
            f"top_k must be from 1 to {tokenizer.vocabulary_size}, the vocabulary's size. "
            f"Received: top_k={top_k}"
        )


def best(probabilities: np.ndarray, k: int) -> np.ndarray:
    """Returns the ids of the k largest of (V,) probabilities, largest first; ties by lower id.

    Example:
        >>> best(np.array([0.1, 0.4, 0.1, 0.4, 0.1]), 3).tolist()
        [1, 3, 0]
    """
    if k < len(probabilities):
        # Every id that may be among the k: a partition alone chooses arbitrarily among equal ones.
        ids = np.flatnonzero(probabilities >= np.partition(probabilities, -k)[-k])
    else:
        ids = np.arange(len(probabilities))
    return ids[np.argsort(-probabilities[ids], kind="stable")][:k]


def candidate_ids(tokenizer: Tokenizer, candidates: Sequence[str | bytes]) -> np.ndarray:
    """Returns the vocabulary id of each candidate, (N,) int32.

    A candidate is either a vocabulary entry ("##ing") or a word that the tokenizer keeps whole
    ("Cat" for an uncased vocabulary with "cat").

    Raises:
        ValueError: a candidate is several entries or none.
    """
    return np.array([_candidate_id(tokenizer, x) for x in candidates], np.int32)


def _candidate_id(tokenizer: Tokenizer, candidate: Any) -> int:
    """Returns the vocabulary id of a candidate, see `candidate_ids`.

    Raises ValueError if it is several entries or none.
    """
    try:
        return tokenizer.token_to_id(candidate)
    except ValueError:  # not itself an entry
        pieces = tokenizer.encode([candidate])[0].numpy().tolist()
    if len(pieces) != 1 or pieces[0] == tokenizer.unk_id:
        shown = " ".join(tokenizer.vocabulary[i] for i in pieces) or "nothing"
        raise ValueError(
            "A candidate must be one vocabulary entry: a mask stands for one token. "
            f"Received: {candidate!r}, which is {shown}"
        )
    return pieces[0]
