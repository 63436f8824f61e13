"""Loading Marian's tokenizer from kbert's or Hugging Face's folder."""

from typing import Any

from absl import logging

from kbert.io.paths import read_settings
from kbert.tokenizers.folder import TokenizerFolder
from kbert.tokenizers.marian.tokenizer import (
    SOURCE_MODEL,
    TARGET_MODEL,
    TARGET_VOCABULARY,
    USUAL,
    VOCABULARY,
    MarianTokenizer,
)


def load_marian(folder: TokenizerFolder, **options: Any) -> MarianTokenizer:
    """Loads the tokenizer of a folder with source.spm, target.spm and vocab.json.

    Args:
        folder: the files of the folder.
        options: arguments of `MarianTokenizer` that override the files.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: a damaged file, or a vocabulary without a special token.
    """
    is_separate = folder.config.get("separate_vocabs", False)
    needed = [SOURCE_MODEL, TARGET_MODEL, VOCABULARY, *[TARGET_VOCABULARY] * bool(is_separate)]
    if missing := [name for name in needed if not folder.has(name)]:
        raise FileNotFoundError(
            f"The folder of a Marian tokenizer must contain {', '.join(needed)}. Received: "
            f"{folder.path} without {', '.join(missing)}"
        )
    if not is_separate and folder.has(TARGET_VOCABULARY):
        logging.warning(
            "%s: %s is not read, because tokenizer_config.json does not say separate_vocabs=true; "
            "transformers does not read it either",
            *(folder.path, TARGET_VOCABULARY),
        )
    models = [read_settings(folder.path / name) for name in (SOURCE_MODEL, TARGET_MODEL)]
    named = folder.special_tokens()
    settings: dict[str, Any] = {
        "model": models[0],
        "vocabulary": folder.path / VOCABULARY,
        "target_model": models[1] if is_separate or models[0] != models[1] else None,
        "target_vocabulary": folder.path / TARGET_VOCABULARY if is_separate else None,
        "target_language": folder.config.get("target_language"),
        "special_tokens": {
            role: named.get("eos" if role == "sep" else role, token)
            for role, token in USUAL.items()
        },
    }
    try:
        tokenizer = MarianTokenizer(**(settings | options))
    except ValueError as error:
        raise ValueError(f"{error} in {folder.path}") from error
    folder.refuse_added(tokenizer.vocabulary)
    return tokenizer
