"""Tokenizers: text to ids and back, and the training of vocabularies."""

from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe import BytePairTokenizer
from kbert.tokenizers.characters import CharacterTokenizer, character_ids
from kbert.tokenizers.loading import load_tokenizer
from kbert.tokenizers.normalization import normalize
from kbert.tokenizers.training import train_wordpiece
from kbert.tokenizers.training_bpe import train_byte_pair
from kbert.tokenizers.training_kinds import KINDS, train_tokenizer
from kbert.tokenizers.training_unigram import train_unigram
from kbert.tokenizers.training_words import train_words
from kbert.tokenizers.unigram import UnigramTokenizer
from kbert.tokenizers.vocabulary import SPECIAL_TOKENS, read_vocabulary, save_vocabulary
from kbert.tokenizers.wordpiece import WordPieceTokenizer
from kbert.tokenizers.words import WordTokenizer

__all__ = [
    "KINDS",
    "SPECIAL_TOKENS",
    "BytePairTokenizer",
    "CharacterTokenizer",
    "Tokenizer",
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
