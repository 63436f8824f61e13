"""ULMFiT and BERT with few labels: SST-2 by 100, 500 and 2,000 of them, beside models from scratch.

(Howard & Ruder 2018, https://arxiv.org/abs/1801.06146, section 5.) An AWD-LSTM and a BERT-tiny, of
about the same size and on the same word pieces, learn in up to three steps: a language model of
general text, the same on the task's training texts without their labels, then the classifier.

- ulmfit: all three; causal, and unfrozen from the top with slanted triangular rates;
- ulmfit_general: without the task's texts;
- awd_lstm: the classifier alone, from random weights;
- bert: all three steps, with masked tokens;
- bert_general, bert_tiny: the same without the task's texts, and from random weights.

Language models read equally many tokens. Accuracy on the test set after a fixed number of epochs.
The rate of each row is the best of three on dev, chosen once, at 500 labels and seed 0. The rows of
a smaller table are those of the larger one; a seed draws them and the weights.

The folder of --data holds `corpus/wikitext-2/train.txt` (or `.gz`) and `glue/sst2-sentences`.

`python -m benchmarks.few_labels [ulmfit …] --data FOLDER [--labels 100 500 2000] [--seeds 0 1 2]`
"""

import argparse
import functools
import time
from pathlib import Path
from typing import Any

import numpy as np

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import add_data
from benchmarks.elmo import articles
from kbert.configs import AwdLstmConfig
from kbert.data import Table, read_table
from kbert.tasks import MemoryLM, Pretraining

# Row of the table -> the texts that its language model reads, in this order.
ROWS = {
    "ulmfit": ("general", "task"),
    "ulmfit_general": ("general",),
    "awd_lstm": (),
    "bert": ("general", "task"),
    "bert_general": ("general",),
    "bert_tiny": (),
}
FILES = (
    "corpus/wikitext-2/train.txt*",
    *(f"glue/sst2-sentences/{split}.tsv" for split in ("train", "dev", "test")),
)
VOCABULARY = 8_000
LSTM = {"hidden_size": 128, "intermediate_size": 256, "max_positions": 128}
BATCH, LENGTH = 32, 70  # of the language models
RATES = {"ulmfit": (3e-3, 1e-2, 3e-2), "bert": (1e-4, 3e-4, 1e-3)}
# Language models: peak rates by text. The AWD-LSTM's moments are those of the recipe `ulmfit`.
PEAKS = {"ulmfit": {"general": 4e-3, "task": 2e-3}, "bert": {"general": 2e-3, "task": 1e-3}}
CHOSEN_AT = 500
EPOCHS = {100: 20, 500: 12, 2_000: 6}


def method(name: str) -> str:
    """The kind of a row: "ulmfit" or "bert"."""
    return "bert" if name.startswith("bert") else "ulmfit"


