"""Reading GPT's tokenizer from the files of Hugging Face."""

from typing import Any

from kbert.json_file import read_json
from kbert.tokenizers.bpe.loading import read_model
from kbert.tokenizers.folder import TokenizerFolder
from kbert.tokenizers.gpt.tokenizer import END, GptTokenizer

_CLASSES = ("OpenAIGPTTokenizer", "OpenAIGPTTokenizerFast")


def load_gpt(folder: TokenizerFolder, **options: Any) -> GptTokenizer:
    """The tokenizer of a folder whose pieces end words by "</w>".

    Args:
        folder: its files.
        options: arguments of `GptTokenizer` that override the files.

    Raises:
        ValueError: the files are of another tokenizer with such pieces, or do not fit each other.
    """
    named = folder.config.get("tokenizer_class")
    if named is None and folder.has("config.json"):
        told = read_json(folder.path / "config.json").get("model_type")
        named = _CLASSES[0] if told == "openai-gpt" else told
    if named not in _CLASSES:
        raise ValueError(
            f"Of pieces that end words by {END!r} GPT's tokenizer is made, where "
            f"tokenizer_config.json or config.json says that it is one: {_CLASSES[0]}. "
            f"Received: {named!r} in {folder.path}"
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
    """Refuses what tokenizer.json asks for besides BERT's lower-cased words."""
    if not folder.full.get("model"):
        return
    asked: dict[str, Any] = {}
    steps = folder.normalizers()
    if [step["type"] for step in steps] != ["BertNormalizer"] or not steps[0].get("lowercase"):
        asked["normalizer"] = steps
    if (kinds := [step.get("type") for step in folder.pre_tokenizers()]) != ["BertPreTokenizer"]:
        asked["pre_tokenizer"] = kinds
    folder.refuse("GPT's texts are lower-cased and split as uncased BERT's are", asked)
