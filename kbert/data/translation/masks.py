"""Masks of targets: UniLM predicts masked tokens of a target, not each from those before it.

Shapes: R rows, T tokens of the targets.
"""

from __future__ import annotations

from kbert.core.late import tf
from kbert.data.masking.hashing import below, chance, fold
from kbert.tokenizers.base import Tokenizer

_CHOICE, _ACTION, _TOKEN = 0, 1, 2  # streams of draws under a pair's key
_MASKED, _RANDOM = 0.8, 0.1  # shares of the chosen tokens, as in pretraining


class TargetMasks:
    """Chooses the tokens of targets that are predicted, and hides them.

    (Dong et al. 2019, section 2.4, https://arxiv.org/abs/1905.03197; `Preprocess4Seq2seq` of
    microsoft/unilm.) A share of the tokens of each target is drawn without replacement, at least
    one. The end token is among those that may be drawn, so that the model learns to end.

    Args:
        tokenizer: tokenizer of the targets.
        share: share of the tokens that are predicted.
        seed: seed of all draws.

    Example:
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "go", "run"])
        >>> targets = tf.constant([[5, 6, 6, 3, 0]])
        >>> ids, chosen = TargetMasks(tokenizer, 0.5, seed=0).apply(
        ...     0, tf.constant([7], tf.int64), targets, tf.constant([[1, 1, 1, 1, 0]]))
        >>> ids.numpy().tolist(), chosen.numpy().astype(int).tolist()
        ([[4, 6, 6, 4, 0]], [[1, 0, 0, 1, 0]])
    """

    def __init__(self, tokenizer: Tokenizer, share: float, seed: int) -> None:
        self.tokenizer, self.share, self.seed = tokenizer, share, seed

    def apply(
        self, epoch: tf.Tensor, pair: tf.Tensor, targets: tf.Tensor, padding_mask: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the targets with hidden tokens (R, T) int32, and which are predicted (R, T) bool.

        Args:
            epoch: number of the epoch, a scalar.
            pair: (R,) numbers of the pairs.
            targets: (R, T) int32 ids, with the end token.
            padding_mask: (R, T) int32, 1 for a token.
        """
        keys = fold(fold(fold(self.seed, epoch), pair)[:, None], tf.range(tf.shape(targets)[1]))
        length = tf.reduce_sum(padding_mask, 1, keepdims=True)
        count = tf.cast(tf.round(tf.cast(length, tf.float64) * self.share), tf.int32)
        draws = below(fold(keys, _CHOICE), 2**31 - 1)  # (R, T)
        draws = tf.where(padding_mask > 0, draws, tf.int32.max)
        rank = tf.argsort(tf.argsort(draws, stable=True), stable=True)
        chosen = (rank < tf.maximum(count, 1)) & (padding_mask > 0)

        action = fold(keys, _ACTION)
        random_ids = below(fold(keys, _TOKEN), self.tokenizer.vocabulary_size)
        hidden = tf.where(chance(action, _MASKED), self.tokenizer.mask_id, random_ids)
        is_hidden = chosen & chance(action, _MASKED + _RANDOM)
        return tf.where(is_hidden, hidden, targets), chosen
