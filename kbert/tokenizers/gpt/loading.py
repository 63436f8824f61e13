"""Loading GPT's tokenizer from Hugging Face's files."""

from typing import Any

from kbert.tokenizers.bpe.files import read_model
from kbert.tokenizers.folder import TokenizerFolder
from kbert.tokenizers.gpt.tokenizer import END, GptTokenizer

_CLASS = "OpenAIGPTTokenizer"


def load_gpt(folder: TokenizerFolder, **options: Any) -> GptTokenizer:
    """Loads the tokenizer of a folder whose tokens mark the end of a word with "</w>".

    Args:
        folder: the files of the folder.
        options: arguments of `GptTokenizer` that override the files.

    Raises:
        ValueError: the files belong to another tokenizer with such tokens, or contradict each
            other.
    """
    model_type = folder.model_config.get("model_type")
    class_name = folder.class_name or (_CLASS if model_type == "openai-gpt" else model_type)
    if class_name != _CLASS:
        raise ValueError(
            f"A vocabulary whose tokens end words with {END!r} requires GPT's tokenizer, named in "
            f"tokenizer_config.json or config.json: {_CLASS}. Received: {class_name!r} in "
            f"{folder.path}"
        )
    _check_pipeline(folder)
    vocabulary, merges = read_model(folder)
    for entry in folder.added_tokens():
        vocabulary.setdefault(entry["content"], entry["id"])
    roles = {"unk": "<unk>", **folder.special_tokens()}
    tokenizer = GptTokenizer(vocabulary, merges, **({"special_tokens": roles} | options))
    folder.refuse_added(tokenizer.vocabulary)
    return tokenizer


def _check_pipeline(folder: TokenizerFolder) -> None:
    """Raises ValueError if tokenizer.json does not lower-case and split texts like uncased BERT.

    Does nothing if the folder has no tokenizer.json.
    """
    if not folder.full.get("model"):
        return
    unsupported: dict[str, Any] = {}
    steps = folder.normalizers()
    if [step["type"] for step in steps] != ["BertNormalizer"] or not steps[0].get("lowercase"):
        unsupported["normalizer"] = steps
    if (kinds := [step.get("type") for step in folder.pre_tokenizers()]) != ["BertPreTokenizer"]:
        unsupported["pre_tokenizer"] = kinds
    folder.refuse(
        "GPT's tokenizer must lower-case and split texts as uncased BERT's does", unsupported
    )
