"""Tokenizers inside a runtime, in a file next to the model; kept only if exact."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from absl import logging

from kbert.core import late
from kbert.export.text_to_rows import INPUTS, Batch, NotInside, TextToRows

Rows = dict[str, np.ndarray]
# Texts that tokenizers often get wrong, checked in addition to the texts of the export.
HARD_TEXTS = (
    "",
    "   \t\r\n ",
    "[CLS] [SEP] in a [MASK] text [UNK]",
    "no\u00a0break, thin\u2009space, ideographic\u3000space, line\u2028separator",
    "bell\x07, zero\u200bwidth, soft\u00adhyphen, \ufeffmark, \ufffd, tab\tand\nlines\r\n",
    "e\u0301te\u0301 Ångström I\u0307stanbul İstanbul ﬁne ｆｕｌｌ １２ ß ǅ Œuvre",
    "ΟΔΟΣ ΣΑΣ Σ. ΑΣ'Σ ΑΣ.Β ΌΣΟΣ",
    "😀 👩\u200d💻 ok 🇨🇭 ☕\ufe0f",
    "한국어 문장 각 हिन्दी में ภาษาไทย العربيَّة עִבְרִית 漢字かなカナ",
    "#hash ##b @user http://a.b/c?d=e&f=%20 x_y $5 ^~`|<=>+ «quoted» “so” – — …",
    "x" * 200 + " " + "y" * 201 + " " + "é" * 300 + " end",
    "unaffable zzqqxxj aaaaaaaaaaaaaaaaaaaaab " * 3,
    "it's We'LL  two  spaces \n\n lines\t 'ſo' 1234567 x²³ ٣٤٥ ",
    "a long text " * 400,
)


def write_text_graphs(
    folder: str, format: str, rows: TextToRows, texts: Sequence[str]
) -> dict[str, Any]:
    """Writes the tokenizer for a runtime, runs it, and keeps it if its rows equal kbert's.

    Args:
        folder: folder of the export.
        format: name of the runtime.
        rows: function from texts to rows, which the tokenizer must reproduce.
        texts: two texts or more to compare on, in addition to `HARD_TEXTS`.

    Returns:
        The tokenizer's entry in `export.json`: {"inside": {file: name of its graph's input},
        "needs": name of the package}, or {"why": the reason why no tokenizer was kept}.
    """
    if format not in late.TABLE["tokenizer graph"]:
        return {"why": f"{format} has no operations on strings"}
    writer, files_before = late.load("tokenizer graph", format), set(os.listdir(folder))
    expected_rows = {count: _expected(rows, count, texts) for count in INPUTS}
    try:
        files = {writer.write(folder, rows, count): name for count, name in INPUTS.items()}
        for count, expected in expected_rows.items():
            graph_rows = writer.run(folder, count, [batch for batch, _ in expected])
            _check(writer.PACKAGE, expected, graph_rows)
    except ImportError as error:
        why, log = str(error), logging.info
    except NotInside as error:
        why, log = str(error), logging.warning
    except Exception as error:  # the runtimes have many error classes
        why, log = " ".join(str(error).split())[:300], logging.warning
    else:
        logging.info("%s: the tokenizer is inside, %s", format, ", ".join(files))
        return {"inside": files, "needs": writer.PACKAGE}
    for name in set(os.listdir(folder)) - files_before:
        os.remove(os.path.join(folder, name))
    log("%s: the tokenizer is beside the model, not inside: %s", format, why)
    return {"why": why}


def _expected(rows: TextToRows, count: int, texts: Sequence[str]) -> list[tuple[Batch, Rows]]:
    """Returns batches of texts, each with the rows that kbert's tokenizer makes.

    Args:
        rows: function from texts to rows.
        count: number of texts per row: 1, or 2 for pairs.
        texts: texts to use in addition to `HARD_TEXTS`.
    """
    texts = [*texts, *HARD_TEXTS]
    batch: Batch = texts if count == 1 else list(zip(texts, texts[::-1], strict=True))
    empty_batch: Batch = [""] if count == 1 else [("", "")]
    # Together and one by one: a graph may have a faster branch for texts of one alphabet.
    batches: list[Batch] = [batch, empty_batch, *(batch[i : i + 1] for i in range(len(batch)))]
    return [(inputs, rows.run(inputs)) for inputs in batches]


def _check(package: str, expected: Sequence[tuple[Batch, Rows]], found: Sequence[Rows]) -> None:
    """Raises NotInside if a graph's rows differ from those of kbert's tokenizer.

    Args:
        package: package of the runtime, for the message.
        expected: batches, each with kbert's rows by name.
        found: the graph's rows of each batch by name.
    """
    for (texts, expected_rows), graph_rows in zip(expected, found, strict=True):
        for number, text in enumerate(texts):
            for name, value in expected_rows.items():
                row = graph_rows[name][number] if number < len(graph_rows[name]) else None
                if row is None or row.tolist() != value[number].tolist():
                    raise NotInside(f"{package} computes different {name} for {text!r:.100}")
