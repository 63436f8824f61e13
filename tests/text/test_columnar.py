"""Texts of Parquet and Arrow files, and of tables in memory: what is read, what is refused."""

import sys
import uuid

import pandas as pd
import pyarrow as pa
import pytest

from kbert.io.paths import Path as AnyPath
from kbert.text import columnar, documents, open_sources, read_pairs, source
from tests import libraries
from tests.columnar import FORMS, write

TEXTS = ["One. Two.", " naïve 字\r\n", "", "b", "c\nd", "e", "f"]
READ = ["One. Two.", "naïve 字", "", "b", "c\nd", "e", "f"]
BAD = pa.array([b"ok", b"b\xffd", b"x"]).view(pa.string())


def read(sources, **options):
    return [text.decode() for x in open_sources(sources, **options) for text in x.documents()]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
def test_a_document_per_row(tmp_path, form, kind):
    texts = pa.array(TEXTS)
    texts = texts.dictionary_encode() if kind == "dictionary" else texts.cast(kind)
    if kind == "string_view" and form == "parquet":
        texts = texts.cast("string")
    path = write(tmp_path / f"a.{form}", pa.table({"n": range(7), "body": texts}))
    assert read(path, field="body") == READ
    (opened,) = open_sources(path, field="body")
    assert opened.expansion() > 0
    assert opened.identity() != open_sources(path, field="n")[0].identity()
    list(opened.documents())
    assert opened.size - 8 <= opened.consumed <= opened.size  # a stream ends in eight bytes
    assert next(iter(documents(path, field="body"))) == ["One.", "Two."]


@pytest.mark.parametrize("form", FORMS)
def test_rows_are_numbered_over_batches(tmp_path, form, monkeypatch):
    monkeypatch.setattr(columnar, "BATCH_ROWS", 2)
    path = write(tmp_path / f"a.{form}", {"text": TEXTS, "more": [{"x": i} for i in range(7)]})
    file = columnar.ColumnarFile(path)
    assert [rows[0] for rows, _ in file.batches(["text"])][:2] == [0, 2]
    assert [*file.rows(["more.x", "text"])] == [
        (f"row {i}", (i, text)) for i, text in enumerate(TEXTS)
    ]


def test_long_rows_make_small_batches(tmp_path, monkeypatch):
    monkeypatch.setattr(columnar, "_BATCH_BYTES", 100)
    for form in FORMS:
        path = write(tmp_path / f"a.{form}", {"text": [f"{i}" * 60 for i in range(7)]})
        sizes = [len(x) for _, (x,) in columnar.ColumnarFile(path).batches(["text"])]
        assert sum(sizes) == 7, form
        assert max(sizes) < 3, form


def test_a_long_document_is_cut(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(source, "MAX_DOCUMENT_BYTES", 9)
    path = write(tmp_path / "a.parquet", {"text": ["a", "One two. Three."]})
    assert read(path) == ["a", "One two.", "Three."]
    assert "a.parquet, row 1: a document of more" in caplog.text


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"text": ["a", None]}, r"row 1: the field 'text' must be text. Received: NoneType"),
        ({"text": ["a", "b"], "x": [1, 2]}, None),
        ({"text": [1, 2]}, r"row 0: the field 'text' must be text. Received: int"),
        ({"text": [["a"], ["b"]]}, r"row 0: the field 'text' must be text. Received: list"),
        ({"texts": ["a"]}, r"exactly one column must be named 'text'.*did you mean 'texts'"),
        ({"text": pa.array([], "string")}, r"holds no rows"),
    ],
)
def test_what_is_no_text(tmp_path, form, columns, message):
    path = write(tmp_path / f"a.{form}", columns)
    if message is None:
        assert read(path) == ["a", "b"]
        return
    with pytest.raises(ValueError, match=rf"a\.{form}.*{message}"):
        read(path)


