"""Tokens that are written in texts: found, and the rest encoded around them.

Shapes: B texts, S segments of all texts together, T tokens found in all texts together, P pieces of
all segments together.
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

# White space as Unicode has it (and so Python and Hugging Face); RE2's \s is ASCII's.
WHITE_SPACE = r"\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000}"
# Its characters; Python takes four controls more for white space.
_WHITE_SPACE = "".join(
    x for x in map(chr, range(0x3001)) if x.isspace() and not "\x1c" <= x <= "\x1f"
)
# Characters of words: `\w` as Unicode has it (UTS 18, annex C), and so Hugging Face.
_IN_WORDS = (
    r"[\p{L}\p{M}\p{Nd}\p{Nl}\p{Pc}\x{200C}\x{200D}\x{24B6}-\x{24E9}"
    r"\x{1F130}-\x{1F149}\x{1F150}-\x{1F169}\x{1F170}-\x{1F189}]"
)
# No valid UTF-8 holds this byte, and no class of RE2's matches it.
CUT = b"\xff"


class _Cut(NamedTuple):
    """Texts in segments; each text's are text, token, text, … and begin and end with text."""

    rest: tf.Tensor  # (S,) the texts between tokens, "" in the place of a token
    begins: tf.Tensor  # (S,) int32, first byte in the text
    is_token: tf.Tensor  # (S,) bool
    token_ids: tf.Tensor  # (T,) int32
    token_bytes: tf.Tensor  # (T,) int32
    row_splits: tf.Tensor  # (B + 1,) int64, of the segments


