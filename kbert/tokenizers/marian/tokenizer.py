"""Marian's tokenizer, that of OPUS-MT: SentencePiece subwords with the ids of a vocabulary.

Shapes: B texts, P subwords of all texts together, V tokens of the vocabulary.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.io import atomic, fingerprints
from kbert.io.paths import Path
from kbert.tokenizers.base import Pieces, Tokenizer
from kbert.tokenizers.bpe.files import as_vocabulary
from kbert.tokenizers.offsets import original_ranges
from kbert.tokenizers.unigram.kernel import UnigramKernel
from kbert.tokenizers.unigram.model import IN_TEXT, UNKNOWN, read_model
from kbert.tokenizers.unigram.normalization import TextPreparation
from kbert.tokenizers.unigram.tokenizer import (
    deciding_parts,
    is_continuation,
    joined,
    surfaces_of,
)

SOURCE_MODEL, TARGET_MODEL = "source.spm", "target.spm"
VOCABULARY, TARGET_VOCABULARY = "vocab.json", "target_vocab.json"
# The usual special tokens: role -> token.
USUAL = {"pad": "<pad>", "unk": "<unk>", "sep": "</s>"}
# The code at the beginning of a text, in the first group, and the text.
_CODE = r"(?s)^(>>\C*?<<)?\C*$"


class MarianTokenizer(Tokenizer):
    """Splits text into SentencePiece's subwords, whose ids are those of a separate vocabulary.

    Each language of a Marian translator has a SentencePiece model, and both share a vocabulary, or
    each has one (Junczys-Dowmunt et al. 2018; OPUS-MT, Tiedemann and Thottingal 2020). This is the
    tokenizer of the sources; `target` is that of the targets. Ids are those of transformers'
    `MarianTokenizer`, the same eagerly, in `tf.data` and in a SavedModel (which must track
    `resources`).

    A subword that the vocabulary lacks has the unknown id. Characters that the model lacks have the
    id of the token that consists of them, if there is one. A source of a model with several target
    languages begins with the code of one: ">>fr<< Good morning". Write it in the text, or choose it
    with `target_language`, which puts its id into `prefix_ids`.

    Args:
        model: path of the sources' SentencePiece model (source.spm), or its bytes.
        vocabulary: tokens in the order of their ids, a dict token -> id, or the path of a
            vocab.json.
        target_model: the targets' model; None = `model`.
        target_vocabulary: the targets' vocabulary; None = `vocabulary`.
        target_language: code of the language to translate to, such as ">>fr<<"; None if the model
            has only one, or the texts contain it.
        special_tokens: role ("pad", "unk", "sep") -> token; overrides <pad>, <unk> and </s>.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a damaged model, a model of another kind than unigram, ids with gaps, or a
            vocabulary without a special token or without the target language.

    transformers differs in special tokens. It recognises `</s>`, `<unk>` and `<pad>` in texts, and
    omits `<unk>` when it decodes, where `decode` shows SentencePiece's " ⁇ ". If source and target
    have a vocabulary each, it pads targets with the padding id of the sources. If a folder says
    `clean_up_tokenization_spaces`, it decodes without spaces before punctuation.

    Example:
        >>> from kbert.tokenizers import train_unigram
        >>> model = train_unigram(["the light of the night"] * 9, 30, layout="fairseq")
        >>> tokenizer = MarianTokenizer(model, ["</s>", "<unk>", "▁", "n", ">>de<<", "<pad>"])
        >>> tokenizer.encode(">>de<< nap").numpy().tolist()  # the model has no "a" and no "p"
        [4, 2, 3, 1]
        >>> tokenizer.with_languages(target=">>de<<").prefix_ids
        (4,)
    """

    kind = "marian"
    pair_separators = 0

    def __init__(
        self,
        model: str | os.PathLike | bytes,
        vocabulary: Mapping[str, int] | Sequence[str] | str | os.PathLike,
        *,
        target_model: str | os.PathLike | bytes | None = None,
        target_vocabulary: Mapping[str, int] | Sequence[str] | str | os.PathLike | None = None,
        target_language: str | None = None,
        special_tokens: Mapping[str, str] | None = None,
    ) -> None:
        tokens = as_vocabulary(vocabulary)
        self._proto = read_model(model)
        special_tokens = {**USUAL, **(special_tokens or {})}
        if missing := sorted({*special_tokens.values()} - {*tokens}):
            raise ValueError(
                "The special tokens must be in the vocabulary. Received: a vocabulary of "
                f"{len(tokens)} tokens without {', '.join(missing)}"
            )
        super().__init__(tokens, special_tokens)
        self.languages = tuple(x for x in tokens if x.startswith(">>") and x.endswith("<<"))
        self._set_languages(None, target_language)
        self._target: MarianTokenizer | None = None
        if target_model is not None or target_vocabulary is not None:
            self._target = MarianTokenizer(
                model if target_model is None else target_model,
                tokens if target_vocabulary is None else target_vocabulary,
                special_tokens=special_tokens,
            )
        self._has_target_vocabulary = target_vocabulary is not None
        specials = {*special_tokens.values(), *self.languages}
        self.continuation = np.array([x not in specials and is_continuation(x) for x in tokens])
        pieces = [piece.piece for piece in self._proto.pieces]
        self._unknown_piece = next(
            i for i, piece in enumerate(self._proto.pieces) if piece.type == UNKNOWN
        )
        self._text = TextPreparation(
            albert=False, lowercase=False, keep_accents=True, stand_ins={}, neutral=""
        )
        self._kernel = UnigramKernel(self._proto, [], False)
        with tf.init_scope(), tf.device("CPU"):
            ids = [self._id_of.get(piece, self.unk_id) for piece in pieces]
            self._ids = tf.constant(ids, tf.int32)
        known = set("".join(x.piece for x in self._proto.pieces if x.type in IN_TEXT))
        # Tokens of characters that the model lacks: most are those of the other language.
        self._foreign = [x for x in {*tokens} - {*pieces} - specials if not known & {*x}]

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        """The id of the target language, if it is chosen."""
        return () if self.target_language is None else (self._id_of[self.target_language],)

    @property
    def target(self) -> Tokenizer:
        """The tokenizer of targets: their model and vocabulary, without a language."""
        if self._target is not None:
            return self._target
        return self if self.target_language is None else self._in_languages(None, None)

    def _set_languages(self, source: str | None, target: str | None) -> None:
        if source is not None:
            raise ValueError(
                "The sources of a Marian model begin with the code of the target's language, and "
                f"have none of their own: pass it as target. Received: source={source!r}"
            )
        super()._set_languages(source, target)

    @property
    def resources(self) -> list[Any]:
        """The lookup table of language codes and unknown text, which a SavedModel must track."""
        return [self._table]

    @cached_property
    def _table(self) -> tf.lookup.StaticHashTable:
        """The lookup table token -> id of `languages` and `_foreign`; the unknown id for others."""
        tokens = [*self.languages, *self._foreign, self.special_tokens["unk"]]
        with tf.init_scope(), tf.device("CPU"):
            ids = tf.constant([self._id_of[token] for token in tokens], tf.int32)
            entries = tf.lookup.KeyValueTensorInitializer(tf.constant(tokens), ids)
            return tf.lookup.StaticHashTable(entries, self.unk_id)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 (hexadecimal) of what determines the ids: models, vocabularies, language."""
        target = None if self._target is None else self._target.checksum
        content = [deciding_parts(self._proto), self.vocabulary, self.settings, target]
        return fingerprints.sha256(json.dumps(content))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, with the models as bytes."""
        target, has_own_tokens = self._target, self._has_target_vocabulary
        return {
            "model": _serialized(self._proto),
            "vocabulary": list(self.vocabulary),
            "target_model": None if target is None else _serialized(target._proto),
            "target_vocabulary": list(self.target.vocabulary) if has_own_tokens else None,
            "target_language": self.target_language,
            "special_tokens": dict(self.special_tokens),
        }

    def _config_file(self) -> dict[str, Any]:
        names = {"sep": "eos"}  # Hugging Face's
        config = {f"{names.get(x, x)}_token": token for x, token in self.special_tokens.items()}
        return config | self._options()

    def _options(self) -> dict[str, Any]:
        options: dict[str, Any] = {"tokenizer_class": "MarianTokenizer"}
        options["separate_vocabs"] = self._has_target_vocabulary
        if self.target_language is not None:
            options["target_language"] = self.target_language
        return options

    @property
    def _file_names(self) -> tuple[str, ...]:
        names = (SOURCE_MODEL, TARGET_MODEL, VOCABULARY)
        return (*names, TARGET_VOCABULARY) if self._has_target_vocabulary else names

    def _save_model(self, folder: Path) -> None:
        target = self if self._target is None else self._target
        atomic.write(folder / SOURCE_MODEL, _serialized(self._proto))
        atomic.write(folder / TARGET_MODEL, _serialized(target._proto))
        for name, tokenizer in ((VOCABULARY, self), (TARGET_VOCABULARY, target)):
            if name in self._file_names:
                ids = {token: i for i, token in enumerate(tokenizer.vocabulary)}
                atomic.write(folder / name, json.dumps(ids, ensure_ascii=False).encode())

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        codes, texts = _split_code(texts)
        texts = self._text(texts)
        ids = self._kernel(texts)
        return tf.concat([self._code_ids(codes), self._looked_up(texts, ids)], 1)

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        codes, texts = _split_code(texts)

        def to_original(starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> tuple:
            return original_ranges(texts, starts, ends, self._text.byte_table)

        valid = self._text(texts)
        ids, *ranges = self._kernel.with_ranges(valid, to_original)
        is_first = ids.with_values(tf.gather(self._kernel.begins_word, ids.values))
        code_ids = self._code_ids(codes)
        sizes = tf.strings.length(codes)  # (B,)
        shift = tf.gather(sizes, ids.value_rowids())
        starts, ends = (x.with_values(x.values + shift) for x in ranges)
        size = code_ids.with_values(tf.gather(sizes, code_ids.value_rowids()))
        first = code_ids.with_values(tf.ones_like(code_ids.values, tf.bool))
        columns = (
            (code_ids, self._looked_up(valid, ids)),
            (size.with_values(tf.zeros_like(size.values)), starts),
            (size, ends),
            (first, is_first),
        )
        ids, starts, ends, is_first = (tf.concat(column, 1) for column in columns)
        return ids, starts, ends, is_first.values

    def _code_ids(self, codes: tf.Tensor) -> tf.RaggedTensor:
        """Language codes (B,), "" for none -> their ids (B, None)."""
        has_code = codes != ""
        ids = self._table.lookup(tf.boolean_mask(codes, has_code))
        return tf.RaggedTensor.from_row_lengths(ids, tf.cast(has_code, tf.int64))

    def _looked_up(self, texts: tf.Tensor, pieces: tf.RaggedTensor) -> tf.RaggedTensor:
        """Returns the ids of the model's pieces (B, None) of prepared texts (B,)."""
        values = tf.gather(self._ids, pieces.values)
        if not self._foreign:
            return pieces.with_values(values)
        is_unknown = pieces.values == self._unknown_piece

        def looked_up() -> tf.Tensor:
            ids = self._table.lookup(self._kernel.unknown_texts(texts, pieces))
            return tf.tensor_scatter_nd_update(values, tf.where(is_unknown), ids)

        values = tf.cond(tf.reduce_any(is_unknown), looked_up, lambda: values)
        return pieces.with_values(values)

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        return joined(ids, self._surfaces, self._proto)

    @cached_property
    def _surfaces(self) -> list[bytes]:
        """The text of each token for decoding."""
        return surfaces_of(self, self._proto)


def _split_code(texts: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Texts (B,) -> the language code at the beginning of each, or "", and the text after it."""
    codes = tf.strings.regex_replace(texts, _CODE, r"\1")
    size = tf.strings.length(codes)
    return codes, tf.strings.substr(texts, size, tf.strings.length(texts) - size)


def _serialized(proto: Any) -> bytes:
    return proto.SerializeToString(deterministic=True)
