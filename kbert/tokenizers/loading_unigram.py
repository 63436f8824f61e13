"""Reading a SentencePiece unigram tokenizer from a folder."""

from pathlib import Path
from typing import Any

from kbert.tokenizers.folder import TokenizerFolder, read_json
from kbert.tokenizers.unigram import CONFIG_KEYS, UnigramTokenizer
from kbert.tokenizers.unigram_model import read_model

# Kinds of models whose ids are fairseq's, not those of the file.
_FAIRSEQ = ("xlm-roberta", "XLMRobertaTokenizer", "XLMRobertaTokenizerFast")
_SETTINGS = ("preparation", "layout", "special_tokens_in_text")


def model_file(folder: Path) -> Path | None:
    """The SentencePiece model of a folder: the only file of that kind, or None.

    Raises:
        ValueError: there are several.
    """
    found = sorted(folder.glob("*.model"))
    if len(found) > 1:
        raise ValueError(
            "A tokenizer's folder holds one SentencePiece model. Received: "
            f"{', '.join(path.name for path in found)} in {folder}"
        )
    return found[0] if found else None


def load_unigram(folder: TokenizerFolder, **options: Any) -> UnigramTokenizer:
    """The tokenizer of a folder with a SentencePiece model.

    XLM-R's ids are told by the folder's `tokenizer_class` or model type, or by the file's name,
    sentencepiece.bpe.model; a cased XLNet by its `<cls>`.

    Args:
        folder: it.
        options: arguments of `UnigramTokenizer` that go before what the files say.
    """
    path = model_file(folder.path)
    settings = {name: folder.config[name] for name in _SETTINGS if name in folder.config}
    settings |= {
        name: folder.config[key] for name, key in CONFIG_KEYS.items() if key in folder.config
    }
    kinds = {folder.config.get("tokenizer_class")}
    if folder.has("config.json"):
        kinds.add(read_json(folder.path / "config.json").get("model_type"))
    if kinds & set(_FAIRSEQ) or path.name == "sentencepiece.bpe.model":
        settings.setdefault("layout", "fairseq")
    elif any(piece.piece == "<cls>" for piece in read_model(path).pieces):
        settings.setdefault("lowercase", False)
    settings["special_tokens"] = folder.special_tokens()
    return UnigramTokenizer(path, **(settings | options))
