"""SentencePiece's unigram splitting in the graph, with byte ranges.

Ids come from tensorflow-text's FastSentencepieceTokenizer, which has no resource. It gives neither
ranges nor the bytes of unknown characters. These come from a second model with the same
normalisation, which splits into characters and gives their ranges. Pieces are runs of characters,
and the length of each known piece is known. An unknown piece is a maximal run of characters that
the model does not know.

Shapes: B texts, P pieces of all texts together, C characters of all normalised texts together,
S signs of all texts together (a known character, or a byte of an unknown one), V pieces of the
kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from kbert.core.late import tf
from kbert.tokenizers import text_ops
from kbert.tokenizers.unigram.model import (
    SPACE,
    UNKNOWN,
    byte_ids,
    character_model,
    encoder_model,
)

# Ids of the character model: the unknown piece, 256 bytes, characters.
_FIRST_BYTE, _FIRST_CHARACTER = 1, 257
_SINGLE_BYTES = [bytes([byte]) for byte in range(256)]
# SentencePiece's rules that leave "\t", "\n", "\r" and its sign of a space as they are.
_KEEPING_RULES = ("identity", "nfkc", "nfkc_cf")


class Characters(NamedTuple):
    """The characters of a batch of normalised texts, concatenated.

    Attributes:
        rows: (C,) index of each character's text.
        starts: (C,) first byte of each character in the prepared text.
        ends: (C,) byte after the last byte of each character. Characters that were one character
            before normalisation all have its range.
        is_space: (C,) whether the character is a space.
        is_unknown: (C,) whether the character is not a piece.
        signs: (S,) ids of the character model.
        first_signs: (C + 1,) index of each character's first sign; the last entry is S.
    """

    rows: tf.Tensor
    starts: tf.Tensor
    ends: tf.Tensor
    is_space: tf.Tensor
    is_unknown: tf.Tensor
    signs: tf.Tensor
    first_signs: tf.Tensor


class UnigramKernel:
    """Splits prepared texts, from `TextPreparation`, into pieces.

    A model with byte_fallback has a piece for each byte of an unknown character.

    Args:
        proto: the `ModelProto` of the model.
        stand_ins: characters that are always pieces, with a space before and after them; their ids
            follow those of the model.
        split_commas: whether to split a piece that ends in a digit and a comma before the comma, as
            `encode_pieces` of XLNet and ALBERT does.

    Attributes:
        begins_word: (V,) bool, whether the piece begins with a space.
    """

    def __init__(self, proto: Any, stand_ins: Sequence[str], split_commas: bool) -> None:
        self._proto = proto
        self._stand_ins = list(stand_ins)
        words = [SPACE + character for character in stand_ins]
        pieces = [piece.piece for piece in proto.pieces] + words
        rules = proto.normalizer_spec
        self._replaces_spaces = rules.name in _KEEPING_RULES and rules.remove_extra_whitespaces
        self._unk_id = next(i for i, p in enumerate(proto.pieces) if p.type == UNKNOWN)
        model = text_ops.fast_model(encoder_model(proto, words))
        # Eager constants, so that every graph that uses them can contain them.
        with tf.init_scope(), tf.device("CPU"):
            self._model = tf.constant(model)
            self.begins_word = tf.constant([piece.startswith(SPACE) for piece in pieces])
            self._lengths = tf.constant([len(piece) for piece in pieces], tf.int32)
            self._parts: Any = self._make_parts(pieces) if split_commas else None
            fallback = byte_ids(proto)
            self._byte_ids = tf.constant(fallback, tf.int32) if fallback else None

    def __call__(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """Splits prepared texts (B,) into ids (B, None) int32 of the model."""
        ids = self._whole(texts)
        if self._byte_ids is not None:
            return self._with_bytes(texts, ids)
        if self._parts is None:
            return ids

        def split() -> tuple[tf.Tensor, tf.Tensor]:
            parts = ids.with_values(tf.gather(self._parts[0], ids.values)).merge_dims(1, 2)
            return parts.values, parts.row_splits

        return _if_any(tf.gather(self._is_split, ids.values), split, ids)

    def with_ranges(
        self,
        texts: tf.Tensor,
        to_original: Callable[[tf.RaggedTensor, tf.RaggedTensor], tuple],
    ) -> tuple[tf.RaggedTensor, ...]:
        """Returns ids, and the range of each piece without the spaces around it.

        Args:
            texts: (B,) prepared texts.
            to_original: function from byte ranges in `texts` to ranges in the original texts.

        Returns:
            Ids, starts and ends, int32 RaggedTensors (B, None). A piece of spaces only has an empty
            range at the start of the next piece.
        """
        characters = self._characters(texts)
        ids = self._whole(texts)
        lengths = self._lengths_of(ids, characters)
        if self._parts is not None:
            is_unknown = ids.values == self._unk_id
            part_ids, part_lengths = (tf.gather(table, ids.values) for table in self._parts)
            counts = part_ids.row_lengths()
            lengths = tf.where(
                tf.repeat(is_unknown, counts), tf.repeat(lengths, counts), part_lengths.values
            )
            ids = ids.with_values(part_ids).merge_dims(1, 2)
        last = tf.cumsum(lengths)
        first = last - lengths
        if self._byte_ids is not None:
            ids, first, last = self._spelled(ids, first, last, characters)
        starts, ends = _ranges(ids, first, last, characters, to_original)
        return ids, ids.with_values(starts), ids.with_values(ends)

    def unknown_texts(self, texts: tf.Tensor, ids: tf.RaggedTensor) -> tf.Tensor:
        """Returns the normalised text of each unknown piece in the ids (B, None) of texts (B,).

        There are N of them, (N,) strings, in the order of `ids`.
        """
        characters = self._characters(texts)
        last = tf.cumsum(self._lengths_of(ids, characters))
        first = tf.concat([[0], last[:-1]], 0)
        is_unknown = ids.values == self._unk_id
        signs = tf.ragged.range(
            *(
                tf.gather(characters.first_signs, tf.boolean_mask(x, is_unknown))
                for x in (first, last)
            )
        )
        byte = tf.gather(characters.signs, signs.values) - _FIRST_BYTE
        return tf.strings.reduce_join(signs.with_values(tf.gather(_SINGLE_BYTES, byte)), 1)

    @cached_property
    def _character_model(self) -> tuple[bytes, int]:
        """The model that splits into characters, and the id of its space; created on first use."""
        model, characters = character_model(self._proto, self._stand_ins)
        return model, _FIRST_CHARACTER + characters.index(SPACE)

    def _spaced(self, texts: tf.Tensor) -> tf.Tensor:
        """Replaces what the fast kernel takes for a space, as most models' rules do, byte by byte.

        Otherwise the character model would keep these characters, and the two would disagree.
        """
        if not self._replaces_spaces:
            return texts
        texts = tf.strings.regex_replace(texts, r"[\t\n\r]", " ")
        return tf.strings.regex_replace(texts, SPACE, " " * len(SPACE.encode()))

    def _whole(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return text_ops.fast_sentencepiece(self._model, self._spaced(texts))

    def _with_bytes(self, texts: tf.Tensor, ids: tf.RaggedTensor) -> tf.RaggedTensor:
        """Replaces unknown pieces in the ids (B, None) of texts (B,) by the ids of their bytes."""
        is_unknown = ids.values == self._unk_id

        def spelled() -> tuple[tf.Tensor, tf.Tensor]:
            changed = tf.reduce_any(ids.with_values(is_unknown), 1)  # (B,)
            rows = tf.ragged.boolean_mask(ids, changed)
            characters = self._characters(tf.boolean_mask(texts, changed))
            lengths = self._lengths_of(rows, characters)
            last = tf.cumsum(lengths)
            rows, *_ = self._spelled(rows, last - lengths, last, characters)
            number = tf.cumsum(tf.cast(changed, tf.int64)) - 1
            row_index = tf.where(changed, ids.nrows() + number, tf.range(ids.nrows()))
            result = tf.gather(tf.concat([ids, rows], 0), row_index)
            return result.values, result.row_splits

        return _if_any(is_unknown, spelled, ids)

    def _lengths_of(self, ids: tf.RaggedTensor, characters: Characters) -> tf.Tensor:
        """Returns the number of characters of each piece in `ids` (B, None), as (P,) int32.

        `characters` are those of the same texts. Raises InvalidArgumentError if the pieces do not
        cover them.
        """
        is_unknown = ids.values == self._unk_id
        lengths = tf.where(
            is_unknown,
            _unknown_lengths(characters, is_unknown),
            tf.gather(self._lengths, ids.values),
        )
        _check_lengths(ids, lengths, characters.rows)
        return lengths

    def _spelled(
        self, ids: tf.RaggedTensor, first: tf.Tensor, last: tf.Tensor, characters: Characters
    ) -> tuple[tf.RaggedTensor, tf.Tensor, tf.Tensor]:
        """Splits unknown pieces into one piece per byte; returns the new ids, `first` and `last`.

        Args:
            ids: (B, None) pieces; each run of unknown characters is one piece.
            first: (P,) index of the first character of each piece.
            last: (P,) index of the character after each piece.
            characters: the characters of the same texts.
        """
        is_unknown = ids.values == self._unk_id
        begins = tf.gather(characters.first_signs, first)
        sizes = tf.gather(characters.first_signs, last) - begins
        counts = tf.where(is_unknown, sizes, 1)  # (P,)
        pieces_before = tf.concat([[0], tf.cumsum(counts)], 0)  # (P + 1,)
        within = tf.range(pieces_before[-1]) - tf.repeat(pieces_before[:-1], counts)
        is_byte, sign, first, last = (
            tf.repeat(column, counts) for column in (is_unknown, begins, first, last)
        )
        sign = tf.where(is_byte, sign + within, 0)
        byte = tf.gather(tf.pad(characters.signs, [[0, 1]]), sign) - _FIRST_BYTE
        character = tf.searchsorted(characters.first_signs, sign, side="right") - 1
        values = tf.where(
            is_byte,
            tf.gather(self._byte_ids, tf.clip_by_value(byte, 0, 255)),
            tf.repeat(ids.values, counts),
        )
        row_splits = tf.cast(tf.gather(pieces_before, ids.row_splits), tf.int64)
        return (
            tf.RaggedTensor.from_row_splits(values, row_splits, validate=False),
            tf.where(is_byte, character, first),
            tf.where(is_byte, character + 1, last),
        )

    def _characters(self, texts: tf.Tensor) -> Characters:
        """Splits prepared texts (B,) into their characters, after normalisation."""
        model, space_id = self._character_model
        signs, row_splits, starts, ends = text_ops.sentencepiece_with_offsets(
            model, self._spaced(texts)
        )
        ids = tf.RaggedTensor.from_row_splits(signs, row_splits, validate=False)
        rows = ids.value_rowids()
        starts, ends = tf.cast(starts, tf.int32), tf.cast(ends, tf.int32)
        # Characters that come from one character, and the bytes of a character, have the same
        # start; only the last of them has a range that is not empty.
        group = tf.cumsum(tf.cast(_is_new(rows) | _is_new(starts), tf.int32))
        ends = tf.gather(tf.math.segment_max(ends, group), group)
        byte = signs - _FIRST_BYTE
        is_byte = (signs >= _FIRST_BYTE) & (signs < _FIRST_CHARACTER)
        begins_character = ~(is_byte & (byte >= 0x80) & (byte < 0xC0))
        columns = (rows, starts, ends, signs == space_id, is_byte)
        rows, starts, ends, is_space, is_unknown = (
            tf.boolean_mask(x, begins_character) for x in columns
        )
        first_signs = tf.cast(tf.where(begins_character)[:, 0], tf.int32)
        first_signs = tf.concat([first_signs, tf.size(signs)[None]], 0)
        return Characters(rows, starts, ends, is_space, is_unknown, signs, first_signs)

    def _make_parts(self, pieces: list[str]) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the ids of the parts of each piece, and their character counts: (V, None) each.

        A piece that ends in a digit and a comma has two or more parts, the last one the comma.
        Every other piece is its own only part.
        """
        ids = [[i] for i in range(len(pieces))]
        lengths = [[len(piece)] for piece in pieces]
        id_of = {piece: i for i, piece in enumerate(pieces)}
        ends = [i for i, p in enumerate(pieces) if p[-1] == "," and p[-2:-1].isdigit()]
        stems = [pieces[i][:-1].replace(SPACE, "") for i in ends]
        for index, row in zip(ends, self._whole(tf.constant(stems, tf.string)), strict=True):
            parts = [pieces[i] for i in row.numpy()]
            if not pieces[index].startswith(SPACE):
                parts[0] = parts[0].removeprefix(SPACE)
            parts = [*filter(None, parts), ","]
            ids[index] = [id_of.get(part, self._unk_id) for part in parts]
            lengths[index] = [len(part) for part in parts]
            # The parts must cover the whole piece.
            lengths[index][0] += len(pieces[index]) - sum(lengths[index])
        self._is_split = tf.constant([len(row) > 1 for row in ids])
        return tuple(
            tf.ragged.constant(rows, tf.int32, row_splits_dtype=tf.int64) for rows in (ids, lengths)
        )


