"""SentencePiece's unigram tokenizer of ALBERT, XLNet, XLM-R, CamemBERT, DeBERTa-v3 and T5."""

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
from kbert.tokenizers.unigram.model import (
    DEBERTA_BEGINNING,
    DEBERTA_END,
    FAIRSEQ_BEGINNINGS,
    FAIRSEQ_END,
    IN_TEXT,
    MODEL_BEGINNING,
    PREPARED,
    SPACE,
    T5_BEGINNING,
    T5_END,
    UNKNOWN,
    byte_piece,
    read_model,
)
from kbert.tokenizers.unigram.normalization import TextPreparation

# The names of our arguments in Hugging Face's tokenizer_config.json.
CONFIG_KEYS = {"lowercase": "do_lower_case", "keep_accents": "keep_accents"}
# The usual tokens of each role; the first one in the vocabulary is used.
_USUAL: dict[str, dict[str, tuple[str, ...]]] = {
    "sentencepiece": {
        "pad": ("<pad>", "[PAD]"),
        "cls": ("[CLS]", "<cls>", "<s>"),
        "sep": ("[SEP]", "<sep>", "</s>"),
        "mask": ("[MASK]", "<mask>"),
    },
    **{
        layout: {"pad": ("<pad>",), "cls": ("<s>",), "sep": ("</s>",), "mask": ("<mask>",)}
        for layout in FAIRSEQ_BEGINNINGS
    },
    "xlnet": {"pad": ("<pad>",), "cls": ("<cls>",), "sep": ("<sep>",), "mask": ("<mask>",)},
    "deberta": {"pad": ("[PAD]",), "cls": ("[CLS]",), "sep": ("[SEP]",), "mask": ("[MASK]",)},
    "t5": {"pad": ("<pad>",), "sep": ("</s>",)},
}
# Layout -> Hugging Face's class and file name.
SAVED_AS = {
    "fairseq": ("XLMRobertaTokenizer", "sentencepiece.bpe.model"),
    "camembert": ("CamembertTokenizer", "sentencepiece.bpe.model"),
    "deberta": ("DebertaV2Tokenizer", "spm.model"),
    "t5": ("T5Tokenizer", "spiece.model"),
}
# The bytes of a character after the first.
_LATER_BYTES = frozenset(map(byte_piece, range(0x80, 0xC0)))
_DECIDING = ("lowercase", "keep_accents", "preparation", "layout")
_PUNCTUATION = set('!"#$%&()*+,-./:;?@[\\]^_`{|}~')  # no apostrophe, and none of "<=>"
_ENGLISH_SIGNS = _PUNCTUATION | set(string.ascii_lowercase)
# Private use characters; those that are in no piece stand for special tokens.
_PRIVATE_USE = range(0xE000, 0xF900)


