"""Ids as arrays without TensorFlow, by Hugging Face's `tokenizers`.

For JAX and PyTorch without TensorFlow, and for services with other runtimes, which then save
TensorFlow's memory. The ids equal those of the graph: texts are prepared here wherever `tokenizers`
behaves differently. Tokenizers for which that is not possible raise `NeedsTensorFlow`.

Shapes: B texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from kbert.core.in_memory import each_text
from kbert.core.late import NeedsTensorFlow
from kbert.core.ragged import Ragged

# (texts) -> rows of ids.
ArrayEncoder = Callable[[Sequence[str | bytes]], Ragged]


def refuse(tokenizer: Any, what: str) -> NeedsTensorFlow:
    """Returns the error to raise without TensorFlow; `what` names the unsupported feature."""
    return NeedsTensorFlow(
        "Without TensorFlow, only byte-level BPE with GPT-2's words and WordPiece without added "
        "tokens and without special tokens in the text are supported. Received: a "
        f"{type(tokenizer).__name__} with {what}"
    )


def array_encoder(model: Any, before: Any, prepare: Callable[[str], str] | None) -> ArrayEncoder:
    """Returns a function from a list of texts to a `Ragged` with a row of ids per text.

    Args:
        model: a model of `tokenizers.models`, which splits words into subwords.
        before: a pre-tokenizer of `tokenizers.pre_tokenizers`, which splits texts into words.
        prepare: function applied to each text first; None = no preparation.
    """
    import tokenizers  # a slow import

    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = before
    # The fast variant skips offsets, which take as long as the ids.
    run = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)

    def encode(texts: Sequence[str | bytes]) -> Ragged:
        prepared = [as_text(x) if prepare is None else prepare(as_text(x)) for x in texts]
        return Ragged.of(encoding.ids for encoding in run(prepared, add_special_tokens=False))

    return encode


def as_text(text: str | bytes) -> str:
    """Returns a text as str; drops what is not valid UTF-8, like the graph."""
    data = text if isinstance(text, bytes) else text.encode("utf-8", "ignore")
    return data.decode("utf-8", "ignore")


def encode_each(encode: ArrayEncoder, texts: str | bytes | Iterable[str]) -> Any:
    """Encodes texts by `encode`: returns a `Ragged` with a row per text; for one string, an array.

    Raises TypeError if an item is neither str nor bytes.
    """
    if isinstance(texts, str | bytes):
        return encode([texts])[0]
    return encode(list(each_text(texts)))