class TokenSegments:
    """Finds tokens in texts as the `AddedVocabulary` of Hugging Face's `tokenizers` does.

    The leftmost is found first, of those that begin at one place the longest. Then white space
    goes to the token that takes it.

    Args:
        tokens: token -> id.
        takes_space: the token that takes the white space before it, None for none.
        spaces: a pattern of characters for each of which a space in a token stands.
        single_words: those of the tokens that are text where a character of a word is beside them.
        alone: a pattern of characters that are words by themselves.
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
        whole = [t for t in longest_first if t in single_words]
        self._single_words = "|".join(re.escape(t).replace("\\ ", spaces) for t in whole)
        self._alone = alone
        self._spaces = spaces
        self._tokens = {token: tokens[token] for token in longest_first}
        self._space_token = takes_space
        self._takes_space = None if takes_space is None else tokens[takes_space]

    @functools.cached_property
    def _by_hash(self) -> tuple[np.ndarray, np.ndarray]:
        """Fingerprints of the tokens in order, (n,) int64, and their ids, (n,) int32."""
        with tf.init_scope(), tf.device("CPU"):
            found = fingerprints(tf.constant(list(self._tokens))).numpy()
        order = np.argsort(found)
        return found[order], np.array(list(self._tokens.values()), np.int32)[order]

    def around(self, encode_rest: ArrayEncoder) -> ArrayEncoder:
        """What gives the ids of texts without TensorFlow, those of the tokens among them.

        It knows neither other spaces in tokens nor single words.

        Args:
            encode_rest: gives the ids of the texts between tokens.
        """
        pattern = re.compile(f"({'|'.join(map(re.escape, self._tokens))})")

        def encode(texts: Sequence[str | bytes]) -> Ragged:
            cut = [pattern.split(as_text(text)) for text in texts]  # in turn text and token
            for parts in cut:
                for place in range(1, len(parts), 2):
                    if parts[place] == self._space_token:
                        parts[place - 1] = parts[place - 1].rstrip(_WHITE_SPACE)
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
        """Pieces of texts, the tokens that are found among them.

        Args:
            texts: (B,) valid UTF-8.
            encode_rest: gives the pieces of texts, "" none. It is called once, so that the graph
                holds its model once.
        """
        # Most batches have no token.
        found = tf.reduce_any(tf.strings.regex_full_match(texts, rf"(?s).*?({self._pattern}).*"))
        cut = tf.cond(found, lambda: self._cut(texts), lambda: _uncut(texts))
        pieces = encode_rest(cut.rest)
        return tf.cond(found, lambda: _joined(pieces, cut), lambda: pieces)

    def _cut(self, texts: tf.Tensor) -> _Cut:
        segments = split_at(texts, self._pattern)
        if self._single_words:
            segments = self._with_parts_of_words_as_text(segments)
        flat = segments.flat_values
        is_token = _index_in_row(segments) % 2 == 1
        tokens = tf.boolean_mask(flat, is_token)
        written = tf.strings.regex_replace(tokens, self._spaces, " ")
        hashes, ids = self._by_hash
        token_ids = tf.gather(ids, tf.searchsorted(hashes, fingerprints(written)))
        rest = tf.where(is_token, "", flat)
        num_bytes = tf.strings.length(flat)
        if self._takes_space is not None:
            # A token has a text before it, if an empty one.
            place = tf.boolean_mask(tf.where(is_token), token_ids == self._takes_space)
            before = tf.gather_nd(rest, place - 1)
            bare = tf.strings.regex_replace(before, f"[{WHITE_SPACE}]+$", "")
            taken = tf.strings.length(before) - tf.strings.length(bare)
            rest = tf.tensor_scatter_nd_update(rest, place - 1, bare)
            num_bytes = tf.tensor_scatter_nd_add(num_bytes, place, taken)
            num_bytes = tf.tensor_scatter_nd_sub(num_bytes, place - 1, taken)
        text_starts = tf.cumsum(tf.strings.length(texts), exclusive=True)
        begins = tf.cumsum(num_bytes, exclusive=True)
        begins -= tf.repeat(text_starts, segments.row_lengths())
        token_bytes = tf.boolean_mask(num_bytes, is_token)
        return _Cut(rest, begins, is_token, token_ids, token_bytes, segments.row_splits)

    def _with_parts_of_words_as_text(self, segments: tf.RaggedTensor) -> tf.RaggedTensor:
        """Segments with those tokens joined to the text around them that must be words and are not.

        Args:
            segments: (B, None) in turn text and token, text first and last.
        """
        flat, index = segments.flat_values, _index_in_row(segments)
        to_end = tf.repeat(segments.row_lengths(), segments.row_lengths()) - 1 - index
        # An empty text between two tokens has no characters: the next token's count.
        before = tf.where(index >= 3, tf.roll(flat, 2, 0), "") + tf.roll(flat, 1, 0)
        after = tf.roll(flat, -1, 0) + tf.where(to_end >= 3, tf.roll(flat, -2, 0), "")
        touches = self._is_in_word(before, "(?s).*{}") | self._is_in_word(after, "(?s){}.*")
        single = tf.strings.regex_full_match(flat, self._single_words)
        is_token = (index % 2 == 1) & ~(single & touches)
        begins = is_token | tf.roll(is_token, 1, 0) | (index == 0)
        num_begins = tf.cumsum(tf.pad(tf.cast(begins, tf.int64), [[1, 0]]))  # (S + 1,)
        joined = tf.strings.unsorted_segment_join(flat, num_begins[1:] - 1, num_begins[-1])
        row_splits = tf.gather(num_begins, segments.row_splits)
        return tf.RaggedTensor.from_row_splits(joined, row_splits, validate=False)

    def _is_in_word(self, texts: tf.Tensor, place: str) -> tf.Tensor:
        """Whether the character at one end of a text is of a word that others are in too."""
        found = tf.strings.regex_full_match(texts, place.format(_IN_WORDS))
        if self._alone is None:
            return found
        return found & ~tf.strings.regex_full_match(texts, place.format(self._alone))


def _index_in_row(rows: tf.RaggedTensor) -> tf.Tensor:
    """(S,) int64, the place of every value in its row."""
    starts = tf.repeat(rows.row_starts(), rows.row_lengths())
    return tf.range(tf.size(rows.flat_values, tf.int64)) - starts


def _uncut(texts: tf.Tensor) -> _Cut:
    no_bytes = tf.zeros_like(texts, tf.int32)
    none = tf.zeros([0], tf.int32)
    is_token = tf.zeros_like(texts, tf.bool)
    return _Cut(texts, no_bytes, is_token, none, none, tf.range(tf.size(texts, tf.int64) + 1))


def _joined(pieces: Pieces, cut: _Cut) -> Pieces:
    """Pieces of texts from those of their segments, whose tokens have none yet."""
    ids, starts, ends, is_first = pieces
    is_token = tf.cast(cut.is_token, tf.int64)
    before = tf.cumsum(tf.concat([[0], is_token], 0))  # (S + 1,) tokens before each segment
    row_splits = tf.gather(ids.row_splits + before, cut.row_splits)
    places = tf.boolean_mask(ids.row_starts() + before[:-1], cut.is_token)[:, None]  # (T, 1)
    num_pieces, num_tokens = tf.size(ids.flat_values), tf.size(cut.token_ids)
    of_text = tf.ones([num_pieces + num_tokens], tf.int32)
    of_text = tf.tensor_scatter_nd_update(of_text, places, tf.zeros_like(cut.token_ids))
    # Where in the pieces, behind which are the tokens, each of the result is.
    index = tf.tensor_scatter_nd_update(
        tf.cumsum(of_text) - 1, places, num_pieces + tf.range(num_tokens)
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
    """(B,) valid UTF-8 -> (B, None) in turn what is between matches of a pattern, and a match.

    It is all of the text; an odd number of strings a text, those between perhaps empty.
    tensorflow-text's `regex_split` loses texts with U+0000.

    Example:
        >>> import tensorflow as tf
        >>> split_at(tf.constant(["a <s> b<s>"]), "<s>").to_list()
        [[b'a ', b'<s>', b' b', b'<s>', b'']]
    """
    return tf.strings.split(tf.strings.regex_replace(texts, pattern, CUT + rb"\0" + CUT), CUT)


def fingerprints(words: tf.Tensor) -> tf.Tensor:
    """Numbers to find strings by, int64 of the same shape."""
    return tf.strings.to_hash_bucket_fast(words, 2**62)


def check_added_tokens(
    vocabulary: Sequence[str],
    special_tokens: Collection[str],
    added_tokens: Collection[str],
    normalized_tokens: Collection[str] | None,
    normalization: str | None,
) -> None:
    """Raises where tokens that are found in texts do not fit the vocabulary or each other."""
    known = set(vocabulary) - {""}
    for token in added_tokens:
        if token not in known:
            raise ValueError(
                f"Added tokens must be pieces of the vocabulary, and not empty. Received: {token!r}"
            )
        if token in special_tokens:
            raise ValueError(
                "A token is special or added: the one is found in texts where "
                f"`special_tokens_in_text` says so, the other always. Received: {token!r} as both"
            )
    if normalized_tokens and not added_tokens and normalization is None:
        raise ValueError(
            "`normalized_tokens` are for a normalization or added tokens: else all tokens are "
            f"found at once. Received: {list(normalized_tokens)} without either"
        )
    found = {*special_tokens, *added_tokens}
    for token in normalized_tokens or ():
        if token not in found:
            raise ValueError(
                f"`normalized_tokens` must be added or special tokens. Received: {token!r}"
            )
