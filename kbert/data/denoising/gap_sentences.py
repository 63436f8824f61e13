"""PEGASUS' gap sentences: the decoder predicts whole sentences that the encoder does not read.

Source: Zhang et al. 2020, sections 3.1 and 6.2 (arXiv:1912.08777); pegasus/ops/
sentence_selection.cc, rouge.cc and pretrain_parsing_ops.cc of google-research/pegasus.

Shapes: N rows, L text tokens of a row, J maximum number of sentences of these rows.
"""

from __future__ import annotations

from typing import ClassVar

from kbert.core.late import tf
from kbert.core.options import option
from kbert.data.denoising.noise import Noise, Sides, Text, compact, frame, gather_rows, scatter_rows
from kbert.data.denoising.sentences import Sentences, find_sentences, random_order
from kbert.data.masking.hashing import chance, fold
from kbert.tokenizers.base import Tokenizer

_ORDER, _KEPT = 0, 1  # streams of draws under a row's key
_SELECTIONS = ("rouge", "random", "lead")


class GapSentences(Noise):
    """PEGASUS' gap sentences, each replaced by one token in the source.

    The target is the gap sentences in the order of the text, and the "sep" token. A longer target
    is truncated, and then has no "sep" token. With "rouge" each sentence is compared with all other
    sentences of the row, independently of other choices (the paper's Ind-Orig): the score is the
    ROUGE-1 F1 of their token ids. (The original compares words without stop words.) Of equal
    scores the later sentence is chosen, as in the original.

    Args:
        {options}
    """

    kind = "pegasus"
    segments: ClassVar[str] = "doc_sentences"

    selection: str = option(
        "rouge",
        help="Which sentences are gaps: those most similar to the other sentences, random ones, "
        "or the first ones.",
        choices=_SELECTIONS,
    )
    gap_share: float = option(
        0.3,
        help="Share of the sentences, rounded down, but at least one sentence.",
        above=0,
        at_most=1,
    )
    kept_share: float = option(
        0.0,
        help="Share of the gap sentences that stay in the source: 0.2 in the large model, with a "
        "gap_share of 0.45.",
        at_least=0,
        at_most=1,
    )
    sentence_mask: str | None = option(
        None,
        help="Token that replaces a sentence: <mask_1> in the published vocabulary. Default: the "
        "tokenizer's mask token.",
    )
    max_targets: int | None = option(
        None,
        help="Tokens of the targets (T). Default: half of the sequence length.",
        at_least=2,
    )

    @property
    def uses_sentences(self) -> bool:
        return True

    def text_length(self, sequence_length: int) -> int:
        return sequence_length - 1

    def target_length(self, sequence_length: int) -> int:
        return self.max_targets or sequence_length // 2

    def check_tokenizer(self, tokenizer: Tokenizer, sequence_length: int) -> None:
        super().check_tokenizer(tokenizer, sequence_length)
        if self.sentence_mask is None and tokenizer.mask_id is None:
            raise ValueError(
                f"noise={self.kind!r} requires a token that replaces a sentence: pass "
                "`sentence_mask`, or name a mask token in the tokenizer. Received: neither"
            )
        self._mask_id(tokenizer)

    def _mask_id(self, tokenizer: Tokenizer) -> int:
        if self.sentence_mask is None:
            return tokenizer.mask_id
        return tokenizer.token_to_id(self.sentence_mask)

    def corrupt(
        self, keys: tf.Tensor, text: Text, tokenizer: Tokenizer, sequence_length: int
    ) -> Sides:
        sentences = find_sentences(text)
        if self.selection == "random":
            order = random_order(fold(keys, _ORDER), sentences)
        elif self.selection == "lead":
            order = tf.range(tf.shape(sentences.start)[1]) + tf.zeros_like(sentences.start)
        else:
            order = order_by_score(rouge_scores(text, sentences), sentences)
        is_gap = first_sentences(order, sentences, gap_counts(sentences.count, self.gap_share))
        in_gap = text.inside & (gather_rows(is_gap, sentences.number) > 0)
        is_hidden, ids = in_gap, text.ids
        if self.kept_share:
            number = tf.range(tf.shape(is_gap)[1])
            is_kept = chance(fold(fold(keys, _KEPT)[:, None], number), self.kept_share)
            is_hidden &= ~gather_rows(is_kept, sentences.number)
        ids = tf.where(is_hidden, self._mask_id(tokenizer), ids)
        source = compact(ids, text.inside & (~is_hidden | text.begins), sequence_length - 1)
        targets = self.target_length(sequence_length)
        target = compact(text.ids, in_gap, targets)
        specials = {"pad_id": tokenizer.pad_id, "sep_id": tokenizer.sep_id}
        return Sides(
            *frame(*source, sequence_length, **specials), *frame(*target, targets, **specials)
        )


