"""CoNLL's columns and CoNLL-U: separators, comments, what is passed over and what is named."""

import gzip

import pytest
from hypothesis import given, settings, strategies as st

from kbert.data import read_conll, read_conllu


def write(path, content: str) -> str:
    data = content.encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return str(path)


def test_four_columns_of_conll_2003(tmp_path):
    path = write(
        tmp_path / "a.txt.gz",
        "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\r\nrejects VBZ B-VP O\n\n\nPeter NNP B-NP B-PER",
    )
    table = read_conll(path)
    assert table.columns == {
        "words": [["EU", "rejects"], ["Peter"]],
        "labels": [["B-ORG", "O"], ["B-PER"]],
    }
    assert [table.place(row) for row in (0, 1)] == [f"{path}, line 3", f"{path}, line 7"]
    names = ("word", "pos", "chunk", "ner")
    assert read_conll(path, column="pos", names=names)["labels"] == [["NNP", "VBZ"], ["NNP"]]
    assert read_conll(path, column=2, word_column=1)["words"] == [["NNP", "VBZ"], ["NNP"]]


def test_comments_and_words_that_look_like_them(tmp_path):
    path = write(
        tmp_path / "a.tsv",
        "# newdoc id = 1\n#\n# text = # 1 #tag\n#\tSYM\tX\n# inside\n1\tNUM\tY\n#tag\tX\tZ\n",
    )
    assert read_conll(path, column=1).columns == {
        "words": [["#", "1", "#tag"]],
        "labels": [["SYM", "NUM", "X"]],
    }


def test_blanks_separate_where_no_tab_does_and_a_no_break_space_never(tmp_path):
    path = write(tmp_path / "a.conll", "# a comment here\n  1\u00a0000   NUM \n \t\n# SYM\n")
    assert read_conll(path).columns == {
        "words": [["1\u00a0000"], ["#"]],
        "labels": [["NUM"], ["SYM"]],
    }


def test_column_names_of_the_file(tmp_path):
    path = write(tmp_path / "a.tsv", "# global.columns = FORM UPOS NE\nAnn\tPROPN\tB-PER\n")
    assert read_conll(path, column="upos", word_column="form")["labels"] == [["PROPN"]]


def test_several_files(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.conll", f"{name}\tO\n")
    table = read_conll(tmp_path / "?.conll")
    assert table["words"] == [["a"], ["b"]]
    assert table.place(1) == f"{tmp_path / 'b.conll'}, line 1"


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("a\tO\nb\n", "line 2: the line has 1 columns, words have 2. Received: 'b'"),
        ("a\tO\nb c\tX\tY\n", "line 2: the line has 3 columns"),
        ("a\tO\n#tag\n", "line 2: the line has 1 columns"),
        ("a\tO\nb\t\n", "line 2: a word and its tag must not be empty. Received: 'b' and ''"),
        ("a\tO\n\tO\n", "line 2: a word and its tag must not be empty"),
        ("# only\n\n", "holds no words|has 0 columns"),
        ("", "is empty"),
    ],
)
def test_malformed_lines_are_named(tmp_path, content, match):
    with pytest.raises(ValueError, match=f"a.conll.*({match})"):
        read_conll(write(tmp_path / "a.conll", content))


def test_columns_that_are_not_there(tmp_path):
    path = write(tmp_path / "a.conll", "a\tO\n")
    with pytest.raises(ValueError, match=r"has 2 columns. Received: the column 2"):
        read_conll(path, column=2)
    with pytest.raises(ValueError, match=r"no column 'ner'; its columns are \[\]"):
        read_conll(path, column="ner")


