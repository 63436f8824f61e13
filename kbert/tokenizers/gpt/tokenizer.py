"""The tokenizer of the first GPT, in the graph and eager.

Shapes: B texts, W words of all texts together, U distinct words, P tokens of all texts together.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.io.paths import Path
from kbert.tokenizers.base import Pieces, Tokenizer
from kbert.tokenizers.bpe.files import as_merges, as_vocabulary, save_model
from kbert.tokenizers.bpe.merges import bpe_model, live_pieces
from kbert.tokenizers.normalization import byte_table, normalize
from kbert.tokenizers.offsets import original_ranges
from kbert.tokenizers.text_ops import sentencepiece
from kbert.tokenizers.wordpiece.kernel import split_words

END = "</w>"  # end of a word, after its last character
# A symbol is a character, with or without the end of a word after it. Merges work on symbols, so
# each symbol is encoded as one private-use character: two per character of the vocabulary.
_FIRST_SYMBOL = 0xF0000
_MOST_CHARACTERS = 30_000


class GptTokenizer(Tokenizer):
    """Splits text into the tokens of GPT's byte-pair encoding, and back.

    It gives the ids of Hugging Face's `OpenAIGPTTokenizer` (Radford et al. 2018; the merges are
    those of Sennrich et al. 2016, https://arxiv.org/abs/1508.07909). Texts are lower-cased and
    split into words like BERT's. (The original's spaCy splits English words further, such as
    "don't" into "do" and "n't".) The last character of a word carries the mark "</w>". A character
    that is not in the vocabulary becomes the unknown token.

    Args:
        vocabulary: token -> id, or tokens in the order of their ids, or the path of a vocab.json.
        merges: pairs of tokens ("l o" or ("l", "o</w>")) in the order of merging, or the path of a
            merges.txt.
        special_tokens: role -> special token, for the roles "pad", "unk", "cls", "sep", "mask" and
            others such as "bos". None = <unk> for "unk".
        additional_special_tokens: special tokens without a role.

    Example:
        >>> tokenizer = GptTokenizer(["<unk>", "l", "o", "w", "w</w>", "lo", "low</w>"],
        ...                          ["l o", "lo w</w>"])
        >>> tokenizer.encode("Low lo!").numpy().tolist()
        [6, 1, 0, 0]
        >>> tokenizer.decode([6, 5, 4])
        'low low'
    """

    kind = "gpt"

    def __init__(
        self,
        vocabulary: Mapping[str, int] | Sequence[str] | str | os.PathLike,
        merges: Iterable[str | tuple[str, str]] | str | os.PathLike,
        *,
        special_tokens: Mapping[str, str] | None = None,
        additional_special_tokens: Sequence[str] = (),
    ) -> None:
        vocabulary = as_vocabulary(vocabulary)
        self.merges: list[tuple[str, str]] = as_merges(merges)
        special_tokens = {"unk": "<unk>"} if special_tokens is None else special_tokens
        _check(vocabulary, self.merges, special_tokens, additional_special_tokens)
        super().__init__(vocabulary, special_tokens, additional_special_tokens)
        characters = {_character(piece) for piece in vocabulary} - {""}
        self._characters = sorted(characters)
        if len(self._characters) > _MOST_CHARACTERS:
            raise ValueError(
                f"A GPT vocabulary must have at most {_MOST_CHARACTERS:,} characters. Received: "
                f"{len(self._characters):,}"
            )

    @property
    def continuation(self) -> np.ndarray:  # type: ignore[override]  # the others know it
        """Not available: GPT marks the end of a word, so it depends on the previous token.

        Raises:
            ValueError: always.
        """
        raise ValueError(
            "Whole-word masking requires tokens that show whether they begin a word; GPT's "
            f"tokens show where a word ends. Received: a {type(self).__name__}"
        )

    def get_config(self) -> dict[str, Any]:
        return {
            "vocabulary": list(self.vocabulary),
            "merges": [" ".join(pair) for pair in self.merges],
            "special_tokens": dict(self.special_tokens),
            "additional_special_tokens": list(self.additional_special_tokens),
        }

    def _options(self) -> dict[str, Any]:
        return {"tokenizer_class": "OpenAIGPTTokenizer"}

    _file_names = ("vocab.json", "merges.txt")

    def _save_model(self, folder: Path) -> None:
        save_model(folder, self.vocabulary, self.merges)

    @cached_property
    def _model(self) -> tuple[bytes, tf.Tensor, tf.Tensor, tf.Tensor]:
        """A SentencePiece model of symbols; ids and lengths of its pieces; known code points.

        Lengths count characters; the code points are sorted. All are created when a text is first
        encoded.
        """
        indices = {character: i for i, character in enumerate(self._characters)}

        def symbols(piece: str) -> str:
            text = piece.removesuffix(END)
            codes = [_FIRST_SYMBOL + 2 * indices[character] for character in text]
            if text != piece:
                codes[-1] += 1
            return "".join(map(chr, codes))

        merges = [(symbols(first), symbols(second)) for first, second in self.merges]
        # One more pair stands for all characters that are not in the vocabulary.
        single = [chr(_FIRST_SYMBOL + i) for i in range(2 * len(indices) + 2)]
        live = live_pieces(merges)
        scores = dict.fromkeys(single, 0) | {piece: -rank for piece, rank in live.items()}

        def id_of(piece: str) -> int:
            indices = [ord(symbol) - _FIRST_SYMBOL for symbol in piece]
            if indices[0] // 2 == len(self._characters):
                return self.unk_id
            text = "".join(self._characters[index // 2] for index in indices)
            return self._id_of.get(text + END * (indices[-1] % 2), self.unk_id)

        with tf.init_scope(), tf.device("CPU"):
            return (
                bpe_model(scores),
                tf.constant([self.unk_id, *map(id_of, scores)], tf.int32),
                tf.constant([0, *map(len, scores)], tf.int32),
                tf.constant([ord(character) for character in self._characters], tf.int32),
            )

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        return self._pieces(normalize(texts))[0]

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        ids, starts, ends, is_first = self._pieces(normalize(texts))
        starts, ends = original_ranges(texts, starts, ends, self._byte_table)
        return ids, starts, ends, is_first

    @cached_property
    def _byte_table(self) -> tf.Tensor:
        """Bytes of each code point after normalisation; created when offsets are first needed."""
        with tf.init_scope(), tf.device("CPU"):
            return tf.constant(byte_table(True, True))

    def _pieces(self, texts: tf.Tensor) -> Pieces:
        """Returns ids, byte ranges and word starts (`Pieces`) of normalised texts (B,)."""
        words, word_starts, _ = split_words(texts)
        unique, index = tf.unique(words.flat_values)  # (U,), (W,)
        pieces, lengths = self._merged(unique)  # (U, None) ids and bytes
        ids, num_bytes = tf.gather(pieces, index), tf.gather(lengths, index)  # (W, None)
        ends = tf.cumsum(num_bytes.flat_values)
        first = tf.cast(ids.row_starts(), tf.int32)  # every word has a token
        bytes_before = tf.gather(tf.cumsum(num_bytes.flat_values, exclusive=True), first)  # (W,)
        base = tf.cast(word_starts.flat_values, tf.int32) - bytes_before
        ends += tf.gather(base, ids.value_rowids())  # (P,)
        row_splits = tf.gather(ids.row_splits, words.row_splits)

        def of_texts(values: tf.Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_row_splits(values, row_splits, validate=False)

        is_first = tf.scatter_nd(first[:, None], tf.ones_like(first, tf.bool), tf.size(ends)[None])
        starts = ends - num_bytes.flat_values
        return of_texts(ids.flat_values), of_texts(starts), of_texts(ends), is_first

    def _merged(self, words: tf.Tensor) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
        """Returns the token ids of words (U,), and the bytes that each token covers: (U, None)."""
        model, piece_ids, piece_lengths, known_codes = self._model
        codes = tf.strings.unicode_decode(words, "UTF-8")  # (U, None)
        code = codes.flat_values
        index = tf.minimum(tf.searchsorted(known_codes, code), tf.size(known_codes) - 1)
        index = tf.where(tf.gather(known_codes, index) == code, index, tf.size(known_codes))
        symbol = _FIRST_SYMBOL + 2 * index
        last = tf.cast(codes.row_limits()[:, None] - 1, tf.int32)  # no word is empty
        is_last = tf.ones_like(last[:, 0])
        symbol += tf.scatter_nd(last, is_last, tf.size(symbol)[None])
        texts = tf.strings.unicode_encode(codes.with_flat_values(symbol), "UTF-8")
        pieces, row_splits = sentencepiece(model, texts)
        row_splits = tf.cast(row_splits, tf.int64)
        # Bytes of a piece: those of all characters before its end, minus those before its start.
        width = 1 + tf.reduce_sum(tf.cast(code[:, None] >= [0x80, 0x800, 0x10000], tf.int32), 1)
        bytes_before = tf.concat([[0], tf.cumsum(width)], 0)
        lengths = tf.gather(piece_lengths, pieces)
        ends = tf.cumsum(lengths)
        num_bytes = tf.gather(bytes_before, ends) - tf.gather(bytes_before, ends - lengths)
        ids = tf.gather(piece_ids, pieces)
        return (
            tf.RaggedTensor.from_row_splits(ids, row_splits, validate=False),
            tf.RaggedTensor.from_row_splits(num_bytes, row_splits, validate=False),
        )

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Ids (B, None) -> texts (B,); a space for each end of a word but the last."""
        parts = ids.with_flat_values(
            tf.gather([_decoded(piece) for piece in self.vocabulary], ids.flat_values)
        )
        texts = tf.strings.reduce_join(parts, axis=-1)
        # A space stands for the end of a word; there is none after the last word.
        return tf.strings.regex_replace(texts, " $", "")


