"""What objectives for whole sentences teach a small encoder: STS-B by frozen embeddings.

Every row of the table is an encoder of 2 layers of width 128, pretrained in one way:

- none: random weights;
- masked_lm: masked tokens of the corpus, the usual pretraining;
- quick_thought: the next sentence among those of the batch (Logeswaran & Lee 2018);
- skip_thought: both neighbours are written from the embedding (Kiros et al. 2015);
- tsdae: the sentence is written again after six of ten tokens were deleted (Wang et al. 2021);
- autoencoder: the same without deletions (Dai & Le 2015);
- cove: the encoder of a translation model, English to German (McCann et al. 2017);
- captions: `autoencoder` on the English sides of these translations, which are nearer to STS-B than
  the corpus: what of `cove` is the text, and what the objective.

All but the last two read the corpus of --text. Each trains on --rows sentences. An embedding is the
mean of the last layer. Spearman's correlation on the test set, of two kinds of scores: the cosine,
and a ridge regression on |u - v| and u * v of the training pairs, as in SentEval; dev chooses its
penalty.

The folder of --data holds `glue/stsb/en-*.tsv` and `nmt/multi30k/train.{en,de}` (or `.gz`).

`python -m benchmarks.sentence_objectives [none …] --data FOLDER [--text FILES] [--seeds 0 1 2]`
"""

import functools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import kbert
from benchmarks import _experiments as experiments
from benchmarks._data import STSB, add_data
from kbert.data import Table, read_table
from kbert.metrics import spearman
from kbert.tasks import Pretraining, SkipThought, TextDenoiser, TextEmbedder

NAMES = (
    "none masked_lm quick_thought skip_thought tsdae autoencoder cove captions"  # rows of the table
).split()
CAPTIONS = ("nmt/multi30k/train.en*", "nmt/multi30k/train.de*")
TOKENS = 64  # longest row
PRETRAINING = {"learning_rate": 1e-3, "decay": "linear", "verbose": 0}
BATCH = 64
DECODER_LAYERS = 1
POOLING = "mean"  # in training and of the features
PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)


class Texts:
    """The corpus, the translations, their tokenizers and STS-B, read when needed.

    Args:
        options: flags of the program.
        folder: folder for results.
    """

    def __init__(self, options: Any, folder: Path) -> None:
        self.text, self.data, self.rows = options.text, options.data, options.rows
        self.folder = folder

    @functools.cached_property
    def corpus(self) -> experiments.Corpus:
        return experiments.prepare(self.text, self.folder / "corpus")

    @functools.cached_property
    def translations(self) -> list[tuple[str, str]]:
        sides = [next(iter(sorted(self.data.glob(pattern)))) for pattern in CAPTIONS]
        return list(kbert.text.read_pairs(*sides))[: self.rows]

    @functools.cached_property
    def captions_tokenizer(self) -> kbert.WordPieceTokenizer:
        """Of both languages."""
        texts = (text for pair in self.translations for text in pair)
        pieces = kbert.tokenizers.train_wordpiece(texts, experiments.VOCABULARY)
        return kbert.WordPieceTokenizer(pieces)

    @functools.cached_property
    def sentences(self) -> list[str]:
        return list(kbert.data.neighbours(self.text, max_rows=self.rows)["first"])

    def stsb(self, split: str) -> Table:
        path = self.data / f"glue/stsb/en-{split}.tsv"
        columns = {"first": "sentence1", "second": "sentence2", "label": "score"}
        return read_table(path, columns=columns, numeric_labels=True)