def gap_counts(count: tf.Tensor, share: float) -> tf.Tensor:
    """Returns the number of gap sentences, (N,) int32, of rows with `count` (N,) sentences.

    It is the share of the sentences, rounded down, and at least 1. The product is one of float32,
    as in the original.

    >>> gap_counts(tf.constant([0, 1, 5, 10]), 0.3).numpy().tolist()
    [0, 1, 1, 3]
    """
    wanted = tf.cast(tf.cast(count, tf.float32) * tf.constant(share, tf.float32), tf.int32)
    return tf.minimum(tf.maximum(wanted, 1), count)


def first_sentences(order: tf.Tensor, sentences: Sentences, count: tf.Tensor) -> tf.Tensor:
    """Returns 1 for the first `count` (N,) sentences of an `order` (N, J), else 0: (N, J) int32."""
    most = tf.shape(sentences.start)[1]
    chosen = tf.where(tf.range(most) < count[:, None], order, most)
    return scatter_rows(chosen, tf.ones_like(chosen), most + 1)[:, :-1]


def order_by_score(scores: tf.Tensor, sentences: Sentences) -> tf.Tensor:
    """Returns the numbers of sentences by descending score, (N, J) int32; of equal ones the later.

    `scores` (N, J) are int32; sentences that a row does not have come last.

    >>> sentences = Sentences(*[tf.zeros([1, 4], tf.int32)] * 3, tf.constant([3]))
    >>> order_by_score(tf.constant([[2, 1, 2, 0]]), sentences).numpy()[0, :3].tolist()
    [2, 0, 1]
    """
    most = tf.shape(scores)[1]
    rank = tf.where(sentences.used, scores * most + tf.range(most), -1)
    return tf.argsort(-rank, stable=True)


def rouge_scores(text: Text, sentences: Sentences) -> tf.Tensor:
    """Counts how many tokens a sentence has in common with the others of its row, (N, J) int32.

    A token that occurs n times in the sentence and m times in the others counts min(n, m) times.
    In a row these numbers have the order of ROUGE-1 F1: precision is the number over the tokens of
    the sentence, recall over those of the others, so F1 is twice the number over all tokens.

    Example:
        >>> ids = tf.constant([[7, 8, 8, 7, 8, 9]])
        >>> begins = tf.constant([[True, False, False, True, False, True]])
        >>> text = Text(ids, tf.constant([6]), begins)
        >>> rouge_scores(text, find_sentences(text)).numpy().tolist()
        [[2, 2, 0]]
    """
    rows, most = tf.unstack(tf.shape(sentences.start))
    none = tf.int64.max
    width = tf.cast(most, tf.int64)
    # Sorted, equal tokens are neighbours, and among them those of the same sentence.
    pairs = tf.cast(text.ids, tf.int64) * width + tf.cast(sentences.number, tf.int64)
    pairs = tf.sort(tf.where(text.inside, pairs, none), axis=1)
    first_pair, pair_at = _runs(pairs)
    _, token_at = _runs(pairs // width)
    in_sentence = tf.math.segment_sum(tf.ones_like(pair_at), pair_at)  # tokens of each pair
    in_row = tf.math.segment_sum(tf.ones_like(token_at), token_at)
    pair = tf.gather(tf.reshape(pairs, [-1]), first_pair)
    total = tf.gather(in_row, tf.gather(token_at, first_pair))
    common = tf.where(pair < none, tf.minimum(in_sentence, total - in_sentence), 0)
    row = first_pair // text.width
    cell = tf.where(pair < none, row * width + pair % width, 0)
    scores = tf.math.unsorted_segment_sum(common, cell, rows * most)
    return tf.reshape(scores, [rows, most])


def _runs(values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns where runs of equal values begin in rows, and the number of each value's run.

    `values` (N, L) are counted row by row: the results are (runs,) int64 and (N * L,) int32.
    """
    is_first = tf.pad(values[:, 1:] != values[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    is_first = tf.reshape(is_first, [-1])
    return tf.where(is_first)[:, 0], tf.cumsum(tf.cast(is_first, tf.int32)) - 1
