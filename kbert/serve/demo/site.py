"""Writes the page as a folder for any web server: the model runs in the browser.

Shapes: B rows, T tokens, P masks, L layers, N heads, V vocabulary.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterable, Mapping
from typing import Any

from keras import ops

from kbert.core.late import tf
from kbert.core.types import PathLike
from kbert.export.folder import export_rows, refuse_full
from kbert.export.task import TEXTS
from kbert.io.paths import Path, local_only
from kbert.models import Encoder
from kbert.serve.demo.assets import page_files
from kbert.serve.demo.models import described, short_name
from kbert.signatures.rows import RowFunction
from kbert.tasks import Pretraining
from kbert.tokenizers import WordPieceTokenizer
from kbert.tokenizers.wordpiece.characters import CharacterRules
from kbert.visualization.attention_reading import MOST_TOKENS, TITLES

# ONNX Runtime for browsers: the file that `npm pack` fetches, and its checksum in npm.
RUNTIME = "onnxruntime-web-1.30.0.tgz"
RUNTIME_SHA512 = (
    "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
)
# Its files for the CPU; the others are for GPUs and for other ways to load it.
_RUNTIME_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
)


def write_site(folder: PathLike, preset: PathLike, runtime: PathLike) -> str:
    """Writes the page with a model as a static site, which needs no program on the server.

    The page fills masks, predicts next sentences (if the model does) and shows attention. Before
    the site is kept, the outputs of the written model are compared with those of TensorFlow.

    Args:
        folder: path of the site, new or empty; it is written completely or not at all.
        preset: preset of a `kbert.tasks.Pretraining` on a `kbert.Encoder` with a WordPiece
            tokenizer.
        runtime: path of the file that `npm pack onnxruntime-web@VERSION` fetches, of the version in
            `RUNTIME`.

    Returns:
        Path of the folder.

    Raises:
        FileNotFoundError: there is no such preset or runtime.
        ImportError: the extra "onnx" is not installed.
        ValueError: the preset is of another kind, the runtime is another, or the folder is not
            empty.
    """
    refuse_full(local_only(folder, "A site"))
    binaries = _read_runtime(runtime)
    task = Pretraining.from_preset(preset)
    _check(task)
    features = task.row_export(task).samples(TEXTS)

    def write_page(place: str) -> None:
        site = json.dumps(_site(task, os.fspath(preset)), ensure_ascii=False, separators=(",", ":"))
        texts = {**page_files("browser"), "site.json": site}
        files = {**binaries, **{name: text.encode() for name, text in texts.items()}}
        for name, content in files.items():
            (Path(place) / name).write_bytes(content)

    return export_rows(
        folder,
        _rows(task),
        format="onnx",
        precision="float32",
        samples=[{name: x.numpy() for name, x in batch.items()} for batch in features],
        about={},
        save_beside=write_page,
    )


def _check(task: Pretraining) -> None:
    """Raises ValueError unless the browser can run the task: its encoder, tokenizer and head."""
    encoder: Any = task.encoder
    tokenizer: Any = task.tokenizer
    plain = type(encoder) is Encoder and type(tokenizer) is WordPieceTokenizer
    special_in_text = plain and (tokenizer.special_tokens_in_text or tokenizer.added_tokens)
    if not plain or special_in_text or tokenizer.pair_separators != 1:
        raise ValueError(
            "A site requires a kbert.Encoder with BERT's WordPiece tokenizer, without special or "
            f"added tokens in texts. Received: a {type(encoder).__name__} with a "
            f"{type(tokenizer).__name__}"
        )
    if task.masked_lm is None or not encoder.config.num_segments:
        raise ValueError(
            "A site requires a model with a masked-LM head and segments. Received: "
            f"masked_lm={task.masked_lm is not None}, num_segments={encoder.config.num_segments}"
        )


def _rows(task: Pretraining) -> RowFunction:
    """Returns the function of rows that the site's ONNX model computes; outputs are float32."""
    names = ("token_ids", "segment_ids", "padding_mask")

    def function(features: dict[str, Any]) -> dict[str, tf.Tensor]:
        encoded = task.encoder({name: features[name] for name in names}, return_attention=True)
        logits = task.masked_lm(encoded["sequence"], features["mask_positions"])
        size = task.tokenizer.vocabulary_size  # the embedding table may have more rows
        outputs = {
            "probabilities": ops.softmax(logits)[..., :size],  # (B, P, V)
            "attention": ops.stack(encoded["attention"], axis=1),  # (B, L, N, T, T)
        }
        if task.next_sentence:
            outputs["next_sentence"] = ops.softmax(task.sentence(encoded["pooled"]))[:, 0]  # (B,)
        return {name: ops.cast(x, "float32") for name, x in outputs.items()}

    axes = dict.fromkeys(names, ("batch", "length"))
    return RowFunction(function, {**axes, "mask_positions": ("batch", "masks")})


