"""The flag --data of benchmarks: a folder of data sets, of which it says what must lie in it."""

import argparse
from collections.abc import Sequence
from pathlib import Path

SST2 = tuple(f"glue/sst2-sentences/{name}.tsv" for name in ("train", "dev"))
STSB = tuple(f"glue/stsb/en-{name}.tsv" for name in ("train", "dev"))
GLUE = (
    *SST2,
    *STSB,
    *(f"glue/{task}/{name}.tsv" for task in ("rte", "cola") for name in ("train", "dev")),
    *("glue/snli/dev.tsv", "glue/snli/test.tsv"),
)
SQUAD = ("squad/train-sample-v1.1.json.gz", "squad/dev-v1.1.json.gz")

OTHERS = (
    "squad/dev-v2.0.rebuilt.json.gz",
    *(f"ner/wnut17/{name}.conll" for name in ("train", "dev")),
    *("ner/ud-ewt-pos/train.tsv.gz", "ner/ud-ewt-pos/dev.tsv"),
    "mc/codah/full_data.tsv",
)


def add_data(
    parser: argparse.ArgumentParser, files: Sequence[str], *, required: bool = True
) -> None:
    """Declares --data; a folder that has none of the files is refused, with all that it may have.

    Args:
        parser: of the benchmark.
        files: paths and patterns below the folder; a part of a benchmark may read some alone.
        required: whether the flag must be given.
    """

    def folder(path: str) -> Path:
        if not any(any(Path(path).glob(pattern)) for pattern in files):
            raise argparse.ArgumentTypeError(
                f"the folder must hold {', '.join(files)}. Received: {path}, with none of them"
            )
        return Path(path)

    parser.add_argument(
        "--data", type=folder, required=required, help=f"folder with {', '.join(files)}"
    )
