"""SentencePiece's unigram tokenizer of ALBERT, XLNet, XLM-R, DeBERTa-v3, T5, mBART and more."""

from __future__ import annotations

import json
import os
import string
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from kbert.core.late import tf
from kbert.io import atomic, fingerprints
from kbert.io.paths import Path
from kbert.tokenizers.base import Pieces, Tokenizer
from kbert.tokenizers.offsets import original_ranges
from kbert.tokenizers.unigram.kernel import UnigramKernel
from kbert.tokenizers.unigram.layouts import LAYOUTS, PREPARED, layout_named, sentinels
from kbert.tokenizers.unigram.model import IN_TEXT, SPACE, UNKNOWN, byte_piece, read_model
from kbert.tokenizers.unigram.normalization import TextPreparation

# The names of our arguments in Hugging Face's tokenizer_config.json.
CONFIG_KEYS = {
    "lowercase": "do_lower_case",
    "keep_accents": "keep_accents",
    "source_language": "src_lang",
    "target_language": "tgt_lang",
}
# The bytes of a character after the first.
_LATER_BYTES = frozenset(map(byte_piece, range(0x80, 0xC0)))
_DECIDING = tuple("lowercase keep_accents preparation layout num_sentinels source_language".split())
_PUNCTUATION = set('!"#$%&()*+,-./:;?@[\\]^_`{|}~')  # no apostrophe, and none of "<=>"
_ENGLISH_SIGNS = _PUNCTUATION | set(string.ascii_lowercase)
# Private use characters; those that are in no piece stand for special tokens.
_PRIVATE_USE = range(0xE000, 0xF900)


