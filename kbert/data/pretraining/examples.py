"""Prints examples of a data pipeline as readable tokens, to check the pipeline by eye."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TextIO

import numpy as np

from kbert.core.late import tf
from kbert.data.pretraining.attention_kinds import KIND_OF_SEGMENT, KINDS
from kbert.tokenizers.base import Tokenizer
from kbert.tokenizers.words.characters import BEGIN_OF_SENTENCE, END_OF_SENTENCE

_COLOURS = {"masked": "\033[31m", "random": "\033[33m", "kept": "\033[32m"}
_RESET = "\033[0m"
_WIDTH = 100
# Feature with the label of a pair -> meanings of the labels 0 and 1.
_LABELS = {
    "next_sentence_labels": ("next: actual", "next: random"),
    "sentence_order_labels": ("order: kept", "order: swapped"),
}
# Direction of a language model -> prefix of its features.
_DIRECTIONS = {"forward": "", "backward": "reverse_"}


def show_examples(
    dataset: tf.data.Dataset, tokenizer: Tokenizer, n: int = 3, file: TextIO | None = None
) -> None:
    """Prints the first rows of a pretraining dataset as tokens.

    The output depends on the kind of row:

    - causal language model: the first input token, and all predicted tokens;
    - bidirectional language model: the input words as the model gets them, in characters, and the
      predicted words, in both directions;
    - masked: all tokens, with marks at the predicted ones. `{fox -> [MASK]}` is a masked token,
      `{fox -> ##ly}` is replaced by a random token, `{fox}` is kept (as are all in a causal row).
      On a terminal they are also coloured. A position that was drawn twice is marked
      `{fox -> [MASK]}x2`. Spans are between `<` and `>`;
    - packed: the examples of a row, one after the other;
    - translation and denoising: the source, which is the input, and the target, which is
      predicted; if only masked tokens of the target are, it has the marks of a masked row.

    Args:
        dataset: batches of `pretraining_dataset`, `causal_dataset`, `language_model_dataset`,
            `translation_dataset` or `denoising_dataset`.
        tokenizer: tokenizer that converts ids to tokens.
        n: number of rows to print.
        file: file to print to; None is standard output.

    Example:
        >>> import kbert
        >>> tokenizer = kbert.WordPieceTokenizer(
        ...     ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "red", "fox"])
        >>> batch = {"token_ids": [[2, 4, 6, 3, 0]], "padding_mask": [[1, 1, 1, 1, 0]],
        ...          "mask_positions": [[1, 2]], "mask_ids": [[5, 6]], "mask_weights": [[1., 1.]]}
        >>> show_examples(tf.data.Dataset.from_tensors(batch), tokenizer, n=1)
        4 tokens, 2 predicted: 1 masked, 0 random, 1 kept
          [CLS] {red -> [MASK]} {fox} [SEP]
    """
    file = file or sys.stdout
    colours = _COLOURS if file.isatty() else {}
    for row in dataset.unbatch().take(n).as_numpy_iterator():
        if "character_ids" in row:
            lines = [*_streams(row, tokenizer)]
        elif "target_token_ids" in row:
            lines = [*_masked_target(row, tokenizer, colours)]
        elif "encoder_token_ids" in row:
            lines = [*_pair(row, tokenizer)]
        elif "targets" in row:
            lines = [*_predicted(row, tokenizer)]
        elif "example_ids" in row:
            lines = [*_packed(row, tokenizer, colours)]
        else:
            lines = [*_masked(row, tokenizer, colours)]
        print(*lines, sep="\n", file=file)


def _streams(row: dict[str, np.ndarray], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields lines to show a row of a bidirectional language model, in both directions.

    Each direction has the number of words, the input words, and the words to predict.
    """
    for name, prefix in _DIRECTIONS.items():
        used = row[f"{prefix}weights"] > 0
        words = [_spelled(ids) for ids in row[f"{prefix}character_ids"][used].tolist()]
        targets = [tokenizer.id_to_token(target) for target in row[f"{prefix}targets"][used]]
        yield f"{name}: {len(words)} words"
        for line in (["reads:", *words], ["predicts:", *targets]):
            yield from _lines(line, [""] * len(line), {})


