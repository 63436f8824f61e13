"""Tagged sentences: files with CoNLL columns, and CoNLL-U.

Sources: Tjong Kim Sang and De Meulder 2003 (the four columns of CoNLL-2003);
https://universaldependencies.org/format.html (CoNLL-U) and ext-format.html (CoNLL-U Plus).
"""

import os
import re
from collections.abc import Iterator, Sequence

from kbert.core.types import PathLike
from kbert.data.readers.content import DataFile, read_files
from kbert.data.tables.table import Table

CONLLU = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_COMMENT = re.compile(r"#(\s|$)")
_PLUS = re.compile(r"#\s*global\.columns\s*=\s*(.+)")


def read_conll(
    path: PathLike,
    *,
    column: int | str = -1,
    word_column: int | str = 0,
    names: Sequence[str] | None = None,
) -> Table:
    """Reads sentences with a tag for each word: one word per line, a blank line between sentences.

    Columns are separated by tabs if the line of the first word has one, else by spaces. Spaces
    around a word or a tag are removed. -DOCSTART- lines and comments are skipped. A comment is `#`
    alone, or begins with `#` and a space. If spaces separate the columns, the line of the word `#`
    begins like that too. Then such a line is a comment in any of these cases:

    - its number of columns differs from that of words;
    - it contains a tab;
    - it has the form `# name = value`;
    - it is above a sentence with three columns or more, and none of its fields after the first is
      found in the same column of a word.

    Args:
        path: a file, plain or `.gz`, or a pattern of files.
        column: column of the tags: a position (from 0; -1 is the last) or a name.
        word_column: column of the words: a position (from 0; -1 is the last) or a name.
        names: names of the columns, such as ("word", "pos", "chunk", "ner"); None reads them from
            the line `# global.columns = …` if the file has one.

    Returns:
        A table with the columns `words` and `labels` and one row per sentence. The line of a row is
        the first line of the sentence.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a line with another number of columns, or an empty word or tag; the message
            names the line.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "two.conll")
        >>> with open(path, "w") as file:
        ...     _ = file.write("# one\\nAnn\\tB-PER\\nsings\\tO\\n\\nYes\\tO\\n")
        >>> read_conll(path).columns
        {'words': [['Ann', 'sings'], ['Yes']], 'labels': [['B-PER', 'O'], ['O']]}
    """
    return read_files(os.fspath(path), lambda file: _read(file, word_column, column, names))


def read_conllu(path: PathLike, *, column: int | str = "upos") -> Table:
    """Reads sentences of CoNLL-U, with one of the columns as tags.

    Ranges of multiword tokens (1-2) and empty nodes (1.1) are skipped: the words are the syntactic
    words. The column `id` is the `sent_id` of each sentence, if all sentences have one.

    Args:
        path: a file, plain or `.gz`, or a pattern of files.
        column: column of the tags: "upos", "xpos", "lemma", "feats", "deprel" …, or a position
            from 0.

    Raises:
        FileNotFoundError: no file matches.
        ValueError: a line without ten columns, an invalid id, an unknown column, or a word without
            the tag (`_`), which only "lemma", "feats", "deps" and "misc" may have.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "one.conllu")
        >>> with open(path, "w") as file:
        ...     _ = file.write("# sent_id = s1\\n1\\tYes\\tyes\\tINTJ\\tUH" + "\\t_" * 5 + "\\n\\n")
        >>> read_conllu(path).columns
        {'words': [['Yes']], 'labels': [['INTJ']], 'id': ['s1']}
    """
    return read_files(os.fspath(path), lambda file: _read_universal(file, column))


def _read(
    path: str, word_column: int | str, column: int | str, names: Sequence[str] | None
) -> Table:
    """Returns the sentences of one file as a table of words and labels.

    Args:
        path: a file.
        word_column: column of the words: its name, or its position from 0 (negative: from the end).
        column: column of the tags, likewise.
        names: names of the columns; None = those of a comment "# global.columns =", if there is
            one.
    """
    sentences = list(_sentences(path))
    width = next((len(fields) for words, _ in sentences for _, fields in words), 0)
    if names is None:
        matches = [_PLUS.match(comment) for _, comments in sentences for comment in comments]
        names = next((match[1].split() for match in matches if match), ())
    word_at = _position(path, word_column, names, width)
    tag_at = _position(path, column, names, width)
    return _table(path, [words for words, _ in sentences], word_at, tag_at)


