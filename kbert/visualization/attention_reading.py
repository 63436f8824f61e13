"""Reads the attention weights of a model for a text, or between two texts, with token names.

Shapes: L layers, N heads, T queries (tokens that attend), S keys (attended positions).
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from kbert.core.in_memory import check_utf8

if TYPE_CHECKING:  # pictures of arrays need no TensorFlow
    from kbert.tokenizers.base import Tokenizer


_CROSS_TITLES = ("written", "source")
TITLES = ("token", "attends to")
# More names than this cannot be read in one picture.
MOST_TOKENS = 128


class Weights(NamedTuple):
    """Attention weights of every layer and head, with names for a picture.

    Attributes:
        values: (L, N, T, S) float32, from 0 to 1.
        rows: T names of the queries.
        columns: S names of the keys.
        row_title, column_title: titles of the rows and of the columns.
    """

    values: np.ndarray
    rows: list[str]
    columns: list[str]
    row_title: str = "token"
    column_title: str = "attends to"

    def select(self, layer: int | None, head: int | None) -> "Weights":
        """Returns the weights of one layer and one head, still with four axes.

        Numbers are from 0, negative from the last; None keeps all layers or heads.
        """
        values = self.values
        if layer is not None:
            values = values[[index_of("layer", layer, len(values))]]
        if head is not None:
            values = values[:, [index_of("head", head, values.shape[1])]]
        return self._replace(values=values)


def as_weights(
    weights: Any,
    rows: Sequence[Any],
    columns: Sequence[Any] | None,
    titles: tuple[str, str],
) -> Weights:
    """Returns checked weights with names; missing axes of layers and heads get the size 1.

    Args:
        weights: (T, S), (N, T, S) or (L, N, T, S).
        rows: T names.
        columns: S names; None = the names of the rows.
        titles: titles of the rows and of the columns.

    Raises:
        ValueError: the number of names is wrong or too large to read, the weights are empty, or
            values are outside 0..1.
    """
    values = np.asarray(weights, "float32")
    rows = [str(name) for name in rows]
    columns = rows if columns is None else [str(name) for name in columns]
    if values.ndim not in (2, 3, 4) or values.shape[-2:] != (len(rows), len(columns)):
        raise ValueError(
            "Attention weights must be (rows, columns), (heads, rows, columns) or (layers, heads, "
            "rows, columns), with a name for each row and each column (None = the rows' own). "
            f"Received: weights of shape {values.shape}, {len(rows)} names of rows and "
            f"{len(columns)} of columns"
        )
    if not values.size:
        raise ValueError(
            f"Attention weights must not be empty. Received: weights of shape {values.shape}"
        )
    if max(len(rows), len(columns)) > MOST_TOKENS:
        raise ValueError(
            f"A picture of attention must have at most {MOST_TOKENS} tokens, to be readable. "
            f"Received: {len(rows)} rows and {len(columns)} columns"
        )
    # Rounding may put softmax weights in bfloat16 slightly above 1.
    if not ((values >= 0) & (values <= 1.01)).all():
        raise ValueError(
            f"Attention weights must be between 0 and 1. Received: values from {values.min():.3g} "
            f"to {values.max():.3g}"
        )
    values = values.reshape((1,) * (4 - values.ndim) + values.shape)
    return Weights(np.minimum(values, 1.0), rows, columns, *titles)


def index_of(what: str, number: int, count: int) -> int:
    """Returns the index from 0 of a layer or head; a negative number counts from the end.

    Args:
        what: name of the number in messages.
        number: number from -count to count - 1.
        count: number of layers or heads.

    Raises:
        TypeError: the number is not an integer.
        ValueError: the number is out of range.

    >>> index_of("layer", -1, 12)
    11
    """
    if isinstance(number, bool) or not isinstance(number, int | np.integer):
        raise TypeError(f"{what} must be a whole number, or None for all. Received: {number!r}")
    if not -count <= number < count:
        raise ValueError(
            f"{what} must be a number from 0 to {count - 1}, or from -{count} to -1 counted from "
            f"the last. Received: {number}"
        )
    return int(number) % count


def read_attention(
    model: Any, texts: str | Sequence[str], *, tokenizer: "Tokenizer | None" = None
) -> dict[str, Weights]:
    """Returns the weights that `kbert.visualization.attention` draws, as arrays.

    Args:
        model: a task, or a `kbert.Encoder`, `kbert.Decoder` or `kbert.Seq2Seq`.
        texts: one text; or a pair: two segments for an encoder, source and target for a
            `Seq2Seq`.
        tokenizer: tokenizer of the model; None = the task's.

    Returns:
        Kind -> weights, for the kinds that the model has: "encoder", "decoder", "cross".

    Raises:
        TypeError: the model is of another kind, or `texts` are not strings.
        ValueError: the model reads another number of texts, a text is longer than the model's
            positions (a source: than the task's `max_length`), has half a surrogate pair or (for a
            decoder) has no token, or a model has no tokenizer.

    Example:
        >>> import kbert
        >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
        >>> tokenizer = WordPieceTokenizer([*SPECIAL_TOKENS, "it", "rains"])
        >>> encoder = kbert.Encoder(kbert.family("bert-tiny").replace(vocabulary_size=7))
        >>> weights = read_attention(encoder, "It rains", tokenizer=tokenizer)["encoder"]
        >>> weights.rows, weights.values.shape
        (['[CLS]', 'it', 'rains', '[SEP]'], (2, 2, 4, 4))
    """
    from kbert.models import Decoder, DecoderEncoder, Encoder, PrefixSeq2Seq, Seq2Seq
    from kbert.tasks.task import Task

    task = model if isinstance(model, Task) else None
    network = model if task is None else task.model
    network = network.decoder if isinstance(network, DecoderEncoder) else network
    if tokenizer is None and task is not None:
        tokenizer = task.tokenizer
    texts = _as_texts(texts)
    pairs = dict.fromkeys((Seq2Seq, PrefixSeq2Seq), _seq2seq)
    readers = {Encoder: _encoder, Decoder: _decoder, **pairs}
    reader = next((reader for kind, reader in readers.items() if isinstance(network, kind)), None)
    if reader is None:
        raise TypeError(
            "Attention requires a kbert.Encoder, kbert.Decoder or kbert.Seq2Seq, or a task that "
            f"has one. Received: a {type(network).__name__}"
        )
    if tokenizer is None:
        raise ValueError(
            "A model without a task requires its tokenizer: attention(model, text, tokenizer=…). "
            f"Received: {type(network).__name__} without one"
        )
    return reader(task, network, tokenizer, texts)


def _as_texts(texts: str | Sequence[str]) -> list[str]:
    """Returns one or two strings as a list; raises for anything else."""
    texts = [texts] if isinstance(texts, str) else texts
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise TypeError(
            f"The input of attention must be a text or a pair of texts. Received: {texts!r}"
        )
    if len(texts) not in (1, 2):
        raise ValueError(
            "A picture of attention requires one text or one pair of texts. Received: "
            f"{len(texts)} texts"
        )
    for number, text in enumerate(texts):
        check_utf8(text, f"Text {number} of attention")
    return list(texts)


def _encoder(
    task: Any, encoder: Any, tokenizer: "Tokenizer", texts: str | Sequence[str]
) -> dict[str, Weights]:
    """Returns {"encoder": weights} for a text or a pair of segments; `task` may be None."""
    import tensorflow as tf

    from kbert.models import capturing
    from kbert.tasks.input_form import input_form
    from kbert.tasks.pretraining.fill_mask import encode_with_masks

    strings = [tf.constant([text]) for text in texts]
    if tokenizer.mask_id is None:
        ids = [tokenizer.encode(text) for text in strings]
    else:
        ids = [encode_with_masks(tokenizer, text) for text in strings]
    form = input_form(encoder, tokenizer)
    total = form.specials(len(texts)) + sum(int(part.row_lengths()[0]) for part in ids)
    _check_length("special tokens included", total, encoder.config.max_positions)
    inputs = form.build_inputs(*ids, max_length=total, multiple=1)
    inputs = {k: v.numpy() for k, v in inputs.items()}
    if task is None:
        if not encoder.config.num_segments:
            inputs.pop("segment_ids")
        outputs = encoder(inputs, return_attention=True)
    else:  # the task adds its global tokens
        with capturing(encoder, return_attention=True):
            outputs = task.encode(inputs)
    names = token_names(tokenizer, inputs["token_ids"][0])
    return {"encoder": _weights(outputs["attention"], names, names, TITLES)}


def _decoder(
    task: Any, decoder: Any, tokenizer: "Tokenizer", texts: str | Sequence[str]
) -> dict[str, Weights]:
    """Returns {"decoder": weights} for one text; `task` is not used."""
    if len(texts) != 1:
        raise ValueError(f"A decoder requires exactly one text. Received: {len(texts)} texts")
    ids = _ids(tokenizer, texts[0])
    if not len(ids):
        raise ValueError(
            f"The text of a decoder must have at least one token. Received: {texts[0]!r}"
        )
    _check_length("of the text", len(ids), decoder.config.max_positions)
    outputs = decoder({"token_ids": ids[None]}, return_attention=True)
    names = token_names(tokenizer, ids)
    return {"decoder": _weights(outputs["attention"], names, names, TITLES)}


def _seq2seq(
    task: Any, seq2seq: Any, tokenizer: "Tokenizer", texts: str | Sequence[str]
) -> dict[str, Weights]:
    """Returns the weights by kind for a source and its target, which a `task` can generate.

    The rows have the prefix and the special tokens of the task; without one those of a default
    `TextToText`.
    """
    from kbert.data.translation.framing import Framing
    from kbert.tasks.generation.pair_rows import stripped

    if len(texts) == 1:
        if task is None:
            raise ValueError(
                "A target is required as the second text; only a task can generate it. "
                "Received: a source alone"
            )
        (answer,) = task.predict(texts, verbose=0)
        texts = [*texts, answer if isinstance(answer, str) else answer[0]]  # the best
    framing = Framing.of(tokenizer) if task is None else task.framing
    first = stripped(texts[0]) if task is None else task.pair_rows.prefixed(texts[0])
    rows = []
    for reader, text, ends in (
        (tokenizer, first, framing.source),
        (tokenizer.target, stripped(texts[1]), framing.target),
    ):
        rows.append(np.array([*ends.begin, *_ids(reader, text), *ends.end], "int32"))
    source, written = rows
    read = np.append(framing.start_id, written[:-1]).astype("int32")
    limit, most = "the model's max_positions", seq2seq.max_length
    _check_length("of the target, special tokens included", len(read), most, limit)
    if task is not None and task.max_length is not None:
        limit, most = "the task's max_length", task.max_length
    _check_length("of the source, special tokens included", len(source), most, limit)
    inputs = {"encoder_token_ids": source[None], "decoder_token_ids": read[None]}
    outputs = seq2seq(inputs, return_attention=True)
    source = token_names(tokenizer, source)
    read, written = (token_names(tokenizer.target, x) for x in (read, written))
    return {
        "cross": _weights(outputs["cross_attention"], written, source, _CROSS_TITLES),
        "encoder": _weights(outputs["encoder_attention"], source, source, TITLES),
        "decoder": _weights(outputs["attention"], read, read, TITLES),
    }


def _ids(tokenizer: "Tokenizer", text: str | bytes) -> np.ndarray:
    return np.asarray(tokenizer.encode(text), "int32")


def _check_length(
    what: str, length: int, most: int, limit: str = "the model's max_positions"
) -> None:
    """Raises ValueError if a sequence, described by `what`, has more than `most` tokens.

    `limit` is the name of that maximum.
    """
    if length > most:
        raise ValueError(
            f"A text must not be longer than {limit}={most}. Received: {length} tokens, {what}"
        )


def _weights(
    attention: Sequence[Any], rows: Sequence[str], columns: Sequence[str], titles: tuple[str, str]
) -> Weights:
    """Returns `Weights` of L tensors (1, N, T, S), with T names of rows and S of columns."""
    from keras import ops

    layers = [ops.convert_to_numpy(ops.cast(layer, "float32"))[0] for layer in attention]
    return as_weights(np.stack(layers), rows, columns, titles)


def token_names(tokenizer: "Tokenizer", ids: Any) -> list[str]:
    """Returns the tokens of ids as text; byte-level BPE tokens as the characters that they spell.

    A byte-level token that is not whole characters keeps the letters that stand for its bytes.
    Spaces and line ends keep theirs too ("Ġ", "Ċ").

    >>> from kbert.tokenizers import SPECIAL_TOKENS, WordPieceTokenizer
    >>> token_names(WordPieceTokenizer([*SPECIAL_TOKENS, "un", "##able"]), [2, 5, 6, 3])
    ['[CLS]', 'un', '##able', '[SEP]']
    """
    from kbert.tokenizers import BytePairTokenizer

    pieces = [tokenizer.id_to_token(i) for i in ids]
    if not isinstance(tokenizer, BytePairTokenizer):
        return pieces
    special = set(tokenizer.special_ids)
    return [p if i in special else _spelled(p) for i, p in zip(ids, pieces, strict=True)]


def _spelled(piece: str) -> str:
    """Returns the characters of a byte-level token; the token itself if they are not whole."""
    from kbert.tokenizers.bpe.byte_alphabet import piece_bytes, spell

    try:
        text = piece_bytes(piece).decode()
    except UnicodeDecodeError:
        return piece
    return "".join(spell(c.encode()) if c.isspace() or ord(c) < 32 else c for c in text)
