"""The special tokens around texts in the rows that a model reads, and which model has which."""

import dataclasses
from collections.abc import Mapping

import keras

from kbert.data.tables.inputs import TokenId
from kbert.models import Decoder, DecoderEncoder
from kbert.models.generators.decoder_encoder import INPUT_TOKENS
from kbert.tokenizers.protocol import TokenizerLike


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputForm:
    """`[cls] text [last]`, or `[cls] text [sep] text [last]`, then padding; or texts alone.

    Attributes:
        cls_id: what begins a row. None, and so the next two: texts alone.
        sep_id: what is between two texts.
        last_id: what ends a row.
        pad_id: what follows it.
        separators: how many `sep_id` are between two texts.
        names: of tokens that are none of the tokenizer's.
    """

    cls_id: TokenId | None
    sep_id: TokenId | None
    last_id: TokenId | None
    pad_id: TokenId
    separators: int
    names: Mapping[int, str]

    def specials(self, texts: int) -> int:
        """How many special tokens a row of one text or two has."""
        if self.cls_id is None:
            return 0
        return 2 if texts == 1 else 2 + self.separators


def input_form(encoder: keras.Model, tokenizer: TokenizerLike) -> InputForm:
    """The form for a model: BERT's by the tokenizer's tokens, GPT's by the model's own.

    (Devlin et al. 2018, section 4; Radford et al. 2018, section 3.3.) A decoder's vocabulary has no
    padding token: its rows are filled up with the extract token, which no token attends to there.

    Args:
        encoder: the model.
        tokenizer: its tokenizer.

    Raises:
        ValueError: the tokenizer does not name the tokens, or the model is a decoder alone.

    Example:
        >>> import kbert
        >>> config = kbert.DecoderConfig(vocabulary_size=9, hidden_size=8, num_layers=1,
        ...                              num_heads=2, intermediate_size=16, max_positions=12)
        >>> encoder = kbert.models.DecoderEncoder.extend(kbert.Decoder(config))
        >>> input_form(encoder, tokenizer=None).names
        {9: '[start]', 10: '[delimiter]', 11: '[extract]'}
    """
    if isinstance(encoder, Decoder):
        raise ValueError(
            "A task fine-tunes a decoder as a kbert.models.DecoderEncoder, which "
            "DecoderEncoder.extend(decoder) makes. Received: a Decoder"
        )
    if isinstance(encoder, DecoderEncoder) and not encoder.has_input_tokens:
        nothing = dict.fromkeys(("cls_id", "sep_id", "last_id"))
        return InputForm(**nothing, pad_id=0, separators=0, names={})
    if isinstance(encoder, DecoderEncoder):
        ids = (encoder.start_id, encoder.delimiter_id, encoder.extract_id)
        return InputForm(
            cls_id=encoder.start_id,
            sep_id=encoder.delimiter_id,
            last_id=encoder.extract_id,
            pad_id=encoder.extract_id,
            separators=1,
            names={n: f"[{name}]" for n, name in zip(ids, INPUT_TOKENS, strict=True)},
        )
    missing = [x for x in ("pad", "cls", "sep") if getattr(tokenizer, f"{x}_id") is None]
    if missing:
        raise ValueError(
            "An encoder's input has a padding, a first and a separating token, named in the "
            f"tokenizer's special_tokens. Received: a {type(tokenizer).__name__} without "
            f"{', '.join(missing)}"
        )
    return InputForm(
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        last_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        separators=tokenizer.pair_separators,
        names={},
    )
