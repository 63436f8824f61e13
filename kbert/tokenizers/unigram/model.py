"""SentencePiece models: reading, checking, and conversion for tensorflow-text's kernels."""

import base64
import collections
import io
import os
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kbert.io.paths import Path, read_settings
from kbert.tokenizers.folder import TokenizerFolder
from kbert.tokenizers.unigram.layouts import LAYOUTS, layout_of

SPACE = "▁"
# Kinds of pieces in sentencepiece_model.proto; only the first two occur in text.
NORMAL, USER_DEFINED, UNKNOWN, CONTROL, BYTE = 1, 4, 2, 3, 6
IN_TEXT = (NORMAL, USER_DEFINED)
_UNIGRAM, _CHARACTER = 1, 4
_KINDS = {1: "unigram", 2: "bpe", 3: "word", 4: "char"}
_WHITE_SPACE = (
    "\t\n\v\f\r\x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
_UNKNOWN_PIECES = ("<unk>", "[UNK]")


def read_model(model: str | os.PathLike | bytes) -> Any:
    """Reads a SentencePiece model and checks that tensorflow-text's kernel supports it.

    Args:
        model: the path of a `.model` file, or its bytes.

    Returns:
        The `ModelProto`.

    Raises:
        FileNotFoundError: no such file.
        ValueError: not a SentencePiece model, or not a unigram model. The message names the file.
    """
    from google.protobuf.message import DecodeError

    # Type checkers do not see the classes of this module: they are created at import.
    from sentencepiece import sentencepiece_model_pb2

    if isinstance(model, bytes):
        raw, source = model, f"{len(model)} bytes"
    else:
        path = Path(model)
        if not path.is_file():
            raise FileNotFoundError(f"No SentencePiece model. Received: {path}")
        raw, source = read_settings(path), str(path)
    try:
        proto = sentencepiece_model_pb2.ModelProto.FromString(raw)  # type: ignore[attr-defined]
    except DecodeError as error:
        raise ValueError(
            "A SentencePiece model must be the complete file that its trainer wrote. Received: "
            f"{source}: {error}"
        ) from error
    _check(proto, source)
    return proto


def _check(proto: Any, source: str) -> None:
    """Raises ValueError if kbert does not support a SentencePiece model, a `ModelProto`.

    `source` is its origin, for messages.
    """
    trainer = proto.trainer_spec
    kind = _KINDS.get(trainer.model_type, trainer.model_type)
    if kind != "unigram":
        raise ValueError(
            "A SentencePiece model must be of kind unigram (tensorflow-text's fast kernel splits "
            "those of kind bpe differently); train one with train_unigram, or byte-level BPE "
            f"with train_byte_pair. Received: {source}, of kind {kind}"
        )
    if trainer.treat_whitespace_as_suffix:
        raise ValueError(
            "tensorflow-text's fast kernel does not support treat_whitespace_as_suffix. "
            f"Received: {source}, with it"
        )
    if trainer.byte_fallback and (missing := _BYTES.difference(_pieces_of_bytes(proto))):
        raise ValueError(
            "A SentencePiece model with byte_fallback must have a piece for each of the 256 "
            f"bytes. Received: {source} without {', '.join(sorted(missing)[:8])}"
        )
    for number, piece in enumerate(proto.pieces):
        if not isinstance(piece.piece, str):  # protobuf returns bytes for invalid UTF-8
            raise ValueError(
                f"Pieces of a SentencePiece model must be in UTF-8. Received: {piece.piece!r:.80} "
                f"as number {number} in {source}"
            )
    _check_charsmap(proto.normalizer_spec.precompiled_charsmap, source)
    counts = collections.Counter(piece.piece for piece in proto.pieces)
    repeated = [piece for piece, count in counts.items() if count > 1]
    unknown = [piece.piece for piece in proto.pieces if piece.type == UNKNOWN]
    if len(unknown) != 1 or repeated or "" in counts:
        raise ValueError(
            "A SentencePiece model must have exactly one unknown piece and no piece twice or "
            f"empty. Received: {source} with {len(counts)} different pieces, {unknown} as "
            f"unknown, {repeated[:5]} twice"
        )


def _pieces_of_bytes(proto: Any) -> dict[str, int]:
    """Returns piece -> id for the pieces of a `ModelProto` that stand for bytes."""
    return {piece.piece: i for i, piece in enumerate(proto.pieces) if piece.type == BYTE}


def byte_ids(proto: Any) -> list[int]:
    """Returns the ids of the bytes 0 to 255 in a `ModelProto`; [] without byte_fallback."""
    if not proto.trainer_spec.byte_fallback:
        return []
    ids = _pieces_of_bytes(proto)
    return [ids[byte_piece(byte)] for byte in range(256)]


def byte_piece(byte: int) -> str:
    """Returns the piece that stands for a byte in SentencePiece's models.

    >>> byte_piece(10)
    '<0x0A>'
    """
    return f"<0x{byte:02X}>"


_BYTES = frozenset(map(byte_piece, range(256)))


def _check_charsmap(content: bytes, source: str) -> None:
    """Raises ValueError for a damaged table of normalisations; the kernel does not check it.

    `content` is the serialised table, empty if there is none; `source` names the model in the
    error. A damaged table points outside of itself.

    The table consists of the size of a double array (of darts-clone), the array with 4 bytes a
    unit, and the texts that its values point into. A unit is a value or the offset of the units of
    the next bytes.
    """
    if not content:
        return
    size = int.from_bytes(content[:4], "little")
    texts = len(content) - 4 - size
    is_valid = size % 1024 == 0 and texts > 0 and content.endswith(b"\0")
    if is_valid:
        units = np.frombuffer(content, "<u4", size // 4, 4).astype(np.int64)
        is_value = units >> 31 == 1
        begin = np.arange(len(units)) ^ (units >> 10 << ((units & 1 << 9) >> 6))
        reach = np.where(is_value, 0, begin | 255)
        values = np.where(is_value, units & (1 << 31) - 1, 0)
        is_valid = bool((reach < len(units)).all() and (values < texts).all())
    if not is_valid:
        raise ValueError(
            "The normalisation table of a SentencePiece model must be complete. Received: a "
            f"damaged one of {len(content)} bytes in {source}"
        )


def encoder_model(proto: Any, extra: Sequence[str]) -> bytes:
    """Returns the serialised model that splits text: the given one with extra pieces.

    Args:
        proto: the `ModelProto`.
        extra: pieces that always win where they match; their ids follow those of the model.
    """
    added = type(proto)()
    added.CopyFrom(proto)
    for piece in extra:
        added.pieces.add(piece=piece, score=0.0, type=NORMAL)
    return added.SerializeToString()


def character_model(proto: Any, extra: Sequence[str]) -> tuple[bytes, list[str]]:
    """Builds a model that normalises like the given one and splits into characters.

    Its pieces are the unknown piece, the 256 bytes (for characters that are unknown to the given
    model) and the known characters.

    Args:
        proto: the `ModelProto`.
        extra: more characters that are known.

    Returns:
        The serialised model, and the known characters in the order of their ids, which begin at
        257.

    Raises:
        ValueError: the given model has pieces with characters that are not pieces themselves, so
            that the unknown characters of a text cannot be determined.
    """
    in_text = [piece.piece for piece in proto.pieces if piece.type in IN_TEXT]
    characters = sorted({SPACE, *extra, *(piece for piece in in_text if len(piece) == 1)})
    unclear = sorted(set("".join(in_text)) - set(characters))
    if unclear:
        raise ValueError(
            "Offsets require a model in which every character of a piece is itself a piece, as "
            f"sentencepiece's trainer makes them. Received: a model without {unclear[:20]}"
        )
    model = type(proto)()
    model.normalizer_spec.CopyFrom(proto.normalizer_spec)
    model.trainer_spec.model_type = _CHARACTER
    model.trainer_spec.byte_fallback = True
    model.pieces.add(piece="<unk>", score=0.0, type=UNKNOWN)
    for byte in range(256):
        model.pieces.add(piece=byte_piece(byte), score=0.0, type=BYTE)
    for character in characters:
        model.pieces.add(piece=character, score=0.0, type=NORMAL)
    return model.SerializeToString(), characters


def compile_charsmap(changed: Mapping[str, str]) -> bytes:
    """Compiles text -> replacement to the table that SentencePiece stores and OpenVINO reads."""
    import sentencepiece

    # Type checkers do not see the classes of this module: they are created at import.
    from sentencepiece import sentencepiece_model_pb2

    def codes(text: str) -> str:
        return " ".join(f"{ord(x):X}" for x in text)

    model = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rules.tsv")
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(
                f"{codes(x)}\t{codes(replacement)}\n" for x, replacement in changed.items()
            )
        # Only the trainer compiles rules; the model that it learns from one letter is discarded.
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(["a"]),
            model_writer=model,
            model_type="char",
            vocab_size=8,
            hard_vocab_limit=False,
            normalization_rule_tsv=path,
            minloglevel=2,
        )
    proto = sentencepiece_model_pb2.ModelProto.FromString(model.getvalue())  # type: ignore[attr-defined]
    return proto.normalizer_spec.precompiled_charsmap


def model_of_tokenizer_json(folder: TokenizerFolder) -> bytes:
    """Rebuilds the serialised SentencePiece model from which a tokenizer.json was made.

    Pieces, scores, normalisation and ids are those of the original. The file does not record
    whether a piece was user-defined, which does not affect the ids.

    Args:
        folder: the folder of Hugging Face's tokenizer.json.

    Raises:
        ValueError: no unigram model, or one with byte_fallback; its normalisation is not in the
            file; or its unk_id is not the id of the unknown piece.
    """
    # Type checkers do not see the classes of this module: they are created at import.
    from sentencepiece import sentencepiece_model_pb2

    full, path = folder.full, folder.path / "tokenizer.json"
    model = full.get("model", {})
    charsmap: list[Any] = [
        step.get("precompiled_charsmap")
        for step in folder.normalizers()
        if step["type"] == "Precompiled"
    ]
    words = [step.get("type") for step in folder.pre_tokenizers()]
    if not charsmap and words == ["WhitespaceSplit", "Metaspace"]:
        # transformers 5 writes this for a plain vocabulary: any white space ends a word.
        rules = compile_charsmap(dict.fromkeys(_WHITE_SPACE, " "))
        charsmap = [base64.b64encode(rules).decode()]
    if model.get("type") != "Unigram" or model.get("byte_fallback") or len(charsmap) != 1:
        raise ValueError(
            "A unigram tokenizer must be a SentencePiece file (spiece.model, "
            "sentencepiece.bpe.model), or a tokenizer.json of type Unigram without byte_fallback "
            "and with a Precompiled normalizer, or else with WhitespaceSplit and Metaspace. "
            f"Received: {path} of type {model.get('type')!r} with {len(charsmap)} Precompiled; "
            "put the .model file next to it"
        )
    vocabulary = model["vocab"]
    special = {token["content"] for token in full.get("added_tokens", []) if token.get("special")}
    names = [piece for piece, _ in vocabulary]
    number = model.get("unk_id")
    unknown = names[number] if type(number) is int and 0 <= number < len(names) else None
    unk_token = folder.special_tokens().get("unk")
    if unknown not in ((unk_token,) if unk_token else _UNKNOWN_PIECES):
        raise ValueError(
            "A unigram model's unk_id must be the id of its unknown piece, "
            f"{unk_token or ' or '.join(_UNKNOWN_PIECES)}. Received: unk_id={number!r}, which is "
            f"{unknown!r}, in {path}"
        )
    if name := layout_of(names):
        layout = LAYOUTS[name]
        kept = vocabulary[len(layout.beginning) : len(vocabulary) - len(layout.end)]
        vocabulary = [*((piece, 0.0) for piece in layout.replaced), *kept]
    proto = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]
    proto.trainer_spec.model_type = _UNIGRAM
    try:
        proto.normalizer_spec.precompiled_charsmap = base64.b64decode(charsmap[0], validate=True)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"precompiled_charsmap must be base64. Received: {str(charsmap[0])[:40]!r} in {path}"
        ) from error
    for index, (piece, score) in enumerate(vocabulary):
        kind = UNKNOWN if piece == unknown else CONTROL if piece in special else NORMAL
        proto.pieces.add(piece=piece, score=score, type=kind)
        if kind == UNKNOWN:
            proto.trainer_spec.unk_id = index
    return proto.SerializeToString()