def _if_any(
    flags: tf.Tensor, change: Callable[[], tuple[tf.Tensor, tf.Tensor]], ids: tf.RaggedTensor
) -> tf.RaggedTensor:
    """Returns `ids`; if any flag is true, the rows with the values and splits from `change`."""
    values, row_splits = tf.cond(tf.reduce_any(flags), change, lambda: (ids.values, ids.row_splits))
    return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)


def _is_new(column: tf.Tensor) -> tf.Tensor:
    """Whether each value differs from the previous one, (N,) bool; false for the first."""
    return tf.concat([tf.zeros_like(column[:1], tf.bool), column[1:] != column[:-1]], 0)


def _unknown_lengths(characters: Characters, is_unknown: tf.Tensor) -> tf.Tensor:
    """Returns the number of characters of each unknown piece, (P,).

    `is_unknown` (P,) marks the unknown pieces; the other entries of the result have no meaning.
    """
    previous_unknown = tf.concat(
        [tf.zeros_like(characters.rows[:1], tf.bool), characters.is_unknown], 0
    )
    begins = characters.is_unknown & (_is_new(characters.rows) | ~previous_unknown[:-1])
    run = tf.cumsum(tf.cast(begins, tf.int32)) - 1
    run = tf.boolean_mask(run, characters.is_unknown)
    sizes = tf.math.segment_sum(tf.ones_like(run), run)
    number = tf.cumsum(tf.cast(is_unknown, tf.int32)) - 1
    number = tf.clip_by_value(number, 0, tf.maximum(tf.size(sizes) - 1, 0))
    return tf.gather(tf.concat([sizes, [0]], 0), number)