class UnigramTokenizer(Tokenizer):
    """Splits text into SentencePiece's unigram pieces and back.

    It gives the ids of the `sentencepiece` package for the same model (Kudo 2018), after the text
    preparation of the model's authors. For ALBERT and XLNet this is `preprocess_text` and the rule
    for digits before a comma in `encode_pieces` (zihangdai/xlnet, prepro_utils.py; copied by
    google-research/albert, tokenization.py, without the rule for quotes). XLM-R, CamemBERT,
    DeBERTa and T5 have no preparation.

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
        special_tokens: role ("pad", "unk", "cls", "sep", "mask", …) -> piece; overrides the usual
            names that are searched for in the vocabulary.
        special_tokens_in_text: whether "[MASK]" in a text becomes the mask id (and so for the
            others). Leave it off for untrusted texts.

    Raises:
        FileNotFoundError: no such file.
        ValueError: a damaged model, another kind of model, or a token that is not in it.

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
    ) -> None:
        if layout not in tuple(_USUAL):  # a file may hold anything, a list too
            raise ValueError(f"layout must be one of {', '.join(_USUAL)}. Received: {layout!r}")
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
        usual = {role: _first(names, vocabulary) for role, names in _USUAL[layout].items()}
        roles = {"unk": pieces[unknown]} | usual | dict(special_tokens or {})
        missing = [token for token in roles.values() if token and token not in set(vocabulary)]
        if missing:
            raise ValueError(
                f"Special tokens must be pieces of the model. Received: {missing}, which are not"
            )
        super().__init__(vocabulary, {role: roles[role] for role in roles if roles[role]})
        if layout in FAIRSEQ_BEGINNINGS:
            self.pair_separators = 2
        self.cls_last = self.cls_token == "<cls>"  # XLNet's pieces
        specials = set(self.special_tokens.values())
        self.continuation = np.array(
            [piece not in specials and _is_continuation(piece) for piece in vocabulary]
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
        rules = self._proto.normalizer_spec
        content = [
            *((piece.piece, piece.score, piece.type in IN_TEXT) for piece in self._proto.pieces),
            rules.precompiled_charsmap.hex(),
            (rules.add_dummy_prefix, rules.remove_extra_whitespaces, rules.escape_whitespaces),
            settings,
        ]
        return fingerprints.sha256(json.dumps(content))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments, with the model as bytes."""
        return {
            "model": self._proto.SerializeToString(deterministic=True),
            "lowercase": self.lowercase,
            "keep_accents": self.keep_accents,
            "preparation": self.preparation,
            "layout": self.layout,
            "special_tokens": dict(self.special_tokens),
            "special_tokens_in_text": self.special_tokens_in_text,
        }

    def _options(self) -> dict[str, Any]:
        config = {CONFIG_KEYS.get(name, name): x for name, x in self.settings.items()}
        del config["special_tokens"]  # under the names of their roles
        if self.layout == "t5" and len(self.vocabulary) == len(self._proto.pieces):
            config["extra_ids"] = 0  # transformers adds 100 tokens unless the model has them
        return {"tokenizer_class": self._hugging_face_class, "remove_space": True, **config}

    @property
    def _hugging_face_class(self) -> str:
        if self.layout in SAVED_AS:
            return SAVED_AS[self.layout][0]
        return "XLNetTokenizer" if self.cls_last else "AlbertTokenizer"

    @property
    def _file_names(self) -> tuple[str, ...]:
        return (SAVED_AS[self.layout][1] if self.layout in SAVED_AS else "spiece.model",)

    def _save_model(self, folder: Path) -> None:
        (name,) = self._file_names
        atomic.write(folder / name, self._proto.SerializeToString(deterministic=True))

    def _encode(self, texts: tf.Tensor) -> tf.RaggedTensor:
        ids = self._kernel(self._text(self._text.hide(texts)))
        return ids.with_values(tf.gather(self._ids, ids.values))

    def _encode_with_offsets(self, texts: tf.Tensor) -> Pieces:
        """Texts (B,) -> ids, byte ranges in the texts, and word starts: see `Pieces`."""
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
        surfaces = ids.with_values(tf.gather(self._surfaces, ids.values))
        texts = tf.strings.reduce_join(surfaces, axis=-1)
        if self.byte_fallback:  # bytes may be invalid UTF-8
            texts = tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")
        texts = tf.strings.regex_replace(texts, f"{SPACE}+", " ")
        return tf.strings.regex_replace(texts, "^ | $", "")

    @cached_property
    def _surfaces(self) -> list[bytes]:
        """The text of each piece for decoding; the unknown piece as SentencePiece shows it."""
        surfaces = [piece.encode() for piece in self.vocabulary]
        for token in self.special_tokens.values():
            surfaces[self._id_of[token]] = f"{SPACE}{token}{SPACE}".encode()
        surfaces[self.unk_id] = self._proto.trainer_spec.unk_surface.encode()
        for byte in range(256) if self.byte_fallback else ():
            surfaces[self._id_of[byte_piece(byte)]] = bytes([byte])
        return surfaces


# Layout -> the first pieces of its model, and the tokens after the last one.
_APPENDING = {"deberta": (DEBERTA_BEGINNING, (DEBERTA_END,)), "t5": (T5_BEGINNING, T5_END)}


def _lay_out(pieces: list[str], layout: str) -> tuple[list[str], list[int]]:
    """Returns the tokens in the order of their ids, and the id of each of the model's `pieces`.

    Raises ValueError if the model does not begin with the pieces that `layout` requires.
    """
    if layout in PREPARED:
        return pieces, list(range(len(pieces)))
    if layout in _APPENDING:
        beginning, end = _APPENDING[layout]
        if tuple(pieces[: len(beginning)]) != beginning:
            raise ValueError(
                f"The {layout} layout requires a model that begins with {', '.join(beginning)}. "
                f"Received: a model that begins with {', '.join(pieces[: len(beginning)])}"
            )
        added = [] if end[-1] in pieces else end  # mT5's model has them
        return [*pieces, *added], list(range(len(pieces)))
    first = list(MODEL_BEGINNING)
    if pieces[: len(first)] != first:
        raise ValueError(
            f"The {layout} layout requires a model that begins with {', '.join(first)}. Received: "
            f"a model that begins with {', '.join(pieces[:3])}"
        )
    beginning = FAIRSEQ_BEGINNINGS[layout]
    ids = [beginning.index(piece) for piece in first if piece in beginning]
    vocabulary = [*beginning, *pieces[len(ids) :], FAIRSEQ_END]
    return vocabulary, ids + list(range(len(beginning), len(vocabulary) - 1))


def _first(names: tuple[str, ...], vocabulary: list[str]) -> str | None:
    return next((name for name in names if name in vocabulary), None)


def _is_continuation(piece: str) -> bool:
    """Whether a piece continues a word: `_is_start_piece_sp` of google-research/albert is false.

    A byte that is not the first of a character continues a word too.
    """
    if piece in _LATER_BYTES:
        return True
    plain = all(sign.lower() in _ENGLISH_SIGNS for sign in piece)
    return plain and not piece.startswith((SPACE, "<")) and piece not in _PUNCTUATION
