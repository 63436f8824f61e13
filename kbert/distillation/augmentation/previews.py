"""Preview of an augmentation: examples of copies, and an estimate of the time."""

import time

from kbert.distillation.augmentation.augmenter import Augmenter, Row
from kbert.metrics import text_table
from kbert.training.run.log import duration

_SHOWN_COPIES, _SHOWN_WORDS, _SHOWN_CANDIDATES = 4, 6, 8
# Number of timed rows; the examples before them have traced the graphs.
_TIMED_ROWS = 64


def preview(augmenter: Augmenter, *, examples: int = 3) -> str:
    """Shows the first rows with some copies, replacements in brackets, and estimates for the table.

    Nothing is written.

    Args:
        augmenter: augmenter with the table.
        examples: number of rows to show.

    Returns:
        The text to print.
    """
    size = len(augmenter.table)
    first_rows = list(augmenter.rows(range(min(examples, size))))
    rows_text = "\n\n".join(_show(augmenter, row) for row in first_rows)
    begin = time.perf_counter()
    # Spread over the table: files are often sorted.
    count = min(_TIMED_ROWS, size)
    timed = list(augmenter.rows([size * number // count for number in range(count)]))
    seconds = time.perf_counter() - begin
    words = [sum(map(len, row.candidates)) for row in timed]
    copies = sum(len(row.copies) for row in timed) / count
    estimates = {
        "rows": f"{size:,}",
        "words": f"{sum(words) / count:.1f} replaceable per row",
        "copies": f"{copies:.1f} per row, about {size * (1 + copies):,.0f} lines in all",
        "time": f"about {duration(seconds / count * size)}, "
        f"{sum(words) / seconds:,.0f} words per second",
    }
    return f"{rows_text}\n\n{text_table(['estimate', ''], list(estimates.items()))}"


def _show(augmenter: Augmenter, row: Row) -> str:
    """Returns lines with a row, its first copies and the candidates of its first words."""
    lines = [augmenter.table.place(row.number)]
    lines.append(f"  {' | '.join(sentence.text for sentence in row.sentences)}")
    for number, copy in enumerate(row.copies[:_SHOWN_COPIES], 1):
        texts = [
            sentence.replaced({word_number: f"[{word}]" for word_number, word in replaced.items()})
            for sentence, replaced in zip(row.sentences, copy.replaced, strict=True)
        ]
        lines.append(f"  {number}: {' | '.join(map(_text, texts))}")
    listed = [
        f"{sentence.word(number)}: {', '.join(words[:_SHOWN_CANDIDATES]) or 'none'}"
        for sentence, word_candidates in zip(row.sentences, row.candidates, strict=True)
        for number, words in enumerate(word_candidates)
    ]
    lines += ["  candidates:", *(f"    {line}" for line in listed[:_SHOWN_WORDS])]
    return "\n".join(lines)


def _text(value: str | list[str]) -> str:
    return value if isinstance(value, str) else " ".join(value)