def test_bad_utf8(tmp_path):
    path = write(tmp_path / "a.arrow", pa.table({"text": BAD}))
    with pytest.raises(ValueError, match=r"a.arrow, row 1: invalid UTF-8 at byte 1"):
        read(path)
    (opened,) = open_sources(path, on_bad_utf8="replace")
    assert [*opened.documents()] == [b"ok", "b\ufffdd".encode(), b"x"]
    assert opened.replaced_characters == 1
    with pytest.raises(ValueError, match=r"a.arrow, row 1: a value is damaged or not UTF-8"):
        list(columnar.ColumnarFile(path).rows(["text"]))
    encoded = pa.DictionaryArray.from_arrays(pa.array([0, 1, 2]), BAD)
    path = write(tmp_path / "b.arrow", pa.table({"text": encoded}))
    with pytest.raises(ValueError, match=r"b.arrow: a value is damaged or not UTF-8"):
        list(columnar.ColumnarFile(path).rows(["text"]))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.99])
def test_damaged_files_are_named(tmp_path, form, share):
    path = tmp_path / f"a.{form}"
    write(path, {"text": [f"text {i}" for i in range(200)]})
    content = path.read_bytes()
    path.write_bytes(content[: max(7, int(share * len(content)))])
    with pytest.raises(ValueError, match=rf"a\.{form} must be a whole Parquet or Arrow file"):
        read(str(path))


@pytest.mark.parametrize("legacy", [False, True])
def test_a_stream_without_its_end_is_reported(tmp_path, caplog, legacy):
    """One that was cut behind a batch has whole rows, and is a valid stream."""
    texts = [letter * 64 for letter in "abc"]  # without zeros as padding
    path, table = tmp_path / "a.arrow", pa.table({"text": texts})
    options = pa.ipc.IpcWriteOptions(use_legacy_format=legacy)
    with pa.ipc.new_stream(path, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=1)
    for _ in range(2):
        assert read(str(path)) == texts
    assert "end marker" not in caplog.text
    with pa.memory_map(str(path)) as mapped:
        reader = pa.ipc.open_stream(mapped)
        reader.read_next_batch()
        size = mapped.tell()
    path.write_bytes(path.read_bytes()[:size])
    assert read(str(path)) == texts[:1]
    assert f"{path}: an Arrow stream without its end marker" in caplog.text


@pytest.mark.parametrize("form", ["stream.arrow", "file.arrow"])
@pytest.mark.parametrize("kind", ["string", "dictionary"])
def test_run_end_encoded_texts(tmp_path, form, kind, monkeypatch):
    monkeypatch.setattr(columnar, "BATCH_ROWS", 2)
    texts = pa.array(["a", "naïve 字", "b"])
    texts = texts.dictionary_encode() if kind == "dictionary" else texts
    runs = pa.RunEndEncodedArray.from_arrays(pa.array([2, 3, 5], "int32"), texts)
    path = write(tmp_path / f"a.{form}", pa.table({"text": runs}))
    assert read(path) == ["a", "a", "naïve 字", "b", "b"]
    (opened,) = open_sources(path)
    assert opened.expansion() > 0
    wrong = pa.RunEndEncodedArray.from_arrays(pa.array([2], "int32"), pa.array([7]))
    path = write(tmp_path / f"b.{form}", pa.table({"text": wrong}))
    with pytest.raises(ValueError, match=r"row 0: the field 'text' must be text. Received: int"):
        read(path)


def test_damaged_pages_are_named(tmp_path):
    path = tmp_path / "a.parquet"
    write(path, {"text": [f"text {i}" for i in range(200)]})
    content = bytearray(path.read_bytes())
    content[10:60] = bytes(50)
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"a\.parquet"):
        read(str(path))


def test_similar_formats_are_refused(tmp_path):
    path = tmp_path / "a.feather"
    path.write_bytes(b"FEA1....")
    with pytest.raises(ValueError, match=r"must have version 2.*Received: version 1"):
        read(path)
    path = tmp_path / "a.parquet.gz"
    path.write_bytes(b"\x1f\x8b....")
    with pytest.raises(ValueError, match=r"a.parquet.gz: .* unpack the file. Received: gzip data"):
        read(path)
    path = write(tmp_path / "a.parquet", pa.table([["a"], ["b"]], ["text", "text"]))
    with pytest.raises(ValueError, match=r"exactly one column .* 'text'.*\['text', 'text'\]$"):
        read(path)
    path = tmp_path / "b.parquet"
    note = pa.table({"text": ["a"]}).replace_schema_metadata({"huggingface": "{"})
    with pytest.raises(ValueError, match=r"b.parquet: The metadata 'huggingface' .* must be JSON"):
        read(write(path, note))


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    path = write(tmp_path / "a.parquet", {"text": ["a"]})
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"needs the extra: pip install 'kbert\[arrow\]'"):
        read(path)


