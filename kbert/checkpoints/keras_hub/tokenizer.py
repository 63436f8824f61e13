"""Writes a tokenizer in the format of KerasHub's presets: `tokenizer.json`, `assets/tokenizer/`."""

import tempfile
from typing import Any

from absl import logging

from kbert.checkpoints.keras_hub.names import Backbone
from kbert.io import atomic
from kbert.io.paths import Path


def write_tokenizer(folder: Path, spec: Backbone, tokenizer: Any) -> None:
    """Writes a tokenizer that `keras_hub.models.Tokenizer.from_preset` loads.

    A tokenizer is left out if KerasHub's would give other ids; a warning gives the reason.

    Args:
        folder: folder of the preset.
        spec: backbone class of the preset.
        tokenizer: kbert tokenizer.
    """
    reason = _problem(spec, tokenizer)
    if reason is None:
        try:
            theirs = _make(spec, tokenizer)
        except ValueError as error:  # lacks a special token that KerasHub's always has
            reason = str(error)
    if reason is not None:
        logging.warning("No tokenizer for KerasHub is written to %s: %s", folder, reason)
        return
    with tempfile.TemporaryDirectory() as temporary:
        theirs.save_to_preset(temporary)
        files = sorted(path for path in Path(temporary).rglob("*") if path.is_file())
        contents = {folder / path.relative_to(temporary): path.read_bytes() for path in files}
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic.write(path, content)


def _problem(spec: Backbone, tokenizer: Any) -> str | None:
    """Returns why KerasHub's tokenizer would give other ids than kbert's; None if it would not."""
    if tokenizer.kind != spec.tokenizer_kind:
        return (
            f"{spec.class_name} requires a tokenizer of kind {spec.tokenizer_kind}, not "
            f"{tokenizer.kind}"
        )
    if tokenizer.kind == "wordpiece" and not tokenizer.split_chinese:
        return "its WordPiece tokenizers do not save the setting not to split Chinese characters"
    if tokenizer.kind == "bpe" and tokenizer.normalization:
        return "its byte-level BPE tokenizers do not support normalization"
    if getattr(tokenizer, "added_tokens", None):
        return "its tokenizers do not support added tokens"
    if tokenizer.kind == "unigram" and tokenizer.preparation:
        return "its SentencePiece tokenizers do not prepare text (lower case, accents, digits)"
    return None


def _make(spec: Backbone, tokenizer: Any) -> Any:
    """Makes KerasHub's tokenizer from kbert's; raises ValueError if a special token is missing."""
    from keras_hub import models

    config = tokenizer.get_config()
    if tokenizer.kind == "wordpiece":
        strip = tokenizer.strip_accents
        arguments = {
            "vocabulary": config["vocabulary"],
            "lowercase": tokenizer.lowercase,
            "strip_accents": tokenizer.lowercase if strip is None else strip,
        }
    elif tokenizer.kind == "bpe":
        arguments = {
            "vocabulary": {piece: i for i, piece in enumerate(config["vocabulary"])},
            "merges": config["merges"],
            "add_prefix_space": tokenizer.add_prefix_space,
        }
    else:
        arguments = {"proto": config["model"]}
    return getattr(models, spec.tokenizer)(**arguments)
