"""Loading a tokenizer from a KerasHub preset.

There `tokenizer.json` contains the class and settings, `assets/tokenizer/` the vocabulary.
(keras_hub, src/tokenizers/*.py and src/models/<name>/<name>_tokenizer.py.)
"""

from typing import Any

from kbert.io.paths import Path
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer
from kbert.tokenizers.folder import FLAG, TokenizerFolder, check_forms
from kbert.tokenizers.unigram.tokenizer import UnigramTokenizer
from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer

# Settings of WordPiece for which kbert supports a single value.
_FIXED = {"split": True, "suffix_indicator": "##", "oov_token": "[UNK]"}


def load_keras_hub(folder: TokenizerFolder, **options: Any) -> Tokenizer:
    """Loads the tokenizer of a folder whose `tokenizer.json` is KerasHub's, not Hugging Face's.

    Args:
        folder: the folder of the preset.
        options: arguments of kbert's tokenizer that override the files.

    Returns:
        A tokenizer of the kind that the vocabulary determines, with KerasHub's ids. Special tokens
        in a text are not recognised unless `special_tokens_in_text` is set.

    Raises:
        FileNotFoundError: no vocabulary among the assets.
        ValueError: settings that kbert's tokenizer does not support.
    """
    assets = folder.path / "assets" / "tokenizer"
    settings = folder.full.get("config", {})
    if (assets / "vocabulary.txt").is_file():
        return WordPieceTokenizer(
            assets / "vocabulary.txt", **(_wordpiece_settings(settings, folder.path) | options)
        )
    if (assets / "vocabulary.json").is_file():
        check_forms(settings, {"add_prefix_space": FLAG}, folder.path / "tokenizer.json")
        file_settings = {"add_prefix_space": settings.get("add_prefix_space", False)}
        files = (assets / "vocabulary.json", assets / "merges.txt")
        return BytePairTokenizer(*files, **(file_settings | options))
    if (assets / "vocabulary.spm").is_file():
        xlm_roberta = folder.full["class_name"] == "XLMRobertaTokenizer"
        file_settings = {
            "layout": "fairseq" if xlm_roberta else "sentencepiece",
            "preparation": False,
        }
        return UnigramTokenizer(assets / "vocabulary.spm", **(file_settings | options))
    raise FileNotFoundError(
        "A KerasHub tokenizer must have vocabulary.txt, vocabulary.json or vocabulary.spm. "
        f"Received: {assets} without one"
    )


def _wordpiece_settings(settings: dict[str, Any], path: Path) -> dict[str, Any]:
    """Returns the arguments of a `WordPieceTokenizer` in KerasHub's settings.

    `path` is the folder of the model, for messages. A setting that kbert does not support raises
    ValueError.
    """
    for name, value in _FIXED.items():
        if settings.get(name, value) != value:
            raise ValueError(
                f"`{name}` must be {value!r} in a WordPiece tokenizer that kbert reads. "
                f"Received: {settings[name]!r} in {path / 'tokenizer.json'}"
            )
    names = ("lowercase", "strip_accents")
    check_forms(settings, dict.fromkeys(names, FLAG), path / "tokenizer.json")
    return {name: settings[name] for name in names if settings.get(name) is not None}