@pytest.mark.parametrize("form", FORMS)
def test_remote_files(tmp_path, form):
    local = write(tmp_path / f"a.{form}", {"text": TEXTS})
    folder = f"ram://{uuid.uuid4().hex}"
    AnyPath(folder).mkdir()
    AnyPath(folder, f"a.{form}").write_bytes(AnyPath(local).read_bytes())
    assert read(f"{folder}/*.{form.split('.')[-1]}") == READ


MAKERS = {
    "pandas": pd.DataFrame,
    "pyarrow": pa.table,
    "a batch of pyarrow": lambda x: pa.table(x).to_batches()[0],
    "a dict": dict,
    "datasets": libraries.Dataset,
    "a stream": lambda x: libraries.IterableDataset(libraries.Dataset(x)),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_tables_in_memory(tmp_path, maker):
    data = MAKERS[maker]({"body": TEXTS, "label": range(7)})
    assert read(data, field="body") == READ
    (opened,) = open_sources(data, field="body")
    assert opened.size == sum(len(text.encode()) for text in TEXTS)
    list(opened.documents())
    assert opened.consumed == opened.size
    same, other = MAKERS[maker]({"body": TEXTS}), MAKERS[maker]({"body": [*TEXTS, "g"]})
    assert open_sources(same, field="body")[0].identity() == opened.identity()
    assert open_sources(other, field="body")[0].identity() != opened.identity()
    (tmp_path / "a.txt").write_text("From a file.")
    assert len(read([tmp_path / "a.txt", data, other], field="body")) == 1 + 7 + 8


def test_tables_in_memory_that_have_no_texts():
    with pytest.raises(ValueError, match=r"must have the column 'text'.*columns body"):
        open_sources(pd.DataFrame({"body": TEXTS}))
    with pytest.raises(ValueError, match=r"row 1 of the data: the field 'text' must be text"):
        open_sources({"text": ["a", None]})
    with pytest.raises(ValueError, match="column 'text' of the data holds no rows"):
        open_sources({"text": []})
    with pytest.raises(ValueError, match=r"choose a split.*a dict of train"):
        open_sources({"train": libraries.Dataset({"text": TEXTS})})
    with pytest.raises(ValueError, match="row 0 of the data: invalid UTF-8 at byte 1"):
        open_sources({"text": ["a\ud800"]})


@pytest.mark.parametrize("form", FORMS)
def test_pairs(tmp_path, form, caplog):
    both = [{"en": "Go.", "de": "Geh."}, {"en": " ", "de": "x"}, {"en": "Hi", "de": "Hallo"}]
    columns = {"translation": both, "en": [x["en"] for x in both], "de": [x["de"] for x in both]}
    path = write(tmp_path / f"a.{form}", columns)
    for names in (("en", "de"), ("translation.en", "translation.de"), ("en", "translation.de")):
        pairs = read_pairs(path, columns=names)
        assert list(pairs) == list(pairs) == [("Go.", "Geh."), ("Hi", "Hallo")]
        assert (pairs.empty, pairs.consumed) == (1, pairs.size)
    assert f"a.{form}, row 1" in caplog.text
    with pytest.raises(ValueError, match=r"must be named 'translation\.fr'"):
        list(read_pairs(path, columns=("en", "translation.fr")))
    with pytest.raises(ValueError, match=r"row 0: the field 'translation' must be text.*dict"):
        list(read_pairs(path, columns=("en", "translation")))
    for columns in (None, (0, 1)):
        with pytest.raises(ValueError, match=r"require the names of source and target"):
            read_pairs(path, columns=columns)
    with pytest.raises(ValueError, match=r"must have both sides in one file"):
        read_pairs(path, path)
