"""Byte-level BPE of whole texts in the graph.

Shapes: B texts, W words of all texts together, U different words, P pieces of all texts together.
"""

from collections.abc import Iterable, Mapping

import numpy as np
import tensorflow as tf
from tensorflow_text.python.ops.sentencepiece_tokenizer import gen_sentencepiece_tokenizer

from kbert.tokenizers.bpe_merges import Pair, sentencepiece_model
from kbert.tokenizers.bpe_words import split_words


class BytePairKernel:
    """Pieces of valid UTF-8 texts: GPT-2's words, each different one merged once in a batch.

    The graph holds SentencePiece's operator with the model in it, not the handle of a resource made
    outside: so a SavedModel has nothing to track.

    Args:
        id_of: piece -> id, all 256 bytes among them.
        merges: pairs, the first to be merged first.
    """

    def __init__(self, id_of: Mapping[str, int], merges: Iterable[Pair]):
        self._model, ids = sentencepiece_model(id_of, merges)
        self._ids = np.array(ids, np.int32)

    def __call__(self, texts: tf.Tensor) -> tuple[tf.RaggedTensor, tf.Tensor]:
        """Pieces of a batch.

        Args:
            texts: (B,) valid UTF-8.

        Returns:
            Ids (B, None) int32; (P,) bool, the piece is the first of a word.
        """
        words = split_words(texts)
        unique, index = tf.unique(words.flat_values)  # (U,), (W,)
        pieces = tf.gather(self._merged(unique), index)  # (W, None)
        row_splits = tf.gather(pieces.row_splits, words.row_splits)
        ids = tf.RaggedTensor.from_row_splits(pieces.flat_values, row_splits, validate=False)
        num_pieces = tf.size(ids.flat_values)
        first = tf.cast(pieces.row_starts()[:, None], tf.int32)  # no word is without a piece
        is_first = tf.scatter_nd(first, tf.ones_like(index, tf.bool), num_pieces[None])
        return ids, is_first

    def _merged(self, words: tf.Tensor) -> tf.RaggedTensor:
        """(U,) words -> (U, None) ids."""
        characters = tf.strings.unicode_transcode(words, "ISO-8859-1", "UTF-8")
        model = gen_sentencepiece_tokenizer.sentencepiece_op(model=self._model)
        pieces, row_splits = gen_sentencepiece_tokenizer.sentencepiece_tokenize_op(
            model, characters, nbest_size=0, alpha=1.0, add_bos=False, add_eos=False, reverse=False
        )
        return tf.RaggedTensor.from_row_splits(
            tf.gather(self._ids, pieces), row_splits, validate=False
        )
