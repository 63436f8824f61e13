"""The model that reads texts for features, and the special tokens around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras

from kbert.data.translation.framing import Framing
from kbert.models import Seq2Seq
from kbert.tasks.input_form import InputForm, check_encoder, input_form
from kbert.tokenizers.base import Tokenizer


class Reader(NamedTuple):
    """An encoder, or the encoder of an encoder-decoder.

    Attributes:
        model: model with the weights, and with `config`.
        form: form of its rows.
        hidden_states: function from features (B, T) to the embeddings and the output of each layer,
            (B, T, H) each.
    """

    model: keras.Model
    form: InputForm
    hidden_states: Callable[[dict[str, Any]], Sequence[Any]]


def as_reader(model: Any, tokenizer: Tokenizer) -> Reader:
    """Returns the reader of an encoder, or of a `TextToText`, which knows its special tokens.

    Raises:
        TypeError: `model` is neither.
        ValueError: model and tokenizer do not fit.
    """
    seq2seq = getattr(model, "seq2seq", None)
    if isinstance(seq2seq, Seq2Seq) and hasattr(model, "framing"):
        form = _source_form(tokenizer, model.special_tokens)
        return Reader(seq2seq, form, lambda x: seq2seq.encode(x["token_ids"], x["padding_mask"]))
    if getattr(model, "prefix", None) == Seq2Seq.prefix:
        raise TypeError(
            "Features of an encoder-decoder require its kbert.TextToText or kbert.Translator, "
            "which knows the special tokens around a source. Received: a Seq2Seq"
        )
    check_encoder(model, "kbert.features")

    def hidden_states(features: dict[str, Any]) -> Sequence[Any]:
        outputs = model(features, training=False, return_hidden_states=True)
        return outputs["hidden_states"]

    return Reader(model, input_form(model, tokenizer), hidden_states)


def reading_model(model: Any) -> Any:
    """Returns the model whose `config` has the sizes of the features of an encoder or task."""
    return model.seq2seq if hasattr(model, "framing") else model


def _source_form(tokenizer: Tokenizer, special_tokens: str) -> InputForm:
    """Returns the form of sources: `text [sep]`, and a token before or after that if there is one.

    `special_tokens` is "end" or "all", see `Framing.of`.
    """
    framing = Framing.of(tokenizer, special_tokens=special_tokens)
    begin, (sep_id, *after) = framing.source.begin, framing.source.end
    outer = (*begin, *after)
    if len(outer) > 1:
        raise ValueError(
            "Features require sources with at most one special token besides `sep`. Received: "
            f"{framing.source}"
        )
    return InputForm(
        cls_id=outer[0] if outer else None,
        sep_id=sep_id,
        last_id=sep_id,
        pad_id=framing.source_pad,
        separators=tokenizer.pair_separators,
        names={},
        cls_last=bool(after),
    )
