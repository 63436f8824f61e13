"""`generation_config.json` of a Hugging Face folder: how an encoder-decoder's texts are decoded."""

import json
from collections.abc import Mapping
from typing import Any

from absl import logging

from kbert.checkpoints.huggingface.unread_keys import GENERATION
from kbert.io import atomic
from kbert.io.json_file import read_json
from kbert.io.paths import Path

FILE = "generation_config.json"
# Arguments of `generate` that every config has, also one that says nothing of generation.
_TOKENS = frozenset(("bos_token_id", "eos_token_id", "pad_token_id"))
_OF_FILE = ("transformers_version",)


def read(folder: Path, content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the setting `generation` of an encoder-decoder's task.

    Args:
        folder: the folder. Its `generation_config.json` counts; without one, as in transformers,
            the arguments in `config.json`.
        content: content of `config.json`.
    """
    if (folder / FILE).is_file():
        arguments = read_json(folder / FILE)
    else:
        arguments = {key: x for key, x in content.items() if key in GENERATION | _TOKENS}
    shown = {
        key: x
        for key, x in arguments.items()
        if x is not None and not key.startswith("_") and key not in _OF_FILE
    }
    return {"generation": shown}


def start_of(task: Mapping[str, Any], tokenizer: Any) -> int | None:
    """Returns the decoder's first token: that of the task, else "cls", or "pad" without one.

    If a language's code ends the targets, as in mBART, it is that code.
    """
    if task.get("special_tokens") == "all" and len(tokenizer.target.suffix_ids) > 1:
        return tokenizer.target.suffix_ids[-1]
    start = (task.get("generation") or {}).get("decoder_start_token_id")
    usual = tokenizer.pad_id if tokenizer.cls_id is None else tokenizer.cls_id
    return usual if start is None else start


def write(folder: Path, task: Mapping[str, Any], tokenizer: Any) -> None:
    """Writes the `generation_config.json` of an encoder-decoder's task.

    Args:
        folder: folder to write to.
        task: kind and settings of the task.
        tokenizer: the task's tokenizer.
    """
    ids = {"bos": tokenizer.cls_id, "eos": tokenizer.sep_id, "pad": tokenizer.pad_id}
    arguments = {f"{name}_token_id": x for name, x in ids.items() if x is not None}
    arguments |= task.get("generation") or {}
    arguments["decoder_start_token_id"] = start_of(task, tokenizer)
    first = tokenizer.target.prefix_ids
    if task.get("special_tokens") != "all":
        if (tokenizer.prefix_ids, tokenizer.suffix_ids) != ((), (tokenizer.sep_id,)):
            logging.warning(
                "transformers puts more tokens around a source than this task, which only ends it "
                "by token %s: build its rows yourself",
                tokenizer.sep_id,
            )
    elif first and (tokenizer.languages or "forced_bos_token_id" not in arguments):
        arguments["forced_bos_token_id"] = first[0]
    atomic.write(folder / FILE, (json.dumps(arguments, indent=2) + "\n").encode())