def _spelled(ids: list[int]) -> str:
    """Returns the word of some character ids: UTF-8 bytes, each plus 1, between marks above 256.

    The ids 257 and 258 in second place mean the begin and the end of a sentence.
    """
    ends = {257: BEGIN_OF_SENTENCE, 258: END_OF_SENTENCE}
    if ids[1] in ends:
        return ends[ids[1]]
    return bytes(number - 1 for number in ids if number <= 256).decode(errors="replace")


def _pair(row: dict[str, np.ndarray], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields lines to show a row with two sides: numbers of tokens, source tokens, target tokens.

    Both sides include their special tokens. If the decoder's positions are a feature, the first
    line has the positions of the input tokens.
    """
    source = row["encoder_token_ids"][row["encoder_padding_mask"] > 0]
    target = row["targets"][row["weights"] > 0]
    first = tokenizer.id_to_token(row["decoder_token_ids"][0])
    title = (
        f"{len(source)} source tokens and {len(target)} target tokens, each predicted from "
        f"{first} and the targets before it"
    )
    if "decoder_position_ids" in row and len(target):
        begin = row["decoder_position_ids"][0]
        title += f", at positions {begin} to {begin + len(target) - 1}"
    yield title
    for line in (["source:", *source], ["target:", *target]):
        words = [line[0], *map(tokenizer.id_to_token, line[1:])]
        yield from _lines(words, [""] * len(words), {})


def _masked_target(
    row: dict[str, np.ndarray], tokenizer: Tokenizer, colours: dict[str, str]
) -> Iterator[str]:
    """Yields lines to show a source and a target with masked tokens, which are marked.

    `colours` is kind of token -> terminal code.
    """
    source = row["encoder_token_ids"][row["encoder_padding_mask"] > 0]
    length = 1 + np.argmax(row["targets"] == tokenizer.sep_id)
    predicted = np.flatnonzero(row["weights"])
    target = {
        "token_ids": row["target_token_ids"][:length],
        "padding_mask": np.ones(length, int),
        "mask_positions": predicted,
        "mask_ids": row["targets"][predicted],
        "mask_weights": np.ones(len(predicted)),
    }
    words, kinds = _marked(target, tokenizer)
    yield f"{len(source)} source tokens and {length} target tokens, {len(predicted)} predicted"
    source_words = ["source:", *map(tokenizer.id_to_token, source)]
    yield from _lines(source_words, [""] * len(source_words), {})
    yield from _lines(["target:", *words], ["", *kinds], colours)


def _predicted(row: dict[str, np.ndarray], tokenizer: Tokenizer) -> Iterator[str]:
    """Yields lines to show a row of a causal model: a title, then the predicted tokens, wrapped.

    The title has the number of predicted tokens and the first input token.
    """
    targets = row["targets"][row["weights"] > 0].tolist()
    first, *words = (tokenizer.id_to_token(n) for n in (row["token_ids"][0], *targets))
    yield f"{len(words)} tokens, each predicted from {first} and the tokens before it"
    yield from _lines(words, [""] * len(words), {})


def _packed(
    row: dict[str, np.ndarray], tokenizer: Tokenizer, colours: dict[str, str]
) -> Iterator[str]:
    """Yields lines to show a packed row: its numbers of examples and tokens, then the examples.

    Each example is shown like a row by `_masked`. `colours` is kind of token -> terminal code.
    """
    ids = row["example_ids"]
    count = int(ids.max(initial=0))
    yield (
        f"a sequence of {count} example{'s' * (count != 1)}, {np.sum(ids > 0)} of {len(ids)} tokens"
    )
    for number in range(1, count + 1):
        in_example = ids == number
        begin = row["cls_positions"][number - 1]
        drawn = row["mask_positions"]
        predicted = (
            (row["mask_weights"] > 0) & (drawn >= begin) & (drawn < begin + np.sum(in_example))
        )
        example = {
            "token_ids": row["token_ids"][in_example],
            "padding_mask": in_example[in_example],
        }
        of_tokens = ("causal_mask", "attention_order", "segment_ids")
        example |= {name: row[name][in_example] for name in of_tokens if name in row}
        for name in (name for name in row if name.startswith(("mask_", "span_"))):
            shift = 0 if name in ("mask_ids", "mask_weights") else begin
            example[name] = row[name][predicted] - shift
        example |= {name: row[name][number - 1] for name in _LABELS if name in row}
        yield from _masked(example, tokenizer, colours)


def _masked(
    row: dict[str, np.ndarray], tokenizer: Tokenizer, colours: dict[str, str]
) -> Iterator[str]:
    """Yields lines to show a masked row: its counts and labels, then its tokens, wrapped.

    Predicted tokens are marked, see `_marked`. `colours` is kind of token -> terminal code.
    """
    words, kinds = _marked(row, tokenizer)
    counts = ", ".join(f"{kinds.count(kind)} {kind}" for kind in _COLOURS)
    title = f"{len(words)} tokens, {np.sum(row['mask_weights']):.0f} predicted: {counts}"
    for feature, meanings in _LABELS.items():
        if feature in row:
            title += f"; {meanings[row[feature]]}"
    if "causal_mask" in row and row["causal_mask"].any():
        title += "; causal"
    if "attention_order" in row:
        title += f"; {KINDS[KIND_OF_SEGMENT[row['segment_ids'].max()]]}"
    yield title
    yield from _lines(words, kinds, colours)


def _marked(row: dict[str, np.ndarray], tokenizer: Tokenizer) -> tuple[list[str], list[str]]:
    """Returns a row's tokens with marks, and a kind for each of them.

    The kind of a predicted token is "masked", "random" or "kept", that of other tokens is "". The
    marks are those of `show_examples`; with a factorisation order, "@" and its number follow.
    """
    ids = row["token_ids"][: np.sum(row["padding_mask"])]
    words, kinds = [tokenizer.id_to_token(token) for token in ids], [""] * len(ids)
    used = row["mask_weights"] > 0
    positions, first, times = np.unique(
        row["mask_positions"][used], return_index=True, return_counts=True
    )
    targets = row["mask_ids"][used][first]
    for position, target, drawn in zip(positions, targets, times, strict=True):
        input_token, target_token = words[position], tokenizer.id_to_token(target)
        if ids[position] == target:
            words[position], kinds[position] = f"{{{target_token}}}", "kept"
        else:
            words[position] = f"{{{target_token} -> {input_token}}}"
            kinds[position] = "masked" if ids[position] == tokenizer.mask_id else "random"
        if drawn > 1:
            words[position] += f"x{drawn}"
        if "order_ids" in row:
            words[position] += f"@{row['order_ids'][position]}"
    if "span_starts" in row:
        for first, last in {*zip(row["span_starts"][used], row["span_ends"][used], strict=True)}:
            words[first] = "<" + words[first]
            words[last] += ">"
    return words, kinds


def _lines(words: list[str], kinds: list[str], colours: dict[str, str]) -> Iterator[str]:
    """Wraps words into lines of about 100 visible characters; colour codes do not count.

    `kinds` has the kind of each word, `colours` the terminal code of some kinds.
    """
    line, width = "", 0
    for word, kind in zip(words, kinds, strict=True):
        if width + 1 + len(word) > _WIDTH:
            yield line
            line, width = "", 0
        width += 1 + len(word)
        coloured = f"{colours[kind]}{word}{_RESET}" if kind in colours else word
        line += f" {coloured}" if line else f"  {coloured}"
    yield line