def _site(task: Pretraining, preset: str) -> dict[str, Any]:
    """Returns what `browser_engine.js` reads, as a JSON value without weights.

    Args:
        task: the task on the page.
        preset: path of its preset, whose last part becomes the model's name.

    Returns:
        Description of the model, special ids, limits, titles of attention, and the tokenizer's
        data.
    """
    tokenizer: Any = task.tokenizer
    pairs = ["next_sentence"] if task.next_sentence else []
    model = {
        "name": short_name(preset),
        "about": f"{described(task)}; it runs in this browser",
        "mask": tokenizer.mask_token,
        "abilities": ["fill_mask", *pairs, "attention"],
        "columns": [],
    }
    return {
        "about": {"models": [model], "lines": 0},
        "ids": {role: getattr(tokenizer, f"{role}_id") for role in ("cls", "sep", "mask")},
        "longest": task.row_length,
        "most_shown": MOST_TOKENS,
        "titles": list(TITLES),
        "tokenizer": tokenizer_data(tokenizer),
    }


def tokenizer_data(tokenizer: WordPieceTokenizer) -> dict[str, Any]:
    """Returns the tokenizer's data for `wordpiece.js`, as a JSON value.

    Args:
        tokenizer: a tokenizer that does not read special tokens in texts.

    Example:
        >>> pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "pen"]
        >>> data = tokenizer_data(WordPieceTokenizer(pieces))
        >>> data["rules"]["changed"]["É"], data["unknown"], data["longest"]
        ('e', 1, 200)
    """
    return {
        "vocabulary": list(tokenizer.vocabulary),
        "unknown": tokenizer.unk_id,
        "longest": tokenizer.max_word_characters,
        "rules": _rules(tokenizer.character_rules),
    }


def _rules(rules: CharacterRules) -> Mapping[str, Any]:
    """Returns a tokenizer's rules for characters as a JSON value; sets as `ranges`."""
    dropped = (character for character, replacement in rules.changed.items() if not replacement)
    return {
        "changed": {
            character: replacement
            for character, replacement in rules.changed.items()
            if replacement
        },
        "dropped": ranges(dropped),
        "alone": ranges(rules.alone),
        "cased": ranges(rules.cased),
        "ignorable": ranges(rules.ignorable),
    }


def ranges(characters: Iterable[str]) -> list[int]:
    """Returns the first and last code point of each run of characters, in one sorted list.

    >>> ranges("cabx")
    [97, 99, 120, 120]
    """
    bounds: list[int] = []
    for code in sorted(map(ord, characters)):
        if bounds and code == bounds[-1] + 1:
            bounds[-1] = code
        else:
            bounds += [code, code]
    return bounds


def _read_runtime(path: PathLike) -> dict[str, bytes]:
    """Reads the files of ONNX Runtime for browsers from its npm package.

    Args:
        path: path of the package, a .tgz file.

    Returns:
        Name -> content of each file.

    Raises:
        ValueError: the checksum is not that of `RUNTIME`.
    """
    archive = Path(path).read_bytes()
    checksum = base64.b64encode(hashlib.sha512(archive).digest()).decode()
    if checksum != RUNTIME_SHA512:
        raise ValueError(
            f"The runtime must be npm's {RUNTIME}, with SHA-512 {RUNTIME_SHA512}. Received: "
            f"{os.fspath(path)!r}, with {checksum}"
        )
    contents = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as package:
        for name in _RUNTIME_FILES:
            member = package.extractfile(f"package/dist/{name}")
            if member is None:
                raise ValueError(
                    f"The runtime must have a file {name!r}. Received: {path!r} without it"
                )
            contents[name] = member.read()
    return contents
