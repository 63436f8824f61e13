"""The tokenizer as a model for OpenVINO with openvino-tokenizers: texts in, rows out.

Shapes: B texts, P tokens of all texts together.
"""

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kbert.core.late import optional
from kbert.export.openvino.runtime import EXTRA
from kbert.export.text_to_rows import (
    INPUTS,
    Batch,
    TextToRows,
    code_class,
    final_sigma,
    of_kind,
    word_patterns,
)
from kbert.tokenizers.bpe.byte_alphabet import piece_bytes
from kbert.tokenizers.bpe.merges import live_merges
from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer
from kbert.tokenizers.unigram.model import compile_charsmap
from kbert.tokenizers.wordpiece.kernel import BYTES_PER_CHARACTER
from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer

PACKAGE = "openvino-tokenizers"
MODULE = "openvino_tokenizers"
FILES = {1: "openvino_tokenizer.xml", 2: "openvino_tokenizer_pairs.xml"}
_NO_PIECE = "\U0010fffd"  # a private character, which becomes the unknown token


def write(folder: str, rows: TextToRows, count: int) -> str:
    """Writes the tokenizer's graph for one text per row, or two.

    Args:
        folder: folder to write to.
        rows: function from texts to rows that the graph computes.
        count: number of texts per row.

    Returns:
        Name of the file.

    Raises:
        ImportError: the extra is not installed.
        NotInside: the extension has no such tokenizer.
    """
    openvino, steps = optional("openvino", EXTRA), optional(f"{MODULE}.tokenizer_pipeline", EXTRA)
    pieces = of_kind(rows.tokenizer, PACKAGE, _PIECES)
    packing = openvino.convert_model(rows.packing(count).get_concrete_function())
    ops = openvino.opset15
    text = ops.parameter([-1, 2][:count], openvino.Type.string, name=INPUTS[count])
    text.output(0).tensor.set_names({INPUTS[count]})
    begins, ends, letters = ops.string_tensor_unpack(text).outputs()
    if count > 1:  # all first texts, then all second texts
        order, flat = np.array([1, 0]), np.array([-1])
        begins, ends = (
            ops.reshape(ops.transpose(x, order), flat, special_zero=False).output(0)
            for x in (begins, ends)
        )
    texts = list(steps.UTF8ValidateStep().get_ov_subgraph([begins, ends, letters]))
    _, ends, ids = pieces(steps, texts, rows.tokenizer)
    # BPE's operations return a single end if all texts are empty.
    ends = ops.broadcast(ends, ops.shape_of(begins)).output(0)
    values_by_name = {"pieces": ids, "ends": ends}
    for value in packing.inputs:
        (name,) = value.get_names() & set(values_by_name)
        value.get_node().output(0).replace(values_by_name[name])
    for value in packing.outputs:
        value.tensor.set_names(value.get_names() & set(rows.names))
    model = openvino.Model(packing.get_results(), [text], "tokenizer")
    openvino.save_model(model, os.path.join(folder, FILES[count]), compress_to_fp16=False)
    return FILES[count]


def run(folder: str, count: int, batches: Sequence[Batch]) -> list[dict[str, np.ndarray]]:
    """Runs the tokenizer's graph on texts.

    Args:
        folder: folder of the graph.
        count: number of texts per row.
        batches: batches of texts or pairs.

    Returns:
        For each batch the graph's output arrays by name.

    Raises:
        ImportError: the extra is not installed.
    """
    openvino = optional("openvino", EXTRA)
    optional(MODULE, EXTRA)  # its import registers its operations with OpenVINO
    model = openvino.Core().compile_model(os.path.join(folder, FILES[count]), "CPU")
    outputs = [value.get_any_name() for value in model.outputs]
    rows = []
    for batch in batches:
        results = model({INPUTS[count]: np.array(batch)})
        rows.append({name: results[name] for name in outputs})
    return rows


# The functions in `_PIECES` map texts (B,) to the begin and end of each text's tokens (B,) and to
# token ids (P,); all int32.


