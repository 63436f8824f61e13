"""The tokenizer as a model for ONNX Runtime with onnxruntime-extensions: texts in, rows out.

Shapes: B texts, C runs of characters, W words and P tokens of all texts together.
"""

import importlib.util
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kbert.core.late import optional
from kbert.export.onnx.runtime import EXTRA, OPSET, name_axes
from kbert.export.text_to_rows import (
    INPUTS,
    Batch,
    NotInside,
    TextToRows,
    code_class,
    final_sigma,
    of_kind,
    word_patterns,
)
from kbert.tokenizers.bpe.merges import CUT, sentencepiece_model
from kbert.tokenizers.bpe.tokenizer import BytePairTokenizer
from kbert.tokenizers.wordpiece.characters import CharacterRules
from kbert.tokenizers.wordpiece.tokenizer import WordPieceTokenizer

PACKAGE = "onnxruntime-extensions"
MODULE = "onnxruntime_extensions"
FILES = {1: "tokenizer.onnx", 2: "tokenizer_pairs.onnx"}
# Domains of operations that are not ONNX's own.
_EXTENSION, _DICTIONARIES = "ai.onnx.contrib", "ai.onnx.ml"
_VERSIONS = {_EXTENSION: 1, _DICTIONARIES: 2}
# ASCII; and the Latin alphabets of Europe, with general punctuation and signs of currencies.
_FEW = [
    [chr(code) for code in codes]
    for codes in (range(0x80), (*range(0x250), *range(0x2000, 0x2070), *range(0x20A0, 0x20D0)))
]
_END = "\n"  # separates two texts; within a text it is white space and replaced before


def write(folder: str, rows: TextToRows, count: int) -> str:
    """Writes the graph for one text per row, or two.

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
    convert, onnx = optional("tf2onnx.convert", EXTRA), optional("onnx", EXTRA)
    pieces = of_kind(rows.tokenizer, PACKAGE, _PIECES)
    logging.getLogger("tf2onnx").setLevel(logging.ERROR)
    front = _Nodes(onnx)
    name, axes = INPUTS[count], ["batch", 2][:count]
    texts = name
    if count > 1:  # all first texts, then all second texts
        texts = front.add("Reshape", front.add("Transpose", name), front.integers(-1))
    token_values, ids = pieces(front, texts, rows.tokenizer)
    packing = rows.packing(count, ids)
    model, _ = convert.from_function(
        packing, input_signature=list(packing.input_signature), opset=OPSET
    )
    graph = model.graph
    for part, value in zip(token_values, graph.input, strict=True):
        front.nodes.append(onnx.helper.make_node("Identity", [part], [value.name]))
    nodes = [*front.nodes, *graph.node]
    del graph.node[:], graph.input[:]
    graph.node.extend(nodes)
    graph.initializer.extend(front.constants)
    text = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.STRING, axes)
    graph.input.append(text)
    name_axes(graph.output, dict.fromkeys(rows.names, ("batch", "length")))
    known_domains = {opset.domain for opset in model.opset_import}
    for domain, version in _VERSIONS.items():
        if domain not in known_domains:
            model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    onnx.save_model(model, os.path.join(folder, FILES[count]))
    return FILES[count]


# Runs in its own process: if TensorFlow is loaded, its symbols replace those of the same names in
# the extension (both have RE2). The extension's patterns then match nothing, without any error.
_PROGRAM = """
import json, sys
import numpy, onnxruntime, onnxruntime_extensions
model, batches, out = sys.argv[1:]
options = onnxruntime.SessionOptions()
options.log_severity_level = 3
options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
names = [value.name for value in session.get_outputs()]
found = {}
with open(batches, encoding="utf-8") as file:
    for number, batch in enumerate(json.load(file)):
        given = {session.get_inputs()[0].name: numpy.array(batch, object)}
        for name, value in zip(names, session.run(names, given)):
            found[f"{number} {name}"] = value
