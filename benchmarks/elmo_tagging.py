"""ELMo's mix of layers against each layer alone, as features of a tagger on WNUT 2017.

The same head, settings and seeds on a frozen biLM; only what the head reads differs: the mix that
is trained with it (Peters et al. 2018, https://arxiv.org/abs/1802.05365, section 5.1 and table 2)
or one layer, with weights of the mix that stay where they are. Entity F1 on dev picks the epoch.

`python -m benchmarks.elmo_tagging --data FOLDER --elmo FOLDER [--seeds 3]`, where the one folder
holds train.conll, dev.conll and test.conll and the other an Elmo, kbert's or as published, such as
the one that `benchmarks.elmo` writes (bench-elmo/bilm-2-0).
"""

import argparse
import statistics
from pathlib import Path

import keras
import numpy as np

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import add_data
from kbert.data.readers import read_conll

PINNED = 100.0  # a weight of the mix before its softmax, beside zeros
# Nine words of ten are of no entity: without it a dense layer on a small biLM names hardly any.
ENTITY_WEIGHT = 5.0


def score(arguments: argparse.Namespace, tables: dict, layer: int | None, seed: int) -> dict:
    """F1 on dev and test, and the mix at the end, of one training."""
    print(f"  {'mix' if layer is None else f'layer {layer}'}, seed {seed} …", flush=True)
    keras.utils.set_random_seed(seed)
    encoder = kbert.models.ElmoEncoder(kbert.Elmo.from_preset(arguments.elmo))
    characters = kbert.CharacterTokenizer(encoder.config.max_characters)
    labels = sorted({label for row in tables["train"]["labels"] for label in row})
    task = kbert.tasks.TokenClassifier(encoder, characters, labels, dropout=arguments.dropout)
    frozen = ()
    if layer is not None:
        encoder.mix.scalars.assign(PINNED * np.eye(encoder.config.num_layers + 1)[layer])
        frozen = "encoder/mix/weights"
    task.fit(
        tables["train"],
        validation_data=tables["dev"],
        epochs=arguments.epochs,
        learning_rate=arguments.learning_rate,
        freeze=frozen,
        class_weights={label: 1.0 if label == "O" else ENTITY_WEIGHT for label in labels},
        seed=seed,
        verbose=0,
    )
    return {
        "dev": task.evaluate(tables["dev"], verbose=0)["f1"],
        "test": task.evaluate(tables["test"], verbose=0)["f1"],
        "mix": keras.ops.convert_to_numpy(keras.ops.softmax(encoder.mix.scalars)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_data(parser, ("train.conll", "dev.conll", "test.conll"))
    parser.add_argument("--elmo", required=True, help="folder of an Elmo")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--learning_rate", type=float, default=1e-2)
    parser.add_argument("--dropout", type=float, default=0.5)
    arguments = parser.parse_args()
    folder = Path(arguments.data)
    tables = {name: read_conll(folder / f"{name}.conll") for name in ("train", "dev", "test")}
    num_layers = kbert.Elmo.from_preset(arguments.elmo).config.num_layers
    rows = []
    for layer in (None, *range(num_layers + 1)):
        found = [score(arguments, tables, layer, seed) for seed in range(arguments.seeds)]
        means = [f"{100 * statistics.mean(x[name] for x in found):.1f}" for name in ("dev", "test")]
        weights = np.mean([x["mix"] for x in found], axis=0)
        shown = " ".join(f"{weight:.2f}" for weight in weights)
        rows.append(("mix" if layer is None else f"layer {layer}", *means, shown))
    experiments.print_table(("features", "dev F1", "test F1", "weights of the layers"), rows)


if __name__ == "__main__":
    main()
