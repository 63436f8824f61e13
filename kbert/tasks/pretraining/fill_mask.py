"""Filling masks: text with [MASK] in it to the masks' positions, and probabilities to words.

Shapes: B texts, T tokens, P masks of the text that has most, V vocabulary, K answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

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

# Logits of a batch that exist at a time, in masks: with BERT's vocabulary 512 take 62 MB.
MASKS_AT_ONCE = 512


def encode_with_masks(tokenizer: Tokenizer, texts: Any) -> tf.RaggedTensor:
    """Token ids of texts in which the tokenizer's mask token stands for a masked one.

    The text is cut at the mask token and only the rest is tokenised: so a tokenizer that does not
    read special tokens in text needs no twin that does, and a "[SEP]" that a user typed stays text.

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
    """Where the masks are.

    Args:
        token_ids: (B, T).
        mask_id: id of the mask token.

    Returns:
        Positions (B, P) int32, each row's masks from left to right and then zeros; how many of
        them are masks (B,) int32.

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
    """The places that tokens are predicted from, (B, P); where nothing is predicted, 0 stays 0."""
    return ops.maximum(positions - shift, 0) if shift else positions


class MaskAnswers(FileAnswers):
    """The best words for the masks of each text."""

    program = "kbert-fill-mask"
    options = FillMaskOptions

    def answer(
        self, table: Table, options: Options, *, batch_size: int, first: int = 0
    ) -> tuple[Sequence[Any], int]:
        """Raises ValueError for a text that is cut before a mask, by its line."""
        chosen, fill_mask = cast(FillMaskOptions, options), self.task.fill_mask
        how = {"batch_size": batch_size, "place": table.place}
        return fill_mask.fill(table["text"], chosen.top_k, chosen.candidates, **how), fill_mask.cut


class FillMask:
    """A task's masked-LM head, applied to text.

    Args:
        task: encodes, packs ids, and knows the tokenizer.
        head: vectors of the masks (B, P, H) -> logits (B, P, V).
        shift: how many places before a token it is predicted.

    Attributes:
        runner: what computes `probabilities`.
        cut: of the texts with masks that `each_mask` has read, how many were cut at their end.
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
        """Ids, how many a text has, how many of them are masks, and how many of those are read."""
        ids = encode_with_masks(self.task.tokenizer, texts)
        budget = self.task.row_length - self.task.form.specials(1)
        is_mask = tf.cast(ids == self.task.tokenizer.mask_id, tf.int32)
        counts = (tf.reduce_sum(x, 1) for x in (is_mask, is_mask[:, :budget]))
        return ids, ids.row_lengths(), *counts

    def _pack(self, ids: Any) -> Any:
        features = self.task.build_inputs(ids)
        positions, found = find_masks(features["token_ids"], self.task.tokenizer.mask_id)
        return {**features, "mask_positions": positions}, found

    def probabilities(self, features: Tensors) -> Any:
        """Of the vocabulary at `mask_positions`, (B, P, V)."""
        probabilities = ops.softmax(self.head(self._masked(features)))
        return probabilities[..., : self.task.tokenizer.vocabulary_size]  # (B, P, V)

    def _masked(self, features: Tensors) -> Any:
        """What the head reads of each mask, (B, P, H)."""
        positions = shifted(features["mask_positions"], self.shift)
        return self.task.encode(features, positions=positions)["sequence"]

    def each_mask(
        self,
        texts: Sequence[str | bytes],
        batch_size: int,
        place: Callable[[int], str] = "text number {}".format,
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Runs the model over all texts that hold a mask.

        Args:
            texts: strings.
            batch_size: largest B.
            place: what an error calls a text, by its number.

        Yields:
            (number of the text, probabilities (V,)), a text's masks from left to right.

        Raises:
            ValueError: if a mask is beyond the longest text that the encoder takes.
        """
        self.cut = none = total = 0
        budget = self.task.row_length - self.task.form.specials(1)
        for start, chunk in inference.chunks(texts):
            ids, *counts = self._tokenize(tf.constant(chunk, tf.string))
            lengths, masks, found = (count.numpy() for count in counts)
            self._check_none_lost(start + np.flatnonzero(found < masks), place)
            masked = np.flatnonzero(masks)  # the others need no model
            self.cut += int(np.sum(lengths[masked] > budget))
            total, none = total + len(masks), none + len(masks) - len(masked)
            rows = inference.token_rows(lengths, ids=ids)
            cost = np.array([inference.next_power_of_two(count) for count in masks])
            for part, probabilities in self.runner.each(
                rows, batch_size, numbers=masked, cost=cost, most=MASKS_AT_ONCE
            ):  # (B, P, V)
                for row, text in enumerate(part):
                    yield from ((start + text, p) for p in probabilities[row, : masks[text]])
        if none:
            logging.warning(
                "%d of %d texts have no %s, so nothing is predicted for them",
                *(none, total, self.task.tokenizer.mask_token),
            )

    def fill(
        self,
        texts: str | Sequence[str],
        top_k: int,
        candidates: Sequence[str] | None,
        batch_size: int,
        **named: Any,
    ) -> list[dict[str, list]]:
        """The answers for the masks of texts; arguments and result as of `Pretraining.predict`.

        And `place` of `each_mask`.
        """
        texts = inference.as_texts(texts)
        inference.check_batch_size(batch_size)
        tokenizer = self.task.tokenizer
        check_top_k(tokenizer, top_k)
        chosen = None
        if candidates is not None:
            chosen = candidate_ids(tokenizer, inference.as_texts(candidates, "candidates"))
        answers: list[dict[str, list]] = [{"tokens": [], "probabilities": []} for _ in texts]
        for text, probabilities in self.each_mask(texts, batch_size, **named):
            ids = best(probabilities, top_k) if chosen is None else chosen
            answers[text]["tokens"].append([tokenizer.vocabulary[i] for i in ids])
            answers[text]["probabilities"].append(probabilities[ids].tolist())
        return answers

    def _check_none_lost(self, lost: np.ndarray, place: Callable[[int], str]) -> None:
        if len(lost):
            raise ValueError(
                f"Every mask must lie within the {self.task.encoder.config.max_positions} tokens "
                "that the encoder takes, [CLS] and [SEP] among them; shorten the text. Received: "
                f"{place(int(lost[0]))}, which has one behind them"
            )

    def signature(self, top_k: int) -> Signature:
        """Text to the best answers for its masks, as a graph.

        Args:
            top_k: K.

        Returns:
            `text` (B,) strings -> `tokens` (B, P, K) strings and `probabilities` (B, P, K), the
            most probable first. P is the number of masks in the text that has most; a text with
            fewer has "" and 0 in the rest. A mask beyond the longest text that the encoder takes
            is cut off with the text's end and counts as none, where `predict` raises: a server
            would refuse the whole batch for one text, so a client counts its answers.

        Raises:
            ValueError: `top_k` is out of range.
        """
        tokenizer = self.task.tokenizer
        check_top_k(tokenizer, top_k)

        def fill_mask(text: tf.Tensor) -> dict[str, tf.Tensor]:
            ids = encode_with_masks(tokenizer, text)
            features, found = self._pack(ids)
            probabilities, best_ids = tf.math.top_k(self.probabilities(features), top_k)
            tokens = tf.gather(tf.constant(tokenizer.vocabulary), best_ids)  # (B, P, K)
            real = tf.sequence_mask(found, tf.shape(tokens)[1])[..., None]
            return {
                "tokens": tf.where(real, tokens, ""),
                "probabilities": tf.where(real, probabilities, 0.0),
            }

        longest = self.task.row_length
        text_only = text_tokens(longest)

        def tokens(text: tf.Tensor) -> tf.Tensor:
            masks = tf.minimum(tokenizer.cut_at_masks(text).row_lengths() - 1, longest)
            # The logits of a mask take as much memory as so many tokens.
            return tf.maximum(text_only(text), masks * (TOKENS_AT_ONCE // MASKS_AT_ONCE))

        spec = [tf.TensorSpec([None], tf.string, "text")]
        mask = tokenizer.mask_token
        texts = (f"Fine {mask}.", f"The {mask} is not paid yet; please {mask} within a week.")
        return Signature(fill_mask, spec, tokens, too_long="cut", warm_up=texts)


def check_top_k(tokenizer: Tokenizer, top_k: int) -> None:
    """Raises ValueError unless the vocabulary has `top_k` entries."""
    if not 1 <= top_k <= tokenizer.vocabulary_size:
        raise ValueError(
            f"top_k must be from 1 to {tokenizer.vocabulary_size}, the vocabulary's size. "
            f"Received: top_k={top_k}"
        )


def best(probabilities: np.ndarray, k: int) -> np.ndarray:
    """Ids of the k largest of (V,), the largest first; the lower id on a tie.

    Example:
        >>> best(np.array([0.1, 0.4, 0.1, 0.4]), 3).tolist()
        [1, 3, 0]
    """
    ids = np.argpartition(-probabilities, k - 1)[:k] if k < len(probabilities) else None
    ids = np.arange(len(probabilities)) if ids is None else np.sort(ids)
    return ids[np.argsort(-probabilities[ids], kind="stable")]


def candidate_ids(tokenizer: Tokenizer, candidates: Sequence[str | bytes]) -> np.ndarray:
    """The vocabulary entry of each candidate.

    A candidate is an entry as it is ("##ing") or a word that the tokenizer keeps whole ("Cat"
    for an uncased vocabulary with "cat").

    Raises:
        ValueError: if a candidate is several entries or none.
    """
    return np.array([_candidate_id(tokenizer, x) for x in candidates], np.int32)


def _candidate_id(tokenizer: Tokenizer, candidate: Any) -> int:
    try:
        return tokenizer.token_to_id(candidate)
    except ValueError:  # not an entry as it is
        pieces = tokenizer.encode([candidate])[0].numpy().tolist()
    if len(pieces) != 1 or pieces[0] == tokenizer.unk_id:
        shown = " ".join(tokenizer.vocabulary[i] for i in pieces) or "nothing"
        raise ValueError(
            "A candidate must be one vocabulary entry: a mask stands for one token. "
            f"Received: {candidate!r}, which is {shown}"
        )
    return pieces[0]