TOKENS = st.lists(
    st.lists(
        st.tuples(
            st.text(st.characters(categories=("L", "N", "P", "S", "Mn")), min_size=1, max_size=4),
            st.sampled_from(["O", "B-x"]),
        ),
        min_size=1,
        max_size=4,
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=60)
@given(sentences=TOKENS, separator=st.sampled_from(["\t", " "]))
def test_round_trip(tmp_path_factory, sentences, separator):
    content = "\n".join(
        "".join(f"{word}{separator}{tag}\n" for word, tag in sentence) for sentence in sentences
    )
    # A word "#" alone is a comment before any other shows how many columns words have.
    content = f"first{separator}O\n\n{content}"
    table = read_conll(write(tmp_path_factory.mktemp("conll") / "a.conll", content))
    found = [
        list(zip(words, tags, strict=True))
        for words, tags in zip(table["words"], table["labels"], strict=True)
    ]
    assert found == [[("first", "O")], *sentences]


def row(identifier: str, form: str, upos: str = "NOUN", xpos: str = "NN") -> str:
    return "\t".join([identifier, form, form.lower(), upos, xpos, "_", "0", "root", "_", "_"])


def test_conllu_passes_over_ranges_and_empty_nodes(tmp_path):
    lines = ["# sent_id = s1", "# text = Vámonos", row("1-2", "Vámonos", "_", "_")]
    lines += [row("1", "Vamos", "VERB"), row("2", "nos", "PRON"), row("2.1", "x"), ""]
    path = write(tmp_path / "a.conllu", "\n".join([*lines, "# sent_id = s2", row("1", "#"), ""]))
    table = read_conllu(path)
    assert table.columns == {
        "words": [["Vamos", "nos"], ["#"]],
        "labels": [["VERB", "PRON"], ["NOUN"]],
        "id": ["s1", "s2"],
    }
    assert read_conllu(path, column="xpos")["labels"] == [["NN", "NN"], ["NN"]]
    assert read_conllu(path, column=7)["labels"][1] == ["root"]
    assert read_conllu(path, column="feats")["labels"][1] == ["_"]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (row("1", "a") + "\tmore\n", "line 1: the line has 11 columns, words have 10"),
        (
            "# x\n" + row("one", "a") + "\n",
            "line 2: an id must have the form 1, 1-2 or 1.1. Received: 'one'",
        ),
        (row("1", "a", "_") + "\n", "line 1: the word has no upos"),
        (row("1.1", "a") + "\n", "line 1: a sentence must have words"),
        ("# only a comment\n", "holds no words"),
    ],
)
def test_malformed_conllu_is_named(tmp_path, content, match):
    with pytest.raises(ValueError, match=f"a.conllu.*{match}"):
        read_conllu(write(tmp_path / "a.conllu", content))


def test_an_unknown_column_of_conllu(tmp_path):
    path = write(tmp_path / "a.conllu", row("1", "a") + "\n")
    with pytest.raises(ValueError, match=r"no column 'pos'; its columns are .'id', 'form'"):
        read_conllu(path, column="pos")


def test_comments_above_sentences_whose_columns_blanks_separate(tmp_path):
    content = (
        "# id 5239\tdomain=en\neating _ _ O\nEU _ _ B-ORG\n# _ _ O\n\n"
        "# id 52 domain=en\n# _ _ O\n\n# sent_id = s3\nBonn _ _ B-LOC \n"
    )
    table = read_conll(write(tmp_path / "a.conll", content))
    assert table.columns == {
        "words": [["eating", "EU", "#"], ["#"], ["Bonn"]],
        "labels": [["O", "B-ORG", "O"], ["O"], ["B-LOC"]],
    }
    content = "# id 52\tdomain=en\nEU\tB-ORG\n#\tO\n# 1\tdomain=en\n"
    assert read_conll(write(tmp_path / "b.conll", content)).columns == {
        "words": [["EU", "#"]],
        "labels": [["B-ORG", "O"]],
    }


def test_blanks_around_words_and_tags_are_no_part_of_them(tmp_path):
    path = write(tmp_path / "a.tsv", "EU\tB-ORG \n EU\tB-ORG\nsings \t O\n")
    assert read_conll(path).columns == {
        "words": [["EU", "EU", "sings"]],
        "labels": [["B-ORG", "B-ORG", "O"]],
    }
