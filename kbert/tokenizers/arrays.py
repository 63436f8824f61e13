"""Ids without TensorFlow, as arrays, by Hugging Face's `tokenizers`.

For JAX and PyTorch without TensorFlow, and for services of other runtimes, which need neither it
nor its memory. The ids are those of the graph: what `tokenizers` does otherwise is done here before
it sees a text, and a tokenizer for which that does not hold is refused.

Shapes: B texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kbert.core.in_memory import each_text
from kbert.core.ragged import Ragged

# (texts) -> rows of ids.
ArrayEncoder = Callable[[Sequence[str | bytes]], Ragged]


class NeedsTensorFlow(ValueError):
    """A tokenizer whose ids only the graph gives."""


def refuse(tokenizer: Any, what: str) -> NeedsTensorFlow:
    """The error of a tokenizer that has `what`, which only the graph knows."""
    return NeedsTensorFlow(
        "Without TensorFlow texts are split by byte pairs between the words of GPT-2, and by "
        "WordPiece without added tokens and special tokens in the text. "
        f"Received: a {type(tokenizer).__name__} with {what}"
    )


def array_encoder(model: Any, before: Any, prepare: Callable[[str], str] | None) -> ArrayEncoder:
    """What gives ids as arrays.

    Args:
        model: a model of `tokenizers.models`, which splits words into pieces.
        before: a pre-tokenizer of `tokenizers.pre_tokenizers`, which splits texts into words.
        prepare: applied to each text first; None = nothing.
    """
    import tokenizers  # takes a moment

    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = before
    # Offsets take as long as the ids.
    run = getattr(made, "encode_batch_fast", made.encode_batch)

    def encode(texts: Sequence[str | bytes]) -> Ragged:
        given = [as_text(x) if prepare is None else prepare(as_text(x)) for x in texts]
        return Ragged.of(found.ids for found in run(given, add_special_tokens=False))

    return encode


def as_text(text: str | bytes) -> str:
    """A text without what is no UTF-8, which is dropped as in the graph."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "ignore")
    return data.decode("utf-8", "ignore")


def encode_each(encode: ArrayEncoder, texts: str | bytes | Iterable[str]) -> Any:
    """Rows of ids of texts; of one text its ids, an array."""
    if isinstance(texts, str | bytes):
        return encode([texts])[0]
    return encode(list(each_text(texts)))