def _read_universal(path: str, column: int | str) -> Table:
    """Returns the sentences of one CoNLL-U file as a table, see `read_conllu`."""
    tag_at = _position(path, column, CONLLU, len(CONLLU))
    sentences, identifiers = [], []
    for words, comments in _sentences(path, width=len(CONLLU)):
        for line, fields in words:
            if not re.fullmatch(r"\d+([-.]\d+)?", fields[0]):
                raise ValueError(
                    f"{path}, line {line}: an id must have the form 1, 1-2 or 1.1. Received: "
                    f"{fields[0]!r}"
                )
        sentence = [(line, fields) for line, fields in words if fields[0].isdigit()]
        if not sentence:
            raise ValueError(f"{path}, line {words[0][0]}: a sentence must have words")
        for line, fields in sentence:
            if fields[tag_at] == "_" and CONLLU[tag_at] not in ("feats", "deps", "misc", "lemma"):
                raise ValueError(f"{path}, line {line}: the word has no {CONLLU[tag_at]} (it is _)")
        sentences.append(sentence)
        matches = [re.match(r"#\s*sent_id\s*=\s*(.+)", comment) for comment in comments]
        identifiers += [match[1] for match in matches if match][:1]
    table = _table(path, sentences, 1, tag_at)
    return table if len(identifiers) < len(table) else table.with_column("id", identifiers)


Word = tuple[int, list[str]]  # number of the line, and its columns


def _sentences(path: str, width: int = 0) -> Iterator[tuple[list[Word], list[str]]]:
    """Yields (words, comments before or among them) for each sentence; a word is (line, fields).

    All words must have the same number of columns, else it raises ValueError.

    Args:
        path: path of the file.
        width: number of tab-separated columns; 0 detects number and separator from the first word.
    """
    lines = [
        (number, line)
        for number, line in DataFile(path).lines()
        if not line.startswith("-DOCSTART-")
    ]
    first = next((line for _, line in lines if line.strip(" \t") and not _COMMENT.match(line)), "")
    tabs = bool(width) or "\t" in first
    width = width or len(_split(first, tabs))
    # (column, field) of all columns after the first, in lines that cannot be comments.
    certain = [_split(line, tabs) for _, line in lines if not _COMMENT.match(line)]
    data_fields = {(column, x) for fields in certain for column, x in enumerate(fields) if column}

    def is_comment(line: str, fields: list[str], above: bool) -> bool:
        if tabs:
            return not line.startswith("#\t") or len(fields) != width
        if len(fields) != width or "\t" in line or (width > 2 and fields[2] == "="):
            return True
        return above and width > 2 and not data_fields.intersection(enumerate(fields))

    words: list[tuple[int, list[str]]] = []
    comments: list[str] = []
    for number, line in lines:
        if not line.strip(" \t"):
            if words:
                yield words, comments
                words, comments = [], []
            continue
        fields = _split(line, tabs)
        if _COMMENT.match(line) and is_comment(line, fields, above=not words):
            comments.append(line)
        elif len(fields) == width:
            words.append((number, fields))
        else:
            raise ValueError(
                f"{path}, line {number}: the line has {len(fields)} columns, words have {width}. "
                f"Received: {line[:80]!r}"
            )
    if words:
        yield words, comments


def _split(line: str, tabs: bool) -> list[str]:
    # Not str.split(): words may contain a no-break space.
    if tabs:
        return [field.strip(" ") for field in line.split("\t")]
    return re.split("[ \t]+", line.strip(" \t"))


def _position(path: str, column: int | str, names: Sequence[str], width: int) -> int:
    """Returns the position from 0 of a column that is given by name or position.

    Args:
        path: file, for messages.
        column: name of the column in any case, or position (negative: from the end).
        names: names of the columns; may be empty.
        width: number of columns.

    Raises:
        ValueError: there is no such column.
    """
    if isinstance(column, str):
        lower = [name.lower() for name in names]
        if column.lower() not in lower:
            raise ValueError(
                f"{path} has no column {column!r}; its columns are {list(names)} (pass names=, or "
                "a position)"
            )
        column = lower.index(column.lower())
    if not -width <= column < width:
        raise ValueError(f"{path} has {width} columns. Received: the column {column}")
    return column % width


def _table(path: str, sentences: list[list[Word]], word_at: int, tag_at: int) -> Table:
    """Returns a table with the words and tags of sentences.

    Args:
        path: file, for messages.
        sentences: for each sentence, its words as (line, columns).
        word_at: position of the words' column.
        tag_at: position of the tags' column.

    Raises:
        ValueError: there are no sentences, or a word or tag is empty.
    """
    if not sentences:
        raise ValueError(f"{path} holds no words")
    for words in sentences:
        for number, fields in words:
            if not fields[word_at] or not fields[tag_at]:
                raise ValueError(
                    f"{path}, line {number}: a word and its tag must not be empty. Received: "
                    f"{fields[word_at]!r} and {fields[tag_at]!r}"
                )
    return Table(
        {
            "words": [[fields[word_at] for _, fields in words] for words in sentences],
            "labels": [[fields[tag_at] for _, fields in words] for words in sentences],
        },
        source=path,
        lines=[words[0][0] for words in sentences],
    )
