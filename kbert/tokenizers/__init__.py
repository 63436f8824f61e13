"""Tokenizers: text to ids and back, and the training of vocabularies."""

from kbert.core.protocols import TokenizerLike
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer
from kbert.tokenizers.bpe.training import train_byte_pair
from kbert.tokenizers.gpt.tokenizer import GptTokenizer
from kbert.tokenizers.loading import load_tokenizer
from kbert.tokenizers.normalization import normalize
from kbert.tokenizers.training import KINDS, train_tokenizer
from kbert.tokenizers.unigram.tokenizer import UnigramTokenizer
from kbert.tokenizers.unigram.training import train_unigram
from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer
from kbert.tokenizers.wordpiece.training import train_wordpiece
from kbert.tokenizers.wordpiece.vocab_txt import SPECIAL_TOKENS, read_vocabulary, save_vocabulary
from kbert.tokenizers.words.characters import CharacterTokenizer, character_ids
from kbert.tokenizers.words.tokenizer import WordTokenizer
from kbert.tokenizers.words.training import train_words

__all__ = [
    "KINDS",
    "SPECIAL_TOKENS",
    "BytePairTokenizer",
    "CharacterTokenizer",
    "GptTokenizer",
    "Tokenizer",
    "TokenizerLike",
    "UnigramTokenizer",
    "WordPieceTokenizer",
    "WordTokenizer",
    "character_ids",
    "load_tokenizer",
    "normalize",
    "read_vocabulary",
    "save_vocabulary",
    "train_byte_pair",
    "train_tokenizer",
    "train_unigram",
    "train_wordpiece",
    "train_words",
]
