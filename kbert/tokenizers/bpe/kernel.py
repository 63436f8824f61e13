"""Byte-level BPE of whole texts in the graph.

Shapes: B texts, W words of all texts together, U distinct words, P tokens of all texts together,
V tokens that merges can make.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kbert.core.late import tf
from kbert.tokenizers.bpe.byte_alphabet import piece_bytes
from kbert.tokenizers.bpe.merges import Pair, sentencepiece_model
from kbert.tokenizers.bpe.pre_split import split_words
from kbert.tokenizers.text_ops import sentencepiece
from kbert.tokenizers.token_segments import fingerprints


class BytePairKernel:
    """Splits valid UTF-8 texts into tokens; each distinct word of a batch is merged once.

    Words that are tokens (most are) are looked up by their hash; the others go to SentencePiece.
    The graph contains SentencePiece's operator with the model in it, not the handle of an outside
    resource, so a SavedModel has nothing to track.

    Args:
        id_of: token -> id, including all bytes that UTF-8 uses.
        merges: pairs of tokens, in the order of merging.
        words: kind of word splitting, see `pre_split`.
        whole: tokens that need no merges: a word that equals one of them is not merged.
    """

    def __init__(
        self,
        id_of: Mapping[str, int],
        merges: Iterable[Pair],
        *,
        words: str = "gpt2",
        whole: Iterable[str] = (),
    ) -> None:
        self._kind = words
        self._model, pieces = sentencepiece_model(merges)
        table_pieces = [*pieces, *sorted(set(whole).difference(pieces))]
        # Eager constants, so that every graph that uses them can contain them.
        with tf.init_scope(), tf.device("CPU"):
            self._model_ids = tf.constant([0, *(id_of[piece] for piece in pieces)])
            spelled = tf.constant([piece_bytes(piece) for piece in table_pieces])
            ids = tf.constant([id_of[piece] for piece in table_pieces])
            hashes = fingerprints(spelled)
            order = tf.argsort(hashes)
            self._hashes = tf.gather(hashes, order)  # (V,)
            self._words = tf.gather(spelled, order)  # (V,)
            self._ids = tf.gather(ids, order)  # (V,)

    def __call__(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Splits a batch of texts into tokens.

        Args:
            texts: (B,) valid UTF-8.

        Returns:
            Ids (B, None) int32, and whether each token begins a word, (P,) bool.
        """
        words = split_words(texts, self._kind)
        unique, index = tf.unique(words.flat_values)  # (U,), (W,)
        rows, row_of = self._spelled(unique)
        pieces = tf.gather(rows, tf.gather(row_of, index))  # (W, None)
        row_splits = tf.gather(pieces.row_splits, words.row_splits)
        ids = tf.RaggedTensor.from_row_splits(pieces.flat_values, row_splits, validate=False)
        num_pieces = tf.size(ids.flat_values)
        first = tf.cast(pieces.row_starts()[:, None], tf.int32)  # every word has a token
        is_first = tf.scatter_nd(first, tf.ones_like(index, tf.bool), num_pieces[None])
        return ids, is_first

    def _spelled(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Returns a table of token ids (rows, None), and the row of each distinct word (U,) in it.

        The first V rows contain one id each; after them come the words that SentencePiece merged.
        """
        size = tf.size(self._hashes)
        slot = tf.minimum(tf.searchsorted(self._hashes, fingerprints(words)), size - 1)
        is_piece = tf.gather(self._words, slot) == words
        merged, row_splits = self._merged(tf.boolean_mask(words, ~is_piece))
        rows = tf.RaggedTensor.from_row_splits(
            tf.concat([self._ids, merged], 0),
            tf.concat([tf.range(tf.cast(size, tf.int64)), row_splits + tf.cast(size, tf.int64)], 0),
            validate=False,
        )
        merged_slot = size + tf.cumsum(tf.cast(~is_piece, tf.int32)) - 1
        return rows, tf.where(is_piece, slot, merged_slot)

    def _merged(self, words: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the ids of words (N,), concatenated, and the row splits of the words (N + 1,)."""
        characters = tf.strings.unicode_transcode(words, "ISO-8859-1", "UTF-8")
        pieces, row_splits = sentencepiece(self._model, characters)
        return tf.gather(self._model_ids, pieces), row_splits
