"""Reading a unigram tokenizer from a folder: kbert's own, Hugging Face's, ALBERT's or XLNet's."""

from pathlib import Path
from typing import Any

from kbert.tokenizers.base import ROLES
from kbert.tokenizers.unigram import CONFIG_KEYS, UnigramTokenizer
from kbert.tokenizers.unigram_model import (
    is_fairseq,
    model_of_tokenizer_json,
    normalizer_steps,
    read_model,
)

MODEL_NAMES = ("spiece.model", "sentencepiece.bpe.model")
# What the tokenizers that are named in tokenizer_config.json do where the file does not say it.
_CLASSES = {
    "AlbertTokenizer": {"layout": "sentencepiece", "lowercase": True, "keep_accents": False},
    "XLNetTokenizer": {"layout": "sentencepiece", "lowercase": False, "keep_accents": False},
    "XLMRobertaTokenizer": {"layout": "fairseq"},
}


def find_model(folder: Path) -> Path | None:
    """The SentencePiece file of a folder: one of the usual names, or the only `*.model`.

    Raises:
        ValueError: several files with other names.
    """
    found = [folder / name for name in MODEL_NAMES if (folder / name).is_file()]
    found = found or sorted(folder.glob("*.model"))
    if len(found) > 1:
        raise ValueError(
            "A tokenizer's folder holds one SentencePiece model. "
            f"Received: {folder} with {', '.join(path.name for path in found)}"
        )
    return found[0] if found else None


def load_unigram(
    folder: Path, config: dict[str, Any], full: dict[str, Any], **options: Any
) -> UnigramTokenizer:
    """The unigram tokenizer of a folder.

    Args:
        folder: with a SentencePiece file, or a tokenizer.json of a unigram model.
        config: what stands in its tokenizer_config.json.
        full: what stands in its tokenizer.json, which is what Hugging Face runs.
        options: arguments of `UnigramTokenizer` that go before what the folder says.

    Raises:
        ValueError: a damaged model, or nothing that says how it was trained on text.
    """
    path = find_model(folder)
    if path is not None:
        model = path.read_bytes()
        pieces = [piece.piece for piece in read_model(path).pieces]
    else:
        path = folder / "tokenizer.json"
        model = model_of_tokenizer_json(full, path)
        pieces = [piece for piece, _ in full["model"]["vocab"]]
    settings = _class_settings(config, pieces, path, options) | _settings(config, full)
    tokens = {role: config[f"{role}_token"] for role in ROLES if config.get(f"{role}_token")}
    tokens = {role: x["content"] if isinstance(x, dict) else x for role, x in tokens.items()}
    return UnigramTokenizer(model, **({"special_tokens": tokens} | settings | options))


def _class_settings(
    config: dict[str, Any], pieces: list[str], path: Path, options: dict[str, Any]
) -> dict[str, Any]:
    """What is known of a tokenizer by its class, or by its special tokens where that is not told.

    ALBERT's and XLNet's own releases have the model alone.
    """
    name = config.get("tokenizer_class", "").removesuffix("Fast")
    if not name:
        if is_fairseq(pieces) or path.name == MODEL_NAMES[1]:
            name = "XLMRobertaTokenizer"
        elif "[CLS]" in pieces:
            name = "AlbertTokenizer"
        elif "<cls>" in pieces:
            name = "XLNetTokenizer"
    if name in _CLASSES:
        return _CLASSES[name]
    if "preparation" in options:
        return {}
    raise ValueError(
        f"It is known of {', '.join(_CLASSES)} what they do to a text before SentencePiece. Pass "
        "preparation=False for a tokenizer that does nothing, or True for one that does as "
        f"ALBERT's. Received: {path} of class {name or 'unknown'}"
    )


def _settings(config: dict[str, Any], full: dict[str, Any]) -> dict[str, Any]:
    """Arguments that the files name; tokenizer.json goes before."""
    names = {**CONFIG_KEYS, **{n: n for n in ("preparation", "layout", "special_tokens_in_text")}}
    found = {name: config[key] for name, key in names.items() if key in config}
    kinds = {step["type"] for step in normalizer_steps(full)}
    if "Replace" in kinds and "Precompiled" in kinds and "layout" not in config:
        found |= {"lowercase": "Lowercase" in kinds, "keep_accents": "NFKD" not in kinds}
    return found