def _check_lengths(ids: tf.RaggedTensor, lengths: tf.Tensor, rows: tf.Tensor) -> None:
    """Raises InvalidArgumentError if the pieces of a text do not cover exactly its characters.

    `lengths` (P,) is the number of characters of each piece in `ids` (B, None), and `rows` (C,) the
    index of each character's text.
    """
    num_rows = tf.cast(ids.nrows(), tf.int32)
    expected = tf.math.bincount(tf.cast(rows, tf.int32), minlength=num_rows)
    tf.debugging.assert_equal(
        tf.reduce_sum(ids.with_values(lengths), 1),
        expected,
        "The pieces of a text must cover its characters, which requires that the model's "
        "normalisation does not change its user-defined pieces.",
    )


def _ranges(
    ids: tf.RaggedTensor,
    first: tf.Tensor,
    last: tf.Tensor,
    characters: Characters,
    to_original: Callable,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the byte where each piece starts in the original text, and where it ends: (P,) each.

    `first` and `last` (P,) are the indices of the first character of each piece in `ids`, and of
    the character after its last. `to_original` converts byte ranges in the prepared texts.
    """
    visible = ~characters.is_space
    rows = tf.boolean_mask(characters.rows, visible)
    first_bytes = tf.RaggedTensor.from_value_rowids(
        tf.boolean_mask(characters.starts, visible), rows, ids.nrows(), validate=False
    )
    last_bytes = first_bytes.with_values(tf.boolean_mask(characters.ends, visible))
    first_bytes, last_bytes = (ranges.values for ranges in to_original(first_bytes, last_bytes))
    # One more entry, so that the position after the last character can be looked up.
    rows, first_bytes, last_bytes = (tf.pad(x, [[0, 1]]) for x in (rows, first_bytes, last_bytes))

    visible_before = tf.pad(tf.cumsum(tf.cast(visible, tf.int32)), [[1, 0]])  # (C + 1,)
    first, last = tf.gather(visible_before, first), tf.gather(visible_before, last)  # (P,)
    piece_rows = ids.value_rowids()
    follows = (tf.gather(rows, first) == piece_rows) & (first < tf.size(rows) - 1)
    previous = tf.maximum(first - 1, 0)
    precedes = (tf.gather(rows, previous) == piece_rows) & (first > 0)
    start = tf.gather(first_bytes, first)
    empty = tf.where(follows, start, tf.where(precedes, tf.gather(last_bytes, previous), 0))
    end = tf.gather(last_bytes, tf.maximum(last - 1, 0))
    return tf.where(last > first, start, empty), tf.where(last > first, end, empty)
