"""Words of tables, their labels and their logits, for tagging.

Shapes: B sentences, W words of all sentences together, N windows, M words of all windows together,
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
    """Words of sentences, (B, ragged) strings; for texts also their positions in characters.

    `starts` and `ends` are (B, ragged) int32; None if the data has words instead of texts.
    """

    words: tf.RaggedTensor
    starts: tf.RaggedTensor | None = None
    ends: tf.RaggedTensor | None = None


def words_of(table: Table) -> Words:
    """Returns the words of a table: its column `words`, or `text` split at white space.

    Raises:
        ValueError: the table has neither column.
    """
    if "words" in table:
        lengths = [len(words) for words in table["words"]]
        flat = tf.constant([word for words in table["words"] for word in words], tf.string)
        return Words(tf.RaggedTensor.from_row_lengths(flat, tf.constant(lengths, tf.int64)))
    if "text" in table:
        return Words(*split_at_white_space(tf.constant(table["text"], tf.string)))
    raise ValueError(
        "The table must have a column `words` (lists of words) or `text` (words between white "
        f"space). Received: {', '.join(table.columns)}"
    )


def word_labels(names: Sequence[str], table: Table, words: tf.RaggedTensor) -> np.ndarray:
    """Returns the class of each word, (W,) int32.

    Args:
        names: names of the classes, in order.
        table: table with a column `labels`: for each row a list of names, or of indices into
            `names`.
        words: (B, ragged), words of the table.

    Raises:
        ValueError: a row does not have one label per word, or a label is not a class; the message
            names the row.
    """
    ids = {name: index for index, name in enumerate(names)} | class_numbers(names)
    class_ids: list[int] = []
    for row, (labels, count) in enumerate(
        zip(table["labels"], words.row_lengths().numpy(), strict=True)
    ):
        if len(labels) != count:
            raise ValueError(
                f"{table.place(row)}: a sentence must have one label per word. "
                f"Received: {count} words and {len(labels)} labels"
            )
        for position, label in enumerate(in_terms_of(x, names) for x in labels):
            is_truth = isinstance(label, bool) and set(class_numbers(names)) != {0, 1}
            if label not in ids or is_truth:
                word = words[row, position].numpy().decode(errors="replace")
                raise ValueError(
                    f"{table.place(row)}: a word's label must be one of the task's {len(names)} "
                    f"classes, by name ({shown(names)}) or by index from 0. "
                    f"Received: {label!r:.80} for word {position}, {word!r:.80}"
                )
            class_ids.append(ids[label])
    return np.array(class_ids, np.int32)


def piece_columns(
    windows: WordWindows, labels: np.ndarray
) -> tuple[tf.RaggedTensor, tf.RaggedTensor]:
    """Returns labels and weights of the subwords of windows, (N, ragged) int32 and float32.

    A word's label is on its first subword; the other subwords have weight 0. A word that is in k
    windows has weight 1/k in each, so that every word counts once.

    Args:
        windows: windows of the sentences.
        labels: (W,), labels of the words.
    """
    words = windows.words.values.numpy()
    starts = windows.ids.row_starts().numpy()[windows.words.value_rowids().numpy()]
    first_pieces = starts + windows.places.values.numpy()  # (M,) index among all subwords
    piece_labels = np.zeros(windows.ids.values.shape[0], np.int32)
    weights = np.zeros(len(piece_labels), np.float32)
    piece_labels[first_pieces] = labels[words]
    weights[first_pieces] = 1 / np.bincount(words, minlength=len(labels))[words]
    return windows.ids.with_values(piece_labels), windows.ids.with_values(weights)


def aligned_with_tokens(pieces: tf.RaggedTensor, begin: int, width: tf.Tensor) -> tf.Tensor:
    """Returns values of subwords (B, ragged) as (B, width), from column `begin` on, else 0."""
    dense = pieces.to_tensor()
    return tf.pad(dense, [[0, 0], [begin, width - begin - tf.shape(dense)[1]]])


def window_logits(
    forward: Callable[[tf.RaggedTensor], tf.Tensor],
    windows: WordWindows,
    num_classes: int,
    most_tokens: int,
) -> tf.Tensor:
    """Returns the logits of the words of windows, (M, C); runs in a graph.

    The windows are computed in groups, so that a text of any length needs bounded memory.

    Args:
        forward: function from ids of subwords (n, ragged) to logits of tokens (n, T, C), beginning
            with the first subword.
        windows: the N windows.
        num_classes: C.
        most_tokens: approximate number of tokens that are computed together.
    """
    count = windows.ids.nrows()
    longest = tf.reduce_max(tf.concat([windows.ids.row_lengths(), [1]], 0))
    step = tf.maximum(most_tokens // longest, 1)

    def next_windows(begin: Any, logits: tf.Tensor) -> Any:
        end = tf.minimum(begin + step, count)
        tokens = forward(windows.ids[begin:end])
        positions = windows.places[begin:end]
        index = tf.stack([positions.value_rowids(), tf.cast(positions.values, tf.int64)], 1)
        return end, tf.concat([logits, tf.gather_nd(tokens, index)], 0)

    begin, no_logits = tf.zeros([], tf.int64), tf.zeros([0, num_classes])
    return tf.while_loop(
        lambda begin, _: begin < count,
        next_windows,
        [begin, no_logits],
        shape_invariants=[begin.shape, tf.TensorShape([None, num_classes])],
    )[1]


def pooled(logits: Any, words: Any, num_words: Any, pooling: str) -> tf.Tensor:
    """Returns logits of words (W, C), pooled over all windows that contain a word.

    Args:
        logits: (M, C).
        words: (M,), index of each word among all W words.
        num_words: W.
        pooling: "mean" or "max".
    """
    segment = {"mean": tf.math.unsorted_segment_mean, "max": tf.math.unsorted_segment_max}
    return segment[pooling](logits, words, num_words)


def entities(answer: Mapping[str, Any], text: str | None) -> list[dict[str, Any]]:
    """Returns the entities in the labels of a sentence, in the form of `predict`.

    Args:
        answer: `words` and `labels`, one per word; for a text also `starts` and `ends`.
        text: text that the words were split from; None if the data has words.

    Example:
        >>> entities({"words": ["Ada", "Lovelace"], "labels": ["B-name", "I-name"]}, None)
        [{'label': 'name', 'start': 0, 'end': 2, 'text': 'Ada Lovelace'}]
    """
    records = []
    for entity in entity_spans(answer["labels"]):
        record = entity._asdict()
        if text is None:
            record["text"] = " ".join(answer["words"][entity.start : entity.end])
        else:
            first, last = answer["starts"][entity.start], answer["ends"][entity.end - 1]
            record |= {"text": text[first:last], "start_character": first, "end_character": last}
        records.append(record)
    return records


def windows_of(
    words: tf.RaggedTensor, encode: Callable, budget: int, doc_stride: int
) -> WordWindows:
    """Splits sentences of words into overlapping windows of whole words.

    Args:
        words: (B, ragged) strings.
        encode: function from words (U,) to ids of their subwords (U, ragged), none of them empty;
            or, for words read as characters, to (U, C).
        budget: maximum number of subwords in a window.
        doc_stride: maximum number of subwords from the start of a window to the start of the next.
    """
    unique, index = tf.unique(words.values)  # most words of a text occur several times
    encoded = encode(unique)
    if isinstance(encoded, tf.Tensor):
        encoded = tf.RaggedTensor.from_uniform_row_length(encoded, 1)
    pieces = words.with_values(tf.gather(encoded, index))
    return word_windows(pieces, budget, max(budget - doc_stride, 0))
