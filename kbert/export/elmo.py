"""A SavedModel of ELMo: text or words in, embeddings out.

Shapes: `B` rows, `T` words, `L` LSTM layers, `P` width of the projection.
"""

from __future__ import annotations

from typing import Any

from kbert.core.types import PathLike, Tensor
from kbert.export.savedmodel.write import export_saved_model
from kbert.signatures import MAX_BYTES, Signature, text_tokens
from kbert.tokenizers.words.characters import as_words


def export_embeddings(elmo: Any, directory: PathLike, max_bytes: int = MAX_BYTES) -> str:
    """Writes the SavedModel of ELMo and returns its path; see `Elmo.export` for its signatures.

    Args:
        elmo: an `Elmo`.
        directory: folder of the model, with one numbered subfolder per version.
        max_bytes: most bytes of a text, or of all words of a row, in a request.
    """
    import tensorflow as tf

    # An empty row is appended and removed again: TensorFlow cannot convolve or stack no rows.
    nothing = tf.ragged.constant([[]], tf.string)

    def embed(words: tf.Tensor) -> dict[str, tf.Tensor]:
        batch = elmo.characters.pad_sentences(tf.concat([words, nothing], axis=0))
        lengths = tf.reduce_sum(batch["padding_mask"], axis=1)[:-1] - 2  # without the two edges
        outputs = elmo(batch, training=False)
        word_mask = tf.sequence_mask(lengths, tf.shape(batch["padding_mask"])[1] - 2, tf.float32)

        def inner(layer: Tensor) -> Tensor:  # (B + 1, T + 2, 2P) -> (B, T, 2P)
            return tf.cast(layer[:-1, 1:-1], tf.float32) * word_mask[:, :, None]

        return {
            "embeddings": tf.stack([inner(layer) for layer in outputs["layers"]], axis=1),
            "mix": inner(outputs["mix"]),
            "lengths": lengths,
        }

    def embed_text(text: tf.Tensor) -> dict[str, tf.Tensor]:
        return embed(as_words(text))

    def embed_words(words: tf.Tensor) -> dict[str, tf.Tensor]:
        return embed(tf.RaggedTensor.from_tensor(words, padding=""))

    texts = tf.TensorSpec([None], tf.string, "text")
    matrix = tf.TensorSpec([None, None], tf.string, "words")
    signatures = {
        "embed": Signature(embed_text, [texts], text_tokens()),
        "embed_words": Signature(embed_words, [matrix], text_tokens()),
    }
    return export_saved_model(directory, signatures, max_bytes=max_bytes)