def _character(piece: str) -> str:
    """Returns the character of a single-character token; "" for other tokens."""
    text = piece.removesuffix(END)
    return text if len(text) == 1 else ""


def _decoded(piece: str) -> str:
    return piece.removesuffix(END) + " " * piece.endswith(END)


def _check(
    vocabulary: Sequence[str],
    merges: Iterable[tuple[str, str]],
    special_tokens: Mapping[str, str],
    additional: Iterable[str],
) -> None:
    """Raises ValueError if the vocabulary lacks special tokens or what merges need.

    Args:
        vocabulary: subwords in the order of their ids.
        merges: pairs of subwords that are joined, the earliest first.
        special_tokens: role -> token.
        additional: other special tokens.
    """
    known = set(vocabulary)
    if "unk" not in special_tokens:
        raise ValueError(
            "GPT's tokenizer must have an unknown token, for characters that its vocabulary "
            f"lacks. Received: special_tokens={dict(special_tokens)}"
        )
    for token in (*special_tokens.values(), *additional):
        if token not in known:
            raise ValueError(f"The vocabulary must contain the special tokens. Received: {token!r}")
    characters = {_character(piece) for piece in vocabulary} - {""}
    for first, second in merges:
        missing = [piece for piece in (first, second, first + second) if piece not in known]
        if missing or not characters.issuperset(first + second.removesuffix(END)):
            raise ValueError(
                "The vocabulary must contain both parts of every merge, its result and their "
                f"characters, and only the second part may end in {END!r}. Received: merge "
                f"{first} {second}"
            )
