"""Benchmarks on data sets say which files a folder must hold."""

import argparse

import pytest

from benchmarks._data import SST2, add_data


def test_a_folder_without_the_data_is_told_what_lies_in_one(tmp_path, capsys):
    parser = argparse.ArgumentParser()
    add_data(parser, (*SST2, "train.en*"))
    with pytest.raises(SystemExit):
        parser.parse_args(["--data", str(tmp_path)])
    message = capsys.readouterr().err
    assert "glue/sst2-sentences/train.tsv, glue/sst2-sentences/dev.tsv, train.en*" in message
    assert message.endswith(f"Received: {tmp_path}, with none of them\n")
    assert "glue/sst2-sentences/dev.tsv" in parser.format_help()
    (tmp_path / "train.en.gz").touch()
    assert parser.parse_args(["--data", str(tmp_path)]).data == tmp_path
