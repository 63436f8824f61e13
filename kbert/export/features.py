"""Exports a SavedModel that takes text and returns features.

Shapes: `B` texts, `T` tokens, `D` width of the features.
"""

from __future__ import annotations

from collections.abc import Sequence

import keras

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.export.savedmodel.write import export_saved_model
from kbert.extraction.extractor import Extractor
from kbert.signatures import MAX_BYTES, Signature, text_tokens
from kbert.tokenizers.base import Tokenizer


def export_features(
    directory: PathLike,
    encoder: keras.Model,
    tokenizer: Tokenizer,
    *,
    layers: str | int | Sequence[int] = "last",
    pooling: str | None = "mean",
    special_tokens: bool = True,
    max_length: int | None = None,
    max_bytes: int = MAX_BYTES,
) -> str:
    """Writes `directory/<n+1>/` for TensorFlow Serving, with the features of `kbert.features`.

    The entry points are `features`, with the input `text` (B,) strings, and `pair_features`, with
    the inputs `first` and `second`. Both return `vectors` (B, D) float32. Without pooling they
    return `vectors` (B, T, D), `tokens` (B, T) strings, and `counted` (B, T), 1 for a token that
    counts. A text that is too long for the encoder is truncated.

    Args:
        directory: folder of the model; its newest version is n.
        encoder: a `kbert.Encoder`.
        tokenizer: tokenizer of the encoder.
        layers: hidden states to use: "last", another name or indices; see `kbert.features`.
        pooling: "mean" of the tokens, "max", "cls" (the vector of [CLS]), or None: no pooling.
        special_tokens: whether [CLS] and [SEP] count in the mean and the maximum.
        max_length: most tokens of a sequence, special tokens included; None = the encoder's
            `max_positions`.
        max_bytes: most bytes of a text that are read; a longer text is truncated.

    Returns:
        The path written.

    Example:
        >>> import tempfile
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS
        >>> tokenizer = kbert.WordPieceTokenizer([*SPECIAL_TOKENS, "rain"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=6))
        >>> path = export_features(tempfile.mkdtemp(), encoder, tokenizer)
        >>> served = tf.saved_model.load(path).signatures["features"]
        >>> served(text=tf.constant(["rain", "rain rain"]))["vectors"].shape
        TensorShape([2, 128])
    """
    extractor = Extractor(
        encoder,
        tokenizer,
        layers=layers,
        pooling=pooling,
        special_tokens=special_tokens,
        max_length=max_length,
    )

    def entry(first: tf.Tensor, second: tf.Tensor | None = None) -> dict[str, tf.Tensor]:
        texts = [first] if second is None else [first, second]
        features = extractor.build_inputs(*map(tokenizer.encode, texts))
        outputs = {"vectors": extractor.vectors(features, pooling)}
        if pooling is None:
            pieces = tf.constant(tokenizer.vocabulary)
            outputs["tokens"] = tf.gather(pieces, features["token_ids"])
            outputs["counted"] = features["counted"]
        return outputs

    columns = {"features": ["text"], "pair_features": ["first", "second"]}
    signatures = {
        name: Signature(
            entry,
            [tf.TensorSpec([None], tf.string, side) for side in sides],
            text_tokens(extractor.max_length),
            too_long="cut",
        )
        for name, sides in columns.items()
    }
    resources = tokenizer.resources
    return export_saved_model(directory, signatures, resources=resources, max_bytes=max_bytes)
