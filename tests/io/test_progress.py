"""The progress bar says what was done, in a pipe as well as in a terminal."""

from kbert.io.progress import Progress


def test_the_last_line_tells_amount_documents_and_speed(capsys):
    with Progress("reading", 2_000_000, "B") as bar:
        bar.show(1_000_000, count=1200, text_bytes=3_000_000)
        bar.show(2_000_000, count=2500, text_bytes=6_000_000)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "reading: 100%" in last
    assert "2.00M/2.00M" in last
    assert "documents=2,500" in last
    assert " MB/s" in last


def test_counts_without_text(capsys):
    with Progress("shards", 3, " shards", "rows") as bar:
        bar.show(3, count=7)
    said = capsys.readouterr().err
    assert "3/3" in said
    assert "rows=7" in said
