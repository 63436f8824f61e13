"""What labelling words needs besides a model: the words of a table, their labels, their logits.

Shapes: B sentences, W words of all of them together, N windows, M words of all windows together,
T tokens, C classes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kbert.core.late import tf
from kbert.data.tables.table import Table
from kbert.data.tables.words import WordWindows, split_at_white_space, word_windows
from kbert.metrics import entity_spans
from kbert.tasks.fine_tuning.labels import class_numbers, in_terms_of, shown


class Words(NamedTuple):
    """Words of sentences (B, ragged) strings; of texts their places too, (B, ragged) int32."""

    words: tf.RaggedTensor
    starts: tf.RaggedTensor | None = None
    ends: tf.RaggedTensor | None = None


def words_of(table: Table) -> Words:
    """The words of a table's column `words`, or of `text`, split at white space.

    Raises:
        ValueError: the table has neither.
    """
    if "words" in table:
        lengths = [len(words) for words in table["words"]]
        flat = tf.constant([word for words in table["words"] for word in words], tf.string)
        return Words(tf.RaggedTensor.from_row_lengths(flat, tf.constant(lengths, tf.int64)))
    if "text" in table:
        return Words(*split_at_white_space(tf.constant(table["text"], tf.string)))
    raise ValueError(
        "A table to be tagged has the column `words`, of lists of words, or `text`, whose words "
        f"stand between white space. Received: {', '.join(table.columns)}"
    )


def word_labels(names: Sequence[str], table: Table, words: tf.RaggedTensor) -> np.ndarray:
    """(W,) int32, the class of each word.

    Args:
        names: the classes in order.
        table: with a column `labels`: of each row a list of names, or of indices into `names`.
        words: (B, ragged), the table's.

    Raises:
        ValueError: a row has not one label a word, or a label is no class; by its row.
    """
    ids = {name: index for index, name in enumerate(names)} | class_numbers(names)
    found: list[int] = []
    for row, (labels, count) in enumerate(
        zip(table["labels"], words.row_lengths().numpy(), strict=True)
    ):
        if len(labels) != count:
            raise ValueError(
                f"{table.place(row)}: a sentence has one label a word. "
                f"Received: {count} words and {len(labels)} labels"
            )
        for place, label in enumerate(in_terms_of(x, names) for x in labels):
            is_truth = isinstance(label, bool) and set(class_numbers(names)) != {0, 1}
            if label not in ids or is_truth:
                word = words[row, place].numpy().decode(errors="replace")
                raise ValueError(
                    f"{table.place(row)}: a word's label must be one of the task's {len(names)} "
                    f"classes, by name ({shown(names)}) or by index from 0. "
                    f"Received: {label!r:.80} for word {place}, {word!r:.80}"
                )
            found.append(ids[label])
    return np.array(found, np.int32)


def piece_columns(
    windows: WordWindows, labels: np.ndarray
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Labels and weights of the pieces of windows, (N, ragged) int32 and float32.

    A word's label is on its first piece; the other pieces have weight 0. In each of k windows
    that share a word it weighs 1/k, so that every word counts once.

    Args:
        windows: of the sentences.
        labels: (W,) of the words.
    """
    words = windows.words.values.numpy()
    starts = windows.ids.row_starts().numpy()[windows.words.value_rowids().numpy()]
    first = starts + windows.places.values.numpy()  # (M,) among all pieces
    of_pieces = np.zeros(windows.ids.values.shape[0], np.int32)
    weights = np.zeros(len(of_pieces), np.float32)
    of_pieces[first] = labels[words]
    weights[first] = 1 / np.bincount(words, minlength=len(labels))[words]
    return windows.ids.with_values(of_pieces), windows.ids.with_values(weights)


def aligned_with_tokens(pieces: tf.RaggedTensor, begin: int, width: tf.Tensor) -> tf.Tensor:
    """Values of a row's pieces (B, ragged), which begin in that column, as (B, T); 0 elsewhere."""
    dense = pieces.to_tensor()
    return tf.pad(dense, [[0, 0], [begin, width - begin - tf.shape(dense)[1]]])


def window_logits(
    forward: Callable[[tf.RaggedTensor], tf.Tensor],
    windows: WordWindows,
    num_classes: int,
    most_tokens: int,
) -> tf.Tensor:
    """Logits of the words of windows (M, C), in a graph, some windows at a time.

    So a text of any length is read in bounded memory.

    Args:
        forward: ids of pieces (n, ragged) -> logits of tokens (n, T, C), the first piece's first.
        windows: N of them.
        num_classes: C.
        most_tokens: how many go through the model together, about.
    """
    count = windows.ids.nrows()
    longest = tf.reduce_max(tf.concat([windows.ids.row_lengths(), [1]], 0))
    step = tf.maximum(most_tokens // longest, 1)

    def next_windows(begin: Any, logits: tf.Tensor) -> Any:
        end = tf.minimum(begin + step, count)
        tokens = forward(windows.ids[begin:end])
        places = windows.places[begin:end]
        index = tf.stack([places.value_rowids(), tf.cast(places.values, tf.int64)], 1)
        return end, tf.concat([logits, tf.gather_nd(tokens, index)], 0)

    begin, none = tf.zeros([], tf.int64), tf.zeros([0, num_classes])
    return tf.while_loop(
        lambda begin, _: begin < count,
        next_windows,
        [begin, none],
        shape_invariants=[begin.shape, tf.TensorShape([None, num_classes])],
    )[1]


def pooled(logits: Any, words: Any, num_words: Any, pooling: str) -> tf.Tensor:
    """Logits of words (W, C): the mean or the largest of those in all windows that hold a word.

    Args:
        logits: (M, C).
        words: (M,) which word of all.
        num_words: W.
        pooling: "mean" or "max".
    """
    segment = {"mean": tf.math.unsorted_segment_mean, "max": tf.math.unsorted_segment_max}
    return segment[pooling](logits, words, num_words)


def entities(answer: Mapping[str, Any], text: str | None) -> list[dict[str, Any]]:
    """The entities that the labels of a sentence name, as `predict` gives them.

    Args:
        answer: `words` and `labels`, one a word; of a text also `starts` and `ends`.
        text: what the words were split from; None where they came as words.

    Example:
        >>> entities({"words": ["Ada", "Lovelace"], "labels": ["B-name", "I-name"]}, None)
        [{'label': 'name', 'start': 0, 'end': 2, 'text': 'Ada Lovelace'}]
    """
    found = []
    for entity in entity_spans(answer["labels"]):
        named = entity._asdict()
        if text is None:
            named["text"] = " ".join(answer["words"][entity.start : entity.end])
        else:
            first, last = answer["starts"][entity.start], answer["ends"][entity.end - 1]
            named |= {"text": text[first:last], "start_character": first, "end_character": last}
        found.append(named)
    return found


def windows_of(
    words: tf.RaggedTensor, encode: Callable, budget: int, doc_stride: int
) -> WordWindows:
    """Windows over sentences of words.

    Args:
        words: (B, ragged) strings.
        encode: (U,) words -> ids of their pieces (U, ragged), none of them empty; or of words that
            are read whole, as their characters, (U, C).
        budget: the most pieces of a window.
        doc_stride: the most pieces from the start of a window to that of the next.
    """
    unique, index = tf.unique(words.values)  # most words of a text occur again
    encoded = encode(unique)
    if isinstance(encoded, tf.Tensor):
        encoded = tf.RaggedTensor.from_uniform_row_length(encoded, 1)
    pieces = words.with_values(tf.gather(encoded, index))
    return word_windows(pieces, budget, max(budget - doc_stride, 0))