def pretrain(name: str, seed: int, texts: Texts) -> tuple[Any, Any]:
    """Returns the encoder after one way of pretraining, or the translator, and its tokenizer."""
    captions = name in ("cove", "captions")
    tokenizer = texts.captions_tokenizer if captions else texts.corpus.tokenizer
    encoder = kbert.Encoder(experiments.config(tokenizer, max_positions=2 * TOKENS))
    settings = {**PRETRAINING, "seed": seed}
    of_rows = {**settings, "epochs": 1, "batch_size": BATCH}
    limits = {"max_length": TOKENS, "token_pooling": POOLING}
    if name == "masked_lm":
        rows = BATCH * TOKENS // experiments.LENGTH
        steps = texts.rows // rows
        train = texts.corpus.batches(seed=seed, batch_size=rows, segments="single")
        task = Pretraining(encoder, tokenizer, next_sentence=False)
        task.compile(experiments.default_optimizer(steps, 1e-3), clip_norm=1.0)
        task.fit(train, epochs=1, steps_per_epoch=steps, verbose=0)
    elif name == "quick_thought":
        pairs = kbert.data.neighbours(texts.text, max_rows=texts.rows)
        embedder = TextEmbedder(encoder, tokenizer, **limits)
        embedder.fit(pairs, loss="symmetric_ranking", **of_rows)
    elif name == "skip_thought":
        rows = kbert.data.neighbours(texts.text, both_sides=True, max_rows=texts.rows)
        SkipThought(encoder, tokenizer, decoder_layers=DECODER_LAYERS, **limits).fit(
            rows, **of_rows
        )
    elif name == "cove":
        config = kbert.Seq2SeqConfig(
            vocabulary_size=tokenizer.vocabulary_size,
            num_decoder_layers=DECODER_LAYERS,
            **{**experiments.SIZES, "max_positions": 2 * TOKENS},
        )
        translator = kbert.Translator(kbert.Seq2Seq(config), tokenizer)
        steps = texts.rows // BATCH
        translator.fit(texts.translations, max_tokens=BATCH * 18, steps=steps, **settings)
        return translator, tokenizer
    elif name != "none":
        found = [pair[0] for pair in texts.translations] if captions else texts.sentences
        rate = 0.6 if name == "tsdae" else 0.0
        denoiser = TextDenoiser(
            encoder, tokenizer, deletion_rate=rate, decoder_layers=DECODER_LAYERS, **limits
        )
        of_rows["epochs"] = -(-texts.rows // len(found))
        denoiser.fit(found, **of_rows)
    return encoder, tokenizer


def regression(train: Sequence, dev: Sequence, test: Sequence) -> float:
    """Spearman's correlation of a ridge regression, whose penalty is chosen on dev.

    Each argument is (vectors of the first sentences, of the second, scores).
    """

    def inputs(first: np.ndarray, second: np.ndarray) -> np.ndarray:
        return np.concatenate([abs(first - second), first * second], axis=1)

    x = inputs(*train[:2])
    mean, scale = x.mean(0), x.std(0) + 1e-6
    x, y = (x - mean) / scale, train[2] - np.mean(train[2])
    found = {}
    for penalty in PENALTIES:
        weights = np.linalg.solve(x.T @ x + penalty * np.eye(x.shape[1]), x.T @ y)
        scores = [
            spearman((inputs(*part[:2]) - mean) / scale @ weights, part[2]) for part in (dev, test)
        ]
        found[scores[0]] = scores[1]
    return found[max(found)]


def learn(name: str, seed: int, texts: Texts) -> dict[str, float]:
    """Pretrains an encoder and measures its embeddings."""
    began = time.process_time()
    model, tokenizer = pretrain(name, seed, texts)
    seconds = time.process_time() - began
    parts = {}
    for split in ("train", "dev", "test"):
        table = texts.stsb(split)
        first, second = (
            kbert.features(model, tokenizer, list(table[side]), pooling=POOLING)
            for side in ("first", "second")
        )
        parts[split] = first, second, np.asarray(table["label"], "float64")
    first, second, scores = parts["test"]
    norms = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    return {
        "cosine": 100 * spearman((first * second).sum(1) / norms, scores),
        "regression": 100 * regression(parts["train"], parts["dev"], parts["test"]),
        "minutes": seconds / 60,
    }


def main() -> None:
    flags = experiments.parser("sentence_objectives", __doc__)
    add_data(flags, (*STSB, "glue/stsb/en-test.tsv", *CAPTIONS))
    flags.add_argument("--rows", type=int, default=100_000, help="sentences of a pretraining")
    options = flags.parse_args()
    if unknown := set(options.names) - set(NAMES):
        flags.error(f"names are {', '.join(NAMES)}. Received: {', '.join(sorted(unknown))}")
    experiments.set_threads(options.threads)
    settings = {"text": options.text, "data": str(options.data)}
    folder = experiments.results_folder(options.output_dir, **settings)
    texts, table = Texts(options, folder), []
    for name in options.names or NAMES:
        results = []
        for seed in options.seeds:
            key = {"name": name, "seed": seed, "rows": options.rows, "pooling": POOLING}
            key |= PRETRAINING
            compute = functools.partial(learn, name, seed, texts)
            results.append(experiments.once(folder, key, compute))
        forms = {"cosine": ".1f", "regression": ".1f", "minutes": ".1f"}
        table.append((name, *(experiments.mean(results, *form) for form in forms.items())))
    experiments.print_table(("pretraining", "cosine", "regression", "CPU minutes"), table)


if __name__ == "__main__":
    main()
