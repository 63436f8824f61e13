"""BERT's WordPiece tokenizer, in the graph and eager, with tensorflow-text's C++ kernels."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence, Set
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.io.paths import Path
from kbert.tokenizers.arrays import ArrayEncoder, array_encoder, refuse
from kbert.tokenizers.base import ROLES, Pieces, Tokenizer
from kbert.tokenizers.normalization import byte_table, drop_invalid, normalize
from kbert.tokenizers.offsets import given_ranges, original_ranges
from kbert.tokenizers.token_segments import TokenSegments, check_added_tokens
from kbert.tokenizers.wordpiece.characters import CharacterRules, character_rules
from kbert.tokenizers.wordpiece.decoding import join_pieces
from kbert.tokenizers.wordpiece.kernel import (
    CHINESE,
    MAX_WORD_CHARACTERS,
    SPACES,
    WordPieceKernel,
)
from kbert.tokenizers.wordpiece.tokenizer_json import added_entry, tokenizer_json
from kbert.tokenizers.wordpiece.vocab_txt import (
    FAIRSEQ_TOKENS,
    check_vocabulary,
    read_vocabulary,
    save_vocabulary,
    special_tokens,
)
from kbert.tokenizers.wordpiece.without_tensorflow import WordSpacing

# The names of our arguments in Hugging Face's tokenizer_config.json.
CONFIG_KEYS = {
    "lowercase": "do_lower_case",
    "strip_accents": "strip_accents",
    "split_chinese": "tokenize_chinese_chars",
    "max_word_characters": "max_input_chars_per_word",
}


class WordPieceTokenizer(Tokenizer):
    """Splits text into BERT's WordPiece tokens and back.

    It gives the ids of google-research/bert's `FullTokenizer` (Devlin et al. 2019; tokenization.py)
    and works the same eagerly, in `tf.data` and in a SavedModel: it has no lookup table or other
    resource that an export would have to track.

    Args:
        vocabulary: tokens in the order of their ids, or the path of a BERT `vocab.txt`. It must
            contain [PAD], [UNK], [CLS], [SEP] and [MASK]; or begin with <s>, <pad> and </s>, like
            MPNet's, and contain [UNK] and <mask>.
        lowercase: whether to lower-case texts; True for uncased models.
        strip_accents: whether to strip accents; None = the value of `lowercase`, BERT's rule.
        split_chinese: whether every Chinese character is a separate word.
        special_tokens_in_text: whether "[MASK]" in a text becomes the mask id (and so for the other
            four) instead of "[", "mask", "]". Leave it off for untrusted texts.
        added_tokens: tokens that are recognised in every text and not split, such as "<url>" or
            "[E1]". The longest match at a position wins; it need not end at the end of a word.
        normalized_tokens: added tokens that are matched in the normalised text, so that an uncased
            model finds "covid" in "COVID". (Hugging Face's `AddedToken(normalized=True)`, its
            default for a token that is not special.)
        single_word_tokens: added tokens that are recognised only if no letter, digit or underscore
            is next to them, such as AraBERT's "[رابط]". (`AddedToken(single_word=True)`.)
        added_pieces: added tokens that are word pieces too. An uncased model with the added token
            "paris", which is found only in this case, then still has the piece "paris" for "Paris".
        max_word_characters: maximum length of a word; longer words become the unknown token.
            Google's code has 200, Hugging Face's 100 (in its tokenizer.json).

    Differences from Google's code: characters that are missing from one side's Unicode tables
    (Google's code uses those of the running Python). Difference from Hugging Face: for the files
    saved here, it takes every added token for a word piece too, not only `added_pieces`.

    Example:
        >>> tokenizer = WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "flight", "##less", "bird"])
        >>> tokenizer.encode("A flightless BIRD").numpy().tolist()
        [1, 5, 6, 7]
        >>> tokenizer.decode([5, 6, 7])
        'flightless bird'
    """

    kind = "wordpiece"

    def __init__(
        self,
        vocabulary: Sequence[str] | str | os.PathLike,
        lowercase: bool = True,
        *,
        strip_accents: bool | None = None,
        split_chinese: bool = True,
        special_tokens_in_text: bool = False,
        added_tokens: Sequence[str] = (),
        normalized_tokens: Sequence[str] = (),
        single_word_tokens: Sequence[str] = (),
        added_pieces: Sequence[str] = (),
        max_word_characters: int = MAX_WORD_CHARACTERS,
    ) -> None:
        if type(max_word_characters) is not int or max_word_characters < 1:
            raise ValueError(
                "max_word_characters must be an integer of at least 1. "
                f"Received: {max_word_characters!r}"
            )
        if isinstance(vocabulary, str | os.PathLike):
            vocabulary = read_vocabulary(vocabulary)
        else:
            vocabulary = list(vocabulary)
            check_vocabulary(vocabulary)
        tokens = special_tokens(vocabulary)
        super().__init__(vocabulary, dict(zip(ROLES, tokens, strict=True)))
        if tokens == FAIRSEQ_TOKENS:  # <s> A </s></s> B </s>
            self.pair_separators = 2
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self.split_chinese = split_chinese
        self.special_tokens_in_text = special_tokens_in_text
        self.max_word_characters = max_word_characters
        added_set = set(added_tokens)
        check_added_tokens(vocabulary, tokens, added_tokens, (), None)
        token_options = {
            "normalized_tokens": normalized_tokens,
            "single_word_tokens": single_word_tokens,
            "added_pieces": added_pieces,
        }
        for name, chosen in token_options.items():
            if not_added := sorted(set(chosen) - added_set):
                raise ValueError(f"`{name}` must be added tokens. Received: {not_added[0]!r}")
        self.added_tokens = sorted(added_set, key=self._id_of.__getitem__)
        self.normalized_tokens = sorted(set(normalized_tokens), key=self._id_of.__getitem__)
        self.single_word_tokens = sorted(set(single_word_tokens), key=self._id_of.__getitem__)
        self.added_pieces = sorted(set(added_pieces), key=self._id_of.__getitem__)
        # There may be tens of thousands of added tokens; a list would be searched for each.
        self._normalized, self._single_words = set(normalized_tokens), set(single_word_tokens)
        early = added_set.difference(normalized_tokens).union(
            tokens if special_tokens_in_text else ()
        )
        self._in_given = self._segments(early)
        self._in_normal = self._segments(self._normalized)
        # Most added tokens are no word pieces, and kernels refuse an empty piece. The placeholder
        # has punctuation inside, so that no word equals it.
        placeholders = {*added_set.difference(added_pieces), ""}
        self.model_pieces = [
            f"[added{i}]" if piece in placeholders else piece for i, piece in enumerate(vocabulary)
        ]
        self.continuation = np.array([piece.startswith("##") for piece in self.model_pieces])

    @functools.cached_property
    def _kernel(self) -> WordPieceKernel:
        return WordPieceKernel(
            self.model_pieces, self.unk_id, self.split_chinese, self.max_word_characters
        )

    def _array_encoder(self) -> ArrayEncoder:
        """Creates the function of `array_encoder`, which encodes texts without TensorFlow.

        Raises NeedsTensorFlow with `added_tokens` or `special_tokens_in_text`.
        """
        if self.added_tokens or self.special_tokens_in_text:
            raise refuse(self, "added_tokens or special_tokens_in_text")
        stripped = self.lowercase if self.strip_accents is None else self.strip_accents
        import tokenizers  # a slow import

        model = tokenizers.models.WordPiece(
            self._id_of,
            unk_token=self.unk_token,
            max_input_chars_per_word=self.max_word_characters,
        )
        split = tokenizers.pre_tokenizers.WhitespaceSplit()
        words = WordSpacing(bool(self.lowercase), bool(stripped), bool(self.split_chinese))
        return array_encoder(model, split, words)

    def _segments(self, tokens: Set[str]) -> TokenSegments | None:
        """Returns an object that finds `tokens` in texts; None if there is nothing to find.

        Tokens in `normalized_tokens` are normalised, because they are found in normalised texts.
        """
        if not tokens:
            return None
        late = [token for token in tokens if token in self._normalized]
        with tf.init_scope(), tf.device("CPU"):
            normal = self._normalize(tf.constant(late, tf.string)).numpy().tolist()
        normal_forms = dict(zip(late, map(bytes.decode, normal), strict=True))
        ids = {normal_forms.get(token, token): self._id_of[token] for token in tokens}
        ids.pop("", None)  # tokens of accents only normalise to nothing
        if not ids:
            return None
        return TokenSegments(
            ids,
            None,
            SPACES if late else " ",
            single_words={normal_forms.get(t, t) for t in self._single_words & tokens},
            # At this point Hugging Face's normaliser has already put spaces around them.
            alone=CHINESE if late and self.split_chinese else None,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments.

        Added tokens and `max_word_characters` are omitted if they have their defaults: the first
        corpora were prepared without these arguments.
        """
        config = {
            "vocabulary": list(self.vocabulary),
            "lowercase": self.lowercase,
            "strip_accents": self.strip_accents,
            "split_chinese": self.split_chinese,
            "special_tokens_in_text": self.special_tokens_in_text,
        }
        younger: dict[str, Any] = {
            "added_tokens": list(self.added_tokens),
            "normalized_tokens": list(self.normalized_tokens),
            "single_word_tokens": list(self.single_word_tokens),
            "added_pieces": list(self.added_pieces),
        }
        if self.max_word_characters != MAX_WORD_CHARACTERS:
            younger["max_word_characters"] = self.max_word_characters
        return config | {name: value for name, value in younger.items() if value}

    def _options(self) -> dict[str, Any]:
        """Returns this tokenizer's entries of tokenizer_config.json.

        `tokenizer_class` is the class of transformers that splits texts in the same way.
        """
        settings = self.settings
        for name in ("added_tokens", "normalized_tokens", "single_word_tokens"):
            settings.pop(name, None)
        config = {CONFIG_KEYS.get(name, name): value for name, value in settings.items()}
        if self.added_tokens:
            config["added_tokens_decoder"] = {
                str(self._id_of[token]): self._added_entry(token) for token in self.added_tokens
            }
        name = "MPNetTokenizer" if self.pair_separators == 2 else "BertTokenizer"
        return {"tokenizer_class": name, **config}

    def _added_entry(self, token: str) -> dict[str, Any]:
        """Returns the tokenizer.json entry of an added token, without its id."""
        return added_entry(
            token, token in self._normalized, single_word=token in self._single_words
        )

    def tokenizer_json(self) -> bytes:
        """Returns the content of Hugging Face's tokenizer.json, with no tokens around texts."""
        text_specials = self.special_tokens.values() if self.special_tokens_in_text else ()
        return tokenizer_json(
            self.vocabulary,
            unk_token=self.unk_token,
            special_tokens=sorted(text_specials, key=self.token_to_id),
            added_tokens=[self._added_entry(token) for token in self.added_tokens],
            lowercase=self.lowercase,
            strip_accents=self.strip_accents,
            split_chinese=self.split_chinese,
            max_word_characters=self.max_word_characters,
        )

    _file_names = ("vocab.txt",)

    def _save_model(self, folder: Path) -> None:
        save_vocabulary(self.vocabulary, folder / "vocab.txt")

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._pieces(texts, ranges=False)[0]

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        return self._pieces(texts, ranges=True)

    def _pieces(self, texts: tf.Tensor, ranges: bool) -> Pieces:
        """Returns ids, byte ranges and word starts (`Pieces`) of original texts (B,).

        Without `ranges` the byte ranges have no meaning.
        """
        encode = functools.partial(self._normalized_pieces, ranges=ranges)
        if self._in_given is None:
            return encode(texts)
        valid = drop_invalid(texts)
        ids, starts, ends, is_first = self._in_given.encode(valid, encode)
        return ids, *given_ranges(texts, valid, starts, ends), is_first

    def _normalized_pieces(self, texts: tf.Tensor, ranges: bool) -> Pieces:
        """Like `_pieces`, for texts between the tokens that are matched before normalisation."""
        normal = self._normalize(texts)
        if self._in_normal is None:
            pieces = self._plain_pieces(normal)
        else:
            pieces = self._in_normal.encode(normal, self._plain_pieces)
        if not ranges:
            return pieces
        ids, starts, ends, is_first = pieces
        return ids, *original_ranges(texts, starts, ends, self._byte_table), is_first

    def _plain_pieces(self, normal: tf.Tensor) -> Pieces:
        """Like `_pieces`, for normalised texts (B,); finds no added and no special tokens."""
        ids, starts, ends = self._kernel(normal)
        return ids, starts, ends, self._kernel.word_starts(ids)

    def _normalize(self, texts: tf.Tensor) -> tf.Tensor:
        return normalize(texts, lowercase=self.lowercase, strip_accents=self.strip_accents)

    @functools.cached_property
    def _byte_table(self) -> tf.Tensor:
        """Bytes of each code point after normalisation; created when offsets are first needed."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(byte_table(self.lowercase, strip_accents))

    @property
    def character_rules(self) -> CharacterRules:
        """The treatment of each character before words are looked up, for other runtimes."""
        strip_accents = self.lowercase if self.strip_accents is None else self.strip_accents
        return character_rules(self.lowercase, strip_accents, self.split_chinese)

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return join_pieces(ids.with_flat_values(tf.gather(self.vocabulary, ids.flat_values)))
