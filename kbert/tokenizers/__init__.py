"""Tokenizers: text to ids and back, and the training of vocabularies."""

from typing import TYPE_CHECKING

from kbert.core import late

if TYPE_CHECKING:
    from kbert.core.protocols import TokenizerLike as TokenizerLike
    from kbert.tokenizers.base import Tokenizer as Tokenizer
    from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer as BytePairTokenizer
    from kbert.tokenizers.bpe.training import train_byte_pair as train_byte_pair
    from kbert.tokenizers.gpt.tokenizer import GptTokenizer as GptTokenizer
    from kbert.tokenizers.kinds import KINDS as KINDS
    from kbert.tokenizers.loading import load_tokenizer as load_tokenizer
    from kbert.tokenizers.marian.tokenizer import MarianTokenizer as MarianTokenizer
    from kbert.tokenizers.normalization import normalize as normalize
    from kbert.tokenizers.training import train_tokenizer as train_tokenizer
    from kbert.tokenizers.unigram.tokenizer import UnigramTokenizer as UnigramTokenizer
    from kbert.tokenizers.unigram.training import train_unigram as train_unigram
    from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer as WordPieceTokenizer
    from kbert.tokenizers.wordpiece.training import train_wordpiece as train_wordpiece
    from kbert.tokenizers.wordpiece.vocab_txt import (
        SPECIAL_TOKENS as SPECIAL_TOKENS,
        read_vocabulary as read_vocabulary,
        save_vocabulary as save_vocabulary,
    )
    from kbert.tokenizers.words.characters import (
        CharacterTokenizer as CharacterTokenizer,
        character_ids as character_ids,
    )
    from kbert.tokenizers.words.tokenizer import WordTokenizer as WordTokenizer
    from kbert.tokenizers.words.training import train_words as train_words
else:
    __getattr__, __dir__, __all__ = late.public_names(__name__)
