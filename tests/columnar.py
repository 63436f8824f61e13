"""Writes Parquet, Arrow and Feather files, with the features that `datasets` notes in them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet

# The suffix and kind of a file -> how it is written.
FORMS = ("parquet", "stream.arrow", "file.arrow", "feather")


def classes(*names: str) -> dict[str, Any]:
    """A `ClassLabel` of `datasets`, as its files note it."""
    return {"names": list(names), "_type": "ClassLabel"}


def write(path: Path, table: Any, **features: Any) -> str:
    """Writes a table, or a dict of columns; the end of the path decides the format."""
    table = table if isinstance(table, pa.Table) else pa.table(table)
    if features:
        note = json.dumps({"info": {"features": features}})
        table = table.replace_schema_metadata({"huggingface": note})
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(table, path, row_group_size=3)
    elif path.suffix == ".feather":
        pyarrow.feather.write_feather(table, str(path), chunksize=3)
    else:
        opened = pa.ipc.new_stream if "stream" in path.name else pa.ipc.new_file
        with opened(path, table.schema) as writer:
            writer.write_table(table)
    return str(path)
