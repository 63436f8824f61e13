"""The special tokens around texts in a model's input rows, by kind of model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import keras
from absl import logging
from keras import ops

from kbert.configs.seq2seq import Seq2SeqConfig
from kbert.core.late import tf
from kbert.core.protocols import TokenizerLike
from kbert.models import Decoder, DecoderEncoder
from kbert.models.generators.decoder_encoder import INPUT_TOKENS
from kbert.tokenizers.packing import TokenId, build_inputs, check_input_tokens


@dataclasses.dataclass(frozen=True, kw_only=True)
class InputForm:
    """`[cls] text [last]`, or `[cls] text [sep] text [last]`, then padding; or texts alone.

    Attributes:
        cls_id: id of the token that begins a row, or ends it with `cls_last`; None for no such
            token. For texts alone, `cls_id`, `sep_id` and `last_id` are None.
        sep_id: id of the token between two texts.
        last_id: id of the token after the texts.
        pad_id: id of the padding token.
        separators: number of `sep_id` between two texts.
        names: names by id of the tokens that are not in the tokenizer's vocabulary.
        cls_last: whether a row ends in `cls_id`, for models whose pooler reads the last token.
    """

    cls_id: TokenId | None
    sep_id: TokenId | None
    last_id: TokenId | None
    pad_id: TokenId
    separators: int
    names: Mapping[int, str]
    cls_last: bool = False

    @property
    def begin(self) -> int:
        """Column of the first text's first token."""
        return 0 if self.cls_id is None or self.cls_last else 1

    def cls_columns(self, padding_mask: Any) -> Any:
        """Returns the columns of `cls_id`, (B,) int32, for rows with this mask, (B, T)."""
        counts = ops.sum(ops.cast(padding_mask, "int32"), axis=1)
        return counts - 1 if self.cls_last else ops.zeros_like(counts)

    def build_inputs(
        self, first: tf.RaggedTensor, second: tf.RaggedTensor | None = None, **sizes: Any
    ) -> dict[str, tf.Tensor]:
        """Packs token ids of texts, or of pairs with `second`, into input rows (B, T) by name.

        See `build_inputs` of `kbert.tokenizers.packing`. `sizes` are its `max_length`, the most
        tokens of a row, and `multiple`, of which T is a multiple.
        """
        return build_inputs(
            first,
            second,
            cls_id=self.cls_id,
            sep_id=self.sep_id,
            pad_id=self.pad_id,
            last_id=self.last_id,
            separators=self.separators,
            cls_last=self.cls_last,
            **sizes,
        )

    def specials(self, texts: int) -> int:
        """Returns the number of special tokens in a row of one or two texts."""
        outer = (self.cls_id is not None) + (self.last_id is not None)
        return outer if texts == 1 else outer + self.separators

    def token_name(self, token_id: int, tokenizer: Any) -> str:
        """Returns the token of an id, also if it is not in the tokenizer's vocabulary."""
        input_name = self.names.get(token_id)
        return tokenizer.id_to_token(token_id) if input_name is None else input_name


TEXTS_ALONE = InputForm(cls_id=None, sep_id=None, last_id=None, pad_id=0, separators=0, names={})


def check_encoder(encoder: Any, user: str) -> None:
    """Raises TypeError unless `encoder` is a model that maps rows to a vector per token.

    Args:
        encoder: object to check.
        user: name of what needs the encoder, for the message.
    """
    is_model, config = isinstance(encoder, keras.Model), getattr(encoder, "config", None)
    is_seq2seq = getattr(encoder, "prefix", None) == Seq2SeqConfig.kind
    if is_model and config is not None and not is_seq2seq:
        return
    hint = ", such as the `encoder` of this model" if hasattr(encoder, "encoder") else ""
    hint = ", or kbert.models.Seq2SeqEncoder(model) for tasks on tables" if is_seq2seq else hint
    raise TypeError(
        f"{user} requires an encoder, as kbert.Encoder.from_preset returns it"
        f"{hint if is_model else ''}. "
        f"Received: {encoder!r:.200}"
    )


def input_form(encoder: keras.Model, tokenizer: TokenizerLike) -> InputForm:
    """Returns the form of a model's rows, with the tokenizer's (BERT) or the model's tokens (GPT).

    (Devlin et al. 2018, section 4; Radford et al. 2018, section 3.3; for XLNet, Yang et al. 2019,
    section 2.5, and run_classifier.py of its code.) A decoder's vocabulary has no padding token.
    Its rows are padded with the extract token, which no token attends to there.

    Args:
        encoder: the model.
        tokenizer: the model's tokenizer.

    Raises:
        ValueError: the tokenizer lacks one of the tokens, the model is a plain `Decoder`, or the
            model is new and its config has another padding token.

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
            "A decoder must be extended for a task on an encoder: pass "
            "kbert.models.DecoderEncoder.extend(decoder). Received: a Decoder"
        )
    if not getattr(encoder, "has_input_tokens", True):
        return TEXTS_ALONE
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
    check_input_tokens(tokenizer)
    _check_padding(encoder, tokenizer)
    return InputForm(
        cls_id=tokenizer.cls_id,
        sep_id=tokenizer.sep_id,
        last_id=tokenizer.sep_id,
        pad_id=tokenizer.pad_id,
        separators=tokenizer.pair_separators,
        names={},
        cls_last=getattr(encoder.config, "pooling", None) == "last",
    )


def _check_padding(encoder: Any, tokenizer: TokenizerLike) -> None:
    """Raises ValueError if a new model's config and tokenizer differ in the padding token.

    A real token would then get the position of padding. For a pretrained model this is only a
    warning: some published models were trained so, with the positions of their library.
    """
    padding_id, pad_id = getattr(encoder.config, "padding_id", None), tokenizer.pad_id
    if padding_id in (None, pad_id):
        return
    rule = "`padding_id` of the config must be the tokenizer's `pad_id` (positions skip padding)"
    received = f"padding_id={padding_id}, a tokenizer whose `pad_id` is {pad_id}"
    source = getattr(encoder, "weights_from", None)
    if source is None:
        raise ValueError(f"{rule}: use config.replace(padding_id={pad_id}). Received: {received}")
    logging.warning(
        "%s: %s in a new model; this one keeps the value that it was trained with: %s",
        *(source, rule, received),
    )