numpy.savez(out, **found)
"""


def run(folder: str, count: int, batches: Sequence[Batch]) -> list[dict[str, np.ndarray]]:
    """Runs the tokenizer's graph on texts, in a separate process.

    Args:
        folder: folder of the graph.
        count: number of texts per row.
        batches: batches of texts or pairs.

    Returns:
        For each batch the graph's output arrays by name.

    Raises:
        ImportError: the extra is not installed.
        NotInside: the runtime cannot run the graph.
    """
    for module in ("onnxruntime", MODULE):
        if importlib.util.find_spec(module) is None:
            optional(module, EXTRA)
    with tempfile.TemporaryDirectory() as temporary_dir:
        texts_path, rows_path = (
            os.path.join(temporary_dir, "texts.json"),
            os.path.join(temporary_dir, "rows.npz"),
        )
        with open(texts_path, "w", encoding="utf-8") as file:
            json.dump(list(batches), file)
        model = os.path.join(folder, FILES[count])
        process = subprocess.run(
            [sys.executable, "-c", _PROGRAM, model, texts_path, rows_path],
            capture_output=True,
            text=True,
        )
        if process.returncode:
            raise NotInside(f"{PACKAGE} cannot run it: {process.stderr.strip()[-300:]}")
        with np.load(rows_path) as arrays:
            rows: list[dict[str, np.ndarray]] = [{} for _ in batches]
            for key in arrays.files:
                number, name = key.split()
                rows[int(number)][name] = arrays[key]
    return rows


class _Nodes:
    """A graph that is being built: its operations in order, and its constants.

    The methods add operations; they take and return the names of values.

    Args:
        onnx: the package `onnx`.
        prefix: prefix of the names of values, different from those of enclosing graphs.

    Attributes:
        nodes: operations, in order.
        constants: constant tensors.
    """

    def __init__(self, onnx: Any, prefix: str = "tokenizer_") -> None:
        self._onnx, self._prefix = onnx, prefix
        self._helper, self._types = onnx.helper, onnx.TensorProto
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def add(self, kind: str, *inputs: str, domain: str = "", **given: Any) -> str:
        """Adds an operation of ONNX with attributes `given`; returns the name of its output."""
        return self.several(kind, *inputs, outputs=1, domain=domain, **given)[0]

    def several(self, kind: str, *inputs: str, outputs: int, **given: Any) -> list[str]:
        """Adds an operation of ONNX with several outputs; returns their names."""
        names = [f"{self._prefix}{len(self.nodes)}_{i}" for i in range(outputs)]
        self.nodes.append(self._helper.make_node(kind, inputs, names, **given))
        return names

    def strings(self, *values: str | bytes) -> str:
        """Adds a constant (N,) of strings."""
        encoded = [x.encode() if isinstance(x, str) else x for x in values]
        return self._constant(self._types.STRING, [len(values)], encoded)

    def integers(self, *values: int) -> str:
        """Adds a constant (N,) of int64."""
        return self._constant(self._types.INT64, [len(values)], values)

    def integer(self, value: int) -> str:
        """Adds a scalar constant of int64."""
        return self._constant(self._types.INT64, [], [value])

    def floats(self, *values: float) -> str:
        """Adds a constant (N,) of float32."""
        return self._constant(self._types.FLOAT, [len(values)], values)

    def booleans(self, *values: bool) -> str:
        """Adds a constant (N,) of bool."""
        return self._constant(self._types.BOOL, [len(values)], values)

    def zeros(self, like: str) -> str:
        """Returns int64 zeros in the shape of the value `like`."""
        zero = self._helper.make_tensor("zero", self._types.INT64, [1], [0])
        return self.add("ConstantOfShape", self.add("Shape", like), value=zero)

    def ones(self, like: str) -> str:
        """Returns int64 ones in the shape of the value `like`."""
        return self.add("Expand", self.integers(1), self.add("Shape", like))

    def marks(self, like: str, places: str) -> str:
        """Returns int64 in the shape (N,) of `like`: 1 at the indices in `places`, 0 elsewhere."""
        return self.add("ScatterElements", self.zeros(like), places, self.ones(places))

    def running_sum(self, values: str) -> str:
        """Returns the cumulative sums of a vector."""
        return self.add("CumSum", values, self.integer(0))

    def size(self, value: str) -> str:
        """Returns the number of entries of a value."""
        return self.add("Size", value)

    def int32(self, value: str) -> str:
        return self.add("Cast", value, to=self._types.INT32)

    def boolean(self, value: str) -> str:
        return self.add("Cast", value, to=self._types.BOOL)

    def behind_first(self, value: str) -> str:
        """Returns the entries of a value except the first."""
        return self.add("Slice", value, self.integers(1), self.integers(2**31 - 1))

    def kept(self, value: str, keep: str) -> str:
        """Returns the entries of a value for which `keep` is true."""
        return self.add("Compress", value, keep, axis=0)

    def lookup(self, values: str, keys: Sequence[str], default: int) -> str:
        """Returns the index of each string in `keys`, int64; `default` for strings not in it."""
        return self.add(
            "LabelEncoder",
            values,
            domain=_DICTIONARIES,
            keys_strings=list(keys),
            values_int64s=list(range(len(keys))),
            default_int64=default,
        )

    def either(
        self, condition: str, kinds: str, *branches: Callable[["_Nodes"], Sequence[str]]
    ) -> list[str]:
        """Returns the outputs of the first of two branches if a condition is true, else the second.

        Args:
            condition: name of a scalar of bool.
            kinds: types of the outputs, such as "STRING INT64"; each output has one axis.
            *branches: functions that add the operations of a branch and return the names of its
                outputs.
        """
        types = [getattr(self._types, kind) for kind in kinds.split()]
        graphs = []
        for number, branch in enumerate(branches):
            inner = _Nodes(self._onnx, f"{self._prefix}{len(self.nodes)}_branch_{number}_")
            branch_outputs = [inner.add("Identity", name) for name in branch(inner)]
            pairs = zip(branch_outputs, types, strict=True)
            values = [self._helper.make_tensor_value_info(x, kind, [None]) for x, kind in pairs]
            graphs.append(
                self._helper.make_graph(inner.nodes, f"b{number}", [], values, inner.constants)
            )
        then_graph, else_graph = graphs
        return self.several(
            "If", condition, outputs=len(types), then_branch=then_graph, else_branch=else_graph
        )

    def has_only(self, texts: str, characters: Sequence[str]) -> str:
        """Returns a scalar bool: whether all texts consist only of these characters."""
        plain = self.replace(texts, code_class(characters, others=True), "")
        changed = self.add("Not", self.add("StringEqual", plain, texts, domain=_EXTENSION))
        count = self.add("ReduceSum", self.int32(changed), keepdims=0)
        return self.add("Not", self.boolean(count))

    def replace(self, texts: str, pattern: str, rewrite: str | bytes) -> str:
        """Returns texts in which the matches of an RE2 pattern are replaced."""
        constants = self.strings(pattern), self.strings(rewrite)
        return self.add("StringRegexReplace", texts, *constants, domain=_EXTENSION)

    def join(self, texts: str, between: str) -> str:
        """Joins strings to one string, (1,)."""
        constants = self.strings(between), self.integers(0)
        return self.add("StringJoin", texts, *constants, domain=_EXTENSION)

    def split(self, texts: str, pattern: str, keep: bool) -> tuple[str, str]:
        """Splits texts at the matches of a pattern.

        Args:
            texts: strings (B,).
            pattern: pattern of RE2.
            keep: whether the matches are strings of the result too.

        Returns:
            The strings (S,) of all texts, without empty ones, and the index of each text's first
            string, (B + 1,).
        """
        # The extension matches nothing without a group around the pattern.
        constants = self.strings(f"({pattern})"), self.strings(f"({pattern})" if keep else "")
        results = self.several(
            "StringRegexSplitWithOffsets", texts, *constants, outputs=4, domain=_EXTENSION
        )
        return results[0], results[-1]

    def _constant(self, kind: int, shape: list[int], values: Any) -> str:
        name = f"{self._prefix}constant_{len(self.constants)}"
        self.constants.append(self._helper.make_tensor(name, kind, shape, values))
        return name


# Token ids of all texts (P,) and the end of each text's ids (B,), int32; and the tokenizer's id for
# each id of the runtime, None if they are the same.
_Found = tuple[tuple[str, str], Sequence[int] | None]


def _wordpieces(nodes: _Nodes, texts: str, tokenizer: WordPieceTokenizer) -> _Found:
    """Adds the operations of WordPiece to a graph.

    Args:
        nodes: graph that is being built.
        texts: strings (B,).
        tokenizer: tokenizer to reproduce.

    Returns:
        (Token ids of all texts (P,), end of each text's ids (B,)), both int32; and None, because
        the ids are the tokenizer's.
    """
    words, text_of = _words_of_few(nodes, texts, tokenizer.character_rules, _FEW)
    ids, word_of = _pieces_of_words(nodes, words, tokenizer)
    owners = nodes.add("Gather", text_of, word_of)
    # "add" counts every token of a text.
    counts = nodes.add(
        "ScatterElements", nodes.zeros(texts), owners, nodes.ones(owners), reduction="add"
    )
    return (nodes.int32(ids), nodes.int32(nodes.running_sum(counts))), None


def _byte_pairs(nodes: _Nodes, texts: str, tokenizer: BytePairTokenizer) -> _Found:
    """Adds the operations of byte-level BPE to a graph.

    Args:
        nodes: graph that is being built.
        texts: strings (B,).
        tokenizer: tokenizer to reproduce.

    Returns:
        (Token ids of all texts (P,), end of each text's ids (B,)), both int32; and the tokenizer's
        id for each id of the runtime.
    """
    cut_pattern, word = word_patterns(tokenizer.words)
    if tokenizer.add_prefix_space:
        texts = nodes.replace(texts, "^([^ ])", r" \1")
    cut = nodes.replace(texts, cut_pattern, rb"\1" + CUT + rb"\2")  # RE2 has no lookahead
    words, words_of = nodes.split(cut, word, keep=True)
    # The extension's own byte-level tokenizers also split texts to words, by other tables.
    model, pieces = sentencepiece_model(tokenizer.merges, from_bytes=True)
    token_ids, begins = _sentencepieces(nodes, words, model)
    ends = nodes.add("Gather", begins, nodes.behind_first(words_of))
    ids = [tokenizer.unk_id, *map(tokenizer.token_to_id, pieces)]
    return (token_ids, nodes.int32(ends)), ids


_PIECES: dict[type, Callable[[_Nodes, str, Any], _Found]] = {
    WordPieceTokenizer: _wordpieces,
    BytePairTokenizer: _byte_pairs,
}


def _sentencepieces(nodes: _Nodes, texts: str, model: bytes) -> list[str]:
    """Maps texts (N,) to token ids with a SentencePiece model.

    Args:
        nodes: graph that is being built.
        texts: strings (N,).
        model: serialised SentencePiece model.

    Returns:
        Token ids of all texts (P,) int32, and the index of each text's first token (N + 1,) int64.
    """
    # No sampling, no special tokens, no reversed order.
    options = nodes.integers(0), nodes.floats(0.0), *(nodes.booleans(False) for _ in range(3))
    return nodes.several(
        "SentencepieceTokenizer", texts, *options, outputs=2, domain=_EXTENSION, model=model
    )


def _words_of_few(
    nodes: _Nodes, texts: str, rules: CharacterRules, few: Sequence[Sequence[str]]
) -> Sequence[str]:
    """Adds the operations of `_words`, with rules for as few characters as the texts have.

    The first alphabet that has all characters of the texts decides. The extension compiles its
    patterns in each call, and patterns for all characters need milliseconds.

    Args:
        nodes: graph that is being built.
        texts: strings (B,).
        rules: the tokenizer's rules for all characters, used if no alphabet suffices.
        few: alphabets, the smallest first.

    Returns:
        The normalised words (W,), and the index of each word's text (W,).
    """
    if not few:
        return _words(nodes, texts, rules)
    return nodes.either(
        nodes.has_only(texts, few[0]),
        "STRING INT64",
        lambda inner: _words(inner, texts, rules.within(frozenset(few[0]))),
        lambda inner: _words_of_few(inner, texts, rules, few[1:]),
    )


def _words(nodes: _Nodes, texts: str, rules: CharacterRules) -> tuple[str, str]:
    """Maps texts (B,) to their normalised words (W,) and the index of each word's text (W,)."""
    if rules.cased:
        texts = nodes.replace(texts, *final_sigma(rules))
    spaces = [x for x, to in rules.changed.items() if to == " "]
    changed = {x: to for x, to in rules.changed.items() if to != " "}
    joined = nodes.join(nodes.replace(texts, code_class(spaces), " "), _END)
    # Characters that change are split off, looked up, and joined with the rest again.
    runs = nodes.split(joined, code_class(changed), keep=True)[0]  # (C,)
    indices = nodes.lookup(runs, list(changed), default=len(changed))
    replacements = nodes.add("Gather", nodes.strings(*changed.values(), ""), indices)
    is_changed = nodes.add("Less", indices, nodes.integer(len(changed)))
    joined = nodes.join(nodes.add("Where", is_changed, replacements, runs), "")
    joined = nodes.replace(joined, f"({code_class([*rules.alone, _END])})", r" \1 ")
    words = nodes.split(joined, " ", keep=False)[0]
    word = nodes.lookup(words, [_END], default=1)  # 0 for the separator of two texts
    text_of = nodes.running_sum(nodes.add("Sub", nodes.integer(1), word))
    is_word = nodes.boolean(word)
    return nodes.kept(words, is_word), nodes.kept(text_of, is_word)


def _pieces_of_words(nodes: _Nodes, words: str, tokenizer: WordPieceTokenizer) -> tuple[str, str]:
    """Maps words (W,) to token ids (P,) and the index of each token's word (P,)."""
    number = nodes.add("Range", nodes.integer(0), nodes.size(words), nodes.integer(1))
    pieces, _, starts, ends = nodes.several(
        "WordpieceTokenizer",
        words,
        number,
        outputs=4,
        domain=_EXTENSION,
        vocab=json.dumps({piece: i for i, piece in enumerate(tokenizer.model_pieces)}),
        suffix_indicator="##",
        unknown_token=tokenizer.unk_token,
        max_input_chars_per_word=tokenizer.max_word_characters,
    )
    unknown = nodes.integer(tokenizer.unk_id)
    ids = nodes.lookup(pieces, tokenizer.model_pieces, default=tokenizer.unk_id)
    word_of = nodes.running_sum(nodes.marks(ids, starts))
    word_of = nodes.add("Sub", word_of, nodes.integer(1))
    # For an unknown word the extension returns the subwords that it found, and then [UNK].
    last = nodes.add("Sub", ends, nodes.integer(1))
    is_known = nodes.add("Not", nodes.add("Equal", nodes.add("Gather", ids, last), unknown))
    is_last = nodes.boolean(nodes.marks(ids, last))
    keep = nodes.add("Or", nodes.add("Gather", is_known, word_of), is_last)
    return nodes.kept(ids, keep), nodes.kept(word_of, keep)