def _wordpieces(steps: Any, texts: list[Any], tokenizer: WordPieceTokenizer) -> list[Any]:
    """Adds the operations of WordPiece to texts.

    Args:
        steps: the module `openvino_tokenizers.tokenizer_pipeline`.
        texts: begin and end of each text (B,), and the bytes of all texts.
        tokenizer: tokenizer to reproduce.

    Returns:
        Begin and end of each text's tokens (B,), and the token ids (P,); all int32.
    """
    rules, longest = tokenizer.character_rules, tokenizer.max_word_characters
    normalisation = [
        steps.RegexNormalizationStep(r"\x00", ""),
        steps.CharsmapStep(
            charsmap=compile_charsmap(rules.changed), remove_extra_whitespaces=False
        ),
        steps.RegexNormalizationStep(f"({code_class(rules.alone)})", r" $1 "),
        # The limit of the operation itself counts bytes.
        steps.RegexNormalizationStep(f"[^ ]{{{longest + 1},}}", _NO_PIECE),
        # If all texts were empty, they would be split to a single one.
        steps.RegexNormalizationStep("^", " "),
    ]
    if rules.cased:
        pattern, rewrite = final_sigma(rules)
        rewrite = rewrite.replace("\\", "$")
        normalisation.insert(1, steps.RegexNormalizationStep(pattern, rewrite))
    splitting = [
        steps.RegexSplitStep(" +"),
        steps.WordPieceTokenizationStep(
            tokenizer.model_pieces,
            tokenizer.unk_token,
            max_bytes_per_word=BYTES_PER_CHARACTER * longest,
        ),
    ]
    return _run(steps, texts, normalisation, splitting)


def _byte_pairs(steps: Any, texts: list[Any], tokenizer: BytePairTokenizer) -> list[Any]:
    """Adds the operations of byte-level BPE to texts.

    Args:
        steps: the module `openvino_tokenizers.tokenizer_pipeline`.
        texts: begin and end of each text (B,), and the bytes of all texts.
        tokenizer: tokenizer to reproduce.

    Returns:
        Begin and end of each text's tokens (B,), and the token ids (P,); all int32.
    """
    live_tokens, merges = live_merges(tokenizer.merges)
    live = set(live_tokens)  # the operation would use any vocabulary entry that equals a word
    pieces = steps.BPETokenizationStep(
        [piece_bytes(piece) if piece in live else b"" for piece in tokenizer.vocabulary],
        [(piece_bytes(first), piece_bytes(second)) for first, second in merges],
    )
    pipeline = steps.TokenizerPipeline()  # the step stores its vocabulary there
    pieces.set_pipeline(pipeline)
    _, word = word_patterns(tokenizer.words)
    # PCRE supports the lookahead of GPT-2's own pattern, which keeps the space before a word.
    other_patterns, _, space = word.rpartition("|")
    word = f"{other_patterns}|{space}(?![^{space.removeprefix('[').removesuffix('+')})|{space}"
    prefix = [steps.RegexNormalizationStep("^([^ ])", " $1")] if tokenizer.add_prefix_space else []
    splitting = [steps.RegexSplitStep(word, behaviour="isolate"), pieces]
    return _run(steps, texts, prefix, splitting)


_PIECES: dict[type, Callable[[Any, list[Any], Any], list[Any]]] = {
    WordPieceTokenizer: _wordpieces,
    BytePairTokenizer: _byte_pairs,
}


def _run(
    steps: Any, texts: list[Any], normalisation: Sequence[Any], splitting: Sequence[Any]
) -> list[Any]:
    """Adds steps of openvino-tokenizers to texts.

    Args:
        steps: the module `openvino_tokenizers.tokenizer_pipeline`.
        texts: begin and end of each text (B,), and the bytes of all texts.
        normalisation: steps that change whole texts.
        splitting: steps that split texts, down to token ids.

    Returns:
        Begin and end of each text's tokens (B,), and the token ids (P,); all int32.
    """
    for step in normalisation:
        texts = list(step.get_ov_subgraph(texts))
    texts = list(steps.TokenizerPipeline.add_ragged_dimension(texts))
    for step in splitting:
        texts = list(step.get_ov_subgraph(texts))
    return texts