class Laboratory:
    """The texts, the tokenizer and the language models, made when needed.

    Args:
        options: flags of the program.
        folder: folder for results.
    """

    def __init__(self, options: argparse.Namespace, folder: Path) -> None:
        self.options, self.folder = options, folder
        path = options.data / "glue/sst2-sentences"
        columns = {"text": 0, "label": 1}
        self.tables = {
            split: read_table(path / f"{split}.tsv", header=False, columns=columns)
            for split in ("train", "dev", "test")
        }
        self.tokenizer = self._prepare()

    def _prepare(self) -> kbert.WordPieceTokenizer:
        """Shards of both texts with one vocabulary."""
        texts = {
            "general": articles(self.options.data / "corpus/wikitext-2", "train"),
            "task": list(self.tables["train"]["text"]),
        }
        if not (self.folder / "task/manifest.json").exists():
            lines = (line for part in texts.values() for text in part for line in text.split("\n"))
            pieces = kbert.tokenizers.train_wordpiece(lines, VOCABULARY)
            tokenizer = kbert.WordPieceTokenizer(pieces)
            for name, documents in texts.items():
                path = self.folder / f"{name}.txt"
                path.write_text("\n\n".join(documents), encoding="utf-8")
                kbert.data.prepare_corpus(
                    str(path), self.folder / name, tokenizer, held_out_share=0.02
                )
        return kbert.load_tokenizer(self.folder / "task")

    def encoder(self, kind: str) -> kbert.Encoder:
        """A model with random weights."""
        size = self.tokenizer.vocabulary_size
        if kind == "ulmfit":
            return kbert.Encoder(AwdLstmConfig(vocabulary_size=size, **LSTM))
        sizes = {"max_positions": 128, "dropout": 0.1}
        return kbert.Encoder(experiments.config(self.tokenizer, **sizes))

    def language_model(self, kind: str, texts: tuple[str, ...]) -> Path:
        """Weights of an encoder that has read these texts, one after the other."""
        path = self.folder / f"{kind}-{'-'.join(texts)}.weights.h5"
        *before, text = texts
        passes = self.options.passes if text == "general" else 2 * self.options.passes
        key = {"name": f"{kind}-{'-'.join(texts)}", "seed": 0, "passes": passes}

        def compute() -> dict[str, float]:
            encoder = self.encoder(kind)
            if before:
                encoder.load_weights(self.language_model(kind, tuple(before)))
            began = time.process_time()
            found = self._learn(kind, encoder, text, passes)
            encoder.save_weights(path)
            return {"minutes": (time.process_time() - began) / 60, **found}

        print(key, experiments.once(self.folder / "results", key, compute), flush=True)
        return path

    def _learn(self, kind: str, encoder: kbert.Encoder, text: str, passes: int) -> dict[str, float]:
        shards = self.folder / text
        peak, tokens = PEAKS[kind][text], kbert.data.read_manifest(shards).split("train").tokens
        steps = int(passes * tokens / (BATCH * LENGTH))
        if kind == "ulmfit":
            task = MemoryLM(encoder, self.tokenizer, memory_length=LENGTH, batch_size=BATCH)
            run = task.fit(
                shards,
                steps=steps,
                evaluate_every=steps,
                sequence_length=LENGTH,
                learning_rate=peak,
                decay="slanted_triangular",
                decay_join="after",
                warmup_steps=steps // 10,
                beta_1=0.7,
                beta_2=0.99,
                bias_correction=True,
                weight_decay=0.0,
                clip_norm=0.25,
                verbose=0,
            )
        else:
            task = Pretraining(encoder, self.tokenizer, next_sentence=False)
            run = task.fit(
                shards,
                steps=steps,
                evaluate_every=steps,
                sequence_length=LENGTH,
                batch_size=BATCH,
                segments="single",
                learning_rate=peak,
                warmup_steps=steps // 10,
                beta_2=0.98,
                verbose=0,
            )
        return {"steps": steps, **run.evaluations[-1]}

    def rows(self, count: int, seed: int) -> Table:
        """The first rows of the training set in a seed's order."""
        order = np.random.default_rng(seed).permutation(len(self.tables["train"]))
        return self.tables["train"].take(order[:count])

    def classify(self, name: str, count: int, seed: int, rate: float) -> dict[str, float]:
        """Accuracies of a classifier with this many labels."""
        kind = method(name)
        settings: dict[str, Any] = {"epochs": EPOCHS[count], "learning_rate": rate}
        if kind == "ulmfit" and ROWS[name]:
            settings |= {"unfreeze_every": 1, "layer_decay": 1 / 2.6}
        if kind == "ulmfit":
            settings["decay"] = "slanted_triangular"
        key = {"name": f"{name}-{count}", "seed": seed, **settings, "passes": self.options.passes}

        def compute() -> dict[str, float]:
            encoder = self.encoder(kind)
            if texts := ROWS[name]:
                encoder.load_weights(self.language_model(kind, texts))
            task = kbert.TextClassifier(encoder, self.tokenizer, ["0", "1"])
            began = time.process_time()
            task.fit(self.rows(count, seed), seed=seed, batch_size=32, verbose=0, **settings)
            seconds = time.process_time() - began
            scores = {
                split: 100 * task.evaluate(self.tables[split], verbose=0)["accuracy"]
                for split in ("dev", "test")
            }
            return {**scores, "minutes": seconds / 60}

        return experiments.once(self.folder / "results", key, compute)

    @functools.cache  # noqa: B019  # one laboratory, kept to the end
    def rate(self, name: str) -> float:
        """The best rate of a row, by dev at `CHOSEN_AT` labels."""
        found = {
            rate: self.classify(name, CHOSEN_AT, 0, rate)["dev"] for rate in RATES[method(name)]
        }
        return max(found, key=found.__getitem__)


def main() -> None:
    flags = argparse.ArgumentParser(prog="python -m benchmarks.few_labels", description=__doc__)
    flags.add_argument("names", nargs="*", choices=[*ROWS, []], metavar="name", help="rows")
    add_data(flags, FILES)
    flags.add_argument("--labels", type=int, nargs="+", choices=list(EPOCHS), default=list(EPOCHS))
    flags.add_argument("--seeds", type=int, nargs="+", default=[0])
    flags.add_argument("--passes", type=float, default=2.0, help="of the language model")
    flags.add_argument("--output_dir", default="bench-few-labels", help="kept between starts")
    flags.add_argument("--threads", type=int, help="of TensorFlow (default: one a core)")
    options = flags.parse_args()
    experiments.set_threads(options.threads)
    folder = experiments.results_folder(options.output_dir, data=str(options.data))
    laboratory, rows = Laboratory(options, folder), []
    for name in options.names or ROWS:
        cells = [name, f"{laboratory.rate(name):g}"]
        for count in options.labels:
            rate = laboratory.rate(name)
            results = [laboratory.classify(name, count, seed, rate) for seed in options.seeds]
            cells.append(experiments.mean(results, "test", ".1f"))
        rows.append(cells)
    titles = ("model", "rate", *(f"{count:,} labels" for count in options.labels))
    experiments.print_table(titles, rows)


if __name__ == "__main__":
    main()