class UnigramTokenizer(Tokenizer):
    """Splits text into SentencePiece's unigram pieces and back.

    It gives the ids of the `sentencepiece` package for the same model (Kudo 2018), after the text
    preparation of the model's authors. For ALBERT and XLNet this is `preprocess_text` and the rule
    for digits before a comma in `encode_pieces` (zihangdai/xlnet, prepro_utils.py; copied by
    google-research/albert, tokenization.py, without the rule for quotes). The other layouts have
    no preparation.

    It works the same eagerly, in `tf.data` and in a SavedModel, and has no resource that an export
    would have to track. A model with byte_fallback (DeBERTa-v3's) has no unknown text: a character
    that it lacks becomes its bytes, which all have the range of the character.

    Args:
        model: path of a `.model` file, or its bytes.
        lowercase: whether to lower-case texts: ALBERT does, XLNet does not. None = the value of
            `preparation`, but False for the layout "xlnet".
        keep_accents: whether to leave accents and compatibility forms to the model. None = the
            opposite of `preparation`.
        preparation: whether to prepare texts like ALBERT and XLNet: "``" and "''" become '"', all
            white space becomes spaces, combining characters are dropped (after NFKD, unless accents
            are kept), and "2,012," becomes "2,012" and ",". None = True for the layouts
            "sentencepiece" and "xlnet".
        layout: order of the ids. "sentencepiece" and "xlnet": the ids of the model. "fairseq",
            XLM-R's: `<s>`, `<pad>`, `</s>`, `<unk>`, the model's pieces from the fourth on,
            `<mask>`. "camembert", CamemBERT's: five tokens of its own, the model's pieces from the
            second on, `<mask>`. "deberta", DeBERTa-v3's: the model's pieces, then [MASK]. "t5",
            T5's: the model's pieces, then `<extra_id_99>` to `<extra_id_0>`; it has no "cls".
            "pegasus", PEGASUS': `<pad>`, `</s>`, the masks of sentences and of tokens, `<mask_1>`
            and `<mask_2>`, `<unk_2>` to `<unk_102>`, the model's pieces from the third on; no "cls"
            either. "mbart" and "mbart50": as "fairseq", with the codes of their 25 and 52 languages
            before `<mask>`.
        special_tokens: role ("pad", "unk", "cls", "sep", "mask", …) -> piece; overrides the usual
            names that are searched for in the vocabulary.
        special_tokens_in_text: whether "[MASK]" in a text becomes the mask id (and so for the
            others). Leave it off for untrusted texts.
        num_sentinels: number of T5's sentinels, `<extra_id_0>` and so on, after the pieces of the
            model. None = 100, or 0 if the model has them.
        source_language: code of the language of the texts, such as "de_DE", for the layouts "mbart"
            and "mbart50", whose rows contain it. None = "en_XX", as in transformers.
        target_language: code of the language of `target`; None = `source_language`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a damaged model, another kind of model, a token that is not in it, or a language
            that the layout lacks.

    `word_index` numbers the words between spaces, like Hugging Face. `continuation` is ALBERT's
    `_is_start_piece_sp` (create_pretraining_data.py), by which every piece with a sign other than a
    Latin letter begins a word. Characters that the model drops belong to the piece before them.

    Hugging Face's `tokenizers` differs from the original code, and so from this class:

    - It always recognises special tokens in text.
    - It does not split "2,012," if that is a piece.
    - It strips all marks, including marks that do not combine (U+034F, U+FE0F, U+20E3).
    - It does not count U+000B and U+001C to U+001F as spaces.
    - It normalises by grapheme clusters.
    - If two splits have the same score ("!!!!!"), it may choose the other.
    - transformers 5, when it loads a `.model`, turns user-defined pieces into added tokens, which
      changes the spaces around them. It also composes characters (NFC) where DeBERTa's model has
      separate rules, which transformers 4 followed.

    Letters of Unicode 15 are not lower-cased here.

    Example:
        >>> from kbert.tokenizers import train_unigram
        >>> tokenizer = UnigramTokenizer(train_unigram(["the light of the night"] * 9, 50))
        >>> ids = tokenizer.encode("The  Níght")
        >>> tokenizer.decode(ids).numpy()
        b'the night'
    """

    kind = "unigram"

    def __init__(
        self,
        model: str | os.PathLike | bytes,
        *,
        lowercase: bool | None = None,
        keep_accents: bool | None = None,
        preparation: bool | None = None,
        layout: str = "sentencepiece",
        special_tokens: Mapping[str, str] | None = None,
        special_tokens_in_text: bool = False,
        num_sentinels: int | None = None,
        source_language: str | None = None,
        target_language: str | None = None,
    ) -> None:
        form = layout_named(layout)
        self._proto = read_model(model)
        self.layout = layout
        self.preparation = layout in PREPARED if preparation is None else preparation
        usual_case = self.preparation and layout != "xlnet"
        self.lowercase = usual_case if lowercase is None else lowercase
        self.keep_accents = not self.preparation if keep_accents is None else keep_accents
        self.special_tokens_in_text = special_tokens_in_text
        if not self.preparation and (self.lowercase or not self.keep_accents):
            raise ValueError(
                "lowercase=True and keep_accents=False require the preparation. Received: "
                f"preparation=False, lowercase={lowercase}, keep_accents={keep_accents}"
            )
        if self.preparation and not self._proto.normalizer_spec.remove_extra_whitespaces:
            raise ValueError(
                "The preparation requires a model that removes extra spaces. Received: a model "
                "without remove_extra_whitespaces; pass preparation=False"
            )
        if self.preparation and self.byte_fallback:
            raise ValueError(
                "The preparation requires a model without byte_fallback, such as ALBERT's and "
                "XLNet's. Received: a model with it; pass preparation=False"
            )
        pieces = [piece.piece for piece in self._proto.pieces]
        unknown = next(i for i, piece in enumerate(self._proto.pieces) if piece.type == UNKNOWN)
        vocabulary, model_ids = _lay_out(pieces, layout)
        self.num_sentinels: int | None = None
        if num_sentinels is not None:
            if layout != "t5" or type(num_sentinels) is not int or num_sentinels < 0:
                raise ValueError(
                    "num_sentinels must be an integer of at least 0, and requires the layout t5. "
                    f"Received: {num_sentinels!r} with the layout {layout}"
                )
            usual_vocabulary = vocabulary
            vocabulary, model_ids = form.arrange(pieces, sentinels(num_sentinels))
            if vocabulary != usual_vocabulary:  # otherwise the checksum stays that of None
                self.num_sentinels = num_sentinels
        usual = {role: _first(names, vocabulary) for role, names in form.roles.items()}
        roles = {"unk": pieces[unknown]} | usual | dict(special_tokens or {})
        missing = [token for token in roles.values() if token and token not in set(vocabulary)]
        if missing:
            raise ValueError(
                f"Special tokens must be pieces of the model. Received: {missing}, which are not"
            )
        super().__init__(
            vocabulary,
            {role: roles[role] for role in roles if roles[role]},
            (*form.specials, *form.languages),
        )
        self.pair_separators = form.separators
        self.cls_last = self.cls_token == "<cls>"  # XLNet's pieces
        self.languages = form.languages
        usual_language = "en_XX" if form.languages else None
        self._set_languages(source_language or usual_language, target_language)
        specials = {*self.special_tokens.values(), *self.additional_special_tokens}
        self.continuation = np.array(
            [piece not in specials and is_continuation(piece) for piece in vocabulary]
        )
        hidden = sorted(specials - {self.unk_token}) if special_tokens_in_text else []
        used = set("".join(pieces))
        free = (chr(code) for code in _PRIVATE_USE if chr(code) not in used)
        neutral = next(free)
        stand_ins = dict(zip(hidden, free, strict=False))
        self._text = TextPreparation(
            albert=self.preparation,
            lowercase=self.lowercase,
            keep_accents=self.keep_accents,
            stand_ins=stand_ins,
            neutral=neutral,
        )
        self._kernel = UnigramKernel(self._proto, list(stand_ins.values()), self.preparation)
        model_ids += [self._id_of[token] for token in stand_ins]
        with tf.init_scope(), tf.device("CPU"):
            self._ids = tf.constant(model_ids, tf.int32)

    @property
    def byte_fallback(self) -> bool:
        """Whether the model has pieces for the bytes of unknown characters."""
        return bool(self._proto.trainer_spec.byte_fallback)

    @cached_property
    def checksum(self) -> str:
        """SHA-256 (hexadecimal) of what determines the ids: pieces, scores, rules, settings."""
        settings = {name: x for name, x in self.settings.items() if name in _DECIDING}
        return fingerprints.sha256(json.dumps([*deciding_parts(self._proto), settings]))

    @property
    def prefix_ids(self) -> tuple[int, ...]:
        roles = LAYOUTS[self.layout].prefix
        return super().prefix_ids if roles is None else self._ids_of(roles)

    @property
    def suffix_ids(self) -> tuple[int, ...]:
        roles = LAYOUTS[self.layout].suffix
        return super().suffix_ids if roles is None else self._ids_of(roles)

    def _ids_of(self, roles: tuple[str, ...]) -> tuple[int, ...]:
        """Returns the ids of the tokens of `roles`, of which "language" is the source's code."""
        tokens: dict[str, Any] = {**self.special_tokens, "language": self.source_language}
        return tuple(self.token_to_id(tokens[role]) for role in roles)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, with the model as bytes."""
        languages = {
            "source_language": self.source_language,
            "target_language": self.target_language,
        }
        return {
            "model": self._proto.SerializeToString(deterministic=True),
            "lowercase": self.lowercase,
            "keep_accents": self.keep_accents,
            "preparation": self.preparation,
            "layout": self.layout,
            "special_tokens": dict(self.special_tokens),
            "special_tokens_in_text": self.special_tokens_in_text,
            **({} if self.num_sentinels is None else {"num_sentinels": self.num_sentinels}),
            **(languages if self.languages else {}),
        }

    def _config_file(self) -> dict[str, Any]:
        config = super()._config_file()
        config.pop("additional_special_tokens", None)  # they follow from the class
        if self.layout == "pegasus" and self.mask_token == "<mask_2>":
            del config["mask_token"]  # transformers 5 would give it the id of <mask_1>
        return config

    def _options(self) -> dict[str, Any]:
        config = {CONFIG_KEYS.get(name, name): x for name, x in self.settings.items()}
        del config["special_tokens"]  # under the names of their roles
        config.pop("num_sentinels", None)
        number = len(self.vocabulary) - len(self._proto.pieces)
        if self.layout == "t5" and number != len(LAYOUTS["t5"].end):
            config["extra_ids"] = number  # 0 if the model has them: transformers adds 100 otherwise
        return {"tokenizer_class": self._hugging_face_class, "remove_space": True, **config}

    @property
    def _hugging_face_class(self) -> str:
        if saved_as := LAYOUTS[self.layout].saved_as:
            return saved_as[0]
        return "XLNetTokenizer" if self.cls_last else "AlbertTokenizer"

    @property
    def _file_names(self) -> tuple[str, ...]:
        saved_as = LAYOUTS[self.layout].saved_as
        return (saved_as[1] if saved_as else "spiece.model",)

    def _save_model(self, folder: Path) -> None:
        (name,) = self._file_names
        atomic.write(folder / name, self._proto.SerializeToString(deterministic=True))

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids = self._kernel(self._text(self._text.hide(texts)))
        return ids.with_values(tf.gather(self._ids, ids.values))

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        hidden = self._text.hide(texts)

        def to_original(starts: tf.RaggedTensor, ends: tf.RaggedTensor) -> tuple:
            return original_ranges(hidden, starts, ends, self._text.byte_table)

        ids, starts, ends = self._kernel.with_ranges(self._text(hidden), to_original)
        is_first = tf.gather(self._kernel.begins_word, ids.values)
        return ids.with_values(tf.gather(self._ids, ids.values)), starts, ends, is_first

    def _decode_rows(self, ids: tf.RaggedTensor) -> tf.Tensor:
        """Ids (B, None) -> texts (B,), with single spaces and none at the ends.

        Invalid bytes become U+FFFD.
        """
        return joined(ids, self._surfaces, self._proto)

    @cached_property
    def _surfaces(self) -> list[bytes]:
        return surfaces_of(self, self._proto)


def surfaces_of(tokenizer: Tokenizer, proto: Any) -> list[bytes]:
    """Returns the text of each token for decoding; the unknown one as SentencePiece shows it.

    `proto` is the `ModelProto` of the tokenizer's model.
    """
    surfaces = [piece.encode() for piece in tokenizer.vocabulary]
    for index in tokenizer.special_ids:
        surfaces[index] = f"{SPACE}{tokenizer.vocabulary[index]}{SPACE}".encode()
    surfaces[tokenizer.unk_id] = proto.trainer_spec.unk_surface.encode()
    bytes_of = {byte_piece(byte): bytes([byte]) for byte in range(256)}
    if proto.trainer_spec.byte_fallback:
        surfaces = [
            bytes_of.get(piece, surface)
            for piece, surface in zip(tokenizer.vocabulary, surfaces, strict=True)
        ]
    return surfaces


def joined(ids: tf.RaggedTensor, surfaces: list[bytes], proto: Any) -> tf.Tensor:
    """Joins the `surfaces` of ids (B, None) to texts (B,) without spaces around them.

    `proto` is the `ModelProto`, which says whether bytes may be invalid UTF-8.
    """
    texts = tf.strings.reduce_join(ids.with_values(tf.gather(surfaces, ids.values)), axis=-1)
    if proto.trainer_spec.byte_fallback:
        texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
    texts = tf.strings.regex_replace(texts, f"{SPACE}+", " ")
    return tf.strings.regex_replace(texts, "^ | $", "")


def deciding_parts(proto: Any) -> list[Any]:
    """Returns the parts of a `ModelProto` that determine the ids of texts, for a checksum."""
    rules = proto.normalizer_spec
    return [
        *((piece.piece, piece.score, piece.type in IN_TEXT) for piece in proto.pieces),
        rules.precompiled_charsmap.hex(),
        (rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces),
    ]


def _lay_out(pieces: list[str], layout: str) -> tuple[list[str], list[int]]:
    """Returns the tokens in the order of their ids, and the id of each of the model's `pieces`.

    Raises ValueError if the model does not begin with the pieces that `layout` requires.
    """
    first = layout_named(layout).first
    if tuple(pieces[: len(first)]) != first:
        raise ValueError(
            f"The {layout} layout requires a model that begins with {', '.join(first)}. "
            f"Received: a model that begins with {', '.join(pieces[: len(first)])}"
        )
    return LAYOUTS[layout].arrange(pieces)


def _first(names: tuple[str, ...], vocabulary: list[str]) -> str | None:
    return next((name for name in names if name in vocabulary), None)


def is_continuation(piece: str) -> bool:
    """Whether a piece continues a word: `_is_start_piece_sp` of google-research/albert is false.

    A byte that is not the first of a character continues a word too.
    """
    if piece in _LATER_BYTES:
        return True
    plain = all(sign.lower() in _ENGLISH_SIGNS for sign in piece)
    return plain and not piece.startswith((SPACE, "<")) and piece not in _PUNCTUATION
