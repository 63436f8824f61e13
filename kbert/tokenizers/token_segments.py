"""Recognition of added and special tokens in texts; the text between them is encoded as usual.

Shapes: B texts, S segments of all texts together, T tokens found in all texts together, P subwords
of all segments together.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kbert.core.late import tf
from kbert.core.ragged import Ragged
from kbert.tokenizers.arrays import ArrayEncoder, as_text
from kbert.tokenizers.base import Pieces

# White space of Unicode (as in Python and Hugging Face); RE2's \s is ASCII only.
WHITE_SPACE = r"\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
# The same characters as a string; Python counts four more control characters as white space.
_WHITE_SPACE = "".join(
    x for x in map(chr, range(0x3001)) if x.isspace() and not "\x1c" <= x <= "\x1f"
)
# Characters of words: `\w` of Unicode (UTS 18, annex C), as in Hugging Face.
_IN_WORDS = (
    r"[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}"
    r"\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]"
)
# Valid UTF-8 does not contain this byte, and no character class of RE2 matches it.
CUT = b"\xff"


class _Cut(NamedTuple):
    """Segments of texts: text, token, text, …; each text begins and ends with a text segment."""

    rest: tf.Tensor  # (S,) the texts between tokens, "" for a token
    begins: tf.Tensor  # (S,) int32, first byte in the text
    is_token: tf.Tensor  # (S,) bool
    token_ids: tf.Tensor  # (T,) int32
    token_bytes: tf.Tensor  # (T,) int32
    row_splits: tf.Tensor  # (B + 1,) int64, of the segments


class TokenSegments:
    """Finds tokens in texts like the `AddedVocabulary` of Hugging Face's `tokenizers`.

    Matches the leftmost token first, and the longest of several at the same position. Then the
    token `takes_space` absorbs the white space before it.

    Args:
        tokens: token -> id.
        takes_space: token that absorbs the white space before it; None = no such token.
        spaces: regular expression for the characters that a space in a token matches.
        single_words: tokens that count as plain text next to a character of a word.
        alone: regular expression for characters that are separate words; None = no such characters.
    """

    def __init__(
        self,
        tokens: Mapping[str, int],
        takes_space: str | None,
        spaces: str = " ",
        *,
        single_words: Collection[str] = (),
        alone: str | None = None,
    ) -> None:
        longest_first = sorted(tokens, key=lambda token: (-len(token), token))
        self._pattern = "|".join(re.escape(t).replace("\\ ", spaces) for t in longest_first)
        word_tokens = [t for t in longest_first if t in single_words]
        self._single_words = "|".join(re.escape(t).replace("\\ ", spaces) for t in word_tokens)
        self._alone = alone
        self._spaces = spaces
        self._tokens = {token: tokens[token] for token in longest_first}
        self._space_token = takes_space
        self._takes_space = None if takes_space is None else tokens[takes_space]

    @functools.cached_property
    def _by_hash(self) -> tuple[np.ndarray, np.ndarray]:
        """Sorted fingerprints of the tokens, (n,) int64, and the ids in that order, (n,) int32."""
        with tf.init_scope(), tf.device("CPU"):
            hashes = fingerprints(tf.constant(list(self._tokens))).numpy()
        order = np.argsort(hashes)
        return hashes[order], np.array(list(self._tokens.values()), np.int32)[order]

    def around(self, encode_rest: ArrayEncoder) -> ArrayEncoder:
        """Returns an encoder without TensorFlow that also recognises the tokens.

        It supports neither `spaces` nor `single_words`.

        Args:
            encode_rest: encoder of the texts between tokens.
        """
        pattern = re.compile(f"({'|'.join(map(re.escape, self._tokens))})")

        def encode(texts: Sequence[str | bytes]) -> Ragged:
            cut = [pattern.split(as_text(text)) for text in texts]  # text, token, text, …
            for parts in cut:
                for index in range(1, len(parts), 2):
                    if parts[index] == self._space_token:
                        parts[index - 1] = parts[index - 1].rstrip(_WHITE_SPACE)
            between = iter(encode_rest([text for parts in cut for text in parts[::2]]))
            rows = []
            for parts in cut:
                row = [next(between)]
                for token in parts[1::2]:
                    row += [np.array([self._tokens[token]], np.int32), next(between)]
                rows.append(np.concatenate(row))
            return Ragged.of(rows)

        return encode

    def encode(self, texts: tf.Tensor, encode_rest: Callable[[tf.Tensor], Pieces]) -> Pieces:
        """Returns ids, byte ranges and word starts of texts, including the tokens found in them.

        Args:
            texts: (B,) valid UTF-8.
            encode_rest: encoder of the texts between tokens; "" must give no subwords. It is
                called once, so that the graph contains its model once.
        """
        # Most batches contain no token.
        has_tokens = tf.reduce_any(
            tf.strings.regex_full_match(texts, rf"(?s).*?({self._pattern}).*")
        )
        cut = tf.cond(has_tokens, lambda: self._cut(texts), lambda: _uncut(texts))
        pieces = encode_rest(cut.rest)
        return tf.cond(has_tokens, lambda: _joined(pieces, cut), lambda: pieces)

    def _cut(self, texts: tf.Tensor) -> _Cut:
        """Splits texts (B,) at the tokens in them."""
        segments = split_at(texts, self._pattern)
        if self._single_words:
            segments = self._with_parts_of_words_as_text(segments)
        flat = segments.flat_values
        is_token = _index_in_row(segments) % 2 == 1
        tokens = tf.boolean_mask(flat, is_token)
        plain_tokens = tf.strings.regex_replace(tokens, self._spaces, " ")
        hashes, ids = self._by_hash
        token_ids = tf.gather(ids, tf.searchsorted(hashes, fingerprints(plain_tokens)))
        text_segments = tf.where(is_token, "", flat)
        num_bytes = tf.strings.length(flat)
        if self._takes_space is not None:
            # There is a text segment before every token, if only an empty one.
            token_index = tf.boolean_mask(tf.where(is_token), token_ids == self._takes_space)
            text_before = tf.gather_nd(text_segments, token_index - 1)
            bare = tf.strings.regex_replace(text_before, f"[{WHITE_SPACE}]+$", "")
            num_spaces = tf.strings.length(text_before) - tf.strings.length(bare)
            text_segments = tf.tensor_scatter_nd_update(text_segments, token_index - 1, bare)
            num_bytes = tf.tensor_scatter_nd_add(num_bytes, token_index, num_spaces)
            num_bytes = tf.tensor_scatter_nd_sub(num_bytes, token_index - 1, num_spaces)
        text_starts = tf.cumsum(tf.strings.length(texts), exclusive=True)
        begins = tf.cumsum(num_bytes, exclusive=True)
        begins -= tf.repeat(text_starts, segments.row_lengths())
        token_bytes = tf.boolean_mask(num_bytes, is_token)
        return _Cut(text_segments, begins, is_token, token_ids, token_bytes, segments.row_splits)

    def _with_parts_of_words_as_text(self, segments: tf.RaggedTensor) -> tf.RaggedTensor:
        """Joins tokens of `single_words` to the text around them where they are part of a word.

        Args:
            segments: (B, None) text, token, text, …, with text first and last. The result has the
                same form.
        """
        flat, index = segments.flat_values, _index_in_row(segments)
        to_end = tf.repeat(segments.row_lengths(), segments.row_lengths()) - 1 - index
        # An empty text between two tokens has no characters: those of the next token count.
        text_before = tf.where(index >= 3, tf.roll(flat, 2, 0), "") + tf.roll(flat, 1, 0)
        text_after = tf.roll(flat, -1, 0) + tf.where(to_end >= 3, tf.roll(flat, -2, 0), "")
        touches = self._is_in_word(text_before, "(?s).*{}") | self._is_in_word(
            text_after, "(?s){}.*"
        )
        single = tf.strings.regex_full_match(flat, self._single_words)
        is_token = (index % 2 == 1) & ~(single & touches)
        begins = is_token | tf.roll(is_token, 1, 0) | (index == 0)
        num_begins = tf.cumsum(tf.pad(tf.cast(begins, tf.int64), [[1, 0]]))  # (S + 1,)
        joined = tf.strings.unsorted_segment_join(flat, num_begins[1:] - 1, num_begins[-1])
        row_splits = tf.gather(num_begins, segments.row_splits)
        return tf.RaggedTensor.from_row_splits(joined, row_splits, validate=False)

    def _is_in_word(self, texts: tf.Tensor, place: str) -> tf.Tensor:
        """Whether a character of each text (N,) is part of a word, and not one of `alone`: (N,).

        `place` is a regular expression for the whole text, with "{}" for that character.
        """
        is_in_word = tf.strings.regex_full_match(texts, place.format(_IN_WORDS))
        if self._alone is None:
            return is_in_word
        return is_in_word & ~tf.strings.regex_full_match(texts, place.format(self._alone))


def _index_in_row(rows: tf.RaggedTensor) -> tf.Tensor:
    """Returns the index of every value in its row, (S,) int64."""
    starts = tf.repeat(rows.row_starts(), rows.row_lengths())
    return tf.range(tf.size(rows.flat_values, tf.int64)) - starts


def _uncut(texts: tf.Tensor) -> _Cut:
    no_bytes = tf.zeros_like(texts, tf.int32)
    none = tf.zeros([0], tf.int32)
    is_token = tf.zeros_like(texts, tf.bool)
    return _Cut(texts, no_bytes, is_token, none, none, tf.range(tf.size(texts, tf.int64) + 1))


def _joined(pieces: Pieces, cut: _Cut) -> Pieces:
    """Returns the `Pieces` of texts from those of their segments and from the tokens found.

    `pieces` are the ids, byte ranges and word starts of the S segments, which are empty for tokens.
    """
    ids, starts, ends, is_first = pieces
    is_token = tf.cast(cut.is_token, tf.int64)
    tokens_before = tf.cumsum(tf.concat([[0], is_token], 0))  # (S + 1,) tokens before each segment
    row_splits = tf.gather(ids.row_splits + tokens_before, cut.row_splits)
    slots = tf.boolean_mask(ids.row_starts() + tokens_before[:-1], cut.is_token)[:, None]  # (T, 1)
    num_pieces, num_tokens = tf.size(ids.flat_values), tf.size(cut.token_ids)
    of_text = tf.ones([num_pieces + num_tokens], tf.int32)
    of_text = tf.tensor_scatter_nd_update(of_text, slots, tf.zeros_like(cut.token_ids))
    # Index of each result in the concatenation of subwords and found tokens.
    index = tf.tensor_scatter_nd_update(
        tf.cumsum(of_text) - 1, slots, num_pieces + tf.range(num_tokens)
    )

    def joined(of_text: tf.Tensor, of_tokens: tf.Tensor) -> tf.Tensor:
        return tf.gather(tf.concat([of_text, of_tokens], 0), index)

    shift = tf.gather(cut.begins, ids.value_rowids())
    begins = tf.boolean_mask(cut.begins, cut.is_token)
    ids = tf.RaggedTensor.from_row_splits(
        joined(ids.flat_values, cut.token_ids), row_splits, validate=False
    )
    return (
        ids,
        ids.with_flat_values(joined(starts.flat_values + shift, begins)),
        ids.with_flat_values(joined(ends.flat_values + shift, begins + cut.token_bytes)),
        joined(is_first, tf.ones_like(begins, tf.bool)),
    )


def split_at(texts: tf.Tensor, pattern: str) -> tf.RaggedTensor:
    """Splits texts (B,), valid UTF-8, into parts (B, None): text, match of `pattern`, text, ….

    Nothing is dropped. Each text gives an odd number of strings; the texts between matches may be
    empty. tensorflow-text's `regex_split` loses texts with U+0000.

    Example:
        >>> import tensorflow as tf
        >>> split_at(tf.constant(["a <s> b<s>"]), "<s>").to_list()
        [[b'a ', b'<s>', b' b', b'<s>', b'']]
    """
    return tf.strings.split(tf.strings.regex_replace(texts, pattern, CUT + rb"\0" + CUT), CUT)


def fingerprints(words: tf.Tensor) -> tf.Tensor:
    """Returns a hash of each string in `words`, int64 of the same shape; not negative."""
    return tf.strings.to_hash_bucket_fast(words, 2**62)


def check_added_tokens(
    vocabulary: Sequence[str],
    special_tokens: Collection[str],
    added_tokens: Collection[str],
    normalized_tokens: Collection[str] | None,
    normalization: str | None,
) -> None:
    """Checks a tokenizer's arguments for tokens that are found in texts.

    Raises ValueError if an added token is empty, not in the vocabulary, or also special. It also
    raises if a token of `normalized_tokens` is neither added nor special, or if there are
    `normalized_tokens` but neither added tokens nor a normalization.
    """
    known_tokens = set(vocabulary) - {""}
    for token in added_tokens:
        if token not in known_tokens:
            raise ValueError(
                f"Added tokens must be tokens of the vocabulary, and not empty. Received: {token!r}"
            )
        if token in special_tokens:
            raise ValueError(
                "A token must be either special or added: special tokens are found in texts only "
                f"with `special_tokens_in_text`, added tokens always. Received: {token!r} as both"
            )
    if normalized_tokens and not added_tokens and normalization is None:
        raise ValueError(
            "`normalized_tokens` require a normalization or added tokens. Received: "
            f"{list(normalized_tokens)} without either"
        )
    findable = {*special_tokens, *added_tokens}
    for token in normalized_tokens or ():
        if token not in findable:
            raise ValueError(
                f"`normalized_tokens` must be added or special tokens. Received: {token!r}"
            )
