"""The entry of a published model in the family's tables."""

import dataclasses

from kbert.configs.decoder import DecoderConfig
from kbert.configs.elmo import ElmoConfig
from kbert.configs.encoder import EncoderConfig
from kbert.configs.seq2seq import Seq2SeqConfig


@dataclasses.dataclass(frozen=True)
class Row:
    """Table entry of a published model.

    Attributes:
        config: config of an encoder, of ELMo's language model, of a decoder, or of an
            encoder-decoder.
        tokenizer: kind of the model's tokenizer: "wordpiece", "bpe", "unigram" or "words"; None if
            unknown.
        unused_rows: rows of the published embedding tables that carry no information and that a
            kbert model does not have. RoBERTa has 2: a position before that of padding, and a
            token-type row that is the same for every token. BART has 2 positions on each side.
    """

    config: EncoderConfig | ElmoConfig | DecoderConfig | Seq2SeqConfig
    tokenizer: str | None = "wordpiece"
    unused_rows: int = 0
